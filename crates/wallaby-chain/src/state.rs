//! What functions are given: the state that travels with a chain, and answers of links.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wallaby::codec::{Codec, Postcard};
use wallaby::{Code, Status};
use wallaby_chain_guest as guest;

/// Named values that travel with a chain, from function to function. Each is any type that serde knows.
///
/// A value remembers what its type looks like, so that reading another one is an error and not a wrong value; one that a function
/// as WebAssembly has put there does not. All that travels with
/// a chain (functions, states, the path) is at most 16 KiB.
///
/// ```
/// use wallaby_chain::State;
///
/// let state = State::new().with("tries", &3u32)?.with("user", &"Ada".to_owned())?;
/// assert_eq!(state.get::<u32>("tries")?, 3);
/// assert!(state.get::<String>("tries").is_err(), "it is a number");
/// assert!(state.get::<u32>("size").is_err(), "there is none");
/// # Ok::<(), wallaby::Status>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// In the format that functions as WebAssembly are given.
    pub(crate) values: guest::State,
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
    /// A status if postcard cannot hold the value.
    pub fn with<T>(mut self, name: &str, value: &T) -> Result<Self, Status>
    where
        T: Serialize + DeserializeOwned + 'static,
    {
        self.set(name, value)?;
        Ok(self)
    }

    /// Puts a value there, in place of the one of this name.
    ///
    /// # Errors
    ///
    /// A status if postcard cannot hold the value.
    pub fn set<T>(&mut self, name: &str, value: &T) -> Result<(), Status>
    where
        T: Serialize + DeserializeOwned + 'static,
    {
        let bytes = Postcard::encode(value)
            .map_err(|error| Status::invalid_argument(format!("value {name:?}: {error}")))?;
        let value = guest::Value {
            shape: <Postcard as Codec<T>>::fingerprint(),
            bytes: bytes.into(),
        };
        self.values.insert(name, value);
        Ok(())
    }

    /// The value of this name.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, `InvalidArgument` if it is of another type.
    pub fn get<T>(&self, name: &str) -> Result<T, Status>
    where
        T: Serialize + DeserializeOwned + 'static,
    {
        let Some(value) = self.values.value(name) else {
            let names: Vec<&str> = self.values.values().map(|(name, _)| name).collect();
            let message = format!("the state has no value {name:?}, only {names:?}");
            return Err(Status::not_found(message));
        };
        let expected = std::any::type_name::<T>();
        let other =
            |why: &str| Status::invalid_argument(format!("value {name:?} is no {expected}: {why}"));
        if ![0, <Postcard as Codec<T>>::fingerprint()].contains(&value.shape) {
            return Err(other("it was put there as another type"));
        }
        let bytes = Bytes::copy_from_slice(&value.bytes);
        Postcard::decode(bytes).map_err(|error| other(&error.to_string()))
    }
}

/// Names and sizes: values may be secrets.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

/// It is kept from now on: what is short gets memory of its own, so that it does not keep the buffer that it arrived in.
pub(crate) fn detach(bytes: &mut Bytes) {
    if bytes.len() <= 64 << 10 {
        *bytes = Bytes::copy_from_slice(bytes);
    }
}

/// The answer of a link, as a function gets it.
#[derive(Clone)]
pub struct Answer(pub(crate) Bytes);

impl Answer {
    /// The answer of a method whose codec is [`Postcard`], as most are.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is of another type, as far as that shows: the bytes do not say of which type they are.
    pub fn read<T: Serialize + DeserializeOwned + 'static>(&self) -> Result<T, Status> {
        self.read_by::<T, Postcard>()
    }

    /// The answer of a method with this codec.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_by<T, C: Codec<T>>(&self) -> Result<T, Status> {
        C::decode(self.0.clone()).map_err(|error| {
            let expected = std::any::type_name::<T>();
            Status::new(
                Code::InvalidArgument,
                format!("the answer is no {expected}: {error}"),
            )
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.0.len())
    }
}
