//! Metadata: pairs that travel down the tree of a call.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::Code;
use crate::varint::{self, Reader};
use crate::wire::WireError;

/// Most bytes of metadata in a request, keys and values together.
pub const MAX_METADATA: usize = 8 * 1024;

/// Pairs of keys and values that travel down the tree of a call, the W3C trace context and credentials included. Values are text or
/// bytes; a key may stand once for each.
///
/// At most [`MAX_METADATA`] bytes, all keys and values together.
/// What it prints for debugging has the keys only: values may be credentials.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    pub(super) texts: Vec<(String, String)>,
    pub(super) binary: Vec<(String, Bytes)>,
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.texts.iter().map(|(key, _)| key);
        let binary = self.binary.iter().map(|(key, _)| key);
        f.write_str("Metadata ")?;
        f.debug_set().entries(texts.chain(binary)).finish()
    }
}

/// Why a pair was not taken into [`Metadata`].
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// All pairs together would be larger than [`MAX_METADATA`].
    #[error(
        "metadata of {size} bytes: at most {MAX_METADATA} are allowed, and no setting raises that: what is larger goes into the arguments"
    )]
    TooLarge {
        /// What they would come to, in bytes.
        size: usize,
    },
    /// The key is empty.
    #[error("a metadata key is empty")]
    EmptyKey,
}

impl MetadataError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::EmptyKey => Code::InvalidArgument,
        }
    }
}

impl Metadata {
    /// Sets the text of `key` to `value`; replaces what it was.
    ///
    /// # Errors
    ///
    /// If the key is empty or all pairs together would be too large; nothing changes then.
    pub fn insert(
        &mut self,
        key: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<(), MetadataError> {
        let (key, value) = (key.into(), value.into());
        let before = self.get(&key).map(str::len);
        self.check(&key, value.len(), before)?;
        set(&mut self.texts, key, value);
        Ok(())
    }

    /// Sets the bytes of `key` to `value`; replaces what they were. A server that does not know such metadata does not get the
    /// request: that is an error of its sender, which says so.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub fn insert_bin(
        &mut self,
        key: impl Into<String>,
        value: impl Into<Bytes>,
    ) -> Result<(), MetadataError> {
        let (key, value) = (key.into(), value.into());
        let before = self.get_bin(&key).map(Bytes::len);
        self.check(&key, value.len(), before)?;
        set(&mut self.binary, key, value);
        Ok(())
    }

    /// Sets what is set there.
    ///
    /// # Errors
    ///
    /// If all pairs together would be too large.
    pub fn insert_all(&mut self, others: &Self) -> Result<(), MetadataError> {
        for (key, value) in others.iter() {
            self.insert(key, value)?;
        }
        for (key, value) in others.iter_bin() {
            self.insert_bin(key, value.clone())?;
        }
        Ok(())
    }

    /// Removes the text and the bytes of `key`; whether there were any.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.texts.len() + self.binary.len();
        self.texts.retain(|pair| pair.0 != key);
        self.binary.retain(|pair| pair.0 != key);
        self.texts.len() + self.binary.len() < before
    }

    /// The text of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.texts
            .iter()
            .find(|pair| pair.0 == key)
            .map(|pair| pair.1.as_str())
    }

    /// The bytes of `key`.
    pub fn get_bin(&self, key: &str) -> Option<&Bytes> {
        self.binary
            .iter()
            .find(|pair| pair.0 == key)
            .map(|pair| &pair.1)
    }

    /// All pairs of text, in the order in which their keys were first set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// All pairs whose values are bytes, in the order in which their keys were first set.
    pub fn iter_bin(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.binary.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.binary.is_empty()
    }

    /// Whether a pair with a value of so many bytes has room in place of one with as many as `before`.
    fn check(&self, key: &str, value: usize, before: Option<usize>) -> Result<(), MetadataError> {
        if key.is_empty() {
            return Err(MetadataError::EmptyKey);
        }
        let replaced = before.map_or(0, |before| key.len() + before);
        let size = self.size() - replaced + key.len() + value;
        match size > MAX_METADATA {
            true => Err(MetadataError::TooLarge { size }),
            false => Ok(()),
        }
    }

    /// All keys and values together.
    pub(crate) fn size(&self) -> usize {
        size_of_pairs(&self.texts) + size_of_pairs(&self.binary)
    }

    /// Reads pairs that are all text, or all bytes, besides those that were read before.
    fn read<V: AsRef<[u8]>>(
        &self,
        reader: &mut Reader<'_>,
        value: impl Fn(&mut Reader<'_>) -> Result<V, WireError>,
    ) -> Result<Vec<(String, V)>, WireError> {
        let what = "metadata";
        let (mut pairs, mut size) = (Vec::new(), self.size());
        while !reader.is_empty() {
            let key = reader.str(MAX_METADATA, what)?;
            let value = value(reader)?;
            size += key.len() + value.as_ref().len();
            if key.is_empty() || size > MAX_METADATA {
                return Err(WireError::Malformed {
                    what,
                    why: "an empty key or too many bytes",
                });
            }
            pairs.push((key.to_owned(), value));
        }
        // A peer may send thousands of pairs: they are not compared each with each.
        let mut keys: Vec<&str> = pairs.iter().map(|pair| pair.0.as_str()).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|two| two[0] == two[1]) {
            return Err(WireError::Malformed {
                what,
                why: "a key that stands twice",
            });
        }
        Ok(pairs)
    }

    pub(super) fn read_texts(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let text = |reader: &mut Reader<'_>| Ok(reader.str(MAX_METADATA, "metadata")?.to_owned());
        self.texts = self.read(reader, text)?;
        Ok(())
    }

    pub(super) fn read_binary(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let bytes = |reader: &mut Reader<'_>| {
            let bytes = reader.bytes(MAX_METADATA, "metadata")?;
            Ok(Bytes::copy_from_slice(bytes))
        };
        self.binary = self.read(reader, bytes)?;
        Ok(())
    }
}

fn set<V>(pairs: &mut Vec<(String, V)>, key: String, value: V) {
    match pairs.iter_mut().find(|pair| pair.0 == key) {
        Some(pair) => pair.1 = value,
        None => pairs.push((key, value)),
    }
}

fn size_of_pairs<V: AsRef<[u8]>>(pairs: &[(String, V)]) -> usize {
    let size = |pair: &(String, V)| pair.0.len() + pair.1.as_ref().len();
    pairs.iter().map(size).sum()
}

pub(super) fn put_pairs<V: AsRef<[u8]>>(out: &mut Vec<u8>, pairs: &[(String, V)]) {
    for (key, value) in pairs {
        varint::put_bytes(out, key.as_bytes());
        varint::put_bytes(out, value.as_ref());
    }
}

crate::debug_as_text!(MetadataError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded_and_keys_are_unique() {
        let mut metadata = Metadata::default();
        assert_eq!(metadata.insert("", "x"), Err(MetadataError::EmptyKey));
        metadata.insert("key", "old").expect("small");
        metadata.insert("key", "new").expect("small");
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("key", "new")]);
        metadata.insert_bin("key", vec![1, 2]).expect("small");
        metadata.insert_bin("bin", vec![3]).expect("small");
        let text = format!("{metadata:?}");
        assert_eq!(text, r#"Metadata {"key", "key", "bin"}"#, "no secrets");
        assert_eq!(
            metadata.get_bin("key").map(|bytes| &bytes[..]),
            Some(&[1, 2][..])
        );
        assert_eq!(
            metadata.insert_bin("", vec![]),
            Err(MetadataError::EmptyKey)
        );
        assert!(metadata.remove("bin") && !metadata.remove("bin"));
        let size = 3 + 3 + 3 + MAX_METADATA;
        assert_eq!(
            metadata.insert_bin("key", vec![0; MAX_METADATA]),
            Err(MetadataError::TooLarge { size })
        );
        assert!(metadata.remove("key"), "the text and the bytes");
        assert!(metadata.is_empty());
        let size = MAX_METADATA + 1;
        assert_eq!(
            metadata.insert("key", "x".repeat(size - 3)),
            Err(MetadataError::TooLarge { size })
        );
        metadata
            .insert("key", "x".repeat(MAX_METADATA - 3))
            .expect("exactly the limit");
        assert!(metadata.insert("other", "").is_err());
    }

    #[test]
    fn all_metadata_together_are_bounded() {
        let read = |each: usize| {
            let pairs = ["a", "b", "c"].map(|key| (key.to_owned(), "x".repeat(each)));
            let (mut out, mut read) = (Vec::new(), Metadata::default());
            put_pairs(&mut out, &pairs[..2]);
            read.read_texts(&mut Reader::new(&out))?;
            out.clear();
            put_pairs(&mut out, &pairs[2..]);
            read.read_binary(&mut Reader::new(&out))?;
            Ok(read.texts == pairs[..2] && read.get_bin("c").map(Bytes::len) == Some(each))
        };
        let most = MAX_METADATA / 3 - 1;
        assert_eq!(read(most), Ok(true));
        let error = WireError::Malformed {
            what: "metadata",
            why: "an empty key or too many bytes",
        };
        assert_eq!(read(most + 1), Err(error));
    }
}
