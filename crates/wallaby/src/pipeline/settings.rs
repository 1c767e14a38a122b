//! How a line of servers is made, and how messages go down it.

use std::net::IpAddr;

use wallaby_proto::Address;

use super::head::MOST_SERVERS;
use crate::error::Failure;

/// How a pipelined multicast is made ([`crate::Caller::pipeline_with`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSettings {
    /// In which order the servers stand. Default: as they are given.
    pub order: Order,
    /// When each of them passes the message on. Default: while it arrives.
    pub forwarding: Forwarding,
    /// How the servers answer. Default: each directly.
    pub answers: Answers,
    /// Most servers of a line, at most 256. Beyond: the multicast fails at once. Default 16.
    pub limit: usize,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            order: Order::default(),
            forwarding: Forwarding::default(),
            answers: Answers::default(),
            limit: 16,
        }
    }
}

/// In which order servers stand in a line. Results name servers by their number as given in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// As they are given: for who knows how the servers are connected.
    #[default]
    AsGiven,
    /// Those of this host first (`unix:`, `shm:`, `mem:`), then by IP address, then by port: those of one host stand side by
    /// side, so that the message reaches each host once, and those of one network mostly do.
    ByHost,
}

/// When a server of a line passes a message on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Forwarding {
    /// While it arrives: the time to reach the last server hardly grows with the line.
    #[default]
    CutThrough,
    /// When it is whole: each server keeps all of it first, within [`crate::Limits::stored`]. To compare, and for who wants no
    /// server to get what another before it has not got whole.
    StoreAndForward,
}

/// How the servers of a line answer. The initiator is told the same of each in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Answers {
    /// Each directly, as soon as it can.
    #[default]
    Direct,
    /// Back along the line: each waits for the answers of those behind it, and sends them together with its own to whom it
    /// got the message from. For many servers with short answers: all arrive over one connection at the same time. One that
    /// is slow keeps back those of the servers before it, until a quarter of the call's time is left.
    ///
    /// What takes too much room ([`crate::Limits::gathered`]) does not wait. Where the line has broken, answers go directly.
    Gathered,
}

impl PipelineSettings {
    /// The servers' numbers in the order in which they stand in the line.
    ///
    /// # Errors
    ///
    /// If no message can go down such a line.
    pub(super) fn line_of(&self, servers: &[Address]) -> Result<Vec<usize>, Failure> {
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
        let mut datagrams = servers.iter().filter(|at| matches!(at, Address::Udp(_)));
        if let (Some(server), true) = (datagrams.next(), given > 1) {
            return no_line(format!(
                "{server} cannot be in it: streams of bytes go over tcp:, unix:, shm: and mem:"
            ));
        }
        let mut line: Vec<usize> = (0..given).collect();
        if self.order == Order::ByHost {
            line.sort_by_key(|server| host_and_port(&servers[*server]));
        }
        Ok(line)
    }
}

fn host_and_port(address: &Address) -> (Option<IpAddr>, u16) {
    match address {
        Address::Tcp(at) | Address::Udp(at) => (Some(at.ip()), at.port()),
        _ => (None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_a_host_stand_side_by_side() {
        let servers = [
            "tcp://10.0.0.2:1",
            "tcp://10.0.0.1:9",
            "unix:///b",
            "tcp://10.0.0.2:0",
            "tcp://10.0.0.1:7",
            "mem://a",
        ];
        let servers = servers.map(|text| text.parse().expect(text));
        let settings = PipelineSettings {
            order: Order::ByHost,
            ..PipelineSettings::default()
        };
        assert_eq!(settings.line_of(&servers), Ok(vec![2, 5, 4, 1, 3, 0]));
        let as_given = PipelineSettings::default().line_of(&servers);
        assert_eq!(as_given, Ok(vec![0, 1, 2, 3, 4, 5]));
    }
}
