//! How a line of servers is made, and how messages go down it.

use wallaby_proto::Address;

use super::head::MOST_SERVERS;
use crate::error::Failure;

/// How a pipelined multicast is made ([`crate::Caller::pipeline_with`]). There may be more fields in any later version: end a literal
/// with `..Default::default()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSettings {
    /// When each server passes the message on. Default: while it arrives.
    pub forwarding: Forwarding,
    /// Most servers of a line, at most 256. Beyond: the multicast fails at once. Default 16.
    pub limit: usize,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            forwarding: Forwarding::default(),
            limit: 16,
        }
    }
}

/// When a server of a line passes a message on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Forwarding {
    /// While it arrives: the time to reach the last server hardly grows with the line.
    #[default]
    CutThrough,
    /// When it is whole: each server keeps all of it first, within [`crate::Builder::stored`]. To compare, and for who wants no
    /// server to get what another before it has not got whole.
    StoreAndForward,
}

impl PipelineSettings {
    /// Whether these servers may stand in a line.
    ///
    /// # Errors
    ///
    /// If no message can go down such a line.
    pub(super) fn check(&self, servers: &[Address]) -> Result<(), Failure> {
        let (given, limit) = (servers.len(), self.limit.min(MOST_SERVERS));
        let no_line = |reason: String| Err(Failure::NoLine { reason });
        if given > limit {
            return no_line(format!("{given} servers: at most {limit} may be in it"));
        }
        let twice = |(place, server): &(usize, &Address)| servers[..*place].contains(server);
        if let Some((_, server)) = servers.iter().enumerate().find(twice) {
            return no_line(format!("{server} stands in it twice"));
        }
        // Over datagrams one server gets a message, but nothing follows it.
        let mut datagrams = servers.iter().filter(|at| at.is_udp());
        if let (Some(server), true) = (datagrams.next(), given > 1) {
            return no_line(format!(
                "{server} cannot be in it: streams of bytes go over tcp:, unix:, shm: and mem:"
            ));
        }
        Ok(())
    }
}
