//! Responses that are kept so that they can be sent again (docs/protocol.md, rule 26), within a budget of bytes.
//!
//! Small payloads, which most are, are copied one behind the other: as slices they would keep whole buffers alive, and a copy
//! is cheaper than two counts of references. Half of the budget is for them, half for large ones.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::manifest::{Manifest, relayed};
use crate::wire::Response;

/// Payloads up to this size are copied.
const COPIED: usize = 4096;

/// The most bytes of small responses, whatever the budget: their memory is taken in one piece.
const MOST_COPIED: u64 = 1 << 30;

/// What an entry costs besides its payload.
const ENTRY: u64 = 128;

/// Numbers responses that are kept, in order. That of the first one of a request names the request.
pub(super) type Number = NonZeroU64;

/// All responses that an endpoint keeps.
#[derive(Debug)]
pub(super) struct KeptResponses {
    /// What each half may hold.
    budget: u64,
    /// What entries with small payloads cost, and those with large ones.
    small: u64,
    large: u64,
    /// The number of the first entry.
    first: Number,
    /// Oldest first; `None` if one was forgotten before those in front of it.
    entries: VecDeque<Option<KeptResponse>>,
    /// The bytes of small payloads, and how many were copied before these.
    copied: VecDeque<u8>,
    copied_before: u64,
    /// Responses by request and index, but for the first of each request: most have no other.
    further: BTreeMap<(Number, u32), Number>,
}

/// A response without what its request's record says.
#[derive(Debug)]
struct KeptResponse {
    request: Number,
    index: u32,
    last: bool,
    status: bool,
    compressed: bool,
    manifest: Option<Manifest>,
    /// How many bytes had been copied when it came.
    position: u64,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    /// So many bytes from the position on.
    Copied(usize),
    Shared(Bytes),
}

impl KeptResponse {
    fn cost(&self) -> u64 {
        let len = match &self.payload {
            Payload::Copied(len) => *len,
            Payload::Shared(payload) => payload.len(),
        };
        ENTRY + len as u64
    }

    fn is_large(&self) -> bool {
        matches!(self.payload, Payload::Shared(_))
    }
}

impl KeptResponses {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget: budget / 2,
            small: 0,
            large: 0,
            first: Number::MIN,
            entries: VecDeque::new(),
            copied: VecDeque::new(),
            copied_before: 0,
            further: BTreeMap::new(),
        }
    }

    /// Keeps a response of a request that may have a name already; returns its name.
    #[inline]
    pub(super) fn keep(&mut self, response: &Response, named: Option<Number>) -> Option<Number> {
        let len = response.payload.len();
        let cost = ENTRY + len as u64;
        if cost > self.budget {
            return named;
        }
        // Those that were forgotten behind one that is kept take room, too.
        while self.entries.len() as u64 >= 2 * (self.budget / ENTRY) {
            self.drop_first();
        }
        let (payload, position) = match len > COPIED {
            true => self.share(&response.payload),
            false => self.copy(&response.payload),
        };
        let number = self.first.saturating_add(self.entries.len() as u64);
        let request = named.unwrap_or(number);
        if number != request {
            self.further.insert((request, response.index), number);
        }
        self.entries.push_back(Some(KeptResponse {
            request,
            index: response.index,
            last: response.last,
            status: response.status,
            compressed: response.compressed,
            manifest: relayed(&response.manifest),
            position,
            payload,
        }));
        Some(request)
    }

    /// Makes room for a small payload and copies it, to this position.
    #[inline]
    fn copy(&mut self, payload: &Bytes) -> (Payload, u64) {
        let cost = ENTRY + payload.len() as u64;
        let room = self.budget.min(MOST_COPIED) as usize;
        while self.small + cost > self.budget || self.copied.len() + payload.len() > room {
            self.drop_first();
        }
        if self.copied.capacity() == 0 {
            self.copied.reserve_exact(room);
        }
        self.small += cost;
        let position = self.copied_in_all();
        self.copied.extend(&payload[..]);
        (Payload::Copied(payload.len()), position)
    }

    /// Makes room for a large payload.
    #[inline(never)]
    fn share(&mut self, payload: &Bytes) -> (Payload, u64) {
        let cost = ENTRY + payload.len() as u64;
        while self.large + cost > self.budget {
            self.drop_first();
        }
        self.large += cost;
        (Payload::Shared(payload.clone()), self.copied_in_all())
    }

    /// Writes the response of this request with this index into `response`; `false` if it is not kept.
    pub(super) fn restore(
        &self,
        request: Option<Number>,
        index: u32,
        response: &mut Response,
    ) -> bool {
        let number = request.and_then(|request| self.find(request, index));
        let Some(entry) = number.and_then(|number| self.entry(number)) else {
            return false;
        };
        response.index = entry.index;
        response.last = entry.last;
        response.status = entry.status;
        response.compressed = entry.compressed;
        response.manifest = entry.manifest;
        response.payload = match &entry.payload {
            Payload::Shared(payload) => payload.clone(),
            Payload::Copied(len) => {
                let from = (entry.position - self.copied_before) as usize;
                self.copied.range(from..from + len).copied().collect()
            }
        };
        true
    }

    /// Puts a status in place of a response of this request, if that is kept.
    pub(super) fn replace(&mut self, request: Option<Number>, status: &Response) {
        let number = request.and_then(|request| self.find(request, status.index));
        let Some(entry) = number.and_then(|number| self.entry_mut(number)) else {
            return;
        };
        let (before, was_large) = (entry.cost(), entry.is_large());
        (entry.status, entry.compressed) = (status.status, status.compressed);
        entry.payload = Payload::Shared(status.payload.clone());
        self.large += entry.cost();
        self.uncount(before, was_large);
        while self.large > self.budget {
            self.drop_first();
        }
    }

    /// Forgets all responses of this request.
    pub(super) fn forget(&mut self, request: Number) {
        self.take(request);
        let all = (request, 0)..=(request, u32::MAX);
        while let Some((_, &number)) = self.further.range(all.clone()).next() {
            self.take(number);
        }
        self.drop_forgotten();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.small + self.large
    }

    /// How many bytes have been copied so far.
    fn copied_in_all(&self) -> u64 {
        self.copied_before + self.copied.len() as u64
    }

    fn find(&self, request: Number, index: u32) -> Option<Number> {
        let first = self.entry(request).filter(|first| first.index == index);
        let further = || self.further.get(&(request, index)).copied();
        first.map(|_| request).or_else(further)
    }

    fn entry(&self, number: Number) -> Option<&KeptResponse> {
        self.entries.get(self.place(number)?)?.as_ref()
    }

    fn entry_mut(&mut self, number: Number) -> Option<&mut KeptResponse> {
        let place = self.place(number)?;
        self.entries.get_mut(place)?.as_mut()
    }

    fn place(&self, number: Number) -> Option<usize> {
        let place = number.get().checked_sub(self.first.get())?;
        usize::try_from(place).ok()
    }

    /// Forgets an entry, whose place is left empty.
    fn take(&mut self, number: Number) {
        let entry = self
            .place(number)
            .and_then(|place| self.entries.get_mut(place));
        let Some(entry) = entry.and_then(Option::take) else {
            return;
        };
        if number != entry.request {
            self.further.remove(&(entry.request, entry.index));
        }
        self.uncount(entry.cost(), entry.is_large());
    }

    fn uncount(&mut self, cost: u64, is_large: bool) {
        match is_large {
            true => self.large -= cost,
            false => self.small -= cost,
        }
    }

    #[inline(never)]
    fn drop_first(&mut self) {
        self.take(self.first);
        self.drop_forgotten();
    }

    /// Makes use again of the places and bytes in front of the first entry.
    fn drop_forgotten(&mut self) {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first = self.first.saturating_add(1);
        }
        let before = match self.entries.front() {
            Some(Some(first)) => first.position,
            _ => self.copied_in_all(),
        };
        let unused = before - self.copied_before;
        self.copied.drain(..unused as usize);
        self.copied_before = before;
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
        names: [Option<Number>; 5],
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
            self.names[request] = self.kept.keep(&message, self.names[request]);
            if cost <= HALF {
                self.known.push(known);
            }
            // Copied bytes that nobody needs are of no use before those in front of them are.
            let unused = match shared || self.only_small {
                true => 0,
                false => HALF,
            };
            let is_needed = before + cost + unused > HALF;
            self.check(is_needed);
        }

        fn replace(&mut self, request: usize, index: u32, payload: Vec<u8>) {
            let mut message = response(index, payload.clone());
            message.status = true;
            self.kept.replace(self.names[request], &message);
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
            if let Some(name) = self.names[request].take() {
                self.kept.forget(name);
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
            let name = self.names[known.request];
            if !self.kept.restore(name, known.index, &mut restored) {
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
                let without = self.cost(false) + last.cost();
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
                names: [None; 5],
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
