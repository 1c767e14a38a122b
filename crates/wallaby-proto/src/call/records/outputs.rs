//! Where a request's output went: what is still being written, and over which connection each response left.

use std::collections::BTreeMap;

use crate::id::NodeId;

/// One connection of this life to another, by a number that the driver never uses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// Where in a session's output a message stands: it has been written out when [`Records::written`] has named this mark
/// or a higher one. What counts is the driver's choice: bytes, or messages. Mark 0 is written out from the beginning.
///
/// [`Records::written`]: crate::call::records::Records::written
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// The session.
    pub session: Session,
    /// How far its output must be written.
    pub mark: u64,
}

/// What is known of a session while it is open.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) peer: NodeId,
    pub(super) written: u64,
    pub(super) confirmed: Option<u64>,
    /// Answers for others than the peer went this way.
    pub(super) relays: bool,
}

pub(super) type Sessions = BTreeMap<Session, SessionState>;

/// Where a request's responses and delegations went.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Responses from a number on, each run over one session; the first run apart, as most have no other.
    first: Option<Run>,
    more: Vec<Run>,
    /// Responses that went another way than their run: sent again, or given up.
    apart: Vec<(u32, Option<Output>)>,
    /// The last message onward by each session.
    onward: Vec<Output>,
    /// How many released messages have no place in a session's output yet.
    pub(super) waiting: u32,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    from: u32,
    to: u32,
    output: Output,
}

/// Most responses of one request that are remembered to have gone another way than their neighbours.
const MAX_APART: usize = 256;

/// What became of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It waits to be written.
    Waiting,
    /// It went out on this session.
    Sent(Session),
    /// It was given up before it went out.
    Dropped,
}

impl Outputs {
    pub(super) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
        self.apart.clear();
        self.onward.clear();
        self.waiting = 0;
    }

    /// Response `index` got its place, or an end with the number of responses before it.
    pub(super) fn place_response(&mut self, index: u32, output: Output) {
        let to = index.saturating_add(1);
        let last = match self.more.last_mut() {
            Some(last) => Some(last),
            None => self.first.as_mut(),
        };
        match last {
            Some(run) if run.output.session == output.session && index >= run.from => {
                run.to = run.to.max(to);
                run.output.mark = run.output.mark.max(output.mark);
            }
            _ => {
                let run = Run {
                    from: index,
                    to,
                    output,
                };
                match self.first {
                    None => self.first = Some(run),
                    Some(_) => self.more.push(run),
                }
            }
        }
    }

    pub(super) fn place_onward(&mut self, output: Output, sessions: &Sessions) {
        match self
            .onward
            .iter_mut()
            .find(|other| other.session == output.session)
        {
            Some(other) => other.mark = other.mark.max(output.mark),
            None => {
                self.onward.retain(|other| !is_written(*other, sessions));
                self.onward.push(output);
            }
        }
    }

    /// A response went another way than it was placed: again over `output`, or not at all.
    pub(super) fn set_apart(&mut self, index: u32, output: Option<Output>) {
        match self.apart.iter_mut().find(|other| other.0 == index) {
            Some(other) => other.1 = output,
            None => {
                if self.apart.len() >= MAX_APART {
                    self.apart.remove(0);
                }
                self.apart.push((index, output));
            }
        }
    }

    /// Whether something that was released has not been written out. What a session that has ended did not write will
    /// not be written any more.
    pub(super) fn are_being_written(&self, sessions: &Sessions) -> bool {
        let mut runs = self.first.iter().chain(&self.more);
        self.waiting > 0
            || runs.any(|run| !is_written(run.output, sessions))
            || self
                .onward
                .iter()
                .any(|output| !is_written(*output, sessions))
    }

    pub(super) fn fate(&self, index: u32) -> Fate {
        if let Some((_, apart)) = self.apart.iter().find(|other| other.0 == index) {
            return apart.map_or(Fate::Dropped, |output| Fate::Sent(output.session));
        }
        let mut runs = self.more.iter().rev().chain(&self.first);
        match runs.find(|run| (run.from..run.to).contains(&index)) {
            Some(run) => Fate::Sent(run.output.session),
            None => Fate::Waiting,
        }
    }

    /// Whether answers went out on this session that its other end has not confirmed.
    pub(super) fn has_unconfirmed(&self, session: Session, confirmed: Option<u64>) -> bool {
        let mut runs = self.first.iter().chain(&self.more);
        runs.any(|run| {
            run.output.session == session && confirmed.is_none_or(|mark| run.output.mark > mark)
        })
    }
}

fn is_written(output: Output, sessions: &Sessions) -> bool {
    sessions
        .get(&output.session)
        .is_none_or(|session| session.written >= output.mark)
}
