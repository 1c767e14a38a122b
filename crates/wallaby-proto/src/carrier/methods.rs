//! The methods that two sides call, each named to the other once.
//!
//! Over a stream a method's definition goes ahead of the first request for it, and gives it a number. Datagrams overtake each
//! other, so there each request brings the definition along until one that did was acknowledged, and others name it by a hash.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use bytes::{BufMut, Bytes};
use siphasher::sip::SipHasher24;

use crate::varint::{self, Reader};
use crate::wire::{MethodRef, WireError};
use crate::{Code, Status};

/// Longest name of a method or a codec, in bytes.
pub const MAX_METHOD_NAME: usize = 255;

/// Most methods that one side names on one connection.
pub const MAX_METHODS: usize = 4096;

/// With so many, requests go over another connection: the rest is for those that wait for this one already.
pub(crate) const MANY_METHODS: usize = MAX_METHODS / 4 * 3;

/// What a caller says of a method when it first uses it: enough for the server to notice a mismatch, which a codec
/// without self-description would silently misread.
#[derive(Debug, Clone)]
pub struct MethodDefinition {
    name: Arc<str>,
    codec: Arc<str>,
    arguments: u64,
    answer: u64,
    /// What names it over datagrams.
    hash: u64,
    types: Option<Arc<[String]>>,
}

/// Most bytes that are told of a method's types.
const MAX_TYPES: usize = 1024;

/// What comes before the types of a server in the message of a mismatch, and between two of them.
const SERVER_HAS: (&str, &str) = (" The server has ", "; ");

/// What comes after as many types as may be told, if there are more.
const CUT: &str = "...";

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
        hasher.write(&arguments.to_be_bytes());
        hasher.write(&answer.to_be_bytes());
        Some(Self {
            name: name.into(),
            codec: codec.into(),
            arguments,
            answer,
            hash: hasher.finish(),
            types: None,
        })
    }

    /// What all methods are called together that are not served by their names.
    pub fn rest() -> &'static Arc<Self> {
        static REST: LazyLock<Arc<MethodDefinition>> = LazyLock::new(|| {
            let definition = MethodDefinition::new("*", "", 0, 0);
            Arc::new(definition.expect("it has a name"))
        });
        &REST
    }

    /// The same, and what its types look like, each in a line of text: when the types of a caller and of a server differ, the server
    /// tells its own, 1,024 bytes of them at most, and the caller is told which of them differ. They never travel with calls.
    #[must_use]
    pub fn with_types(self, types: Option<Arc<[String]>>) -> Self {
        Self { types, ..self }
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
                let mut message = format!(
                    "{name}: the caller's type of its {what} is not this server's (fingerprints {theirs:016x} and \
                     {ours:016x}): were they built from the same definition?"
                );
                if let Some(types) = &self.types {
                    message += SERVER_HAS.0;
                    message += &listed(types);
                }
                return Err(Status::new(Code::Mismatch, message));
            }
        }
        Ok(())
    }

    /// What came in place of an answer. If a server told its types, as the caller has others, only those are left that differ, and
    /// the caller's are beside them.
    pub(crate) fn explain(&self, status: Bytes) -> Bytes {
        let read = Status::from_payload(&status).ok();
        let mismatch = read.filter(|status| status.code() == Code::Mismatch);
        let told = mismatch
            .as_ref()
            .and_then(|status| status.message().split_once(SERVER_HAS.0));
        // Of what was cut off nobody knows whether it differs.
        let told = told.filter(|(_, theirs)| !theirs.ends_with(CUT));
        let (Some((what, theirs)), Some(ours)) = (told, &self.types) else {
            return status;
        };
        let theirs: Vec<&str> = theirs.split(SERVER_HAS.1).collect();
        let differ = |these: &[&str], others: &[&str]| -> Vec<String> {
            let differing = these.iter().filter(|line| !others.contains(line));
            differing.map(|line| (*line).to_owned()).collect()
        };
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        let message = format!(
            "{what}{}{}, the caller {}",
            SERVER_HAS.0,
            listed(&differ(&theirs, &ours)),
            listed(&differ(&ours, &theirs)),
        );
        let explained = mismatch.as_ref().map(|status| status.with_message(message));
        explained.map_or(status, |explained| explained.to_payload())
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        varint::put_bytes(out, self.name.as_bytes());
        varint::put_bytes(out, self.codec.as_bytes());
        out.put_u64(self.arguments);
        out.put_u64(self.answer);
    }

    /// Reads a definition; over datagrams its request follows.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "method";
        let name = reader.str(MAX_METHOD_NAME, what)?;
        let codec = reader.str(MAX_METHOD_NAME, what)?;
        let arguments = u64::from_be_bytes(reader.array(what)?);
        let answer = u64::from_be_bytes(reader.array(what)?);
        Self::new(name, codec, arguments, answer).ok_or(WireError::Malformed {
            what,
            why: "a method without a name",
        })
    }
}

/// As equal as what is said of them.
impl PartialEq for MethodDefinition {
    fn eq(&self, other: &Self) -> bool {
        let said = |method: &Self| (method.arguments, method.answer);
        said(self) == said(other) && self.name == other.name && self.codec == other.codec
    }
}

impl Eq for MethodDefinition {}

impl Hash for MethodDefinition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// As many as may be told.
fn listed(types: &[String]) -> String {
    let mut listed = types.join(SERVER_HAS.1);
    if listed.len() > MAX_TYPES {
        listed.truncate(listed.floor_char_boundary(MAX_TYPES - CUT.len()));
        listed += CUT;
    }
    listed
}

/// The methods that this side calls.
#[derive(Debug, Default)]
pub(crate) struct CalledMethods {
    /// The number used last: most connections use one at a time.
    last: u32,
    methods: Vec<CalledMethod>,
    by_hash: BTreeMap<u64, u32>,
}

#[derive(Debug)]
struct CalledMethod {
    definition: MethodDefinition,
    is_known: bool,
}

/// How a request names its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Naming {
    pub(crate) number: u32,
    pub(crate) hash: u64,
    /// The peer has its definition.
    pub(crate) is_known: bool,
}

impl CalledMethods {
    /// How to name this method; `None` if all numbers are taken, or another one has the same hash.
    #[inline]
    pub(crate) fn name(&mut self, method: &MethodDefinition) -> Option<Naming> {
        match self.methods.get(self.last as usize) {
            Some(called) if called.is(method) => Some(called.naming(self.last)),
            _ => self.look_up(method),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, method: &MethodDefinition) -> Option<Naming> {
        let new = self.methods.len();
        let number = match self.by_hash.get(&method.hash) {
            Some(&number) => number,
            None if new >= MAX_METHODS => return None,
            None => {
                self.by_hash.insert(method.hash, new as u32);
                self.methods.push(CalledMethod {
                    definition: method.clone(),
                    is_known: false,
                });
                new as u32
            }
        };
        let called = self.methods.get(number as usize)?;
        self.last = number;
        called.is(method).then(|| called.naming(number))
    }

    /// The peer has the definition of the method with this number.
    pub(crate) fn confirm(&mut self, number: u32) {
        if let Some(called) = self.methods.get_mut(number as usize) {
            called.is_known = true;
        }
    }

    /// Whether few more can be named.
    pub(crate) fn are_scarce(&self) -> bool {
        self.methods.len() >= MANY_METHODS
    }
}

impl CalledMethod {
    #[inline]
    fn is(&self, method: &MethodDefinition) -> bool {
        let known = &self.definition;
        Arc::ptr_eq(&known.name, &method.name) && known.hash == method.hash || known == method
    }

    fn naming(&self, number: u32) -> Naming {
        Naming {
            number,
            hash: self.definition.hash,
            is_known: self.is_known,
        }
    }
}

/// The methods that the peer calls, and the numbers they have here: they count up from 0.
#[derive(Debug, Default)]
pub(crate) struct NamedMethods {
    count: u32,
    /// Those that are named by their hashes.
    by_hash: BTreeMap<u64, u32>,
    /// The one of them used last.
    last: Option<(u64, u32)>,
}

impl NamedMethods {
    /// One more method was named; its number.
    pub(crate) fn add(&mut self) -> Result<u32, WireError> {
        let number = self.count;
        if number as usize >= MAX_METHODS {
            return Err(WireError::TooLong {
                what: "methods of a connection",
                len: u64::from(number) + 1,
                limit: MAX_METHODS,
            });
        }
        self.count += 1;
        Ok(number)
    }

    /// A method was named that is called by its hash, perhaps not for the first time; its number if it is new.
    pub(crate) fn introduce(
        &mut self,
        method: &MethodDefinition,
    ) -> Result<Option<u32>, WireError> {
        if self.by_hash.contains_key(&method.hash) {
            return Ok(None);
        }
        let number = self.add()?;
        self.by_hash.insert(method.hash, number);
        Ok(Some(number))
    }

    /// The number of the method that a request calls. None is called by number that was introduced by its hash.
    #[inline]
    pub(crate) fn find(&mut self, method: MethodRef) -> Result<u32, WireError> {
        let found = match method {
            MethodRef::Number(number) => {
                (number < self.count && self.by_hash.is_empty()).then_some(number)
            }
            MethodRef::Hash(hash) => self.with_hash(hash),
        };
        found.ok_or(WireError::Malformed {
            what: "request",
            why: "a method that was not named before",
        })
    }

    fn with_hash(&mut self, hash: u64) -> Option<u32> {
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
    fn two_methods_with_one_hash_are_told_apart_and_refused() {
        let (first, other) = (method("a/a", 2), method("b/b", 2));
        let colliding = MethodDefinition {
            hash: first.hash,
            ..method("c/c", 2)
        };
        let mut called = CalledMethods::default();
        let mut number = |method| called.name(method).map(|naming| naming.number);
        assert_eq!(number(&first), Some(0));
        assert_eq!(
            number(&colliding),
            None,
            "right behind the one it collides with"
        );
        assert_eq!(number(&other), Some(1));
        assert_eq!(number(&colliding), None);
        assert_eq!(number(&first), Some(0));
    }

    #[test]
    fn methods_are_introduced_until_confirmed() {
        let (mut called, mut named) = (CalledMethods::default(), NamedMethods::default());
        let (knock, ring) = (method("door/knock", 2), method("door/ring", 2));
        let first = called.name(&knock).expect("room");
        let hash = MethodRef::Hash(first.hash);
        assert!(!first.is_known && !called.name(&ring).expect("room").is_known);
        called.confirm(first.number);
        assert!(called.name(&knock).expect("room").is_known);
        assert!(!called.name(&ring).expect("room").is_known);
        assert!(named.find(hash).is_err());
        assert_eq!(named.introduce(&knock), Ok(Some(0)));
        assert_eq!(named.introduce(&knock), Ok(None));
        assert_eq!(named.find(hash), Ok(0));
        assert!(
            named.find(MethodRef::Number(0)).is_err(),
            "it has no number"
        );
    }

    #[test]
    fn no_more_methods_are_named_than_the_limit() {
        let (mut called, mut named) = (CalledMethods::default(), NamedMethods::default());
        for answer in 0..MAX_METHODS as u64 {
            let one = method("door/pull", answer);
            assert!(called.name(&one).is_some());
            assert!(named.introduce(&one).is_ok());
        }
        let more = method("door/knock", 0);
        assert_eq!(called.name(&more), None);
        let (what, limit) = ("methods of a connection", MAX_METHODS);
        let len = limit as u64 + 1;
        assert_eq!(
            named.introduce(&more),
            Err(WireError::TooLong { what, len, limit })
        );
    }

    #[test]
    fn definitions_survive() {
        let mut out = Vec::new();
        method("door/knock", 2).put(&mut out);
        let mut reader = Reader::new(&out);
        assert_eq!(
            MethodDefinition::read(&mut reader),
            Ok(method("door/knock", 2))
        );
        assert!(reader.is_empty());
        assert!(MethodDefinition::read(&mut Reader::new(&out[..out.len() - 1])).is_err());
    }
}
