//! Fair shares of a table whose places peers take and keep: by connection, and within one by initiator.
//!
//! Connections are what is shared among first: they are few, and cost their owner something, while anybody can invent
//! initiators. A front server has many initiators on one connection, so these share what is the connection's.
//!
//! While a table is nearly empty, one holder may take nearly all of it. The less is free, the less a holder may have: a
//! connection at most eight times what is free, and an initiator at most eight times what its connection may have more; and
//! less yet once less than an eighth is free, in proportion to that. So some places are free for those who have few, nobody has to
//! be counted, and nothing is reserved for those who are not there. A table of up to eight places can be filled by one initiator.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{ConnId, NodeId};
use crate::slots::Slots;

/// How many times what is free one holder may have.
const TIMES: usize = 8;

/// Holders without a place that stay known: most come again soon.
const MOST_IDLE: usize = 1024;

/// No holder was named yet.
const NONE: u32 = u32::MAX - 1;

/// Names an initiator on a connection, as long as it holds a place, or until another one is [named](Shares::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl Share {
    /// That of nobody: it has taken none.
    pub(crate) const NOBODY: Self = Self(u32::MAX);
}

/// Who has how many places of a table.
#[derive(Debug)]
pub(crate) struct Shares {
    limit: usize,
    /// Up to here nobody can have more than its share.
    plenty: usize,
    taken: usize,
    holders: Slots<Holder>,
    connections: Slots<ConnShares>,
    by_name: BTreeMap<(ConnId, NodeId), u32>,
    by_conn: BTreeMap<ConnId, u32>,
    /// The one that was named last, and how many places were taken when it was: requests come in rows, and it alone changes
    /// that number meanwhile.
    last: u32,
    last_name: Option<(ConnId, NodeId)>,
    settled: usize,
    /// Those that had no place when they were put here, longest ago first; some may have one by now.
    idle: VecDeque<u32>,
}

/// An initiator on a connection.
#[derive(Debug)]
struct Holder {
    name: (ConnId, NodeId),
    connection: u32,
    taken: usize,
    is_idle: bool,
}

#[derive(Debug)]
struct ConnShares {
    conn: ConnId,
    taken: usize,
    /// Its initiators that are known.
    holders: u32,
}

impl Shares {
    /// A table with so many places, all free.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            plenty: limit - limit.div_ceil(TIMES),
            taken: 0,
            holders: Slots::default(),
            connections: Slots::default(),
            by_name: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            last: NONE,
            last_name: None,
            settled: 0,
            idle: VecDeque::new(),
        }
    }

    /// How many places are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// The share of an initiator on a connection.
    #[inline]
    pub(crate) fn name(&mut self, conn: ConnId, initiator: NodeId) -> Share {
        if self.last_name != Some((conn, initiator)) {
            self.look_up((conn, initiator));
        }
        Share(self.last)
    }

    #[inline(never)]
    fn look_up(&mut self, name: (ConnId, NodeId)) {
        self.settle();
        self.last = match self.by_name.get(&name) {
            Some(holder) => *holder,
            None => self.add(name),
        };
        self.last_name = Some(name);
    }

    /// Counts what the one that was named last has taken and given back since then.
    fn settle(&mut self) {
        // More may have been given back than was taken.
        let change = self.taken.wrapping_sub(self.settled);
        self.settled = self.taken;
        if let Some(holder) = self.holders.find_mut(self.last) {
            holder.taken = holder.taken.wrapping_add(change);
            let connection = &mut self.connections[holder.connection];
            connection.taken = connection.taken.wrapping_add(change);
            if holder.taken == 0 && !holder.is_idle {
                self.rest(self.last);
            }
        }
    }

    fn add(&mut self, name: (ConnId, NodeId)) -> u32 {
        let connection = self.connection(name.0);
        self.connections[connection].holders += 1;
        let new = Holder {
            name,
            connection,
            taken: 0,
            is_idle: false,
        };
        let holder = self.holders.add(new);
        self.by_name.insert(name, holder);
        holder
    }

    fn connection(&mut self, conn: ConnId) -> u32 {
        if let Some(known) = self.by_conn.get(&conn) {
            return *known;
        }
        let new = ConnShares {
            conn,
            taken: 0,
            holders: 0,
        };
        let connection = self.connections.add(new);
        self.by_conn.insert(conn, connection);
        connection
    }

    /// A holder has no place. If there are too many of these, the one is forgotten that has had none for longest.
    #[inline(never)]
    fn rest(&mut self, holder: u32) {
        self.holders[holder].is_idle = true;
        self.idle.push_back(holder);
        if self.idle.len() <= MOST_IDLE {
            return;
        }
        if let Some(idle) = self.idle.pop_front() {
            self.holders[idle].is_idle = false;
            if self.holders[idle].taken == 0 && idle != self.last {
                self.forget(idle);
            }
        }
    }

    fn forget(&mut self, holder: u32) {
        let Holder {
            name, connection, ..
        } = self.holders[holder];
        self.by_name.remove(&name);
        self.holders.free(holder);
        let of_connection = &mut self.connections[connection];
        of_connection.holders -= 1;
        if of_connection.holders == 0 {
            self.by_conn.remove(&of_connection.conn);
            self.connections.free(connection);
        }
    }

    /// How many places a holder has taken, and its connection.
    fn counts(&mut self, Share(holder): Share) -> (usize, usize) {
        self.settle();
        let holder = self.holders.find(holder);
        holder.map_or((0, 0), |holder| {
            let connection = &self.connections[holder.connection];
            (holder.taken, connection.taken)
        })
    }

    /// How many places a holder has taken.
    pub(crate) fn taken_by(&mut self, share: Share) -> usize {
        self.counts(share).0
    }

    /// How many places the holder's connection has taken.
    pub(crate) fn taken_by_connection(&mut self, share: Share) -> usize {
        self.counts(share).1
    }

    /// How much a holder has, with what its connection has: who has least is served first.
    pub(crate) fn weight(&mut self, share: Share) -> usize {
        let (own, connection) = self.counts(share);
        own + connection * TIMES
    }

    /// Whether somebody who has so much may have another place.
    pub(crate) fn allows(&self, weight: usize) -> bool {
        self.allows_of(weight, self.limit.saturating_sub(self.taken))
    }

    /// The same where so many places are free.
    fn allows_of(&self, weight: usize, free: usize) -> bool {
        let [weight, free, limit] = [weight, free, self.limit].map(|number| number as u128);
        let times = TIMES as u128;
        // Of the last eighth each may have the less the less is free: else a few that come one after the other would fill it.
        let scarce = free.saturating_mul(times).min(limit);
        weight.saturating_mul(limit) < free.saturating_mul(times * times).saturating_mul(scarce)
    }

    /// Whether so many places are free that anybody may have so many.
    pub(crate) fn is_plenty(&self, places: usize) -> bool {
        self.taken.saturating_add(places) <= self.plenty
    }

    /// Whether a holder may have another place.
    pub(crate) fn has_room(&mut self, share: Share) -> bool {
        self.has_room_for(share, 1)
    }

    /// Whether a holder may have so many places more: all of them if it may have the last one.
    #[inline(never)]
    pub(crate) fn has_room_for(&mut self, share: Share, places: usize) -> bool {
        let before = places.saturating_sub(1);
        let weight = self.weight(share);
        let weight = weight.saturating_add(before.saturating_mul(1 + TIMES));
        let free = self.limit.saturating_sub(self.taken);
        self.allows_of(weight, free.saturating_sub(before))
    }

    /// An initiator on a connection takes a place, if it may have another one.
    ///
    /// # Errors
    ///
    /// Its share if it may not.
    #[inline]
    pub(crate) fn try_take(&mut self, conn: ConnId, initiator: NodeId) -> Result<Share, Share> {
        self.try_take_all(conn, initiator, 1)
    }

    /// The same for so many places: all or none. A table of bytes has a place for each.
    ///
    /// # Errors
    ///
    /// As with [`Self::try_take`].
    #[inline]
    pub(crate) fn try_take_all(
        &mut self,
        conn: ConnId,
        initiator: NodeId,
        places: usize,
    ) -> Result<Share, Share> {
        let share = self.name(conn, initiator);
        // As long as no more is taken nobody can have too much.
        if !self.is_plenty(places) && !self.has_room_for(share, places) {
            return Err(share);
        }
        self.taken = self.taken.saturating_add(places);
        Ok(share)
    }

    /// An initiator on a connection takes so many places, whether it may or not.
    pub(crate) fn take_all(&mut self, conn: ConnId, initiator: NodeId, places: usize) -> Share {
        let share = self.name(conn, initiator);
        self.taken = self.taken.saturating_add(places);
        share
    }

    /// An initiator on a connection takes a place, as it may.
    pub(crate) fn take(&mut self, conn: ConnId, initiator: NodeId) {
        self.name(conn, initiator);
        self.taken += 1;
    }

    /// A holder gives a place back that it took.
    #[inline]
    pub(crate) fn give_back(&mut self, share: Share) {
        self.give_back_all(share, 1);
    }

    /// A holder gives places back that it took.
    #[inline]
    pub(crate) fn give_back_all(&mut self, share: Share, places: usize) {
        if share.0 != self.last {
            return self.give_back_of_other(share, places);
        }
        self.taken -= places;
    }

    #[inline(never)]
    fn give_back_of_other(&mut self, Share(number): Share, places: usize) {
        if let Some(holder) = self.holders.find_mut(number) {
            self.taken -= places;
            self.settled = self.settled.wrapping_sub(places);
            holder.taken -= places;
            self.connections[holder.connection].taken -= places;
            if holder.taken == 0 && !holder.is_idle {
                self.rest(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_too_much_while_there_is_plenty() {
        for limit in 0..100 {
            let mut shares = Shares::new(limit);
            let share = shares.name(ConnId::from_number(1), node(1));
            while shares.taken < shares.plenty {
                assert!(shares.has_room(share), "{} of {limit}", shares.taken);
                shares.take(ConnId::from_number(1), node(1));
            }
        }
    }

    fn node(number: u64) -> NodeId {
        NodeId::new(number).expect("not zero")
    }

    /// Takes as many places as there are for it, up to so many.
    fn take(shares: &mut Shares, conn: u64, initiator: u64, most: usize) -> usize {
        for taken in 0..most {
            let share = shares.name(ConnId::from_number(conn), node(initiator));
            if !shares.has_room(share) {
                return taken;
            }
            shares.take(ConnId::from_number(conn), node(initiator));
        }
        most
    }

    #[test]
    fn one_holder_leaves_room_for_those_who_come_later() {
        let mut shares = Shares::new(1000);
        let greedy = take(&mut shares, 1, 1, 2000);
        assert!((850..900).contains(&greedy), "{greedy}");
        for conn in 2..12 {
            assert_eq!(take(&mut shares, conn, conn, 3), 3, "{conn}");
        }
        // Its further initiators are no further connections.
        let invented: usize = (2..500).map(|number| take(&mut shares, 1, number, 9)).sum();
        assert!(invented < 20, "{invented}");
        assert_eq!(take(&mut shares, 12, 1, 3), 3, "another one's connection");
    }

    /// Bytes are taken many at a time.
    #[test]
    fn places_that_are_taken_together_are_as_many_as_one_by_one() {
        let mut state = 7_u64;
        for _ in 0..200 {
            let (mut together, mut single) = (Shares::new(1000), Shares::new(1000));
            for _ in 0..20 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let (conn, places) = (state >> 62, (state >> 40) as usize % 300 + 1);
                let taken = together.try_take_all(ConnId::from_number(conn), node(1), places);
                let before = single.taken();
                let one_by_one = take(&mut single, conn, 1, places);
                assert_eq!(taken.is_ok(), one_by_one == places);
                for _ in 0..one_by_one % places {
                    let share = single.name(ConnId::from_number(conn), node(1));
                    single.give_back(share);
                }
                if state & 1 << 30 != 0 && taken.is_ok() {
                    let share = together.name(ConnId::from_number(conn), node(1));
                    together.name(ConnId::from_number(9), node(9));
                    together.give_back_all(share, places);
                    (0..places).for_each(|_| {
                        let share = single.name(ConnId::from_number(conn), node(1));
                        single.give_back(share);
                    });
                    assert_eq!(single.taken(), before);
                }
                assert_eq!(together.taken(), single.taken());
            }
        }
    }

    #[test]
    fn initiators_of_one_connection_share_what_is_its() {
        let mut shares = Shares::new(10_000);
        let greedy = take(&mut shares, 1, 1, 20_000);
        assert!(greedy > 8000, "{greedy}");
        for initiator in 2..5 {
            assert_eq!(take(&mut shares, 1, initiator, 20), 20, "{initiator}");
        }
    }

    #[test]
    fn those_who_come_one_after_the_other_do_not_fill_a_table() {
        let mut shares = Shares::new(4096);
        let clients = 1..=8;
        let taken: Vec<_> = clients
            .map(|client| take(&mut shares, client, client, 6000))
            .collect();
        assert!(taken[0] > 3500, "alone it has nearly all: {taken:?}");
        assert!(shares.limit - shares.taken > 10, "{taken:?}");
    }

    #[test]
    fn a_small_table_is_whoevers_comes_first() {
        for limit in 0..=8 {
            let mut shares = Shares::new(limit);
            assert_eq!(take(&mut shares, 1, 1, 20), limit);
            assert_eq!(take(&mut shares, 2, 2, 20), 0);
        }
    }

    #[test]
    fn holders_that_come_and_go_leave_nothing_behind() {
        let mut shares = Shares::new(100);
        let kept = shares
            .try_take(ConnId::from_number(7), node(7))
            .expect("it is empty");
        for number in 1..20_000 {
            let share = shares.try_take(ConnId::from_number(number / 3 + 8), node(number));
            shares.give_back(share.expect("there is room"));
        }
        assert_eq!(shares.taken(), 1);
        assert!(shares.by_name.len() <= MOST_IDLE + 2);
        assert!(shares.holders.all().len() <= MOST_IDLE + 3);
        assert!(shares.connections.all().len() <= MOST_IDLE + 3);
        assert_eq!(shares.by_conn.len(), shares.connections.len());
        assert_eq!(
            shares.name(ConnId::from_number(7), node(7)),
            kept,
            "it holds a place"
        );
    }
}
