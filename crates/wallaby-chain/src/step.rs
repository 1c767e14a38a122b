//! What a function says: how its chain goes on.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wallaby::codec::{Codec, CodecError, Postcard};
use wallaby::{Address, Answers, Method, MethodDefinition, Status};

use crate::code::{ChainCode, Function};
use crate::stack::Runs;
use crate::state::State;
use crate::types::{Find, Type};

/// The next link of a chain, and what is done with its answer.
#[derive(Debug, Clone)]
#[must_use = "a hop does nothing until it is a step of a chain"]
pub struct Hop {
    pub(crate) server: Address,
    pub(crate) method: Arc<MethodDefinition>,
    pub(crate) payload: Result<Bytes, CodecError>,
    pub(crate) function: Runs,
    pub(crate) state: State,
    pub(crate) code: Option<ChainCode>,
    /// The type of its answer.
    answer: Find,
    /// The function is to be told.
    pub(crate) typed: bool,
}

impl Hop {
    /// This method of this server. Its answer is what the chain comes to, unless [`then`](Self::then) says something else.
    pub fn to<Args, A, C>(
        server: impl Into<Address>,
        method: &'static Method<Args, A, C>,
        arguments: Args,
    ) -> Self
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        let payload = <C as Codec<Args>>::encode(&arguments);
        let hop = Self::raw(server.into(), method.definition(), payload);
        Self {
            answer: Find::By(Type::of::<A::Item, C>),
            ..hop
        }
    }

    /// A method known only at run time, with arguments that are encoded already.
    pub fn to_raw(
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self::raw(server.into(), method, Ok(payload.into()))
    }

    /// The same, and its answer is of this type, for a script that runs on it. It is to be said before [`then`](Self::then); what
    /// [`to`](Self::to) makes says it itself.
    pub fn answering(mut self, answer: Type) -> Self {
        self.answer = Find::Known(answer);
        self
    }

    fn raw(
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Result<Bytes, CodecError>,
    ) -> Self {
        Self {
            server,
            method: Arc::clone(method),
            payload,
            function: Runs::Pipe(Vec::new()),
            state: State::new(),
            code: None,
            answer: Find::None,
            typed: false,
        }
    }

    /// This function runs on the answer, at that server, with this state. A name is one of those that the server has
    /// ([`Chains::function`](crate::Chains::function)).
    pub fn then(mut self, function: impl Into<Function>, state: State) -> Self {
        let function = function.into();
        self.state = state;
        self.typed = function.is_typed();
        if self.typed {
            self.state
                .put_type(Type::ANSWER, self.answer.find().as_ref());
        }
        (self.function, self.code) = function.parts();
        self
    }

    /// Of which type it is what it comes to as a branch of a split. What a script's end is written as is said to it.
    fn result(&mut self) -> Option<Type> {
        match &self.function {
            Runs::Pipe(_) => self.answer.find(),
            _ if self.typed => {
                self.state.put_type(Type::END, Some(&Type::json()));
                Some(Type::json())
            }
            _ => None,
        }
    }
}

/// Where the branches of a split come together, and the function that gets all their results.
#[derive(Debug, Clone)]
pub struct Merge {
    pub(crate) at: Address,
    pub(crate) function: Runs,
    pub(crate) state: State,
    pub(crate) code: Option<ChainCode>,
    /// The function is to be told of which types the results are.
    pub(crate) typed: bool,
}

impl Merge {
    /// At this server, by this function. A name is one of those that the server has
    /// ([`Chains::merging`](crate::Chains::merging)). A good choice is the server that is next.
    pub fn at(server: impl Into<Address>, function: impl Into<Function>, state: State) -> Self {
        let function = function.into();
        let typed = function.is_typed();
        let (function, code) = function.parts();
        Self {
            at: server.into(),
            function,
            state,
            code,
            typed,
        }
    }
}

/// How a chain goes on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Step {
    /// By this link.
    Next(Box<Hop>),
    /// By all of these at once, each a branch. What they come to is merged.
    Split(Vec<Hop>, Box<Merge>),
    /// It has come to this. If it is part of another chain, that one goes on.
    End(Bytes),
    /// Something is said besides: [`log`](Step::log) and [`tell`](Step::tell) make this.
    Saying {
        /// Lines, for people.
        lines: Vec<String>,
        /// Values, for who has started the chain.
        told: Vec<Bytes>,
        /// How it goes on.
        then: Box<Self>,
    },
}

impl Step {
    /// By all of these at once, and then by what `merge` makes of their results.
    pub fn split(branches: impl IntoIterator<Item = Hop>, mut merge: Merge) -> Self {
        let mut branches: Vec<Hop> = branches.into_iter().collect();
        if merge.typed {
            let results: Vec<_> = branches.iter_mut().map(Hop::result).collect();
            merge.state.put_type(Type::RESULTS, Some(&results));
        }
        Self::Split(branches, Box::new(merge))
    }

    /// The chain has come to this value, written by [`Postcard`].
    ///
    /// # Errors
    ///
    /// A status if the value cannot be written.
    pub fn end<T: Serialize + DeserializeOwned + 'static>(value: &T) -> Result<Self, Status> {
        Self::end_by::<T, Postcard>(value)
    }

    /// The same by another codec.
    ///
    /// # Errors
    ///
    /// As [`end`](Self::end).
    pub fn end_by<T, C: Codec<T>>(value: &T) -> Result<Self, Status> {
        let bytes = C::encode(value).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Self::End(bytes))
    }

    /// The same, and this line is for who wants to know what the chain does: who has started it, if that asks for lines
    /// ([`Run::lines`](crate::Run::lines)), else the log of the server, for debugging.
    ///
    /// ```
    /// # use wallaby_chain::{Answer, State, Step};
    /// # use wallaby::Status;
    /// fn join(state: State, ad: Answer) -> Result<Step, Status> {
    ///     let (mail, ad): (String, String) = (state.get("mail")?, ad.read()?);
    ///     let end = Step::end(&format!("{mail}; {ad}"))?;
    ///     Ok(end.log(format!("an advertisement of {} bytes", ad.len())))
    /// }
    /// ```
    #[must_use]
    pub fn log(mut self, line: impl Into<String>) -> Self {
        self.said().0.push(line.into());
        self
    }

    /// The same, and this value is for who has started the chain, before its end, if that asks for such values
    /// ([`Run::told`](crate::Run::told)). It is written by [`Postcard`].
    ///
    /// # Errors
    ///
    /// A status if the value cannot be written.
    pub fn tell<T>(mut self, value: &T) -> Result<Self, Status>
    where
        T: Serialize + DeserializeOwned + 'static,
    {
        let bytes = Postcard::encode(value).map_err(|error| Status::internal(error.to_string()))?;
        self.said().1.push(bytes);
        Ok(self)
    }

    /// What is said besides.
    fn said(&mut self) -> (&mut Vec<String>, &mut Vec<Bytes>) {
        if !matches!(self, Self::Saying { .. }) {
            let then = Box::new(std::mem::replace(self, Self::End(Bytes::new())));
            let (lines, told) = (Vec::new(), Vec::new());
            *self = Self::Saying { lines, told, then };
        }
        match self {
            Self::Saying { lines, told, .. } => (lines, told),
            _ => unreachable!("it was made so"),
        }
    }
}

impl From<Hop> for Step {
    fn from(hop: Hop) -> Self {
        Self::Next(Box::new(hop))
    }
}
