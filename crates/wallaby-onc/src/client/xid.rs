//! The numbers of calls, and the calls that wait for replies with them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use foldhash::fast::FixedState;
use tokio::time::Instant;

use super::Result;
use crate::message::{BadMessage, MessageBody, Reply, RpcMessage};
use crate::xdr::DecodeError;

/// Calls that wait, each with what is needed to tell it.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    next: u32,
    /// By numbers of ours: nobody else chooses them, so the hash needs no secret.
    calls: HashMap<u32, Call<T>, FixedState>,
    unanswered: usize,
    /// When somebody is to look whose time has come: one timer for all calls, which mostly are over before.
    alarm: Option<Instant>,
}

/// A call that waits.
#[derive(Debug)]
struct Call<T> {
    about: T,
    outcome: Option<Result<Reply>>,
    due: Instant,
    is_due: bool,
    waker: Option<Waker>,
}

/// What happens to a call that waits.
#[derive(Debug)]
pub(super) enum Event {
    /// It is over.
    Over(Result<Reply>),
    /// Its time has come.
    Due,
}

impl<T> Waiting<T> {
    /// None yet; numbers start at random, so that the replies to an earlier process's calls are not taken for this one's.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            next: getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?,
            calls: HashMap::default(),
            unanswered: 0,
            alarm: None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Calls that are not over.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// One more call, whose time comes then; its number, which no other has that waits, and whether [`alarm`](Self::alarm)
    /// is another one now.
    pub(super) fn insert(&mut self, about: T, due: Instant) -> (u32, bool) {
        let xid = loop {
            let xid = self.next;
            self.next = self.next.wrapping_add(1);
            if let Entry::Vacant(vacant) = self.calls.entry(xid) {
                vacant.insert(Call {
                    about,
                    outcome: None,
                    due,
                    is_due: false,
                    waker: None,
                });
                break xid;
            }
        };
        self.unanswered += 1;
        (xid, self.set_alarm(due))
    }

    /// Another time comes for this call; whether the alarm is another one now.
    pub(super) fn set_due(&mut self, xid: u32, due: Instant) -> bool {
        let Some(call) = self.calls.get_mut(&xid) else {
            return false;
        };
        (call.due, call.is_due) = (due, false);
        self.set_alarm(due)
    }

    fn set_alarm(&mut self, due: Instant) -> bool {
        let is_earlier = self.alarm.is_none_or(|alarm| due < alarm);
        if is_earlier {
            self.alarm = Some(due);
        }
        is_earlier
    }

    pub(super) fn alarm(&self) -> Option<Instant> {
        self.alarm
    }

    /// The alarm rang: those whose time has come are told, and the alarm is set for the others.
    pub(super) fn ring(&mut self, now: Instant) {
        self.alarm = None;
        let unanswered = |call: &&mut Call<T>| call.outcome.is_none() && !call.is_due;
        for call in self.calls.values_mut().filter(unanswered) {
            if call.due <= now {
                call.is_due = true;
                call.waker.take().into_iter().for_each(Waker::wake);
            } else if self.alarm.is_none_or(|alarm| call.due < alarm) {
                self.alarm = Some(call.due);
            }
        }
    }

    /// What happened to this call.
    pub(super) fn poll(&mut self, xid: u32, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let Some(call) = self.calls.get_mut(&xid) else {
            return Poll::Ready(None);
        };
        if let Some(outcome) = call.outcome.take() {
            self.calls.remove(&xid);
            return Poll::Ready(Some(Event::Over(outcome)));
        }
        if call.is_due {
            return Poll::Ready(Some(Event::Due));
        }
        match &mut call.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// What is known of this call, if it is not over.
    pub(super) fn get_mut(&mut self, xid: u32) -> Option<&mut T> {
        let call = self.calls.get_mut(&xid)?;
        call.outcome.is_none().then_some(&mut call.about)
    }

    /// This call is over; who waits for it, if nobody had told.
    pub(super) fn answer(
        &mut self,
        xid: u32,
        outcome: Result<Reply>,
    ) -> Option<(Option<Waker>, &T)> {
        let call = self.calls.get_mut(&xid)?;
        if call.outcome.is_some() {
            return None;
        }
        call.outcome = Some(outcome);
        self.unanswered -= 1;
        Some((call.waker.take(), &call.about))
    }

    /// All calls are over, but for one.
    pub(super) fn answer_all(
        &mut self,
        except: Option<u32>,
        outcome: impl Fn(&T) -> Result<Reply>,
    ) {
        for (xid, call) in &mut self.calls {
            if call.outcome.is_some() || Some(*xid) == except {
                continue;
            }
            call.outcome = Some(outcome(&call.about));
            self.unanswered -= 1;
            call.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Nobody waits for this call any more.
    pub(super) fn remove(&mut self, xid: u32) {
        if let Some(call) = self.calls.remove(&xid)
            && call.outcome.is_none()
        {
            self.unanswered -= 1;
        }
    }
}

/// What arrived from a server.
pub(crate) enum Arrived {
    /// The reply to the call of this number.
    Reply(u32, Reply),
    /// Nothing that can be read, with the number of a call in front.
    Malformed(u32, DecodeError),
    /// Something else.
    Other,
}

/// Looks at a datagram from a server. Of most, only the results are copied.
pub(crate) fn arrived_in(datagram: &[u8]) -> Arrived {
    match Reply::plain(datagram) {
        Some((xid, results)) => {
            let results = datagram.get(results..).unwrap_or_default();
            let results = Bytes::copy_from_slice(results);
            Arrived::Reply(xid, Reply::accepted(Ok(results)))
        }
        None => arrived(Bytes::copy_from_slice(datagram)),
    }
}

/// Looks at a message from a server.
pub(crate) fn arrived(message: Bytes) -> Arrived {
    let xid = message.first_chunk().copied().map(u32::from_be_bytes);
    match (RpcMessage::decode(message), xid) {
        (
            Ok(RpcMessage {
                xid,
                body: MessageBody::Reply(reply),
            }),
            _,
        ) => Arrived::Reply(xid, reply),
        (Err(BadMessage::Malformed(error)), Some(xid)) => Arrived::Malformed(xid, error),
        _ => Arrived::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn waiting() -> (Waiting<u8>, Instant) {
        (Waiting::new().unwrap(), Instant::now())
    }

    fn poll(waiting: &mut Waiting<u8>, xid: u32) -> Poll<Option<Event>> {
        waiting.poll(xid, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn one_alarm_serves_all_calls_and_is_set_anew_when_it_rang() {
        let (mut waiting, now) = waiting();
        let after = |millis| now + Duration::from_millis(millis);
        let (first, is_set) = waiting.insert(1, after(20));
        assert!(is_set);
        let (second, is_set) = waiting.insert(2, after(30));
        assert!(!is_set, "it rings before");
        let (third, is_set) = waiting.insert(3, after(10));
        assert!(is_set);
        waiting.remove(third);
        assert_eq!(waiting.alarm(), Some(after(10)), "it rings for nothing");
        waiting.ring(after(10));
        assert_eq!(waiting.alarm(), Some(after(20)));
        waiting.ring(after(20));
        assert!(matches!(
            poll(&mut waiting, first),
            Poll::Ready(Some(Event::Due))
        ));
        assert!(poll(&mut waiting, second).is_pending());
        assert!(
            !waiting.set_due(first, after(40)),
            "the second one's is earlier"
        );
        assert!(poll(&mut waiting, first).is_pending());
        waiting.ring(after(40));
        assert_eq!(waiting.alarm(), None);
        assert!(poll(&mut waiting, second).is_ready() && poll(&mut waiting, first).is_ready());
    }

    #[test]
    fn a_call_is_answered_once() {
        let (mut waiting, now) = waiting();
        let (xid, _) = waiting.insert(7, now);
        let reply = || Ok(Reply::accepted(Ok(Bytes::new())));
        assert!(waiting.answer(xid, reply()).is_some());
        assert!(waiting.answer(xid, reply()).is_none());
        assert!(waiting.get_mut(xid).is_none());
        assert_eq!((waiting.unanswered(), waiting.len()), (0, 1));
        assert!(matches!(
            poll(&mut waiting, xid),
            Poll::Ready(Some(Event::Over(Ok(_))))
        ));
        assert!(matches!(poll(&mut waiting, xid), Poll::Ready(None)));
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn all_calls_but_one_are_over_at_once() {
        let (mut waiting, now) = waiting();
        let calls = [1, 2, 3].map(|about| waiting.insert(about, now).0);
        waiting.answer_all(Some(calls[1]), |_| Ok(Reply::accepted(Ok(Bytes::new()))));
        assert_eq!(waiting.unanswered(), 1);
        let over = calls.map(|xid| poll(&mut waiting, xid).is_ready());
        assert_eq!(over, [true, false, true]);
    }
}
