//! What a server process tells: to a person its address, to the program that started it lines of JSON.

use super::documents::Skipped;
use crate::progress::Progress;
use serde::{Deserialize, Serialize};
use std::io::Write;

/// One line on a server's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// How far it is with its documents.
    Progress { done: u64, total: u64 },
    /// It serves from now on.
    Ready(Ready),
}

/// A server that serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) address: String,
    /// How many documents it holds, or has indexed.
    pub(crate) documents: u64,
    /// How many different words it has indexed.
    pub(crate) words: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
}

/// Where a server's events go.
pub(crate) enum Teller {
    /// Progress on standard error, the address on standard output.
    Person(Progress),
    /// All as [`Event`]s.
    Program {
        /// Progress is told in percents: the last one.
        last: Option<u64>,
    },
}

impl Teller {
    pub(crate) fn new(to_program: bool, what: &'static str) -> Self {
        match to_program {
            true => Self::Program { last: None },
            false => Self::Person(Progress::new(what)),
        }
    }

    pub(crate) fn progress(&mut self, done: u64, total: u64) {
        match self {
            Self::Person(progress) => progress.set(done, total),
            Self::Program { last } => {
                let percent = (done * 100).checked_div(total).unwrap_or(100);
                if *last != Some(percent) {
                    *last = Some(percent);
                    // A reader that is gone shows when the address is told.
                    let _ = tell(&Event::Progress { done, total });
                }
            }
        }
    }

    /// The last thing a server tells.
    pub(crate) fn ready(self, ready: Ready) -> anyhow::Result<()> {
        match self {
            Self::Program { .. } => tell(&Event::Ready(ready)),
            Self::Person(progress) => {
                for line in ready
                    .skipped
                    .sentence()
                    .iter()
                    .chain(&ready.skipped.problems)
                {
                    progress.note(line);
                }
                drop(progress);
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", ready.address)?;
                Ok(out.flush()?)
            }
        }
    }
}

fn tell(event: &Event) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_of_json() {
        let ready = Event::Ready(Ready {
            address: "tcp://127.0.0.1:1".to_owned(),
            ..Ready::default()
        });
        let line = serde_json::to_string(&ready).unwrap();
        assert!(
            line.starts_with(r#"{"event":"ready","address":"tcp://127.0.0.1:1""#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), ready);
        let progress = r#"{"event":"progress","done":1,"total":2}"#;
        assert_eq!(
            serde_json::from_str::<Event>(progress).unwrap(),
            Event::Progress { done: 1, total: 2 }
        );
    }
}
