//! What functions are given: the state that travels with a chain, and answers of links.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wallaby::codec::{Codec, Postcard};
use wallaby::{Address, Answers, Code, Method, MethodDefinition, Status};
use wallaby_chain_guest as guest;

use crate::stack::Link;
use crate::types::{self, LinkTypes, Type};

/// Named values that travel with a chain, from function to function. Each is any type that serde knows. Names that begin with a space
/// are the runtime's.
///
/// A value remembers what its type looks like, so that reading another one is an error and not a wrong value; one that a function
/// as WebAssembly has put there does not. What is
/// too large to travel within a request follows it while its link runs ([`ChainLimits::state`](crate::ChainLimits::state)).
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
        types::check_name(name)?;
        let bytes = Postcard::encode(value)
            .map_err(|error| Status::invalid_argument(format!("value {name:?}: {error}")))?;
        let value = guest::Value {
            shape: <Postcard as Codec<T>>::fingerprint(),
            bytes: bytes.into(),
        };
        self.values.insert(name, value);
        Ok(())
    }

    /// The same with this value as JSON, in place of the one of this name: so scripts can read it, whatever it is, and so do they
    /// write theirs. [`get`](Self::get) reads it, too.
    ///
    /// # Errors
    ///
    /// A status if JSON cannot hold the value.
    pub fn with_json<T: Serialize>(mut self, name: &str, value: &T) -> Result<Self, Status> {
        types::check_name(name)?;
        let bytes = serde_json::to_vec(value)
            .map_err(|error| Status::invalid_argument(format!("value {name:?}: {error}")))?;
        let shape = Type::JSON;
        self.values.insert(name, guest::Value { shape, bytes });
        Ok(self)
    }

    /// The same with a [`Link`] of this name, to this method of this server, and for scripts the types of its arguments and its answer.
    ///
    /// ```
    /// # use wallaby_chain::State;
    /// # #[wallaby::service(package = "example")]
    /// # trait Ads { async fn pick(topic: String) -> String; }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let at: wallaby::Address = "tcp://10.0.0.2:4000".parse()?;
    /// let state = State::new().link("ads", at, &ads::PICK)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn link<Args, A, C>(
        self,
        name: &str,
        server: impl Into<Address>,
        method: &'static Method<Args, A, C>,
    ) -> Result<Self, Status>
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        let types = LinkTypes {
            arguments: <C as Codec<Args>>::schema(),
            answer: <C as Codec<A::Item>>::schema(),
        };
        self.link_raw(name, (server.into(), method.definition()), &types)
    }

    /// The same for a method known only at run time.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn link_raw(
        mut self,
        name: &str,
        (server, method): (Address, &Arc<MethodDefinition>),
        types: &LinkTypes,
    ) -> Result<Self, Status> {
        self.set(name, &Link::new(server, method))?;
        self.put_type(&LinkTypes::name_of(name), Some(types));
        Ok(self)
    }

    /// The names of all values.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.values.values().map(|(name, _)| name);
        names.filter(|name| types::check_name(name).is_ok())
    }

    /// What is for runtimes. It takes the place of what was there.
    pub(crate) fn put_type<T: Serialize>(&mut self, name: &str, what: Option<&T>) {
        let bytes = what.and_then(|what| serde_json::to_vec(what).ok());
        let (shape, bytes) = (Type::JSON, bytes.unwrap_or_else(|| b"null".to_vec()));
        self.values.insert(name, guest::Value { shape, bytes });
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
            let names: Vec<&str> = self.names().collect();
            let message = format!("the state has no value {name:?}, only {names:?}");
            return Err(Status::not_found(message));
        };
        let expected = std::any::type_name::<T>();
        let other =
            |why: &str| Status::invalid_argument(format!("value {name:?} is no {expected}: {why}"));
        if value.shape == Type::JSON {
            return serde_json::from_slice(&value.bytes).map_err(|error| other(&error.to_string()));
        }
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

    /// What a script has told, which is JSON.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Status> {
        serde_json::from_slice(&self.0).map_err(|error| {
            let expected = std::any::type_name::<T>();
            Status::invalid_argument(format!("the answer is no {expected} in JSON: {error}"))
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
