//! Ways back to initiators that are not connected: by initiator, so many and no more, shared among connections.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wallaby_proto::NodeId;

/// Ways back as `W`. If there are too many, the oldest goes of the connection that has most: who invents initiators displaces
/// its own. Those of connections that have ended go first.
#[derive(Debug)]
pub(super) struct Routes<W> {
    limit: usize,
    by_initiator: HashMap<NodeId, Route<W>>,
    by_connection: BTreeMap<u64, Led>,
    /// Connections by whether they have ended, and by how many ways they have.
    by_size: BTreeSet<(bool, usize, u64)>,
    /// How often a way was learnt.
    time: u64,
}

#[derive(Debug)]
struct Route<W> {
    depth: u32,
    way: W,
    connection: u64,
    learnt: u64,
}

/// Where one connection leads.
#[derive(Debug, Default)]
struct Led {
    has_ended: bool,
    /// By when it was learnt.
    to: BTreeMap<u64, NodeId>,
}

impl<W> Routes<W> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            by_initiator: HashMap::new(),
            by_connection: BTreeMap::new(),
            by_size: BTreeSet::new(),
            time: 0,
        }
    }

    /// A way to this initiator, who is `depth` hops away; a shorter one that is known is kept.
    pub(super) fn learn(&mut self, initiator: NodeId, depth: u32, connection: u64, way: W) {
        match self.by_initiator.get(&initiator) {
            Some(known) if known.depth < depth => return,
            Some(_) => self.forget(initiator),
            None if self.by_initiator.len() >= self.limit => self.make_room(connection),
            None => {}
        }
        if self.by_initiator.len() >= self.limit {
            return;
        }
        self.time += 1;
        let learnt = self.time;
        self.change(connection, |led| {
            led.to.insert(learnt, initiator);
        });
        let route = Route {
            depth,
            way,
            connection,
            learnt,
        };
        self.by_initiator.insert(initiator, route);
    }

    pub(super) fn find(&self, initiator: NodeId) -> Option<&W> {
        Some(&self.by_initiator.get(&initiator)?.way)
    }

    /// A connection has ended. How long its ways were is kept as long as there is room.
    pub(super) fn ended(&mut self, connection: u64) {
        if self.by_connection.contains_key(&connection) {
            self.change(connection, |led| led.has_ended = true);
        }
    }

    /// Forgets the oldest way of the connection that has most: of this one if no other has more.
    fn make_room(&mut self, connection: u64) {
        let Some(&(has_ended, most, other)) = self.by_size.last() else {
            return;
        };
        let own = self.by_connection.get(&connection);
        let has_most = own.is_some_and(|own| !has_ended && own.to.len() >= most);
        let from = if has_most { connection } else { other };
        let led = self.by_connection.get(&from);
        if let Some((_, &oldest)) = led.and_then(|led| led.to.first_key_value()) {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, initiator: NodeId) {
        if let Some(route) = self.by_initiator.remove(&initiator) {
            self.change(route.connection, |led| {
                led.to.remove(&route.learnt);
            });
        }
    }

    /// Something changes of a connection, which may have no ways before or after.
    fn change(&mut self, connection: u64, change: impl FnOnce(&mut Led)) {
        let led = self.by_connection.entry(connection).or_default();
        self.by_size
            .remove(&(led.has_ended, led.to.len(), connection));
        change(led);
        if led.to.is_empty() {
            self.by_connection.remove(&connection);
        } else {
            self.by_size
                .insert((led.has_ended, led.to.len(), connection));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u64) -> NodeId {
        NodeId::new(number).expect("not zero")
    }

    fn learn(routes: &mut Routes<u64>, initiator: u64, connection: u64) {
        routes.learn(node(initiator), 1, connection, connection);
    }

    #[test]
    fn who_invents_initiators_displaces_its_own() {
        let mut routes = Routes::new(1000);
        for initiator in 1..=100 {
            learn(&mut routes, initiator, initiator % 4);
        }
        for initiator in 1_000..100_000 {
            learn(&mut routes, initiator, 9);
        }
        for initiator in 1..=100 {
            let way = routes.find(node(initiator));
            assert_eq!(way, Some(&(initiator % 4)));
        }
        assert_eq!(routes.by_initiator.len(), 1000);
        assert_eq!(routes.find(node(1_000)), None);
        assert_eq!(routes.find(node(99_999)), Some(&9));
        // Others have room up to what it has.
        for initiator in 200..500 {
            learn(&mut routes, initiator, 5);
        }
        let known = (200..500).filter(|initiator| routes.find(node(*initiator)).is_some());
        assert_eq!(known.count(), 300);
    }

    #[test]
    fn ways_that_have_ended_go_first() {
        let mut routes = Routes::new(10);
        for initiator in 1..=10 {
            learn(&mut routes, initiator, initiator / 8);
        }
        routes.ended(1); // 8, 9 and 10
        for initiator in 11..14 {
            learn(&mut routes, initiator, 0);
        }
        let known: Vec<u64> = (1..14)
            .filter(|known| routes.find(node(*known)).is_some())
            .collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 6, 7, 11, 12, 13]);
        learn(&mut routes, 14, 0);
        assert_eq!(routes.find(node(1)), None, "the oldest of its own");
    }

    #[test]
    fn the_shortest_way_is_kept_and_nothing_is_left_behind() {
        let mut routes = Routes::new(10);
        routes.learn(node(1), 2, 1, 1);
        routes.learn(node(1), 3, 2, 2);
        assert_eq!(routes.find(node(1)), Some(&1));
        routes.ended(1);
        routes.learn(node(1), 3, 2, 2);
        assert_eq!(routes.find(node(1)), Some(&1), "how long it was is kept");
        routes.learn(node(1), 2, 3, 3);
        assert_eq!(routes.find(node(1)), Some(&3));
        assert_eq!((routes.by_connection.len(), routes.by_size.len()), (1, 1));
    }

    /// Each way that is learnt is listed once, and at most one other goes for it.
    #[test]
    fn a_way_costs_the_same_however_many_there_are() {
        for limit in [100, 10_000] {
            let mut routes = Routes::new(limit);
            let mut before = 0;
            for initiator in 1..=2 * limit as u64 {
                learn(&mut routes, initiator, initiator % 50);
                let len = routes.by_initiator.len();
                assert!(len == before + 1 || len == before && len == limit);
                before = len;
                assert!(routes.by_size.len() <= 50 && routes.by_connection.len() <= 50);
            }
            let listed: usize = routes.by_connection.values().map(|led| led.to.len()).sum();
            assert_eq!(listed, limit);
        }
    }
}
