//! What functions say besides how their chain goes on: lines, and values for who has started it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::{Address, Status};

use crate::stack::{Asked, Stack};
use crate::state::Answer;

/// What stands before what functions have said, among the answers of a call.
const SAID: [u8; 8] = [0xc4, b'c', b'h', b'a', b'i', b'n', 0x02, 0x9e];

/// What the functions of one step have said.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    lines: Vec<String>,
    told: Vec<Bytes>,
}

impl Said {
    /// A function has said this, too.
    ///
    /// # Errors
    ///
    /// If that is more than so many bytes.
    pub(crate) fn add(
        &mut self,
        lines: Vec<String>,
        told: Vec<Bytes>,
        most: usize,
    ) -> Result<(), Status> {
        self.lines.extend(lines);
        self.told.extend(told);
        match self.size() > most {
            false => Ok(()),
            true => {
                *self = Self::default();
                let message =
                    format!("a step logs and tells too much: at most {most} bytes are allowed");
                Err(Status::resource_exhausted(message))
            }
        }
    }

    /// Its bytes, and some for each line and value.
    fn size(&self) -> usize {
        let lines = self.lines.iter().map(String::len);
        let all = lines.chain(self.told.iter().map(Bytes::len));
        all.map(|length| length + 16).sum()
    }

    /// What of it is sent to who has started the chain, from this place of it.
    pub(crate) fn for_starter(mut self, from: &Stack, call: u64) -> Option<Bytes> {
        let Asked { lines, told, .. } = from.tail.asked;
        if !lines {
            for line in self.lines.drain(..) {
                tracing::debug!(chain = from.name(call), ?line, "a function of a chain");
            }
        }
        if !told {
            self.told.clear();
        }
        if self == Self::default() {
            return None;
        }
        let written = postcard::to_extend(&self.message(from, call), SAID.to_vec());
        debug_assert!(written.is_ok(), "it can be written");
        written.ok().map(Bytes::from)
    }

    /// The same as who has started the chain gets it.
    pub(crate) fn message(self, from: &Stack, call: u64) -> Message {
        Message {
            chain: from.name(call),
            hop: from.hops,
            host: from.path.hosts().last().cloned(),
            lines: self.lines,
            told: self.told.iter().map(|value| value.to_vec()).collect(),
        }
    }
}

/// What one step of a chain has said.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) chain: String,
    pub(crate) hop: u32,
    pub(crate) host: Option<Address>,
    pub(crate) lines: Vec<String>,
    pub(crate) told: Vec<Vec<u8>>,
}

impl Message {
    /// Reads an answer of a chain's call, if it is such a message.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub(crate) fn read(payload: &[u8]) -> Option<Result<Self, postcard::Error>> {
        Some(postcard::from_bytes(payload.strip_prefix(&SAID)?))
    }
}

/// A line that a function has logged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// Which chain: the number of its call, and behind it the numbers of the branches where it was split, as in `74.2`.
    pub chain: String,
    /// The host of the link whose answer it was given: it ran there, unless the chain is walked.
    pub host: Option<Address>,
    /// How many hops led there; the first link is the first hop.
    pub hop: u32,
    /// What it says.
    pub text: String,
}

/// A value that a function has told, before the chain's end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Told {
    /// As of a [`Line`].
    pub chain: String,
    /// As of a [`Line`].
    pub host: Option<Address>,
    /// As of a [`Line`].
    pub hop: u32,
    /// The value.
    pub value: Answer,
}
