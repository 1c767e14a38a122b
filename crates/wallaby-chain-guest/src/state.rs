//! What functions are given.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::abi;

/// Named values that travel with a chain, from function to function. Each is any type that serde knows.
///
/// Functions of servers and clients remember what a value's type looks like. A module does not, since that is much code: what it
/// writes may be read as any type, and what it reads is of the type that it expects, or an error where that shows.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// By their names. A list is much less code than a map.
    values: Vec<(String, Value)>,
}

/// One value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// What its type looks like; 0 fits any.
    pub shape: u64,
    /// It, written by postcard.
    #[serde(serialize_with = "abi::write", deserialize_with = "abi::read")]
    pub bytes: Vec<u8>,
}

impl State {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with this value, in place of the one of this name.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold the value.
    pub fn with<T: Serialize>(mut self, name: &str, value: &T) -> Result<Self, Error> {
        self.set(name, value)?;
        Ok(self)
    }

    /// Puts a value there, in place of the one of this name.
    ///
    /// # Errors
    ///
    /// If postcard cannot hold the value.
    pub fn set<T: Serialize>(&mut self, name: &str, value: &T) -> Result<(), Error> {
        let bytes = postcard::to_allocvec(value).map_err(|_| Error::unwritable("a value"))?;
        self.insert(name, Value { shape: 0, bytes });
        Ok(())
    }

    /// The value of this name.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, `InvalidArgument` if it is of another type, as far as that shows.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        let value = self.value(name).ok_or_else(|| {
            Error::new(Error::NOT_FOUND, ["the state has no value ", name].concat())
        })?;
        exactly(&value.bytes).ok_or_else(|| {
            Error::new(
                Error::INVALID_ARGUMENT,
                ["value ", name, " is of another type"].concat(),
            )
        })
    }

    /// A value as bytes.
    pub fn value(&self, name: &str) -> Option<&Value> {
        let found = self.values.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// Puts a value there as bytes.
    pub fn insert(&mut self, name: &str, value: Value) {
        match self.values.iter().position(|(known, _)| &**known >= name) {
            Some(at) if self.values[at].0 == name => self.values[at].1 = value,
            at => {
                let at = at.unwrap_or(self.values.len());
                self.values.insert(at, (name.into(), value));
            }
        }
    }

    /// The value at this place of [`values`](Self::values), to be changed.
    pub fn value_mut(&mut self, place: usize) -> Option<&mut Value> {
        self.values.get_mut(place).map(|(_, value)| value)
    }

    /// The names of all values, and these.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (&**name, value))
    }
}

/// Names and sizes: values may be secrets.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.values()).finish()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// What a link has answered, or a branch has come to.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer<'a>(
    #[serde(
        borrow,
        serialize_with = "abi::write",
        deserialize_with = "abi::borrow"
    )]
    &'a [u8],
);

impl<'a> Answer<'a> {
    /// These bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The answer of a method whose codec is postcard, as most are.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is of another type, as far as that shows: the bytes do not say of which type they are.
    pub fn read<T: Deserialize<'a>>(&self) -> Result<T, Error> {
        exactly(self.0).ok_or_else(|| {
            Error::new(
                Error::INVALID_ARGUMENT,
                "the answer is of another type".into(),
            )
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.0.len())
    }
}

/// An answer of this type, for a function whose signature says on what it runs. Beside a client, the compiler then checks that the link
/// before it answers so (`wallaby_chain::Chain::apply`).
///
/// ```
/// use wallaby_chain_guest::{Error, Read, State, Step};
///
/// fn length(_: State, Read(text): Read<String>) -> Result<Step, Error> {
///     Step::end(&(text.len() as u64))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T>(pub T);

/// Exactly one value.
fn exactly<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

/// Why a chain did not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// What kind of error it is: the number of a status, as [`Error::code`].
    pub code: u8,
    /// What happened, in words.
    pub message: String,
    /// Which chain, as in `74.2`.
    pub chain: String,
    /// The hosts that it has come through; the last is the one where it happened.
    pub hosts: Vec<String>,
}

/// With what a chain ends before its time: an exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What kind of error it is: the number of a status.
    pub code: u8,
    /// What happened, in words.
    pub message: String,
}

impl Error {
    /// The number of `InvalidArgument`.
    pub const INVALID_ARGUMENT: u8 = 3;
    /// The number of `NotFound`.
    pub const NOT_FOUND: u8 = 5;
    /// The number of `FailedPrecondition`.
    pub const FAILED_PRECONDITION: u8 = 9;
    /// The number of `Internal`.
    pub const INTERNAL: u8 = 13;

    /// A kind of error, and what happened.
    pub fn new(code: u8, message: String) -> Self {
        Self { code, message }
    }

    pub(crate) fn unwritable(what: &str) -> Self {
        Self::new(Self::INTERNAL, [what, " cannot be written"].concat())
    }
}

/// For functions that catch, and do not know what to do either.
impl From<Exception> for Error {
    fn from(exception: Exception) -> Self {
        Self::new(exception.code, exception.message)
    }
}
