//! Code that clients bring, and names of functions.

use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::str::FromStr;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};
use thiserror::Error;
use wallaby::Address;

use crate::stack::Runs;

/// The SHA-256 of a module, by which it is known everywhere. As text it is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Of these bytes.
    pub fn of(module: &[u8]) -> Self {
        Self(Sha256::digest(module).into())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

/// What is no hash.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no hash: expected 64 hexadecimal digits, small letters")]
pub struct HashError(String);

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let wrong = || HashError(text.to_owned());
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

/// A module of chaining functions that a client brings: WebAssembly, or the text of a script, as `docs/chains.md` says. It is known
/// by its hash. Small ones travel with the chain; larger ones are in a [`Repository`](crate::Repository), and servers fetch them
/// once.
///
/// ```
/// # use wallaby_chain::{ChainCode, Hop, State};
/// # use wallaby::Address;
/// # #[wallaby::service(package = "example")]
/// # trait Mail { async fn fetch(id: u32) -> String; }
/// # fn example(module: Vec<u8>, mail: &Address) {
/// let glue = ChainCode::new(module);
/// let first = Hop::to(mail, &mail::FETCH, (7,)).then(glue.function("advertise"), State::new());
/// # }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChainCode {
    hash: Hash,
    source: Source,
    /// Its functions are to be told of which types values are.
    #[serde(skip)]
    typed: bool,
}

/// By what travels.
impl PartialEq for ChainCode {
    fn eq(&self, other: &Self) -> bool {
        (self.hash, &self.source) == (other.hash, &other.source)
    }
}

impl Eq for ChainCode {}

/// Where a module is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// Here, packed by deflate (RFC 1951), which halves it.
    Packed(#[serde(serialize_with = "write", deserialize_with = "read")] Bytes),
    /// This server has it.
    At(Address),
}

impl ChainCode {
    /// This module, which travels with the chain, packed to about half its size. All that travels with a chain has at most 16 KiB.
    pub fn new(module: impl AsRef<[u8]>) -> Self {
        let module = module.as_ref();
        Self {
            hash: Hash::of(module),
            source: Source::Packed(pack(module)),
            typed: !module.starts_with(b"\0asm"),
        }
    }

    /// The module with this hash, which the server at this address has in its [`Repository`](crate::Repository).
    pub fn kept(hash: Hash, at: impl Into<Address>) -> Self {
        Self {
            hash,
            source: Source::At(at.into()),
            typed: false,
        }
    }

    /// The same, and where its functions run they are told of which types values are: scripts, which have no types, need that. It is
    /// so for what [`new`](Self::new) is given, unless that is WebAssembly.
    pub fn typed(mut self) -> Self {
        self.typed = true;
        self
    }

    /// The same, but it does not travel: the server at this address has it in its [`Repository`](crate::Repository). It may be the
    /// client itself, if that listens.
    pub fn at(self, server: impl Into<Address>) -> Self {
        Self {
            typed: self.typed,
            ..Self::kept(self.hash, server)
        }
    }

    /// The module's hash.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The function that the module exports by this name.
    pub fn function(&self, name: &str) -> Function {
        Function {
            runs: Runs::Code {
                code: self.hash,
                function: name.to_owned(),
            },
            code: Some(self.clone()),
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packed(module) => write!(f, "{} bytes", module.len()),
            Self::At(address) => write!(f, "at {address}"),
        }
    }
}

/// A function of a chain: of [`ChainCode`] that comes along, or one that servers have by its name, which a `&str` is.
#[derive(Debug, Clone)]
pub struct Function {
    runs: Runs,
    code: Option<ChainCode>,
}

impl Function {
    /// Whether it is to be told of which types values are.
    pub(crate) fn is_typed(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code.typed)
    }

    pub(crate) fn parts(self) -> (Runs, Option<ChainCode>) {
        (self.runs, self.code)
    }
}

impl Function {
    /// The same, and it runs on answers of this type, written by postcard: who has written it says so. The compiler then checks that it
    /// is given such ([`Chain::apply`](crate::Chain::apply)).
    pub fn reading<T>(self) -> TypedFunction<T> {
        TypedFunction {
            function: self,
            reads: PhantomData,
        }
    }
}

/// A function that runs on answers of a type: what [`glue`](crate::glue) makes of one whose signature says so, by a `Read<T>`.
pub struct TypedFunction<T> {
    function: Function,
    reads: PhantomData<fn(T)>,
}

impl<T> Clone for TypedFunction<T> {
    fn clone(&self) -> Self {
        self.function.clone().reading()
    }
}

impl<T> fmt::Debug for TypedFunction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.function.fmt(f)
    }
}

/// Where nobody checks what it is given.
impl<T> From<TypedFunction<T>> for Function {
    fn from(typed: TypedFunction<T>) -> Self {
        typed.function
    }
}

impl From<&str> for Function {
    fn from(name: &str) -> Self {
        Self {
            runs: Runs::Native(name.to_owned()),
            code: None,
        }
    }
}

fn pack(module: &[u8]) -> Bytes {
    let mut packed = Vec::with_capacity(module.len());
    let reader = DeflateEncoder::new(module, Compression::best()).read_to_end(&mut packed);
    debug_assert!(reader.is_ok(), "memory can be read");
    packed.into()
}

/// A module that was packed, as far as it has not more than so many bytes; else one byte more.
pub(crate) fn unpack(packed: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let mut module = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut decoder = DeflateDecoder::new(packed).take(most.saturating_add(1));
    decoder.read_to_end(&mut module)?;
    Ok(module)
}

fn write<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    struct Owned;

    impl Visitor<'_> for Owned {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(bytes))
        }
    }

    from.deserialize_bytes(Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_packed_and_unpacked_within_a_limit() {
        let module = vec![7; 100_000];
        let packed = pack(&module);
        assert!(packed.len() < 1000, "{} bytes", packed.len());
        assert_eq!(unpack(&packed, 100_000).expect("it is whole"), module);
        assert_eq!(unpack(&packed, 999).expect("its begin is").len(), 1000);
        unpack(&packed[..packed.len() / 2], 100_000).expect_err("it is cut");
        unpack(b"\xff no deflate", 100).expect_err("it was never packed");
    }

    #[test]
    fn a_hash_has_one_form() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Hash::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Hash::of(b"")));
        let with = |first: &str| format!("{first}{}", &empty[1..]);
        for wrong in [
            "",
            &empty[1..],
            &with("E"),
            &with("+"),
            &with("g"),
            &with("é"),
        ] {
            assert_eq!(wrong.parse::<Hash>(), Err(HashError(wrong.into())));
        }
    }
}
