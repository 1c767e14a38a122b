//! Methods are named once per connection and then numbered.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use bytes::BufMut;
use siphasher::sip::SipHasher24;

use crate::varint::{self, Reader};
use crate::wire::DecodeError;
use crate::{Code, Status};

/// Longest name of a method or a codec, in bytes.
pub const MAX_METHOD_NAME: usize = 255;

/// Most methods that one side names on one connection.
pub const MAX_METHODS: usize = 4096;

/// With so many, requests go over another connection: the rest is for those that wait for this one already.
pub(crate) const MANY_METHODS: usize = MAX_METHODS / 4 * 3;

/// What a caller says of a method when it first uses it: enough for the server to notice a mismatch, which a codec
/// without self-description would silently misread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MethodDefinition {
    name: Arc<str>,
    codec: Arc<str>,
    arguments: u64,
    answer: u64,
    key: u64,
}

/// Whether methods of this name are Wallaby's own: nobody else serves or catches them.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with("wallaby.")
}

impl MethodDefinition {
    /// A method by name (`package.Service/method`), the codec of its payloads, and the fingerprints of its arguments
    /// and its answer; fingerprint 0 fits any. `None` if a name is empty or longer than [`MAX_METHOD_NAME`].
    pub fn new(name: &str, codec: &str, arguments: u64, answer: u64) -> Option<Self> {
        if name.is_empty() || name.len() > MAX_METHOD_NAME || codec.len() > MAX_METHOD_NAME {
            return None;
        }
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        hasher.write_u8(0);
        hasher.write(codec.as_bytes());
        hasher.write_u64(arguments);
        hasher.write_u64(answer);
        let key = hasher.finish();
        Some(Self {
            name: name.into(),
            codec: codec.into(),
            arguments,
            answer,
            key,
        })
    }

    /// `package.Service/method`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The codec of its payloads.
    pub fn codec(&self) -> &str {
        &self.codec
    }

    /// The fingerprint of its arguments' types; 0 fits any.
    pub fn arguments(&self) -> u64 {
        self.arguments
    }

    /// The fingerprint of its answer's type; 0 fits any.
    pub fn answer(&self) -> u64 {
        self.answer
    }

    /// Whether a `caller` means this method, which is served here, by its name.
    ///
    /// # Errors
    ///
    /// A status that says what differs.
    pub fn check(&self, caller: &Self) -> Result<(), Status> {
        let name = caller.name();
        if caller.codec() != self.codec() {
            let (theirs, ours) = (caller.codec(), self.codec());
            let message = format!("{name}: the caller uses codec {theirs:?}, this server {ours:?}");
            return Err(Status::new(Code::Mismatch, message));
        }
        for (what, theirs, ours) in [
            ("arguments", caller.arguments, self.arguments),
            ("answer", caller.answer, self.answer),
        ] {
            if theirs != ours && theirs != 0 && ours != 0 {
                let message = format!(
                    "{name}: the caller's type of its {what} is not this server's (fingerprints {theirs:016x} and \
                     {ours:016x}): were they built from the same definition?"
                );
                return Err(Status::new(Code::Mismatch, message));
            }
        }
        Ok(())
    }

    pub(super) fn put(&self, out: &mut Vec<u8>, number: u32) {
        varint::put(out, u64::from(number));
        varint::put_bytes(out, self.name.as_bytes());
        varint::put_bytes(out, self.codec.as_bytes());
        out.put_u64(self.arguments);
        out.put_u64(self.answer);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<(u32, Self), DecodeError> {
        let what = "method";
        let number = reader.u32(what)?;
        let name = reader.str(MAX_METHOD_NAME, what)?;
        let codec = reader.str(MAX_METHOD_NAME, what)?;
        let arguments = u64::from_be_bytes(reader.array(what)?);
        let answer = u64::from_be_bytes(reader.array(what)?);
        reader.finish(what)?;
        let definition =
            Self::new(name, codec, arguments, answer).ok_or(DecodeError::Malformed {
                what,
                why: "a method without a name",
            })?;
        Ok((number, definition))
    }
}

/// The numbers that this side gave to methods.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The number used last: most connections use one at a time.
    last: u32,
    by_number: Vec<MethodDefinition>,
    by_key: BTreeMap<u64, u32>,
}

/// What [`Numbers::number`] found.
pub(super) enum Number {
    Known(u32),
    New(u32),
    /// All numbers are taken, or another method has the same 64-bit key.
    Refused,
}

impl Numbers {
    pub(super) fn number(&mut self, method: &MethodDefinition) -> Number {
        if self.is(self.last, method) {
            return Number::Known(self.last);
        }
        self.look_up(method)
    }

    /// Whether few are left.
    pub(super) fn are_scarce(&self) -> bool {
        self.by_number.len() >= MANY_METHODS
    }

    #[inline(never)]
    fn look_up(&mut self, method: &MethodDefinition) -> Number {
        match self.by_key.get(&method.key) {
            Some(&number) if self.is(number, method) => {
                self.last = number;
                Number::Known(number)
            }
            Some(_) => Number::Refused,
            None if self.by_number.len() >= MAX_METHODS => Number::Refused,
            None => {
                self.last = self.by_number.len() as u32;
                self.by_number.push(method.clone());
                self.by_key.insert(method.key, self.last);
                Number::New(self.last)
            }
        }
    }

    fn is(&self, number: u32, method: &MethodDefinition) -> bool {
        let same = |known: &MethodDefinition| {
            Arc::ptr_eq(&known.name, &method.name) && known.key == method.key
        };
        self.by_number
            .get(number as usize)
            .is_some_and(|known| same(known) || known == method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_methods_with_one_hash_are_told_apart_and_refused() {
        let method = |name| MethodDefinition::new(name, "raw", 0, 0).expect("a name");
        let (first, other) = (method("a/a"), method("b/b"));
        let colliding = MethodDefinition {
            key: first.key,
            ..method("c/c")
        };
        let mut numbers = Numbers::default();
        assert!(matches!(numbers.number(&first), Number::New(0)));
        assert!(
            matches!(numbers.number(&colliding), Number::Refused),
            "right behind the one it collides with"
        );
        assert!(matches!(numbers.number(&other), Number::New(1)));
        assert!(matches!(numbers.number(&colliding), Number::Refused));
        assert!(matches!(numbers.number(&first), Number::Known(0)));
    }
}
