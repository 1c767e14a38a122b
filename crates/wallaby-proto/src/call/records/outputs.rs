//! Where a request's output went: what is still being written, and over which connection each response left.

use std::time::Duration;

use std::collections::BTreeMap;

use crate::id::{ConnId, NodeId};

/// Where in a connection's output a message stands: it has been written out when [`Records::written`] has named this mark
/// or a higher one. What counts is the driver's choice: bytes, or messages. Mark 0 is written out from the beginning.
///
/// [`Records::written`]: crate::call::records::Records::written
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputMark {
    /// The connection.
    pub conn: ConnId,
    /// How far its output must be written.
    pub mark: u64,
}

/// What is known of a connection while it is open.
#[derive(Debug)]
pub(super) struct ConnState {
    pub(super) peer: NodeId,
    pub(super) written: u64,
    pub(super) confirmed: Option<u64>,
    /// Answers for others than the peer went this way.
    pub(super) relays: bool,
    /// It has brought requests.
    pub(super) brought: bool,
    /// Some of them were of calls of others than the peer, or requests were handed on this way: they are to be told of when it
    /// ends.
    pub(super) handed: bool,
    /// Answers may have gone this way of calls that came first over other connections.
    pub(super) foreign: bool,
    /// Initiators of requests that came this way and who may be connected themselves.
    pub(super) initiators: BTreeMap<NodeId, Connected>,
}

/// What is known of the connections of an initiator, as far as requests from one delegating connection are concerned.
#[derive(Debug, Default)]
pub(super) struct Connected {
    /// By which it has shown the token of such a request last.
    pub(super) shown: Option<ConnId>,
    /// Those that claim to be its own, and were asked to show one.
    pub(super) invited: Vec<ConnId>,
}

pub(super) type Conns = BTreeMap<ConnId, ConnState>;

/// Where a request's responses and delegations went.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Responses from a number on, each run over one connection; the first run apart, as most have no other.
    first: Option<OutputRun>,
    /// How many released messages have no place in a connection's output yet.
    pub(super) waiting: u32,
    /// The last delegated message by the connection that the first one went by.
    delegated: Option<OutputMark>,
    cold: Option<Box<ColdOutputs>>,
}

/// What a request with one answer does not have.
#[derive(Debug, Default)]
struct ColdOutputs {
    /// Runs behind the first.
    more: Vec<OutputRun>,
    /// Responses that went another way than their run.
    apart: Vec<Apart>,
    /// The last delegated message by each other connection.
    delegated: Vec<OutputMark>,
}

#[derive(Debug, Clone, Copy)]
struct OutputRun {
    from: u32,
    to: u32,
    output: OutputMark,
}

/// A response that was sent again, or given up.
#[derive(Debug, Clone, Copy)]
struct Apart {
    index: u32,
    /// Where it went last; `None` if it was given up before it went out.
    output: Option<OutputMark>,
    /// It waits for its place in this connection's output.
    waiting: Option<ConnId>,
    /// It is larger than this connection takes.
    refused: Option<ConnId>,
}

/// Most responses of one request that are remembered to have gone another way than their neighbours.
const MAX_APART: usize = 256;

/// Room for the delegations of most requests.
const FEW_DELEGATED: usize = 8;

/// What became of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseFate {
    /// It waits to be written.
    Waiting,
    /// It went out on this connection, or is still being written.
    Sent(OutputMark),
    /// It was given up before it went out.
    Dropped,
}

impl Outputs {
    fn cold(&mut self) -> &mut ColdOutputs {
        self.cold.get_or_insert_default()
    }

    fn apart(&self) -> &[Apart] {
        self.cold.as_ref().map_or(&[], |cold| &cold.apart)
    }

    /// What is known of a response that went another way than its run.
    fn find_apart(&self, index: u32) -> Option<&Apart> {
        self.apart().iter().find(|apart| apart.index == index)
    }

    fn find_apart_mut(&mut self, index: u32) -> Option<&mut Apart> {
        let all = &mut self.cold.as_mut()?.apart;
        all.iter_mut().find(|apart| apart.index == index)
    }

    fn delegated(&self) -> impl Iterator<Item = &OutputMark> {
        let further = self.cold.iter().flat_map(|cold| &cold.delegated);
        self.delegated.iter().chain(further)
    }

    fn place_response(&mut self, index: u32, output: OutputMark) {
        let (from, to) = (index, index.saturating_add(1));
        let last = match self.cold.as_mut().and_then(|cold| cold.more.last_mut()) {
            Some(last) => Some(last),
            None => self.first.as_mut(),
        };
        match last {
            None => self.first = Some(OutputRun { from, to, output }),
            Some(run) if run.output.conn == output.conn && (run.from..=run.to).contains(&index) => {
                run.to = run.to.max(to);
                run.output.mark = run.output.mark.max(output.mark);
            }
            Some(_) => self.cold().more.push(OutputRun { from, to, output }),
        }
    }

    /// A delegation got its place.
    pub(super) fn place_delegated(&mut self, output: OutputMark, conns: &Conns) {
        self.waiting = self.waiting.saturating_sub(1);
        let conn = output.conn;
        let first = self.delegated.get_or_insert(output);
        if first.conn == conn {
            first.mark = first.mark.max(output.mark);
            return;
        }
        let delegated = &mut self.cold().delegated;
        match delegated.iter_mut().find(|other| other.conn == conn) {
            Some(other) => other.mark = other.mark.max(output.mark),
            None => {
                // Not each time: a wide fan-out would look at all its delegations for each of them.
                if delegated.len() == delegated.capacity() {
                    delegated.retain(|other| !is_written(*other, conns));
                    delegated.reserve(delegated.len().max(FEW_DELEGATED));
                }
                delegated.push(output);
            }
        }
    }

    /// A message got its place that had none: a response, or an end with the number of responses before it.
    #[inline]
    pub(super) fn place(&mut self, index: u32, output: OutputMark) {
        if self.first.is_none() && self.cold.is_none() {
            self.waiting = self.waiting.saturating_sub(1);
            let (from, to) = (index, index.saturating_add(1));
            self.first = Some(OutputRun { from, to, output });
        } else {
            self.place_further(index, output);
        }
    }

    #[inline(never)]
    fn place_further(&mut self, index: u32, output: OutputMark) {
        if let Some(apart) = self.find_apart_mut(index) {
            (apart.output, apart.waiting) = (Some(output), None);
            return;
        }
        if !self.runs().any(|run| run.holds(index)) {
            self.waiting = self.waiting.saturating_sub(1);
        }
        self.place_response(index, output);
    }

    /// A response will not be sent. If it should have been sent again, what became of it before still holds.
    pub(super) fn drop_response(&mut self, index: u32) {
        if let Some(apart) = self.find_apart_mut(index) {
            if apart.waiting.take().is_none() {
                apart.output = None;
            }
            return;
        }
        let known = self.runs().any(|run| run.holds(index));
        self.waiting = self.waiting.saturating_sub(u32::from(!known));
        self.add_apart(Apart {
            index,
            output: None,
            waiting: None,
            refused: None,
        });
    }

    /// A response is sent again, over this connection; so far it went there.
    pub(super) fn resend(&mut self, index: u32, conn: ConnId, output: Option<OutputMark>) {
        match self.find_apart_mut(index) {
            Some(apart) => apart.waiting = Some(conn),
            None => self.add_apart(Apart {
                index,
                output,
                waiting: Some(conn),
                refused: None,
            }),
        }
    }

    /// A response that should be sent again is larger than its connection takes.
    pub(super) fn refuse(&mut self, index: u32) {
        if let Some(apart) = self.find_apart_mut(index)
            && let Some(conn) = apart.waiting.take()
        {
            apart.refused = Some(conn);
        }
    }

    /// Whether a response may be sent again over this connection, as far as is known of what that takes.
    pub(super) fn fits(&self, index: u32, conn: ConnId) -> bool {
        let apart = self.find_apart(index);
        apart.is_none_or(|apart| apart.refused != Some(conn))
    }

    fn add_apart(&mut self, apart: Apart) {
        let all = &mut self.cold().apart;
        if all.len() >= MAX_APART {
            all.remove(0);
        }
        all.push(apart);
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &OutputRun> {
        let more = self.cold.iter().flat_map(|cold| &cold.more);
        self.first.iter().chain(more)
    }

    /// Whether something that was released has not been written out, and where the transport tells, not arrived. What a
    /// connection that has ended did not write will not be written any more.
    pub(super) fn are_being_written(&self, conns: &Conns) -> bool {
        let mut delegated = self.delegated();
        self.answers_are_being_written(conns)
            || delegated.any(|delegated| !is_written(*delegated, conns))
    }

    /// The same for what silence of others is excused by: answers, until they have arrived, and delegations, until they have
    /// left. Whoever does not acknowledge a delegation may be dead.
    pub(super) fn excuse_silence(&self, conns: &Conns) -> bool {
        let mut delegated = self.delegated();
        self.answers_are_being_written(conns)
            || delegated.any(|delegated| !has_left(*delegated, conns))
    }

    fn answers_are_being_written(&self, conns: &Conns) -> bool {
        self.waiting > 0
            || self.runs().any(|run| !is_written(run.output, conns))
            || self.apart().iter().any(|apart| {
                apart.is_waiting(conns)
                    || apart
                        .output
                        .is_some_and(|output| !is_written(output, conns))
            })
    }

    pub(super) fn fate(&self, index: u32, conns: &Conns) -> ResponseFate {
        if let Some(apart) = self.find_apart(index) {
            return match apart.output {
                _ if apart.is_waiting(conns) => ResponseFate::Waiting,
                Some(output) => ResponseFate::Sent(output),
                None => ResponseFate::Dropped,
            };
        }
        match self.runs().rev().find(|run| run.holds(index)) {
            Some(run) => ResponseFate::Sent(run.output),
            None => ResponseFate::Waiting,
        }
    }

    /// Whether answers went out on this connection that its other end has not confirmed.
    pub(super) fn has_unconfirmed(&self, conn: ConnId, confirmed: Option<u64>) -> bool {
        self.any(|output| output.conn == conn && confirmed.is_none_or(|mark| output.mark > mark))
    }

    /// Whether one of the last requests that were handed on went out like that.
    pub(super) fn any_delegated(&self, is_it: impl Fn(&OutputMark) -> bool) -> bool {
        self.delegated().any(is_it)
    }

    /// Whether an answer went out like that.
    pub(super) fn any(&self, is_it: impl Fn(&OutputMark) -> bool) -> bool {
        let apart = self
            .apart()
            .iter()
            .filter_map(|apart| apart.output.as_ref());
        let mut outputs = self.runs().map(|run| &run.output).chain(apart);
        outputs.any(is_it)
    }
}

impl Apart {
    /// It will get its place, unless its connection has ended meanwhile.
    fn is_waiting(&self, conns: &Conns) -> bool {
        self.waiting.is_some_and(|conn| conns.contains_key(&conn))
    }
}

impl OutputRun {
    fn holds(&self, index: u32) -> bool {
        (self.from..self.to).contains(&index)
    }
}

/// Whether this was written out, and where the transport tells, has arrived.
pub(super) fn is_written(output: OutputMark, conns: &Conns) -> bool {
    let conn = conns.get(&output.conn);
    conn.is_none_or(|conn| conn.confirmed.unwrap_or(conn.written) >= output.mark)
}

/// Whether this was written out, arrived or not.
fn has_left(output: OutputMark, conns: &Conns) -> bool {
    let conn = conns.get(&output.conn);
    conn.is_none_or(|conn| conn.written >= output.mark)
}

/// What was written this long ago may still count as waiting, and this much longer for each connection: to ask all of them
/// takes at most a twentieth of the time.
const WRITTEN_EVERY: Duration = Duration::from_millis(5);
const WRITTEN_EACH: Duration = Duration::from_micros(10);

/// When so many connections are asked again what they have written.
pub fn written_next(now: Duration, connections: usize) -> Duration {
    let each = WRITTEN_EACH.saturating_mul(u32::try_from(connections).unwrap_or(u32::MAX));
    now.saturating_add(WRITTEN_EVERY).saturating_add(each)
}
