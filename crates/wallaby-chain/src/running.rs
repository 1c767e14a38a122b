//! A chain that runs, for who has started it and wants to hear of it before its end.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;

use wallaby::codec::{Codec, CodecError, Postcard};

use wallaby::{CallError, Failure, RawAnswer, RawCall, Trace};

use crate::chain::Chained;
use crate::said::{Line, Message, Told};
use crate::stack::Asked;
use crate::state::Answer;

/// What who starts a chain wants of it besides its end ([`Chain::run`](crate::Chain::run)). Servers send it only then: it costs a
/// message for each step that says anything.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "it does nothing until a chain is run by it"]
pub struct Run {
    pub(crate) asked: Asked,
}

impl Run {
    /// Nothing but the end.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lines that functions log ([`Step::log`](crate::Step::log)). Those that nobody wants are logged by their servers, for
    /// debugging.
    pub fn lines(mut self) -> Self {
        self.asked.lines = true;
        self
    }

    /// The values that functions tell ([`Step::tell`](crate::Step::tell)). Those that nobody wants are dropped.
    pub fn told(mut self) -> Self {
        self.asked.told = true;
        self
    }
}

/// Something of a chain that runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<T> {
    /// A function has logged this.
    Line(Line),
    /// A function has told this.
    Told(Told),
    /// The chain has come to this. Nothing of it is still on its way but for what branches have said that were not waited for.
    End(T),
}

/// A chain that runs: a stream of what it says, and its end. Dropping it gives the chain up.
///
/// What the functions of one step have said comes in its order. What different hosts say comes as it comes: hosts send it to who has
/// started the chain, not along the chain.
#[must_use = "a chain that is dropped is given up"]
pub struct Running<T, C = Postcard> {
    call: RawCall,
    /// What one message has brought and nobody has taken yet.
    heard: VecDeque<Event<T>>,
    codec: PhantomData<fn() -> C>,
}

impl<T, C> Running<T, C>
where
    C: Codec<T>,
{
    pub(crate) fn new(call: RawCall) -> Self {
        Self {
            call,
            heard: VecDeque::new(),
            codec: PhantomData,
        }
    }

    /// Waits for what comes next; `None` when the chain is over and all has come.
    ///
    /// # Errors
    ///
    /// As of the chain's call: the exception that nobody has caught, as a status, or why the call failed.
    pub async fn next(&mut self) -> Option<Result<Event<T>, CallError>> {
        loop {
            if let Some(event) = self.heard.pop_front() {
                return Some(Ok(event));
            }
            let RawAnswer {
                request, payload, ..
            } = match self.call.next().await? {
                Ok(answer) => answer,
                Err(error) => return Some(Err(error)),
            };
            let read = match Message::read(&payload) {
                None => {
                    Chained::<C>::decode(payload).map(|end| self.heard.push_back(Event::End(end)))
                }
                Some(Ok(message)) => {
                    self.heard.extend(events(message));
                    Ok(())
                }
                Some(Err(error)) => Err(CodecError::new("chain", error.to_string())),
            };
            if let Err(error) = read {
                return Some(Err(CallError::Decode { request, error }));
            }
        }
    }

    /// Waits for what the chain comes to. What else it says is not looked at.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn answer(&mut self) -> Result<T, CallError> {
        loop {
            match self.next().await {
                Some(Ok(Event::End(end))) => return Ok(end),
                Some(Ok(Event::Line(_) | Event::Told(_))) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(Failure::NoAnswer.into()),
            }
        }
    }

    /// The tree of hops, as far as it is known now.
    pub fn trace(&self) -> Trace {
        self.call.trace()
    }
}

pub(crate) fn events<T>(message: Message) -> impl Iterator<Item = Event<T>> {
    let Message {
        chain,
        hop,
        host,
        lines,
        told,
    } = message;
    let (of_lines, of_told) = ((chain.clone(), host.clone()), (chain, host));
    let lines = lines.into_iter().map(move |text| {
        let (chain, host) = of_lines.clone();
        Event::Line(Line {
            chain,
            host,
            hop,
            text,
        })
    });
    let told = told.into_iter().map(move |value| {
        let (chain, host) = of_told.clone();
        let value = Answer(value.into());
        Event::Told(Told {
            chain,
            host,
            hop,
            value,
        })
    });
    lines.chain(told)
}

impl<T, C> fmt::Debug for Running<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Running").field(&self.call).finish()
    }
}
