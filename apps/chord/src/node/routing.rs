//! Where a lookup goes next, and what the owner does with it.

use super::{Action, Node, Phase, SPREAD, SUCCESSORS};
use crate::id::{RingId, Span};
use crate::message::{Avoid, Copying, Found, Lookup, Peer, Refusal, Wish};
use crate::store::Key;
use wallaby::Address;

/// Where a place is.
enum Route {
    /// Here.
    Here,
    /// Here, if this node is gone.
    HereWithout(Peer),
    /// At this node, as far as is known here.
    Successor(Peer),
    /// At this node or behind it.
    Onward(Peer),
    /// Between the node that claimed this one as its successor and this one: at this node.
    Back(Peer),
    /// All that this node knows are to be passed by.
    Nowhere,
}

/// A copy that comes by so many nodes turns back to none any more.
const MOST_COPIES: u32 = 64;

impl Node {
    /// What becomes of a lookup that is with this node.
    pub fn handle_lookup(&mut self, mut lookup: Lookup) -> Action {
        if !self.can_route() {
            return Action::Refuse(Refusal::NotReady(self.me.id));
        }
        lookup.avoid.trim();
        if let Some(trail) = &mut lookup.trail {
            trail.truncate(self.config.hop_limit as usize);
            trail.push(self.me.clone());
        }
        let limit = self.config.hop_limit;
        let next = match self.route(&lookup) {
            Route::Here => return self.answer(lookup),
            Route::HereWithout(peer) => {
                if let Some(trail) = &mut lookup.trail {
                    trail.pop();
                }
                return Action::Confirm(peer, Box::new(lookup));
            }
            _ if lookup.hops >= limit => return Action::Refuse(Refusal::TooManyHops { limit }),
            Route::Nowhere => return Action::Refuse(Refusal::NotReady(self.me.id)),
            Route::Successor(peer) => {
                lookup.claimed = Some(self.me.id);
                peer
            }
            Route::Onward(peer) => {
                lookup.claimed = None;
                peer
            }
            Route::Back(peer) => peer,
        };
        lookup.hops += 1;
        lookup.to = next.id;
        Action::Forward(next, Box::new(lookup))
    }

    /// Whether a node is there that [`Action::Confirm`] named, and a lookup that is to be handed in again.
    pub fn handle_confirmed(&mut self, peer: &Peer, is_there: bool, lookup: &mut Lookup) {
        match is_there {
            true => lookup.avoid.remove(peer),
            false => self.forget(peer),
        }
    }

    /// What becomes of a copy that is with this node.
    pub fn handle_copying(&mut self, mut copying: Copying) -> Action {
        if matches!(
            self.phase,
            Phase::Leaving { .. } | Phase::Gone | Phase::Seeking
        ) {
            // A copy here would be gone soon.
            return Action::Refuse(Refusal::NotReady(self.me.id));
        }
        if let Err(refusal) = self.check_size(&copying.key, &copying.entry.value) {
            return Action::Refuse(refusal);
        }
        let (key, entry) = (copying.key.clone(), copying.entry.clone());
        if let Err(full) = self.store.learn(key, entry, self.round) {
            return Action::Refuse(full);
        }
        copying.found.copies = copying.found.copies.saturating_add(1);
        let start = copying.found.owner.id;
        let distance = |id: &RingId| start.distance_to(*id);
        copying.reached = std::cmp::max_by_key(copying.reached, self.me.id, distance);
        copying.rest.truncate(SUCCESSORS);
        // Somebody may have joined whom the sender does not know yet.
        let missed = self.predecessor.as_ref().filter(|peer| {
            peer.id.is_between(copying.previous, self.me.id) && !copying.avoid.has(peer)
        });
        match missed.filter(|_| copying.found.copies < MOST_COPIES) {
            Some(peer) => copying.go_to(peer.clone()),
            None => copying.go_on(),
        }
    }

    fn route(&self, lookup: &Lookup) -> Route {
        let (id, avoid) = (lookup.id, &lookup.avoid);
        let own = |after| {
            let to = self.me.id;
            Span { after, to }.contains(id)
        };
        if self.span().is_some_and(|span| span.contains(id)) {
            return Route::Here;
        }
        if let Some(claimed) = lookup.claimed
            && own(claimed)
        {
            return match &self.predecessor {
                None => Route::Here,
                Some(peer) if avoid.has(peer) => Route::HereWithout(peer.clone()),
                Some(peer) => Route::Back(peer.clone()),
            };
        }
        let mut known = self.successors.iter().filter(|peer| !avoid.has(peer));
        let Some(successor) = known.next() else {
            return match &self.predecessor {
                Some(peer) if !avoid.has(peer) => Route::Onward(peer.clone()),
                _ => Route::Nowhere,
            };
        };
        let before_successor = Span {
            after: self.me.id,
            to: successor.id,
        };
        if before_successor.contains(id) {
            return Route::Successor(successor.clone());
        }
        Route::Onward(
            self.closest_before(lookup, avoid)
                .unwrap_or_else(|| successor.clone()),
        )
    }

    /// The node nearest before a place that is known here.
    fn closest_before(&self, lookup: &Lookup, avoid: &Avoid) -> Option<Peer> {
        let known = self.fingers.iter().flatten().chain(&self.successors);
        known
            .filter(|peer| peer.id.is_between(self.me.id, lookup.id))
            .filter(|peer| !avoid.has(peer) && !self.suspects.contains_key(peer))
            .max_by_key(|peer| self.me.id.distance_to(peer.id))
            .cloned()
    }

    fn answer(&mut self, lookup: Lookup) -> Action {
        let found = Found {
            owner: self.me.clone(),
            span: self.span(),
            hops: lookup.hops,
            trail: lookup.trail,
            value: None,
            copies: 0,
        };
        match lookup.wish {
            Wish::Owner => Action::Answer(Box::new(found)),
            _ if self.phase == Phase::TakingOver => Action::Refuse(Refusal::NotReady(self.me.id)),
            Wish::Get(key) => {
                let value = self.store.find(&key).map(|entry| entry.value.clone());
                Action::Answer(Box::new(Found { value, ..found }))
            }
            Wish::Put { key, value, put } => {
                if matches!(self.phase, Phase::Leaving { .. }) {
                    return Action::Refuse(Refusal::NotReady(self.me.id));
                }
                if let Err(refusal) = self.check_size(&key, &value) {
                    return Action::Refuse(refusal);
                }
                let entry = match self.store.put(&key, value, put, self.round) {
                    Ok(entry) => entry,
                    Err(full) => return Action::Refuse(full),
                };
                self.comparison_is_due = true;
                let copying = Copying {
                    to: self.me.id,
                    previous: self.me.id,
                    reached: self.me.id,
                    rest: self.keepers(&lookup.avoid),
                    avoid: lookup.avoid,
                    key,
                    entry,
                    found: Found { copies: 1, ..found },
                };
                copying.go_on()
            }
        }
    }

    /// Whether an entry is one that nodes take.
    pub(super) fn check_size(&self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let (size, limit) = (key.name.len() + value.len(), self.config.entry_bytes);
        match size > limit {
            true => Err(Refusal::TooLarge { size, limit }),
            false => Ok(()),
        }
    }

    /// The nodes behind this one that keep what it owns.
    pub(super) fn keepers(&self, avoid: &Avoid) -> Vec<Peer> {
        self.row(vec![&self.me], avoid)
    }

    /// The nodes that will keep what it owns when it has left.
    pub(super) fn next_keepers(&self) -> Vec<Peer> {
        self.row(Vec::new(), &Avoid::default())
    }

    /// As many successors as make a row of keepers complete.
    fn row<'a>(&'a self, mut row: Vec<&'a Peer>, avoid: &Avoid) -> Vec<Peer> {
        let begin = row.len();
        let mut hosts: Vec<&Address> = row.iter().map(|peer| &peer.host).collect();
        for peer in self.successors.iter().filter(|peer| !avoid.has(peer)) {
            if row.len() >= self.config.replicas && hosts.len() >= SPREAD {
                break;
            }
            if !hosts.contains(&&peer.host) {
                hosts.push(&peer.host);
            }
            row.push(peer);
        }
        row.into_iter().skip(begin).cloned().collect()
    }
}

impl Copying {
    fn go_to(mut self, peer: Peer) -> Action {
        self.to = peer.id;
        Action::Copy(peer, Box::new(self))
    }

    /// To the next of the row, or back to the client.
    fn go_on(mut self) -> Action {
        if self.rest.is_empty() {
            return Action::Answer(Box::new(self.found));
        }
        let next = self.rest.remove(0);
        self.previous = self.reached;
        self.go_to(next)
    }
}

/// Which of the nodes that an endpoint hosts takes a lookup on that has come there: the one it is for, or the one nearest
/// before it that can.
///
/// # Errors
///
/// If there is none, or if the node that it is for is not ready and no other one can.
pub fn take_on<'a>(
    lookup: &mut Lookup,
    host: &Address,
    local: impl Iterator<Item = &'a Node>,
) -> Result<RingId, Refusal> {
    let (to, mut best) = (lookup.to, None);
    for node in local.filter(|node| node.can_route()) {
        let id = node.peer().id;
        if id == to {
            return Ok(id);
        }
        let distance = id.distance_to(to);
        if best.is_none_or(|(nearest, _)| distance < nearest) {
            best = Some((distance, id));
        }
    }
    let (_, id) = best.ok_or(Refusal::NobodyHere)?;
    // A client names any place: nobody needs to know that there is no node.
    if lookup.hops > 0 {
        let host = host.clone();
        lookup.avoid.add(Peer { id: to, host });
    }
    lookup.claimed = None;
    lookup.to = id;
    Ok(id)
}
