//! The bytes between a server and a function, of version 1. All are written by [postcard](https://postcard.jamesmunns.com).
//!
//! A module exports its memory as `memory`, the function `wallaby_abi_1`, which is given a length and says where so many bytes
//! may be written, and its chaining functions. One of these is given where its [`Input`] is and how long, and says where its
//! [`Output`] is and how long: the place in the upper half of an `i64`, the length in the lower. Each call has an instance of its
//! own. There is nothing to import.

use alloc::vec::Vec;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::state::{Answer, Error, Exception, State};
use crate::step::Step;

/// The version of all this.
pub const VERSION: u32 = 1;

/// An export with this name, and the version behind it, says which version a module is of.
pub const EXPORT: &str = "wallaby_abi_";

/// What a function is given.
#[derive(Debug, Serialize, Deserialize)]
pub struct Input<'a> {
    /// What was sent along for it.
    pub state: State,
    /// What it is to say something about.
    #[serde(borrow)]
    pub given: Given<'a>,
}

/// What a function is to say something about.
#[derive(Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Given<'a> {
    /// What a link has answered.
    #[serde(borrow)]
    Answer(Answer<'a>),
    /// What all branches of a split have come to, in their order.
    #[serde(borrow)]
    Results(Vec<Answer<'a>>),
    /// What the chain has come to, if it is caught.
    Exception(Exception),
}

/// What a function says.
pub type Output = Result<Step, Error>;

/// Bytes as postcard has them, at once and not one by one.
pub(crate) fn write<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

pub(crate) fn borrow<'de, D: Deserializer<'de>>(from: D) -> Result<&'de [u8], D::Error> {
    <&[u8]>::deserialize(from)
}

pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    struct Owned;

    impl Visitor<'_> for Owned {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }

    from.deserialize_bytes(Owned)
}
