//! Methods are named by a 64-bit hash; a definition goes along until the other side is known to have it.
//!
//! Datagrams overtake each other, so a definition cannot just be sent first: each request carries it until one that did
//! was acknowledged. Whether names, codecs and fingerprints fit is then the receiver's business, as over a stream.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use bytes::BufMut;
use siphasher::sip::SipHasher24;

use crate::connection::{MANY_METHODS, MAX_METHOD_NAME, MAX_METHODS, MethodDefinition};
use crate::varint::{self, Reader};
use crate::wire::DecodeError;

/// What names a method between two incarnations: its name, codec and fingerprints, hashed.
fn hash(method: &MethodDefinition) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(method.name().as_bytes());
    hasher.write_u8(0);
    hasher.write(method.codec().as_bytes());
    hasher.write(&method.arguments().to_be_bytes());
    hasher.write(&method.answer().to_be_bytes());
    hasher.finish()
}

/// Appends a definition.
pub(super) fn put(out: &mut Vec<u8>, method: &MethodDefinition) {
    varint::put_bytes(out, method.name().as_bytes());
    varint::put_bytes(out, method.codec().as_bytes());
    out.put_u64(method.arguments());
    out.put_u64(method.answer());
}

/// Reads a definition; the request follows it.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<MethodDefinition, DecodeError> {
    let what = "method";
    let name = reader.str(MAX_METHOD_NAME, what)?;
    let codec = reader.str(MAX_METHOD_NAME, what)?;
    let arguments = u64::from_be_bytes(reader.array(what)?);
    let answer = u64::from_be_bytes(reader.array(what)?);
    MethodDefinition::new(name, codec, arguments, answer).ok_or(DecodeError::Malformed {
        what,
        why: "a method without a name",
    })
}

/// A method that this side calls.
#[derive(Debug)]
struct CalledMethod {
    definition: MethodDefinition,
    hash: u64,
    /// The other side has its definition.
    confirmed: bool,
}

/// The methods that this side calls.
#[derive(Debug, Default)]
pub(super) struct CalledMethods {
    /// The one used last: most sessions use one at a time.
    last: usize,
    methods: Vec<CalledMethod>,
    by_hash: BTreeMap<u64, usize>,
}

/// How a request names its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) hash: u64,
    /// The method's place among those called; `None` once its definition is known to the other side.
    pub(super) introduces: Option<u16>,
}

impl CalledMethods {
    /// How to name this method; `None` if no more can be named, or another one has the same hash.
    pub(super) fn name(&mut self, method: &MethodDefinition) -> Option<Named> {
        if !self.is(self.last, method) {
            let hash = hash(method);
            self.last = match self.by_hash.get(&hash) {
                Some(&index) if self.is(index, method) => index,
                Some(_) => return None,
                None if self.methods.len() >= MAX_METHODS => return None,
                None => {
                    self.by_hash.insert(hash, self.methods.len());
                    self.methods.push(CalledMethod {
                        definition: method.clone(),
                        hash,
                        confirmed: false,
                    });
                    self.methods.len() - 1
                }
            };
        }
        let called = &self.methods[self.last];
        Some(Named {
            hash: called.hash,
            introduces: (!called.confirmed).then_some(self.last as u16),
        })
    }

    /// Whether few more can be named.
    pub(super) fn are_scarce(&self) -> bool {
        self.methods.len() >= MANY_METHODS
    }

    /// A message that introduced this method has arrived at the other side.
    pub(super) fn confirm(&mut self, introduced: u16) {
        if let Some(called) = self.methods.get_mut(usize::from(introduced)) {
            called.confirmed = true;
        }
    }

    fn is(&self, index: usize, method: &MethodDefinition) -> bool {
        self.methods.get(index).is_some_and(|called| {
            let known = &called.definition;
            let same_name =
                Arc::ptr_eq(known.name(), method.name()) || known.name() == method.name();
            same_name
                && known.arguments() == method.arguments()
                && known.answer() == method.answer()
                && known.codec() == method.codec()
        })
    }
}

/// The methods that the other side calls, and the numbers they have here.
#[derive(Debug, Default)]
pub(super) struct Introduced {
    /// The one used last.
    last: Option<(u64, u32)>,
    by_hash: BTreeMap<u64, u32>,
}

impl Introduced {
    /// Takes a definition; returns the method's hash and number, and whether it is new.
    pub(super) fn introduce(
        &mut self,
        method: &MethodDefinition,
    ) -> Result<(u64, u32, bool), DecodeError> {
        let hash = hash(method);
        if let Some(&number) = self.by_hash.get(&hash) {
            return Ok((hash, number, false));
        }
        let number = self.by_hash.len();
        if number >= MAX_METHODS {
            return Err(DecodeError::TooLong {
                what: "methods of a session",
                len: number as u64 + 1,
                limit: MAX_METHODS,
            });
        }
        self.by_hash.insert(hash, number as u32);
        Ok((hash, number as u32, true))
    }

    /// The number of the method with this hash.
    pub(super) fn number(&mut self, hash: u64) -> Option<u32> {
        match self.last {
            Some((last, number)) if last == hash => Some(number),
            _ => {
                let number = *self.by_hash.get(&hash)?;
                self.last = Some((hash, number));
                Some(number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &str, answer: u64) -> MethodDefinition {
        MethodDefinition::new(name, "raw", 1, answer).expect("a name")
    }

    #[test]
    fn methods_are_introduced_until_confirmed() {
        let (mut calls, mut introduced) = (CalledMethods::default(), Introduced::default());
        let (knock, ring) = (method("door/knock", 2), method("door/ring", 2));
        let first = calls.name(&knock).expect("room");
        assert_eq!(first.introduces, Some(0));
        assert_eq!(calls.name(&ring).expect("room").introduces, Some(1));
        assert_eq!(calls.name(&knock), Some(first));
        calls.confirm(0);
        assert_eq!(calls.name(&knock).expect("room").introduces, None);
        assert_eq!(calls.name(&ring).expect("room").introduces, Some(1));
        assert_eq!(introduced.number(first.hash), None);
        assert_eq!(introduced.introduce(&knock), Ok((first.hash, 0, true)));
        assert_eq!(introduced.introduce(&knock), Ok((first.hash, 0, false)));
        assert_eq!(introduced.number(first.hash), Some(0));
    }

    #[test]
    fn other_types_are_another_method() {
        let mut calls = CalledMethods::default();
        let one = calls.name(&method("door/knock", 2)).expect("room");
        let other = calls.name(&method("door/knock", 3)).expect("room");
        assert_ne!(one.hash, other.hash);
    }

    #[test]
    fn colliding_methods_and_more_than_the_limit_are_refused() {
        let mut calls = CalledMethods::default();
        let knock = calls.name(&method("door/knock", 2)).expect("room");
        let ring = method("door/ring", 2);
        calls.by_hash.insert(hash(&ring), 0);
        assert_eq!(calls.name(&ring), None, "the hash is that of another");
        assert_eq!(calls.name(&method("door/knock", 2)), Some(knock));
        (2..=MAX_METHODS as u64).for_each(|answer| {
            assert!(calls.name(&method("door/pull", answer)).is_some());
        });
        assert_eq!(calls.name(&method("door/pull", 0)), None);
        let mut introduced = Introduced::default();
        (0..MAX_METHODS as u64).for_each(|answer| {
            assert!(introduced.introduce(&method("door/pull", answer)).is_ok());
        });
        let refused = introduced.introduce(&method("door/knock", 0));
        let (what, limit) = ("methods of a session", MAX_METHODS);
        let len = limit as u64 + 1;
        assert_eq!(refused, Err(DecodeError::TooLong { what, len, limit }));
    }

    #[test]
    fn definitions_survive() {
        let mut out = Vec::new();
        put(&mut out, &method("door/knock", 2));
        let mut reader = Reader::new(&out);
        assert_eq!(read(&mut reader), Ok(method("door/knock", 2)));
        assert!(reader.is_empty());
        assert!(read(&mut Reader::new(&out[..out.len() - 1])).is_err());
    }
}
