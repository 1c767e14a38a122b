//! Messages in few words, for those who read what happened.

use std::fmt;

use wallaby_proto::Manifest;
use wallaby_proto::wire::Message;

/// A message in few words.
pub(crate) struct Short<'a>(pub(crate) &'a Message);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.0.call();
        match self.0 {
            Message::Request(request) => {
                write!(f, "request {} of {call}, base {}", request.id, request.base)?;
                manifest(f, request.manifest)
            }
            Message::Response(response) => {
                let kind = if response.status {
                    "status"
                } else {
                    "response"
                };
                let last = if response.last { ", last" } else { "" };
                write!(
                    f,
                    "{kind} {}/{} of {call}{last}",
                    response.request, response.index
                )?;
                manifest(f, response.manifest)
            }
            Message::End(end) => {
                let facts = end.facts;
                write!(
                    f,
                    "end {} of {call}: {}+{}",
                    end.request, facts.requests, facts.responses
                )?;
                manifest(f, end.manifest)
            }
            Message::Ping(ping) => write!(
                f,
                "ping {} of {call}, abort {}, {:?}",
                ping.request, ping.abort, ping.missing
            ),
            Message::Pong(pong) => {
                let (announced, writing) = (pong.announced, pong.writing);
                write!(
                    f,
                    "pong {} of {call}, announced {announced}, writing {writing}, ",
                    pong.request
                )?;
                match &pong.progress {
                    Some(progress) => write!(f, "{progress:?}"),
                    None => f.write_str("unknown"),
                }
            }
            Message::Trace(report) => {
                write!(f, "trace of {call}, {} records", report.records.len())
            }
        }
    }
}

fn manifest(f: &mut fmt::Formatter<'_>, manifest: Option<Manifest>) -> fmt::Result {
    match manifest {
        Some(manifest) => {
            let (owner, facts) = (manifest.owner, manifest.facts);
            write!(f, ", {owner} sent {}+{}", facts.requests, facts.responses)
        }
        None => Ok(()),
    }
}
