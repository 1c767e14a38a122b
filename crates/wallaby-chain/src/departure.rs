//! What leaves because a chain has gone on, before it is encoded.

use std::sync::Arc;

use bytes::Bytes;
use wallaby::intercept::{DelegatedRequest, Intent};
use wallaby::{Continuation, DurableId, Status};

use crate::engine::{Engine, TELL, UNSENT};
use crate::exception::Exception;
use crate::limit::Limit;
use crate::place::Place;
use crate::said::{Said, Telling};
use crate::stack::{Level, MARK, Stack};

/// From this number, as of an interceptor that nobody registers, the durable names of hops follow. So they depend on nothing but
/// the request and what its step is.
const NAMES: u32 = u32::MAX;

/// Something that leaves.
pub(crate) enum Departure {
    /// To another server, with this stack.
    Hop(Box<(DelegatedRequest, Stack)>),
    /// To the initiator: the chain has come to this.
    End(Bytes),
    /// To the initiator: the chain has ended before its time.
    Failed(Box<Exception>),
}

/// All that leaves because of one step, the last of it last.
pub(crate) struct Departures {
    /// Where the chain was. What cannot leave is an exception there,
    pub(crate) from: Stack,
    /// unless it was one already: this.
    raised: Option<Box<Exception>>,
    /// What functions have said, which leaves first.
    pub(crate) said: Said,
    /// What of it is for who has started a chain inside another one.
    pub(crate) telling: Vec<Telling>,
    pub(crate) each: Vec<Departure>,
}

impl Departures {
    pub(crate) fn new(from: Stack, each: Vec<Departure>) -> Self {
        let (raised, said, telling) = (None, Said::default(), Vec::new());
        Self {
            from,
            raised,
            said,
            telling,
            each,
        }
    }

    /// An exception that leaves by this.
    pub(crate) fn of(exception: &Exception, from: Stack, departure: Departure) -> Self {
        Self {
            raised: Some(Box::new(exception.clone())),
            ..Self::new(from, vec![departure])
        }
    }

    /// The same, and functions have said this.
    pub(crate) fn saying(self, said: Said, telling: Vec<Telling>) -> Self {
        Self {
            said,
            telling,
            ..self
        }
    }
}

/// The durable names of what leaves because of a request with this one, in its order.
pub(crate) fn names(request: Option<DurableId>) -> impl Iterator<Item = Option<DurableId>> {
    let names = request.map(|id| id.interceptor(NAMES));
    (0..).map(move |number| names.map(|names| names.child(number)))
}

impl Engine {
    /// What is sent, in its order. What cannot be is an exception.
    pub(crate) fn depart(&self, departures: Departures, place: Place<'_>) -> Vec<Intent> {
        let Departures {
            from,
            raised,
            said,
            telling,
            each,
        } = departures;
        let said = said
            .for_starter(&from, place.call(&from))
            .map(Intent::answer);
        let telling = telling.into_iter().map(|telling| self.tell(telling, place));
        let (told, left) = match telling.collect::<Result<Vec<_>, Status>>() {
            Ok(told) => (told, self.leave(from, raised, each, place)),
            Err(status) => {
                let exception = place.exception(&from, &status);
                let Departures { from, each, .. } = self.raise(from, &exception);
                (
                    Vec::new(),
                    self.leave(from, Some(exception.into()), each, place),
                )
            }
        };
        told.into_iter().chain(said).chain(left).collect()
    }

    /// Who has started a chain inside another one is told something.
    fn tell(&self, telling: Telling, place: Place<'_>) -> Result<Intent, Status> {
        let Telling { from, said } = telling;
        let Some(Level::Tell { at, .. }) = from.levels.last() else {
            return Err(Status::internal("something is told to nobody"));
        };
        let payload = said.write(&from, place.call(&from)).unwrap_or_default();
        let to = DelegatedRequest::new(at.clone(), Arc::clone(TELL.definition()), payload);
        self.hop(to, None, from, place)
    }

    fn hop(
        &self,
        mut to: DelegatedRequest,
        name: Option<DurableId>,
        stack: Stack,
        place: Place<'_>,
    ) -> Result<Intent, Status> {
        let options = to.options_mut();
        options.durable = options.durable.or(name);
        let durable = options.durable;
        to.server = self.resolve((&to.server, durable), &stack, place)?;
        self.may_leave(&stack, place)?;
        self.put(stack, &mut to)?;
        Ok(to.into())
    }

    fn leave(
        &self,
        mut from: Stack,
        mut raised: Option<Box<Exception>>,
        mut each: Vec<Departure>,
        place: Place<'_>,
    ) -> Vec<Intent> {
        let marked = from.marked;
        // Each turn has a function less that may catch it.
        loop {
            let status = match self.encode(each, marked, place) {
                Ok(intents) => return intents,
                Err(status) => status,
            };
            let exception = match raised {
                None => place.exception(&from, &status),
                Some(caught) if matches!(from.levels.last(), Some(Level::Catch { .. })) => {
                    from.levels.pop();
                    place.exception(&from, &missed(&status, &caught))
                }
                Some(lost) => return vec![lost.to_status().into()],
            };
            let next = self.raise(from, &exception);
            (from, each) = (next.from, next.each);
            raised = Some(Box::new(exception));
        }
    }

    fn encode(
        &self,
        departures: Vec<Departure>,
        marked: bool,
        place: Place<'_>,
    ) -> Result<Vec<Intent>, Status> {
        let encode = |(departure, name)| match departure {
            Departure::Hop(hop) => {
                let (to, stack) = *hop;
                self.hop(to, name, stack, place)
            }
            Departure::End(answer) if marked => Ok(Intent::answer([&MARK[..], &answer].concat())),
            Departure::End(answer) => Ok(Intent::answer(answer)),
            Departure::Failed(exception) => Ok(exception.to_status().into()),
        };
        let departures = departures.into_iter().zip(names(place.durable_id()));
        let encoded = departures.map(encode);
        let mut intents: Vec<Intent> = encoded.collect::<Result<_, Status>>()?;
        let last = intents.pop().map(Intent::last);
        intents.extend(last);
        Ok(intents)
    }

    /// Gives a request the stack of its chain.
    fn put(&self, mut stack: Stack, to: &mut DelegatedRequest) -> Result<(), Status> {
        stack.advance(&to.server);
        let written = stack.write(self.limits.bytes);
        let (bytes, away) = written.map_err(|error| Status::internal(error.to_string()))?;
        self.limits.check_size(bytes.len())?;
        self.limits.check_levels(stack.levels.len())?;
        let continuation = Continuation::new(bytes);
        let continuation =
            continuation.map_err(|error| Limit::Bytes.exceeded(error.to_string()))?;
        let options = to.options_mut();
        options.continuation = Some(continuation);
        // A link may have its own: what that hands on instead goes on with the chain.
        (options.unless_sent).get_or_insert_with(|| Arc::clone(UNSENT.definition()));
        if let Some(away) = away {
            let size = away.len();
            if to.has_body() {
                return Err(Status::failed_precondition(format!(
                    "{size} bytes of a chain's state are to follow a request that has a body of its own"
                )));
            }
            to.set_body(self.states.leave(away, &self.limits)?);
        }
        Ok(())
    }
}

/// Who was to catch an exception cannot be reached, as the status says: the next one outside is told both.
pub(crate) fn missed(why: &Status, caught: &Exception) -> Status {
    let message = format!("{}; it was to catch: {}", why.message(), caught.message());
    why.with_message(message)
}
