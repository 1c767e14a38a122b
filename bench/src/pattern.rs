//! The patterns of messages that are measured, and whom they go to.

use crate::random::Random;
pub use crate::tree::{Form, Node, Query, Shape, Tree};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who sends what to whom in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pattern {
    /// One call: client → s1 → ... → sn → client, or a tree of such.
    Multihop(Shape),
    /// The same work by calls of the client: client → s1 → client → s2 → client ...
    Calls(Shape),
    /// Client → s1 → client, with so many of these round trips under way at any time.
    Concurrent {
        /// Round trips under way.
        calls: usize,
    },
}

impl Pattern {
    /// This work in this form.
    pub fn of(shape: Shape, form: Form) -> Self {
        match form {
            Form::Multihop => Self::Multihop(shape),
            Form::Calls => Self::Calls(shape),
        }
    }

    /// What is done in one operation.
    pub fn shape(self) -> Shape {
        match self {
            Self::Multihop(shape) | Self::Calls(shape) => shape,
            Self::Concurrent { .. } => Shape::Chain { servers: 1 },
        }
    }

    /// How it is done.
    pub fn form(self) -> Form {
        match self {
            Self::Multihop(_) => Form::Multihop,
            Self::Calls(_) | Self::Concurrent { .. } => Form::Calls,
        }
    }

    /// The parameter of the benchmark.
    pub fn n(self) -> usize {
        match self {
            Self::Multihop(shape) | Self::Calls(shape) => shape.n(),
            Self::Concurrent { calls } => calls,
        }
    }

    /// The name of its benchmark in result rows.
    pub fn bench(self) -> &'static str {
        match self {
            Self::Multihop(shape) | Self::Calls(shape) => shape.bench(),
            Self::Concurrent { .. } => "throughput",
        }
    }

    /// How many operations are under way at a time.
    pub fn under_way(self) -> usize {
        match self {
            Self::Concurrent { calls } => calls,
            _ => 1,
        }
    }

    /// How many different servers an operation should have to choose from, unless there are fewer.
    pub fn servers(self) -> usize {
        match self.shape() {
            Shape::Query(_) | Shape::Ray { .. } => self.requests().min(THESIS_SERVERS),
            Shape::Chain { .. } | Shape::Fan { .. } => self.requests(),
        }
    }

    /// With how few servers it can be carried out: requests may meet at one, but nobody passes them on to himself.
    pub fn least_servers(self) -> usize {
        self.servers().min(2)
    }

    /// The requests of an operation.
    pub fn requests(self) -> usize {
        self.shape().tree().nodes().len()
    }

    /// The messages that an operation needs if each is sent once and nothing else is.
    pub fn messages(self) -> usize {
        self.shape().tree().messages(self.form())
    }

    /// How many of [`Pattern::messages`] the client sends or receives.
    pub fn client_messages(self) -> usize {
        self.shape().tree().client_messages(self.form())
    }

    /// How many of [`Pattern::messages`] follow one another at least.
    pub fn depth(self) -> usize {
        self.shape().tree().depth(self.form())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Multihop(shape) | Self::Calls(shape) => shape.fmt(formatter),
            Self::Concurrent { calls } => write!(formatter, "{} n={calls}", self.bench()),
        }
    }
}

/// The servers that the thesis measures with (6.1); requests of its larger patterns share them.
pub(crate) const THESIS_SERVERS: usize = 20;

/// Draws the servers of each operation at random out of a pool: none for a second time before all had their turn.
#[derive(Clone, Debug)]
pub struct Routes {
    random: Random,
    pool: Vec<u8>,
    route: Vec<u8>,
}

impl Routes {
    /// Routes over servers 0 to `pool` - 1.
    pub fn new(pool: u8, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            pool: (0..pool).collect(),
            route: Vec::new(),
        }
    }

    /// The same without the server `absent`, who makes the calls itself.
    pub fn without(mut self, absent: u8) -> Self {
        self.pool.retain(|server| *server != absent);
        self
    }

    /// A server for each request of the tree. None passes on a request to itself, if there is another one.
    pub fn draw(&mut self, tree: &Tree) -> &[u8] {
        self.route.clear();
        let mut fresh = 0;
        for node in tree.nodes() {
            if fresh == 0 {
                self.random.choose(&mut self.pool, tree.nodes().len());
                fresh = self.pool.len();
            }
            let Some(place) = self.pool.len().checked_sub(fresh) else {
                break;
            };
            let above = node.parent.map(|parent| self.route[parent]);
            if above == self.pool.get(place).copied() && self.pool.len() > 1 {
                // The pool's order is random, so any other place is as good.
                let other = (place + 1) % self.pool.len();
                self.pool.swap(place, other);
            }
            let Some(server) = self.pool.get(place) else {
                break;
            };
            self.route.push(*server);
            fresh -= 1;
        }
        &self.route
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hop_is_a_round_trip_in_both_forms() {
        let one = Shape::Chain { servers: 1 };
        let (forward, sequential) = (Pattern::Multihop(one), Pattern::Calls(one));
        assert_eq!(forward.messages(), 2);
        assert_eq!(sequential.messages(), 2);
        assert_eq!(forward.client_messages(), sequential.client_messages());
        assert_eq!(Pattern::Concurrent { calls: 9 }.messages(), 2);
    }

    #[test]
    fn the_client_handles_fewer_messages_than_there_are() {
        for servers in 1..20 {
            let shapes = [
                Shape::Chain { servers },
                Shape::Fan { servers },
                Shape::Ray { bounces: servers },
            ];
            for pattern in shapes
                .into_iter()
                .flat_map(|shape| [Pattern::Multihop(shape), Pattern::Calls(shape)])
            {
                assert!(pattern.client_messages() <= pattern.messages());
                assert!(pattern.depth() <= pattern.messages());
            }
        }
    }

    #[test]
    fn no_server_is_twice_in_a_route_that_has_enough_of_them() {
        let mut routes = Routes::new(6, 1);
        for _ in 0..100 {
            let mut route = routes.draw(&Shape::Chain { servers: 5 }.tree()).to_vec();
            route.sort_unstable();
            route.dedup();
            assert_eq!(route.len(), 5);
        }
    }

    #[test]
    fn nobody_passes_a_request_on_to_itself() {
        for (pool, query) in [2, 3, 7, 20]
            .into_iter()
            .zip([Query::Is2, Query::Is7].into_iter().cycle())
        {
            let tree = Shape::Query(query).tree();
            let mut routes = Routes::new(pool, 3).without(1);
            for _ in 0..200 {
                let route = routes.draw(&tree);
                assert_eq!(route.len(), tree.nodes().len());
                assert!(!route.contains(&1), "it is absent");
                for (node, server) in tree.nodes().iter().zip(route) {
                    let above = node.parent.map(|parent| route[parent]);
                    assert!(pool == 2 || above != Some(*server), "{route:?}");
                }
            }
        }
        assert!(
            Routes::new(0, 1)
                .draw(&Shape::Fan { servers: 2 }.tree())
                .is_empty()
        );
    }
}
