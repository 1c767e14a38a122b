//! Calls over UDP that were seen before: those that are executed are not executed again, those that are answered get the
//! same answer.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use tokio::time::Instant;

use crate::message::{CallBody, Procedure};

/// What an answer takes up besides its bytes.
const OVERHEAD: usize = 256;

/// What makes two datagrams the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    peer: SocketAddr,
    xid: u32,
    procedure: Procedure,
    /// Of the arguments and of who calls: a client that was restarted may use a number again, and so may another user behind
    /// the same address and port, whom what was answered here may not concern.
    /// It tells a client's mistakes apart, not its tricks: who finds two arguments with the same one gets its own answers
    /// mixed up.
    checksum: u64,
}

/// What is known of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has not been seen. From now on it is being executed.
    New,
    /// It is being executed.
    Running,
    /// This was its answer.
    Answered(Bytes),
}

/// The calls of late.
#[derive(Debug)]
pub(crate) struct Seen {
    calls: HashMap<Key, State>,
    /// Those that are answered, oldest first.
    answered: VecDeque<(Instant, Key)>,
    bytes: usize,
    limits: Limits,
    checksums: RandomState,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) replies: usize,
    pub(crate) bytes: usize,
    pub(crate) age: Duration,
}

#[derive(Debug)]
enum State {
    Running,
    Answered(Bytes),
}

impl Seen {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            calls: HashMap::default(),
            answered: VecDeque::new(),
            bytes: 0,
            limits,
            checksums: RandomState::default(),
        }
    }

    pub(crate) fn key(&self, peer: SocketAddr, xid: u32, call: &CallBody) -> Key {
        let (credential, arguments) = (&call.credential, &call.arguments);
        let told = (credential.flavor, &credential.body[..], &arguments[..]);
        Key {
            peer,
            xid,
            procedure: call.procedure,
            checksum: self.checksums.hash_one(told),
        }
    }

    /// A call arrived. The clock is read only if it was seen before.
    pub(crate) fn begin(&mut self, key: Key, now: impl FnOnce() -> Instant) -> Verdict {
        match self.calls.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(State::Running);
                return Verdict::New;
            }
            Entry::Occupied(known) if matches!(known.get(), State::Running) => {
                return Verdict::Running;
            }
            Entry::Occupied(_) => {}
        }
        self.forget_old(now());
        match self.calls.entry(key).or_insert(State::Running) {
            State::Running => Verdict::New,
            State::Answered(reply) => Verdict::Answered(reply.clone()),
        }
    }

    /// A call was executed; without an answer it is forgotten.
    pub(crate) fn finish(&mut self, key: Key, reply: Option<Bytes>, now: Instant) {
        self.forget_old(now);
        let kept = |reply: &Bytes| self.limits.replies > 0 && cost(reply) <= self.limits.bytes;
        let Some(reply) = reply.filter(kept) else {
            self.calls.remove(&key);
            return;
        };
        while self.answered.len() >= self.limits.replies
            || self.bytes + cost(&reply) > self.limits.bytes
        {
            self.forget_oldest();
        }
        self.bytes += cost(&reply);
        self.answered.push_back((now, key));
        self.calls.insert(key, State::Answered(reply));
    }

    fn forget_old(&mut self, now: Instant) {
        let age = self.limits.age;
        let is_old = |(since, _): &(Instant, Key)| now.saturating_duration_since(*since) >= age;
        while self.answered.front().is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.answered.pop_front()
            && let Some(State::Answered(reply)) = self.calls.remove(&key)
        {
            self.bytes -= cost(&reply);
        }
    }
}

fn cost(reply: &Bytes) -> usize {
    reply.len().saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::OpaqueAuth;

    fn seen(replies: usize, bytes: usize) -> Seen {
        Seen::new(Limits {
            replies,
            bytes,
            age: Duration::from_secs(10),
        })
    }

    fn call(arguments: &'static [u8]) -> CallBody {
        CallBody {
            procedure: Procedure {
                program: 1,
                version: 2,
                number: 3,
            },
            credential: OpaqueAuth::none(),
            verifier: OpaqueAuth::none(),
            arguments: Bytes::from_static(arguments),
        }
    }

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn answer(length: usize) -> Bytes {
        vec![7; length].into()
    }

    #[test]
    fn a_call_is_new_then_running_then_answered() {
        let now = Instant::now();
        let mut seen = seen(10, 10_000);
        let key = seen.key(peer(1), 5, &call(b"a"));
        assert_eq!(seen.begin(key, || now), Verdict::New);
        assert_eq!(seen.begin(key, || now), Verdict::Running);
        seen.finish(key, Some(answer(4)), now);
        assert_eq!(seen.begin(key, || now), Verdict::Answered(answer(4)));
        let another = Duration::from_secs(10);
        assert_eq!(
            seen.begin(key, || now + another),
            Verdict::New,
            "it was kept for 10 s"
        );
    }

    #[test]
    fn everything_in_the_key_tells_calls_apart() {
        let now = Instant::now();
        let mut seen = seen(10, 10_000);
        let mut other = call(b"a");
        other.procedure.number = 4;
        let of_user = |flavor, user: &'static [u8]| CallBody {
            credential: OpaqueAuth {
                flavor,
                body: Bytes::from_static(user),
            },
            ..call(b"a")
        };
        for (port, xid, call) in [
            (1, 5, call(b"a")),
            (2, 5, call(b"a")),
            (1, 6, call(b"a")),
            (1, 5, call(b"b")),
            (1, 5, other),
            (1, 5, of_user(1, b"alice")),
            (1, 5, of_user(1, b"bob")),
            (1, 5, of_user(2, b"bob")),
            (1, 5, of_user(2, b"")),
            // The same bytes at other places.
            (1, 5, of_user(1, b"a")),
        ] {
            let key = seen.key(peer(port), xid, &call);
            assert_eq!(seen.begin(key, || now), Verdict::New, "{key:?}");
        }
    }

    #[test]
    fn the_oldest_answers_make_room() {
        let now = Instant::now();
        for (replies, bytes) in [(2, 10_000), (10, 2 * (OVERHEAD + 100))] {
            let mut seen = seen(replies, bytes);
            let keys = [1, 2, 3].map(|xid| seen.key(peer(1), xid, &call(b"")));
            for key in keys {
                assert_eq!(seen.begin(key, || now), Verdict::New);
            }
            for key in keys {
                seen.finish(key, Some(answer(100)), now);
            }
            assert_eq!(seen.begin(keys[2], || now), Verdict::Answered(answer(100)));
            assert_eq!(seen.begin(keys[1], || now), Verdict::Answered(answer(100)));
            assert_eq!(seen.begin(keys[0], || now), Verdict::New);
        }
    }

    #[test]
    fn what_has_no_answer_or_one_that_is_too_large_is_forgotten() {
        let now = Instant::now();
        let mut seen = seen(10, 1000);
        let key = seen.key(peer(1), 5, &call(b"a"));
        for reply in [None, Some(answer(1000))] {
            assert_eq!(seen.begin(key, || now), Verdict::New);
            seen.finish(key, reply, now);
        }
        assert_eq!(seen.begin(key, || now), Verdict::New);
        assert_eq!((seen.bytes, seen.answered.len()), (0, 0));
    }
}
