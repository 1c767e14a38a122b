//! What functions say: how their chain goes on.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::state::{Error, State};

/// A method of a server. Clients give functions the links that they may need in the state: so a module has neither addresses nor
/// names of methods, and what a method's types look like is checked where the link was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The server's address.
    pub server: String,
    /// `package.Service/method`
    pub method: String,
    /// The name of its codec.
    pub codec: String,
    /// What its arguments look like; 0 fits any.
    pub arguments: u64,
    /// What it answers; 0 fits any.
    pub answer: u64,
}

/// The next link of a chain, and what is done with its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a hop does nothing until it is a step of a chain"]
pub struct Hop {
    /// Where it leads.
    pub link: Link,
    /// The arguments, as the method's codec writes them.
    #[serde(serialize_with = "abi::write", deserialize_with = "abi::read")]
    pub arguments: Vec<u8>,
    /// What runs on the answer.
    pub function: Function,
    /// What that is given.
    pub state: State,
}

impl Hop {
    /// This link with these arguments, a tuple. Its answer is what the chain comes to, unless [`then`](Self::then) says something
    /// else.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold the arguments.
    pub fn to<A: Serialize>(link: &Link, arguments: &A) -> Result<Self, Error> {
        let arguments = postcard::to_allocvec(arguments);
        let arguments = arguments.map_err(|_| Error::unwritable("an argument"))?;
        Ok(Self::to_raw(link, arguments))
    }

    /// The same with arguments that are written already.
    pub fn to_raw(link: &Link, arguments: Vec<u8>) -> Self {
        Self {
            link: link.clone(),
            arguments,
            function: Function::None,
            state: State::new(),
        }
    }

    /// This function runs on the answer, at that server, with this state. A name is one of the same module.
    pub fn then(mut self, function: impl Into<Function>, state: State) -> Self {
        self.function = function.into();
        self.state = state;
        self
    }
}

/// A function that says how it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Function {
    /// None: answers pass as they are.
    None,
    /// The one of this name in the same module.
    Own(String),
    /// The one that a server has by this name.
    Native(String),
}

impl From<&str> for Function {
    fn from(name: &str) -> Self {
        Self::Own(name.into())
    }
}

/// Where the branches of a split come together, and the function that gets all their results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// The server's address.
    pub at: String,
    /// The function.
    pub function: Function,
    /// What that is given.
    pub state: State,
}

impl Merge {
    /// At this server, by this function. A name is one of the same module.
    pub fn at(server: &str, function: impl Into<Function>, state: State) -> Self {
        Self {
            at: server.into(),
            function: function.into(),
            state,
        }
    }
}

/// How a chain goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Step {
    /// By this link.
    Next(Box<Hop>),
    /// By all of these at once, each a branch. What they come to is merged.
    Split(Vec<Hop>, Box<Merge>),
    /// It has come to this.
    End(#[serde(serialize_with = "abi::write", deserialize_with = "abi::read")] Vec<u8>),
    /// Something is said besides: [`log`](Step::log) and [`tell`](Step::tell) make this. Servers of a release before that cannot
    /// read it.
    Saying(Box<Saying>),
}

/// A step, and what is said besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saying {
    /// Lines, for people.
    pub lines: Vec<String>,
    /// Values, for who has started the chain.
    pub told: Vec<Written>,
    /// How it goes on: one of the other steps, written. So nobody can have a server read steps in steps without end.
    #[serde(serialize_with = "abi::write", deserialize_with = "abi::read")]
    pub then: Vec<u8>,
}

/// A value that is written already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written(
    #[serde(serialize_with = "abi::write", deserialize_with = "abi::read")] pub Vec<u8>,
);

impl Step {
    /// By all of these at once, and then by what `merge` makes of their results.
    pub fn split(branches: impl IntoIterator<Item = Hop>, merge: Merge) -> Self {
        Self::Split(branches.into_iter().collect(), Box::new(merge))
    }

    /// The chain has come to this value.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold it.
    pub fn end<T: Serialize>(value: &T) -> Result<Self, Error> {
        let bytes = postcard::to_allocvec(value);
        bytes
            .map(Self::End)
            .map_err(|_| Error::unwritable("the end"))
    }

    /// The same, and this line is for who wants to know what the chain does: who has started it, if that asks for lines.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold the step.
    pub fn log(self, line: &str) -> Result<Self, Error> {
        self.say(|said| said.lines.push(line.into()))
    }

    /// The same, and this value is for who has started the chain, before its end, if that asks for such values.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold the value or the step.
    pub fn tell<T: Serialize>(self, value: &T) -> Result<Self, Error> {
        let value = postcard::to_allocvec(value).map_err(|_| Error::unwritable("a value"))?;
        self.say(|said| said.told.push(Written(value)))
    }

    fn say(self, say: impl FnOnce(&mut Saying)) -> Result<Self, Error> {
        let mut said = match self {
            Self::Saying(said) => said,
            step => Box::new(Saying {
                lines: Vec::new(),
                told: Vec::new(),
                then: postcard::to_allocvec(&step).map_err(|_| Error::unwritable("a step"))?,
            }),
        };
        say(&mut said);
        Ok(Self::Saying(said))
    }
}

impl From<Hop> for Step {
    fn from(hop: Hop) -> Self {
        Self::Next(Box::new(hop))
    }
}
