//! What can be wrong with bytes, and with values that are to become bytes.

use thiserror::Error;

/// Bytes that are not the value that was to be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("at byte {offset}: {problem}")]
pub struct DecodeError {
    /// Where the reader stood, in bytes from the beginning of what it was given.
    pub offset: usize,
    /// What was expected there, and what was found.
    pub problem: Malformed,
}

/// What is wrong with bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end within a value.
    #[error("expected {needed} more bytes, found {left}")]
    Ended {
        /// What the value needs from here on, padding included.
        needed: usize,
        /// What there is.
        left: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("expected a bool, 0 or 1, found {0}")]
    Bool(u32),
    /// A number does not fit its type (`char` and `short` take four bytes as well).
    #[error("expected {expected}, found {found}")]
    Range {
        /// The type in Rust.
        expected: &'static str,
        /// The number.
        found: i64,
    },
    /// No enumerator has this number, or the union has no arm for it.
    #[error("expected one of the values of `{expected}`, found {found}")]
    Unknown {
        /// The enum's or union's name in the interface.
        expected: &'static str,
        /// The number.
        found: i64,
    },
    /// A string, opaque data or array is longer than the interface allows.
    #[error("expected at most {limit} elements, found a length of {found}")]
    TooLong {
        /// The limit.
        limit: u32,
        /// The length that the bytes claim.
        found: u32,
    },
    /// Values within values, deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("expected at most {limit} levels of values within values, found more")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// The value would take more memory than [`XdrLimits::memory`](super::XdrLimits::memory).
    #[error("expected a value of at most {limit} bytes of memory, found a larger one")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// Something follows the value.
    #[error("expected the end, found {left} more bytes")]
    Trailing {
        /// How much.
        left: usize,
    },
}

/// A value that the interface has no bytes for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string, opaque data or array is longer than the interface allows.
    #[error("expected at most {limit} elements, found {found}")]
    TooLong {
        /// The limit.
        limit: u32,
        /// The length.
        found: usize,
    },
    /// The default arm of a union was given the number of another arm, and would be read as that.
    #[error(
        "the default arm of `{union}` cannot have the discriminant {found}: it has an arm of its own"
    )]
    NotDefault {
        /// The union's name in the interface.
        union: &'static str,
        /// The discriminant.
        found: i64,
    },
    /// Values within values, deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("expected at most {limit} levels of values within values, found more")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
}
