//! Responses that are kept so that they can be sent again (PROTOCOL-NOTES 26), within a budget of bytes.
//!
//! Small payloads, which most are, are copied into a ring: as slices they would keep whole buffers alive, and a copy is
//! cheaper than two counts of references. Half of the budget is for them, half for large ones.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::manifest::{Manifest, passed_on};
use crate::wire::Response;

/// Payloads up to this size are copied.
const COPIED: usize = 4096;

/// What an entry costs besides its payload.
const ENTRY: u64 = 128;

/// Numbers responses that are kept, in order.
pub(super) type Number = NonZeroU64;

/// All responses that an endpoint keeps, oldest first.
#[derive(Debug)]
pub(super) struct KeptResponses {
    /// What each half may hold.
    budget: u64,
    /// What all entries cost, and those with large payloads.
    bytes: u64,
    shared: u64,
    /// The number of the first entry.
    first: Number,
    entries: VecDeque<KeptResponse>,
    ring: ByteRing,
    /// Payloads that are not copied.
    large: BTreeMap<Number, Bytes>,
}

/// A response without what its request's record says.
#[derive(Debug)]
struct KeptResponse {
    index: u32,
    last: bool,
    status: bool,
    compressed: bool,
    place: Storage,
    manifest: Option<Manifest>,
    /// Where it stands in the ring, or where that ended when it came.
    position: u64,
    /// The length of the payload.
    len: usize,
    /// The entry of the same request before it.
    previous: Option<Number>,
    /// One further back: by these any is found in a few steps, however many there are.
    jump: Option<Number>,
}

/// Where an entry's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    Ring,
    Large,
    /// It was forgotten before those in front of it.
    Gone,
}

/// The most bytes of small responses, whatever the budget: their memory is taken in one piece.
const MOST_COPIED: u64 = 1 << 30;

impl KeptResponse {
    fn cost(&self) -> u64 {
        ENTRY + self.len as u64
    }
}

impl KeptResponses {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget: budget / 2,
            bytes: 0,
            shared: 0,
            first: Number::MIN,
            entries: VecDeque::new(),
            ring: ByteRing::new((budget / 2).min(MOST_COPIED)),
            large: BTreeMap::new(),
        }
    }

    /// Keeps a response of a request whose entry before it has this number; returns its own.
    #[inline]
    pub(super) fn keep(&mut self, response: &Response, previous: Option<Number>) -> Option<Number> {
        let len = response.payload.len();
        let cost = ENTRY + len as u64;
        if cost > self.budget {
            return previous;
        }
        // Those that were forgotten behind one that is kept take room, too.
        while self.entries.len() as u64 >= 2 * (self.budget / ENTRY) {
            self.drop_first();
        }
        let jump = previous.and_then(|previous| self.jump_behind(previous));
        let (place, position) = match len > COPIED {
            true => self.share(response),
            false => (Storage::Ring, self.copy(response)),
        };
        self.bytes += cost;
        self.entries.push_back(KeptResponse {
            index: response.index,
            last: response.last,
            status: response.status,
            compressed: response.compressed,
            place,
            manifest: passed_on(&response.manifest),
            position,
            len,
            previous,
            jump,
        });
        Some(self.number(self.entries.len() - 1))
    }

    /// Makes room for a small payload and copies it; returns where to.
    #[inline]
    fn copy(&mut self, response: &Response) -> u64 {
        let cost = ENTRY + response.payload.len() as u64;
        while self.bytes - self.shared + cost > self.budget {
            self.drop_first();
        }
        loop {
            match self.ring.push(&response.payload) {
                Some(position) => return position,
                None => self.drop_first(),
            }
        }
    }

    #[inline(never)]
    fn share(&mut self, response: &Response) -> (Storage, u64) {
        let cost = ENTRY + response.payload.len() as u64;
        while self.shared + cost > self.budget {
            self.drop_first();
        }
        self.shared += cost;
        let number = self.number(self.entries.len());
        self.large.insert(number, response.payload.clone());
        (Storage::Large, self.ring.to)
    }

    /// Writes the response with this number, of the request whose last entry is given, into `response`; `false` if it
    /// is not kept.
    pub(super) fn restore(
        &self,
        last: Option<Number>,
        index: u32,
        response: &mut Response,
    ) -> bool {
        let Some((number, entry)) = self.find(last, index) else {
            return false;
        };
        response.index = entry.index;
        response.last = entry.last;
        response.status = entry.status;
        response.compressed = entry.compressed;
        response.manifest = entry.manifest;
        response.payload = match self.large.get(&number) {
            Some(payload) => payload.clone(),
            None => self.ring.copy(entry.position, entry.len),
        };
        true
    }

    /// The response with this number, of the request whose last entry is given.
    fn find(&self, last: Option<Number>, index: u32) -> Option<(Number, &KeptResponse)> {
        let mut number = last?;
        loop {
            let entry = self.entry(number)?;
            if entry.index <= index {
                return (entry.index == index).then_some((number, entry));
            }
            number = self.closer(entry, index)?;
        }
    }

    /// The next entry on the way from this one to the response with this number, which is an earlier one.
    fn closer(&self, from: &KeptResponse, index: u32) -> Option<Number> {
        let far = from.jump.filter(|jump| {
            let there = self.entry(*jump);
            there.is_some_and(|there| there.index >= index)
        });
        far.or(from.previous)
    }

    /// Where the entry behind this one jumps to: as far as the two jumps from here together if these are of one length, which
    /// makes a way of logarithmic length (Myers 1983, "An applicative random-access stack"), else here.
    #[inline(never)]
    fn jump_behind(&self, previous: Number) -> Option<Number> {
        let here = self.entry(previous)?;
        let jump = |from: &KeptResponse| {
            let to = from.jump?;
            Some((to, self.entry(to)?))
        };
        let Some((near, first)) = jump(here) else {
            return Some(previous);
        };
        let (far, second) = jump(first).unwrap_or((near, first));
        let even = here.index.abs_diff(first.index) == first.index.abs_diff(second.index);
        Some(if even { far } else { previous })
    }

    /// Puts a status in place of a response of the request whose last entry is given, if that is kept.
    pub(super) fn replace(&mut self, last: Option<Number>, status: &Response) {
        let found = self.find(last, status.index);
        let Some((number, _)) = found else {
            return;
        };
        let Some(entry) = self.entry_mut(number) else {
            return;
        };
        let before = entry.cost();
        let was_large = entry.place == Storage::Large;
        (entry.status, entry.compressed) = (status.status, status.compressed);
        (entry.place, entry.len) = (Storage::Large, status.payload.len());
        let cost = entry.cost();
        self.large.insert(number, status.payload.clone());
        self.bytes = self.bytes - before + cost;
        self.shared = self.shared - before * u64::from(was_large) + cost;
        while self.shared > self.budget {
            self.drop_first();
        }
    }

    /// Forgets all responses of the request whose last entry has this number.
    pub(super) fn forget(&mut self, last: Number) {
        let mut next = Some(last);
        while let Some(number) = next {
            next = self.take(number);
        }
        let before = self.first;
        while (self.entries.front()).is_some_and(|entry| entry.place == Storage::Gone) {
            self.drop_front();
        }
        if self.first != before {
            self.free_ring();
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of the entry at this position.
    fn number(&self, position: usize) -> Number {
        self.first.saturating_add(position as u64)
    }

    fn position(&self, number: Number) -> Option<usize> {
        let position = number.get().checked_sub(self.first.get())?;
        usize::try_from(position).ok()
    }

    fn entry(&self, number: Number) -> Option<&KeptResponse> {
        let entry = self.entries.get(self.position(number)?)?;
        (entry.place != Storage::Gone).then_some(entry)
    }

    fn entry_mut(&mut self, number: Number) -> Option<&mut KeptResponse> {
        let position = self.position(number)?;
        let entry = self.entries.get_mut(position)?;
        (entry.place != Storage::Gone).then_some(entry)
    }

    /// Forgets an entry, and returns the number of the one before it of the same request.
    #[inline]
    fn take(&mut self, number: Number) -> Option<Number> {
        let entry = self.entry_mut(number)?;
        let (cost, previous) = (entry.cost(), entry.previous);
        let place = std::mem::replace(&mut entry.place, Storage::Gone);
        self.bytes -= cost;
        if place == Storage::Large {
            self.drop_large(number, cost);
        }
        previous
    }

    #[inline(never)]
    fn drop_large(&mut self, number: Number, cost: u64) {
        self.large.remove(&number);
        self.shared -= cost;
    }

    fn drop_front(&mut self) {
        self.entries.pop_front();
        self.first = self.first.saturating_add(1);
    }

    #[inline(never)]
    fn drop_first(&mut self) {
        if !self.entries.is_empty() {
            self.take(self.first);
            self.drop_front();
        }
        self.free_ring();
    }

    /// What stands in the ring before the first entry's place is free.
    fn free_ring(&mut self) {
        match self.entries.front() {
            Some(first) => self.ring.free_before(first.position),
            None => self.ring.clear(),
        }
    }
}

/// Bytes one behind the other, the oldest overwritten when they are free.
#[derive(Debug)]
struct ByteRing {
    /// Made when the first byte comes.
    bytes: Vec<u8>,
    size: u64,
    /// What is in use. Positions count up for ever; a position's place is its remainder by the size.
    from: u64,
    to: u64,
    /// The place of `to`.
    place: u64,
}

impl ByteRing {
    fn new(size: u64) -> Self {
        Self {
            bytes: Vec::new(),
            size,
            from: 0,
            to: 0,
            place: 0,
        }
    }

    /// Copies bytes to where they stand in one piece, and says where; `None` if there is no room.
    fn push(&mut self, bytes: &[u8]) -> Option<u64> {
        let len = bytes.len() as u64;
        let left = self.size - self.place;
        let (position, place) = match len > left {
            true => (self.to + left, 0),
            false => (self.to, self.place),
        };
        let to = position + len;
        if to - self.from > self.size {
            return None;
        }
        if self.bytes.is_empty() {
            self.make();
        }
        let start = place as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        (self.to, self.place) = (to, place + len);
        Some(position)
    }

    #[cold]
    #[inline(never)]
    fn make(&mut self) {
        self.bytes = vec![0; self.size as usize];
    }

    fn copy(&self, position: u64, len: usize) -> Bytes {
        let start = (position % self.size) as usize;
        Bytes::copy_from_slice(&self.bytes[start..start + len])
    }

    fn free_before(&mut self, position: u64) {
        self.from = position;
    }

    fn clear(&mut self) {
        (self.from, self.to, self.place) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::chance::Random;
    use crate::wire::Response;
    use crate::{CallId, NodeId, Path, RequestId};

    const HALF: u64 = 20_000;

    fn response(index: u32, payload: Vec<u8>) -> Response {
        let initiator = NodeId::new(1).expect("not zero");
        Response {
            call: CallId {
                initiator,
                sequence: 1,
            },
            token: None,
            distance: 0,
            request: RequestId {
                path: Path::FIRST,
                hop: 0,
            },
            index,
            last: false,
            manifest: None,
            status: false,
            compressed: false,
            options: None,
            payload: payload.into(),
        }
    }

    /// One response that was kept, oldest first, and the request that it is of.
    struct Known {
        request: usize,
        index: u32,
        payload: Vec<u8>,
        status: bool,
        shared: bool,
    }

    impl Known {
        fn cost(&self) -> u64 {
            ENTRY + self.payload.len() as u64
        }
    }

    /// Responses of a few requests, and what is known of them.
    struct Shelf {
        kept: KeptResponses,
        only_small: bool,
        last: [Option<Number>; 5],
        count: [u32; 5],
        known: Vec<Known>,
    }

    impl Shelf {
        fn keep(&mut self, request: usize, payload: Vec<u8>) {
            let index = self.count[request];
            self.count[request] += 1;
            let message = response(index, payload.clone());
            let shared = payload.len() > COPIED;
            let known = Known {
                request,
                index,
                payload,
                status: false,
                shared,
            };
            let (before, cost) = (self.cost(shared), known.cost());
            self.last[request] = self.kept.keep(&message, self.last[request]);
            if cost <= HALF {
                self.known.push(known);
            }
            // A place in the ring that is free is of no use before those in front of it are.
            let unused = match (shared, self.only_small) {
                (true, _) => 0,
                (false, true) => COPIED as u64,
                (false, false) => HALF,
            };
            let is_needed = before + cost + unused > HALF;
            self.check(is_needed);
        }

        fn replace(&mut self, request: usize, index: u32, payload: Vec<u8>) {
            let mut message = response(index, payload.clone());
            message.status = true;
            self.kept.replace(self.last[request], &message);
            let mut all = self.known.iter_mut();
            let Some(known) = all.find(|known| (known.request, known.index) == (request, index))
            else {
                return self.check(false);
            };
            (known.payload, known.status, known.shared) = (payload, true, true);
            let is_needed = self.cost(true) > HALF;
            self.check(is_needed);
        }

        fn forget(&mut self, request: usize) {
            if let Some(last) = self.last[request].take() {
                self.kept.forget(last);
            }
            self.known.retain(|known| known.request != request);
            self.check(false);
        }

        fn cost(&self, shared: bool) -> u64 {
            let of_kind = self.known.iter().filter(|known| known.shared == shared);
            of_kind.map(Known::cost).sum()
        }

        fn is_kept(&self, known: &Known) -> bool {
            let mut restored = response(u32::MAX, Vec::new());
            let last = self.last[known.request];
            if !self.kept.restore(last, known.index, &mut restored) {
                return false;
            }
            assert_eq!(restored.index, known.index);
            assert!(restored.payload == known.payload, "as it was kept");
            assert_eq!(restored.status, known.status);
            true
        }

        /// The oldest may have been dropped for the last step, if that was `needed`; all others are as they were.
        fn check(&mut self, needed: bool) {
            let is_kept: Vec<bool> = self.known.iter().map(|known| self.is_kept(known)).collect();
            let dropped = is_kept.iter().take_while(|is_kept| !**is_kept).count();
            assert!(
                is_kept[dropped..].iter().all(|is_kept| *is_kept),
                "the oldest"
            );
            assert!(dropped == 0 || needed, "for want of room only");
            let last = self.known.drain(..dropped).next_back();
            if let Some(last) = last.filter(|_| self.only_small) {
                let without = self.cost(false) + last.cost() + COPIED as u64;
                assert!(without > HALF, "no more than had to be");
            }
            assert!(self.cost(false) <= HALF && self.cost(true) <= HALF);
            assert_eq!(self.kept.bytes(), self.cost(false) + self.cost(true));
        }
    }

    #[test]
    fn responses_are_kept_as_they_were_until_their_room_is_needed() {
        let steps = 3000;
        for seed in 0..4 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let mut shelf = Shelf {
                kept: KeptResponses::new(2 * HALF),
                only_small: seed % 2 == 1,
                last: [None; 5],
                count: [0; 5],
                known: Vec::new(),
            };
            for step in 0..steps {
                let request = random.index(5);
                let longest = match shelf.only_small {
                    true => COPIED as u64,
                    false => [200, COPIED as u64, HALF][random.index(3)],
                };
                let payload = vec![step as u8; random.below(longest + 1) as usize];
                match random.below(20) {
                    _ if shelf.only_small => shelf.keep(request, payload),
                    0 => shelf.forget(request),
                    1 | 2 => {
                        let index = random.below(1 + u64::from(shelf.count[request]));
                        shelf.replace(request, index as u32, payload[..payload.len() / 3].into());
                    }
                    _ => shelf.keep(request, payload),
                }
            }
        }
    }

    /// A response that is kept for long, and then ever more that are forgotten at once: a call that lasts, beside many that do
    /// not.
    #[test]
    fn what_was_forgotten_takes_room_until_those_before_it_are() {
        let mut kept = KeptResponses::new(2 * HALF);
        let lasts = kept.keep(&response(0, Vec::new()), None);
        let most = (2 * HALF / ENTRY) as usize;
        for number in 1..3 * most {
            let last = kept.keep(&response(0, Vec::new()), None);
            kept.forget(last.expect("it fits"));
            assert!(kept.entries.len() <= most, "{number}");
            let is_kept = kept.restore(lasts, 0, &mut response(9, Vec::new()));
            assert_eq!(is_kept, number < most, "{number}");
        }
        assert_eq!(kept.bytes(), 0);
    }

    /// Who asks for responses of a request that has sent many makes nobody look at all of them for each.
    #[test]
    fn a_response_is_found_in_few_steps_however_many_there_are() {
        let mut kept = KeptResponses::new(1 << 22);
        let (first, count) = (5, 10_000);
        let mut last = None;
        for index in first..first + count {
            last = kept.keep(&response(index, index.to_le_bytes().into()), last);
        }
        let steps = |index: u32| {
            let mut number = last.expect("some are kept");
            let mut steps = 0;
            while let Some(entry) = kept.entry(number).filter(|entry| entry.index > index) {
                number = kept.closer(entry, index).expect("it is there");
                steps += 1;
            }
            steps
        };
        for index in (first..first + count).step_by(7) {
            let mut restored = response(u32::MAX, Vec::new());
            assert!(kept.restore(last, index, &mut restored));
            assert_eq!(restored.payload[..], index.to_le_bytes());
            assert!(steps(index) <= 3 * 14, "{index}: {}", steps(index));
        }
        for index in [0, first - 1, first + count, u32::MAX] {
            assert!(!kept.restore(last, index, &mut response(9, Vec::new())));
        }
    }

    #[test]
    fn half_of_the_budget_is_for_large_ones() {
        let mut kept = KeptResponses::new(2 * HALF);
        let large = response(0, vec![1; (HALF - ENTRY) as usize]);
        let last = kept.keep(&large, None);
        assert!(last.is_some());
        let small = response(0, vec![2; COPIED]);
        let others: Vec<Option<Number>> = (0..4).map(|_| kept.keep(&small, None)).collect();
        let mut restored = response(9, Vec::new());
        assert!(
            kept.restore(last, 0, &mut restored),
            "small ones took their own half"
        );
        assert!(
            others
                .iter()
                .all(|other| kept.restore(*other, 0, &mut restored))
        );
        let larger = response(0, vec![1; (HALF - ENTRY) as usize + 1]);
        assert_eq!(kept.keep(&larger, None), None, "more than all of it");
        assert_eq!(kept.bytes(), HALF + 4 * (ENTRY + COPIED as u64));
    }

    #[test]
    fn a_half_is_filled_to_its_last_byte() {
        let mut kept = KeptResponses::new(2 * HALF);
        let full = ENTRY + COPIED as u64;
        let count = HALF / full - 1;
        let rest = HALF - count * full;
        let mut lens = vec![COPIED; count as usize];
        lens.extend([rest / 2, rest - rest / 2].map(|cost| (cost - ENTRY) as usize));
        let all: Vec<Option<Number>> = (lens.iter())
            .map(|&len| kept.keep(&response(0, vec![1; len]), None))
            .collect();
        assert_eq!(kept.bytes(), HALF);
        let mut restored = response(9, Vec::new());
        for last in &all {
            assert!(kept.restore(*last, 0, &mut restored), "{last:?}");
        }
        kept.keep(&response(0, Vec::new()), None);
        assert!(!kept.restore(all[0], 0, &mut restored), "it made room");
        assert!(kept.restore(all[1], 0, &mut restored));
    }

    #[test]
    fn a_status_takes_the_room_of_what_it_stands_for() {
        let mut kept = KeptResponses::new(2 * HALF);
        let mut restored = response(9, Vec::new());
        let large = kept.keep(&response(0, vec![1; (HALF - ENTRY) as usize]), None);
        kept.replace(large, &response(0, vec![2; 10]));
        let rest = HALF - (ENTRY + 10);
        let other = kept.keep(&response(0, vec![3; (rest - ENTRY) as usize]), None);
        assert_eq!(kept.bytes(), HALF);
        for last in [large, other] {
            assert!(kept.restore(last, 0, &mut restored), "both fit");
        }
        // One that fills its half on its own.
        let mut kept = KeptResponses::new(2 * HALF);
        let small = kept.keep(&response(0, vec![1; 3]), None);
        kept.replace(small, &response(0, vec![2; (HALF - ENTRY) as usize]));
        assert!(kept.restore(small, 0, &mut restored));
        assert_eq!(restored.payload.len() as u64, HALF - ENTRY);
    }
}
