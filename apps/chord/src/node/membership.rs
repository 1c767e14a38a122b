//! How nodes join, leave, and keep their tables right.

use super::{Errand, Node, Phase, Purpose, SUCCESSORS};
use crate::id::{RingId, Span};
use crate::message::{Ask, Found, Lookup, Miss, Peer, Refusal, Told, Wish};

/// For how many rounds it is not believed what others say of a node that did not answer.
const SUSPICION: u64 = 4;
/// After so many rounds without a word from the predecessor it is asked whether it is there.
const PATIENCE: u64 = 2;
/// In so many rounds a node checks once whether others find it at its place.
const CHECK_SELF_EVERY: u64 = 16;
/// How many contacts are kept.
const CONTACTS: usize = 8;
/// How many fingers are looked up in a round.
const FINGERS_PER_ROUND: usize = 2;

impl Node {
    /// Begins a round of maintenance.
    pub fn tick(&mut self) -> Vec<Errand> {
        self.round += 1;
        let round = self.round;
        self.suspects.retain(|_, since| *since + SUSPICION > round);
        let is_idle = self.errands.is_empty();
        match self.phase {
            Phase::Seeking => self.seek_place().into_iter().collect(),
            Phase::TakingOver if is_idle => self.notify(true).into_iter().collect(),
            Phase::Serving => self.maintain(),
            Phase::Leaving { .. } if is_idle => self.bring_all(),
            Phase::TakingOver | Phase::Leaving { .. } | Phase::Gone => Vec::new(),
        }
    }

    /// Leaves the ring in good order: the next rounds bring all that is kept here to the successors first. When it is done,
    /// [`Node::is_gone`].
    pub fn leave(&mut self) {
        self.phase = match self.phase {
            Phase::Serving if !self.successors.is_empty() => Phase::Leaving { all: true },
            Phase::Leaving { all } => Phase::Leaving { all },
            _ => Phase::Gone,
        };
    }

    fn bring_all(&mut self) -> Vec<Errand> {
        self.phase = Phase::Leaving { all: true };
        let mut errands = Vec::new();
        for keeper in self.next_keepers() {
            for entries in self.batches() {
                errands.push(self.errand(keeper.clone(), Ask::Keep { entries }, Purpose::Bring));
            }
        }
        match errands.is_empty() {
            true => self.depart(),
            false => errands,
        }
    }

    /// Another node of the ring, for one that is about to join: the one that it asked may be gone.
    pub fn add_contact(&mut self, contact: Peer) {
        if contact == self.me || self.contacts.contains(&contact) {
            return;
        }
        if self.contacts.len() >= CONTACTS {
            self.contacts.remove(0);
        }
        self.contacts.push(contact);
    }

    /// Answers another node's question.
    ///
    /// # Errors
    ///
    /// Why it is not answered.
    pub fn handle_ask(&mut self, ask: Ask) -> Result<Told, Refusal> {
        if !self.can_route() {
            // A node that looks for its place has none: who asks means a former one.
            return Err(Refusal::Gone(self.me.clone()));
        }
        match ask {
            Ask::Ping => Ok(Told::Yes),
            Ask::Neighbours { from } => self.tell_neighbours(from),
            Ask::Notify { from, joining } => self.handle_notify(from, joining),
            Ask::Depart {
                from,
                predecessor,
                successors,
            } => {
                self.handle_departure(&from, predecessor, successors);
                Ok(Told::Yes)
            }
            Ask::HandOver { span } => Ok(self.hand_over(span)),
            Ask::Compare { span, digest } => Ok(self.compare(span, digest)),
            Ask::Keep { entries } => self.keep(entries).map(|()| Told::Yes),
            Ask::Fetch { keys } => Ok(self.fetch(keys)),
            // Lookups take another way.
            Ask::Find { .. } => Err(Refusal::NotReady(self.me.id)),
        }
    }

    /// What came of an errand.
    pub fn handle_told(&mut self, errand: &Errand, told: Result<Told, Miss>) -> Vec<Errand> {
        let Some(purpose) = self.errands.remove(&errand.ticket) else {
            return Vec::new();
        };
        if self.is_gone() {
            return Vec::new();
        }
        let is_lookup = matches!(errand.ask, Ask::Find { .. });
        match &told {
            Err(Miss::Lost(_)) if !is_lookup => self.forget(&errand.to),
            Err(Miss::Refused(Refusal::Gone(peer))) => self.forget(peer),
            _ => {}
        }
        match purpose {
            Purpose::SeekPlace => self.take_place(told),
            Purpose::Notify | Purpose::Stabilise if told.is_err() => self.try_next(purpose),
            Purpose::Notify => self.handle_notified(&errand.to, told),
            Purpose::Stabilise => self.handle_neighbours(&errand.to, told),
            Purpose::CheckPredecessor => {
                self.heard = self.round;
                Vec::new()
            }
            Purpose::FixFinger(number) => {
                self.set_finger(number, told);
                Vec::new()
            }
            Purpose::CheckSelf => self.handle_checked(told),
            Purpose::TakeOver => self.handle_handed_over(errand, told),
            Purpose::Bring => self.handle_brought(told.is_ok()),
            // The successor knows by now: the predecessor is the last to be told.
            Purpose::Depart => {
                self.phase = Phase::Gone;
                let predecessor = self.predecessor.clone();
                predecessor
                    .map(|peer| self.tell_departure(peer))
                    .into_iter()
                    .collect()
            }
            Purpose::Compare => self.handle_compared(errand, told),
            Purpose::Mend => Vec::new(),
            Purpose::FetchNewer => {
                self.handle_fetched(told);
                Vec::new()
            }
            Purpose::FindStrayOwner => self.handle_stray_owner(told),
            Purpose::BringStrays => {
                self.handle_strays_brought(errand, told.is_ok());
                Vec::new()
            }
        }
    }

    /// A node did not answer.
    pub(super) fn forget(&mut self, peer: &Peer) {
        const MOST: usize = 64;
        if *peer == self.me {
            return;
        }
        if self.suspects.len() < MOST {
            self.suspects.insert(peer.clone(), self.round);
        }
        if self.successors.contains(peer) {
            self.comparison_is_due = true;
        }
        self.successors.retain(|other| other != peer);
        for finger in &mut self.fingers {
            if finger.as_ref() == Some(peer) {
                *finger = None;
            }
        }
        if self.predecessor.as_ref() == Some(peer) {
            self.predecessor = None;
        }
        if self.contacts.len() > 1 {
            self.contacts.retain(|other| other != peer);
        }
    }

    fn maintain(&mut self) -> Vec<Errand> {
        let mut errands = Vec::new();
        errands.extend(self.stabilise());
        errands.extend(self.check_predecessor());
        errands.extend(self.fix_fingers());
        errands.extend(self.check_self());
        errands.extend(self.replicate());
        errands
    }

    fn seek_place(&mut self) -> Option<Errand> {
        if self.is_under_way(Purpose::SeekPlace) {
            return None;
        }
        // Another one each time: one of them may be gone.
        let turn = self.round as usize % self.contacts.len().max(1);
        let contact = self.contacts.get(turn)?.clone();
        let mut errand = self.find(self.me.id, contact, Purpose::SeekPlace);
        if let Ask::Find { lookup } = &mut errand.ask {
            // Others may know a former one at this place.
            lookup.avoid.add(self.me.clone());
        }
        Some(errand)
    }

    /// A lookup of a place.
    pub(super) fn find(&mut self, id: RingId, start: Peer, purpose: Purpose) -> Errand {
        let mut lookup = Lookup::new(id, start.id, Wish::Owner);
        for suspect in self.suspects.keys() {
            lookup.avoid.add(suspect.clone());
        }
        let lookup = Box::new(lookup);
        self.errand(start, Ask::Find { lookup }, purpose)
    }

    fn take_place(&mut self, told: Result<Told, Miss>) -> Vec<Errand> {
        let Some(found) = found(told) else {
            return Vec::new();
        };
        if found.owner.id == self.me.id {
            // Two nodes at one place: the first one stays.
            self.phase = Phase::Gone;
            return Vec::new();
        }
        self.successors = vec![found.owner];
        self.phase = Phase::TakingOver;
        self.notify(true).into_iter().collect()
    }

    fn notify(&mut self, joining: bool) -> Option<Errand> {
        let Some(successor) = self.successors.first().cloned() else {
            if joining {
                self.phase = Phase::Seeking;
            }
            return None;
        };
        let from = self.me.clone();
        Some(self.errand(successor, Ask::Notify { from, joining }, Purpose::Notify))
    }

    fn handle_notify(&mut self, from: Peer, joining: bool) -> Result<Told, Refusal> {
        if self.phase != Phase::Serving {
            return Err(Refusal::NotReady(self.me.id));
        }
        if from.id == self.me.id {
            return Err(Refusal::Taken(from.id));
        }
        self.suspects.remove(&from);
        let shrinks = match &self.predecessor {
            Some(before) if *before == from => joining,
            Some(before) if from.id == before.id => return Err(Refusal::Taken(from.id)),
            Some(before) if !from.id.is_between(before.id, self.me.id) => {
                return Ok(Told::Between(before.clone()));
            }
            Some(_) => true,
            None => joining || self.successors.is_empty(),
        };
        let was_alone = self.successors.is_empty();
        if was_alone {
            self.successors.push(from.clone());
        }
        let before = self.predecessor.replace(from.clone());
        let before = before.filter(|before| *before != from);
        self.heard = self.round;
        self.comparison_is_due = true;
        Ok(Told::Accepted {
            before: before.or_else(|| was_alone.then(|| self.me.clone())),
            hand_over: shrinks,
            successors: self.successors.clone(),
        })
    }

    fn handle_notified(&mut self, successor: &Peer, told: Result<Told, Miss>) -> Vec<Errand> {
        match told {
            Ok(Told::Accepted {
                before,
                hand_over,
                successors,
            }) => {
                self.learn_successors(std::iter::once(successor.clone()).chain(successors));
                if !hand_over {
                    return Vec::new();
                }
                if self.predecessor.is_none() {
                    self.predecessor = before.filter(|peer| *peer != self.me);
                    self.heard = self.round;
                }
                self.phase = Phase::TakingOver;
                vec![self.ask_hand_over(successor.clone(), successor.id)]
            }
            Ok(Told::Between(peer))
                if peer.id.is_between(self.me.id, successor.id)
                    && !self.suspects.contains_key(&peer) =>
            {
                self.learn_successors([peer, successor.clone()].into_iter());
                match self.phase {
                    Phase::TakingOver => self.notify(true).into_iter().collect(),
                    _ => Vec::new(),
                }
            }
            _ if self.phase == Phase::TakingOver => {
                // The place that was found is not this node's any more.
                self.phase = Phase::Seeking;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn ask_hand_over(&mut self, from: Peer, after: RingId) -> Errand {
        let to = self.me.id;
        let span = Span { after, to };
        self.errand(from, Ask::HandOver { span }, Purpose::TakeOver)
    }

    /// Asks the next successor what the first one did not answer.
    fn try_next(&mut self, purpose: Purpose) -> Vec<Errand> {
        let next = match (self.phase, purpose) {
            // It is not ready, or gone: the next round finds the place anew.
            (Phase::TakingOver, _) => {
                self.phase = Phase::Seeking;
                None
            }
            (Phase::Serving, Purpose::Stabilise) => self.stabilise(),
            _ => None,
        };
        next.into_iter().collect()
    }

    fn stabilise(&mut self) -> Option<Errand> {
        if self.is_under_way(Purpose::Stabilise) {
            return None;
        }
        if self.successors.is_empty() {
            // Anybody who is known is better than nobody: others put it right.
            let known = self.fingers.iter().flatten().chain(&self.predecessor);
            let nearest = known.min_by_key(|peer| self.me.id.distance_to(peer.id));
            self.successors = nearest.cloned().into_iter().collect();
        }
        let successor = self.successors.first()?.clone();
        let from = self.me.clone();
        Some(self.errand(successor, Ask::Neighbours { from }, Purpose::Stabilise))
    }

    fn tell_neighbours(&mut self, from: Peer) -> Result<Told, Refusal> {
        self.suspects.remove(&from);
        if self.predecessor.as_ref() == Some(&from) {
            self.heard = self.round;
        }
        Ok(Told::Neighbours {
            predecessor: self.predecessor.clone(),
            successors: self.successors.clone(),
        })
    }

    fn handle_neighbours(&mut self, successor: &Peer, told: Result<Told, Miss>) -> Vec<Errand> {
        let Ok(Told::Neighbours {
            predecessor,
            successors,
        }) = told
        else {
            return Vec::new();
        };
        let knows_me = predecessor.as_ref() == Some(&self.me);
        let between = predecessor.filter(|peer| {
            peer.id.is_between(self.me.id, successor.id) && !self.suspects.contains_key(peer)
        });
        let list = between.into_iter().chain([successor.clone()]);
        self.learn_successors(list.chain(successors));
        match knows_me || self.phase != Phase::Serving || self.is_under_way(Purpose::Notify) {
            true => Vec::new(),
            false => self.notify(false).into_iter().collect(),
        }
    }

    /// Takes over what the first successor says of those behind it.
    fn learn_successors(&mut self, list: impl Iterator<Item = Peer>) {
        let mut successors: Vec<Peer> = Vec::new();
        for peer in list {
            // Behind a whole turn the ring begins anew.
            let in_order = successors.last().is_none_or(|last| {
                self.me.id.distance_to(last.id) < self.me.id.distance_to(peer.id)
            });
            if peer.id == self.me.id || !in_order {
                break;
            }
            if !self.suspects.contains_key(&peer) {
                successors.push(peer);
            }
            if successors.len() >= SUCCESSORS {
                break;
            }
        }
        if successors.is_empty() {
            return;
        }
        if self.successors != successors {
            self.successors = successors;
            self.comparison_is_due = true;
        }
        if let Some(last) = self.successors.last().cloned() {
            self.add_contact(last);
        }
    }

    fn check_predecessor(&mut self) -> Option<Errand> {
        let predecessor = self.predecessor.clone()?;
        let is_silent = self.heard + PATIENCE < self.round;
        (is_silent && !self.is_under_way(Purpose::CheckPredecessor))
            .then(|| self.errand(predecessor, Ask::Ping, Purpose::CheckPredecessor))
    }

    fn fix_fingers(&mut self) -> Vec<Errand> {
        let mut errands = Vec::new();
        let Some(successor) = self.successors.first().cloned() else {
            return errands;
        };
        let gap = self.me.id.distance_to(successor.id);
        // The fingers up to the successor are the successor.
        let near = RingId::BITS - gap.leading_zeros();
        for finger in self.fingers.iter_mut().take(near as usize) {
            *finger = Some(successor.clone());
        }
        for _ in 0..FINGERS_PER_ROUND {
            let number = match self.next_finger {
                next if (near..RingId::BITS).contains(&next) => next,
                _ => near,
            };
            if number >= RingId::BITS || self.is_under_way(Purpose::FixFinger(number)) {
                break;
            }
            self.next_finger = number + 1;
            let (id, me) = (self.me.id.finger(number), self.me.clone());
            errands.push(self.find(id, me, Purpose::FixFinger(number)));
        }
        errands
    }

    fn set_finger(&mut self, number: u32, told: Result<Told, Miss>) {
        let Some(found) = found(told) else {
            return;
        };
        let owner = Some(found.owner).filter(|owner| *owner != self.me);
        // The fingers behind it that begin before the same node need no lookup.
        let far = owner
            .as_ref()
            .map_or(0, |owner| self.me.id.distance_to(owner.id));
        for number in number..RingId::BITS {
            let begin = self.me.id.distance_to(self.me.id.finger(number));
            if begin > far && far > 0 {
                break;
            }
            if let Some(finger) = self.fingers.get_mut(number as usize) {
                finger.clone_from(&owner);
            }
            self.next_finger = number + 1;
        }
    }

    /// Others should find this node at its place; if they find another one there, the ring is not whole.
    fn check_self(&mut self) -> Option<Errand> {
        let is_due = self.successors.is_empty()
            || (self.round + self.me.id.0 % CHECK_SELF_EVERY).is_multiple_of(CHECK_SELF_EVERY);
        if !is_due || self.is_under_way(Purpose::CheckSelf) {
            return None;
        }
        let turn = (self.round / CHECK_SELF_EVERY) as usize % self.contacts.len().max(1);
        let contact = self.contacts.get(turn)?.clone();
        Some(self.find(self.me.id, contact, Purpose::CheckSelf))
    }

    fn handle_checked(&mut self, told: Result<Told, Miss>) -> Vec<Errand> {
        let Some(found) = found(told) else {
            return Vec::new();
        };
        let nearer = match self.successors.first() {
            Some(successor) => found.owner.id.is_between(self.me.id, successor.id),
            None => true,
        };
        if found.owner.id == self.me.id || self.suspects.contains_key(&found.owner) {
            return Vec::new();
        }
        if nearer {
            let known = std::mem::take(&mut self.successors);
            self.learn_successors(std::iter::once(found.owner).chain(known));
            return self.notify(false).into_iter().collect();
        }
        // Else it is behind the successor: stabilising settles that.
        Vec::new()
    }

    fn handle_brought(&mut self, arrived: bool) -> Vec<Errand> {
        let Phase::Leaving { all } = self.phase else {
            return Vec::new();
        };
        let all = all && arrived;
        self.phase = Phase::Leaving { all };
        // If not all has arrived, the next round tries again.
        match all && !self.is_under_way(Purpose::Bring) {
            true => self.depart(),
            false => Vec::new(),
        }
    }

    fn depart(&mut self) -> Vec<Errand> {
        let successor = self.successors.first().cloned();
        if successor.is_none() {
            self.phase = Phase::Gone;
        }
        let told = successor.map(|peer| self.tell_departure(peer));
        told.into_iter().collect()
    }

    fn tell_departure(&mut self, to: Peer) -> Errand {
        let ask = Ask::Depart {
            from: self.me.clone(),
            predecessor: self.predecessor.clone(),
            successors: self.successors.clone(),
        };
        self.errand(to, ask, Purpose::Depart)
    }

    fn handle_departure(&mut self, from: &Peer, predecessor: Option<Peer>, successors: Vec<Peer>) {
        let was_predecessor = self.predecessor.as_ref() == Some(from);
        let was_successor = self.successors.first() == Some(from);
        self.forget(from);
        if was_predecessor {
            self.predecessor = predecessor.filter(|peer| *peer != self.me);
            self.heard = self.round;
        }
        if was_successor {
            self.learn_successors(successors.into_iter());
        }
        self.comparison_is_due = true;
    }
}

fn found(told: Result<Told, Miss>) -> Option<Box<Found>> {
    match told {
        Ok(Told::Found(found)) => Some(found),
        _ => None,
    }
}
