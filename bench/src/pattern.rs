//! The patterns of messages that are measured (figures 6.1 and 6.2 of the DPC thesis), and whom they go to.

use crate::random::Random;

/// Who sends what to whom in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Client → s1 → ... → sn → client.
    Forward {
        /// Servers in sequence.
        servers: usize,
    },
    /// Client → s1 → client → s2 → client ...: the same work, one round trip after the other.
    Sequential {
        /// Servers in sequence.
        servers: usize,
    },
    /// Client → s1, which sends to m servers at once, each of which answers the client.
    Spread {
        /// Servers in parallel, s1 not included.
        servers: usize,
    },
    /// Client → s1 → client, which then sends to m servers at once, each of which answers it.
    Parallel {
        /// Servers in parallel, s1 not included.
        servers: usize,
    },
    /// Client → s1 → client, with so many of these round trips under way at any time.
    Concurrent {
        /// Round trips under way.
        calls: usize,
    },
}

impl Pattern {
    /// The parameter of the benchmark.
    pub fn n(self) -> usize {
        match self {
            Self::Forward { servers }
            | Self::Sequential { servers }
            | Self::Spread { servers }
            | Self::Parallel { servers } => servers,
            Self::Concurrent { calls } => calls,
        }
    }

    /// How many operations are under way at a time.
    pub fn under_way(self) -> usize {
        match self {
            Self::Concurrent { calls } => calls,
            _ => 1,
        }
    }

    /// How many different servers take part in an operation.
    pub fn servers(self) -> usize {
        match self {
            Self::Forward { servers } | Self::Sequential { servers } => servers,
            Self::Spread { servers } | Self::Parallel { servers } => servers + 1,
            Self::Concurrent { .. } => 1,
        }
    }

    /// The messages that an operation needs if each is sent once and nothing else is.
    pub fn messages(self) -> usize {
        match self {
            Self::Forward { servers } => servers + 1,
            Self::Sequential { servers } => 2 * servers,
            Self::Spread { servers } => 1 + 2 * servers,
            Self::Parallel { servers } => 2 + 2 * servers,
            Self::Concurrent { .. } => 2,
        }
    }

    /// How many of [`Pattern::messages`] the client sends or receives.
    pub fn client_messages(self) -> usize {
        match self {
            Self::Forward { .. } | Self::Concurrent { .. } => 2,
            Self::Sequential { servers } => 2 * servers,
            Self::Spread { servers } => 1 + servers,
            Self::Parallel { servers } => 2 + 2 * servers,
        }
    }

    /// How many of [`Pattern::messages`] follow one another at least.
    pub fn depth(self) -> usize {
        match self {
            Self::Forward { servers } => servers + 1,
            Self::Sequential { servers } => 2 * servers,
            Self::Spread { .. } => 3,
            Self::Parallel { .. } => 4,
            Self::Concurrent { .. } => 2,
        }
    }
}

/// Draws the servers of each operation at random out of a pool, no server twice in one operation.
#[derive(Clone, Debug)]
pub struct Routes {
    random: Random,
    pool: Vec<u8>,
}

impl Routes {
    /// Routes over servers 0 to `pool` - 1.
    pub fn new(pool: u8, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            pool: (0..pool).collect(),
        }
    }

    /// The next route, in order; at most the whole pool.
    pub fn draw(&mut self, servers: usize) -> &[u8] {
        self.random.choose(&mut self.pool, servers);
        &self.pool[..servers.min(self.pool.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hop_is_a_round_trip_in_both_forms() {
        let (forward, sequential) = (
            Pattern::Forward { servers: 1 },
            Pattern::Sequential { servers: 1 },
        );
        assert_eq!(forward.messages(), 2);
        assert_eq!(sequential.messages(), 2);
        assert_eq!(forward.client_messages(), sequential.client_messages());
    }

    #[test]
    fn the_client_handles_fewer_messages_than_there_are() {
        for servers in 1..20 {
            for pattern in [
                Pattern::Forward { servers },
                Pattern::Sequential { servers },
                Pattern::Spread { servers },
                Pattern::Parallel { servers },
                Pattern::Concurrent { calls: servers },
            ] {
                assert!(pattern.client_messages() <= pattern.messages());
                assert!(pattern.depth() <= pattern.messages());
            }
        }
    }

    #[test]
    fn no_server_is_twice_in_a_route() {
        let mut routes = Routes::new(6, 1);
        for _ in 0..100 {
            let mut route = routes.draw(5).to_vec();
            route.sort_unstable();
            route.dedup();
            assert_eq!(route.len(), 5);
        }
    }
}
