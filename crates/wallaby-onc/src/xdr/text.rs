//! XDR's strings.

use std::fmt;
use std::ops::Deref;
use std::str::Utf8Error;

use bytes::Bytes;

/// An XDR string.
///
/// RFC 4506 speaks of ASCII, programs send UTF-8 and whatever a file system calls its files. So this is a sequence of
/// bytes that is mostly text: [`as_str`](Self::as_str) says whether it is, `Display` shows it in any case.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Bytes);

impl Text {
    /// The string, if it is UTF-8.
    ///
    /// # Errors
    /// It is not.
    pub fn as_str(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.0)
    }

    /// The bytes, without a copy.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Bytes> for Text {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for Text {
    /// What is not UTF-8 is shown as U+FFFD.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.0.escape_ascii())
    }
}
