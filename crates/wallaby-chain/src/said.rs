//! What functions say besides how their chain goes on: lines, and values for who has started it.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::{Address, Status};

use crate::limit::Limit;
use crate::stack::{Asked, Level, Stack};
use crate::state::Answer;

/// What stands before what functions have said, among the answers of a call.
const SAID: [u8; 8] = [0xc4, b'c', b'h', b'a', b'i', b'n', 0x02, 0x9e];

/// So many bytes one step may say if nothing else is said.
pub(crate) const MOST_SAID: usize = 64 << 10;

/// So many bytes more than these a message may have, for where it is said.
const AROUND: usize = 2048;

/// What the functions of one step have said.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    lines: Vec<String>,
    told: Vec<Bytes>,
}

/// What functions have told to who has started the chain inside another one.
pub(crate) struct Telling {
    /// Where that was, and at last whom it is told.
    pub(crate) from: Stack,
    pub(crate) said: Said,
}

impl Said {
    /// What is told at this place of the chain, if it is for somebody else than who has started the outermost one.
    pub(crate) fn apart(&mut self, stack: &Stack) -> Option<Telling> {
        let mut levels = stack.levels.iter();
        let tell = levels.rfind(|level| matches!(level, Level::Tell { .. }))?;
        let told = std::mem::take(&mut self.told);
        let from = Stack {
            levels: vec![tell.clone()],
            ..stack.clone()
        };
        let said = Self {
            told,
            ..Self::default()
        };
        (!said.told.is_empty()).then_some(Telling { from, said })
    }

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
                Err(Limit::Said.exceeded(message))
            }
        }
    }

    /// Its bytes, and some for each line and value.
    fn size(&self) -> usize {
        size(self.lines.iter(), self.told.iter())
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
        self.write(from, call)
    }

    /// As a [`Message`].
    pub(crate) fn write(self, from: &Stack, call: u64) -> Option<Bytes> {
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
    /// Reads an answer of a chain's call, if it is such a message. Servers are not trusted to keep to what was asked for.
    ///
    /// # Errors
    ///
    /// If it cannot be read, says more than so many bytes, or what nobody has asked for.
    pub(crate) fn read(payload: &[u8], asked: Asked, most: usize) -> Option<Result<Self, String>> {
        let written = payload.strip_prefix(&SAID)?;
        let much = || format!("a step says more than {most} bytes (`Run::most_said`)");
        if written.len() > most.saturating_add(AROUND) {
            return Some(Err(much()));
        }
        Some(match postcard::from_bytes::<Self>(written) {
            Err(error) => Err(error.to_string()),
            Ok(message) if message.chain.len() > AROUND => Err(much()),
            Ok(message) if size(message.lines.iter(), message.told.iter()) > most => Err(much()),
            Ok(Self { lines, told, .. })
                if !(asked.lines || lines.is_empty()) || !(asked.told || told.is_empty()) =>
            {
                Err("a step says what nobody has asked for".to_owned())
            }
            Ok(message) => Ok(message),
        })
    }
}

impl Message {
    /// The values.
    pub(crate) fn told(self) -> impl Iterator<Item = Told> {
        let (chain, host, hop): (Arc<str>, _, _) = (self.chain.into(), self.host, self.hop);
        self.told.into_iter().map(move |value| Told {
            chain: chain.clone(),
            host: host.clone(),
            hop,
            value: Answer(value.into()),
        })
    }
}

/// How much that is: its bytes, and some for each line and value.
fn size(
    lines: impl Iterator<Item = impl AsRef<[u8]>>,
    told: impl Iterator<Item = impl AsRef<[u8]>>,
) -> usize {
    let lines = lines.map(|line| line.as_ref().len());
    let all = lines.chain(told.map(|value| value.as_ref().len()));
    all.map(|length| length + 16).sum()
}

/// A line that a function has logged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// Which chain: the number of its call, and behind it the numbers of the branches where it was split, as in `74.2`. If the
    /// chain may be made again ([`Run::retries`](crate::Run::retries)), in place of the call's number that of its durable id.
    pub chain: Arc<str>,
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
    pub chain: Arc<str>,
    /// As of a [`Line`].
    pub host: Option<Address>,
    /// As of a [`Line`].
    pub hop: u32,
    /// The value.
    pub value: Answer,
}
