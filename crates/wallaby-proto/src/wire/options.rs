//! The optional fields of requests and responses: each a tag, a length and a value.
//!
//! An even tag may be skipped by who does not know it, an odd one may not: so the wire grows without breaking.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use thiserror::Error;

use crate::Code;
use crate::address::Address;
use crate::durable::DurableId;
use crate::id::{NodeId, Path, RequestId};
use crate::varint::{self, Reader};
use crate::wire::DecodeError;

/// Most bytes of metadata in a request, keys and values together.
pub const MAX_METADATA: usize = 8 * 1024;

/// Most bytes of a continuation.
pub const MAX_CONTINUATION: usize = 16 * 1024;

/// Most trace records in one message.
pub const MAX_TRACE_RECORDS: usize = 32;

/// Most parts of its time that a hop of a traced call tells apart.
pub const MAX_TRACE_PARTS: usize = 4;

/// Longest name of such a part, in bytes.
pub const MAX_PART_NAME: usize = 32;

const MAX_OPTIONS: usize = 48 * 1024;
const MAX_METHOD_NAME: usize = 255;
const MAX_SEAL: usize = 64;

mod tag {
    pub(super) const PING: u64 = 2;
    pub(super) const BUDGETS: u64 = 4;
    pub(super) const AGE: u64 = 6;
    pub(super) const QUIET: u64 = 8;
    pub(super) const METADATA: u64 = 10;
    pub(super) const TRACE: u64 = 12;
    pub(super) const UNDELIVERED: u64 = 14;
    pub(super) const ATTEMPT: u64 = 15;
    pub(super) const HANDLED_BY: u64 = 16;
    pub(super) const SEAL: u64 = 17;
    pub(super) const METHOD: u64 = 18;
    pub(super) const CONTINUATION: u64 = 19;
    pub(super) const HEARTBEATS: u64 = 20;
    pub(super) const BODY: u64 = 21;
    pub(super) const REPEATABLE: u64 = 23;
    pub(super) const BINARY_METADATA: u64 = 25;
    pub(super) const DURABLE: u64 = 27;
}

/// The optional fields of a message; absent ones cost nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// How the initiator of this call watches over it.
    pub ping: Option<PingSettings>,
    /// What the rest of the tree may use up.
    pub budgets: Option<Budgets>,
    /// How long ago the call began, as far as hosts know (time on the network is not counted).
    pub age: Option<Duration>,
    /// How long the initiator has not heard of this line of the call (docs/protocol.md, rule 14).
    pub quiet: Option<Duration>,
    /// Pairs that travel down the tree. Those whose values are bytes go only to who has
    /// [`Features::BINARY_METADATA`](crate::connection::Features::BINARY_METADATA).
    pub metadata: Metadata,
    /// What finished requests of a traced call report of themselves, on their way to the initiator.
    pub trace: Vec<TraceRecord>,
    /// In a status: its request certainly did not reach its server, and who would have sent it says so.
    pub undelivered: bool,
    /// Which attempt of a retried request this is; 0 is the first.
    pub attempt: u32,
    /// In the first response of a request that may send more: who handles it.
    pub handled_by: Option<HandledBy>,
    /// In a status in the name of a request that did not reach its server: what that called.
    pub method: Option<Arc<str>>,
    /// Shows that the sender has the cluster's key ([`crate::seal`]).
    pub seal: Option<Bytes>,
    /// What is to be done with this request's answer: see [`Continuation`].
    pub continuation: Option<Bytes>,
    /// How servers show the initiator that they live, if it does not ask them.
    pub heartbeats: Option<Heartbeats>,
    /// A body with this number follows in frames of its own ([`crate::connection`] numbers them).
    pub body: Option<u64>,
    /// The request may come again in another attempt: nothing that it sends is held back, so that its messages get the same
    /// places whenever its handler yields.
    pub repeatable: bool,
    /// The name under which this work may be asked for again. It goes only to who has
    /// [`Features::DURABLE`](crate::connection::Features::DURABLE).
    pub durable: Option<DurableId>,
}

/// The ping period and timeout that a call's initiator uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingSettings {
    /// How often it asks.
    pub period: Duration,
    /// How long silence lasts before it is a failure.
    pub timeout: Duration,
}

impl PingSettings {
    /// The shortest period of all: who asked more often would do nothing else.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// The longest period of all: a server need not believe for long in an initiator that does not ask.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(5);

    /// The longest timeout of all, a year.
    pub const LONGEST: Duration = Duration::from_secs(365 * 86_400);

    /// These, or what comes nearest of what makes sense: the period is between [`Self::SHORTEST`] and
    /// [`Self::LONGEST_PERIOD`], and the timeout between the period and [`Self::LONGEST`].
    #[must_use]
    pub fn bounded(self) -> Self {
        let period = self.period.clamp(Self::SHORTEST, Self::LONGEST_PERIOD);
        let timeout = self.timeout.clamp(period, Self::LONGEST);
        Self { period, timeout }
    }
}

/// How the servers of a call that wants heartbeats show their initiator that they live: unasked, and it does not ask.
///
/// The time until the next one is due travels with the call. Each server takes off what it has spent of it, and `hop` for the way
/// there; the one at which nothing is left of it says how far its request is, and begins anew. So a line of servers makes one
/// heartbeat in each period, however many they are, and branches of a call make their own.
///
/// An initiator that has missed a heartbeat by a quarter of the time that is left until the timeout, or by 2.5 s if that is less, asks
/// all the same, in the rhythm of [`PingSettings::period`]: a heartbeat that is lost ends no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeats {
    /// How long an initiator hears nothing of a branch at most.
    pub every: Duration,
    /// How long silence lasts before it is a failure.
    pub timeout: Duration,
    /// What the way from one server to the next is taken for: better too long than too short, then a heartbeat comes early. A
    /// longer one that was measured counts in its place.
    pub hop: Duration,
}

impl Heartbeats {
    /// The shortest period of all. Servers have a limit of their own besides.
    pub const SHORTEST: Duration = Duration::from_millis(10);

    /// These, or what comes nearest of what makes sense: the period is between [`Self::SHORTEST`] and
    /// [`PingSettings::LONGEST_PERIOD`], the timeout between two periods and [`PingSettings::LONGEST`], and a hop takes half a
    /// period at most.
    #[must_use]
    pub fn bounded(self) -> Self {
        let longest = PingSettings::LONGEST_PERIOD; // who is too old for heartbeats must be asked in time
        let every = self.every.clamp(Self::SHORTEST, longest);
        Self {
            every,
            timeout: self.timeout.clamp(every * 2, PingSettings::LONGEST),
            hop: self.hop.min(every / 2),
        }
    }

    /// How long a branch may be silent before it is asked about: less than a server that is too old for heartbeats runs on unasked, and
    /// than an answer waits that only a ping shows the way.
    pub(crate) fn patience(self) -> Duration {
        let left = self.timeout.saturating_sub(self.every);
        let late = (left / 4).min(PingSettings::LONGEST_PERIOD / 2);
        self.every.saturating_add(late)
    }

    fn read(field: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "heartbeats";
        Ok(Self {
            every: field.duration(what)?,
            timeout: field.duration(what)?,
            hop: field.duration(what)?,
        })
    }
}

impl Default for Heartbeats {
    /// One in 3 s, after 6 s of silence a failure, and 200 ms a hop.
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3),
            timeout: Duration::from_secs(6),
            hop: Duration::from_millis(200),
        }
    }
}

/// What a call may use up. In a request: what it and all that it leads to may use up, itself not counted; servers split it
/// among their delegations (see [`crate::call::allowance`]).
///
/// A call that states none has those of [`Budgets::default`], as its initiator counts them: it fails, and stops, when they are
/// exceeded. Servers then bound each request by itself: budgets that are not stated are not split.
///
/// A status that ends a branch is paid for by its request: it counts neither as a response nor with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Requests, the initial ones included.
    pub requests: u32,
    /// Responses.
    pub responses: u32,
    /// Bytes of responses.
    pub bytes: u64,
    /// Hops on the longest way from the initiator.
    pub depth: u32,
}

impl Default for Budgets {
    /// 65,536 requests, 1,048,576 responses, 1 TiB of responses, 4,096 hops deep.
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One hop of a traced call, as its server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRecord {
    /// Which request.
    pub request: RequestId,
    /// The server's incarnation.
    pub node: NodeId,
    /// Where the server listens, if it does.
    pub server: Option<Address>,
    /// The method's name.
    pub method: String,
    /// When the request arrived, in microseconds since 1970 by the server's clock.
    pub arrived_us: u64,
    /// How long it waited for its handler, in microseconds.
    pub queued_us: u64,
    /// How long its handler ran, in microseconds.
    pub ran_us: u64,
    /// What of that it tells apart: at most [`MAX_TRACE_PARTS`].
    pub parts: Vec<TracePart>,
}

/// A part of the time that a handler ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePart {
    /// What it was for: at most [`MAX_PART_NAME`] bytes.
    pub name: Arc<str>,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

impl TracePart {
    /// A part of this name, of which what is too long is left out.
    pub fn new(name: &str, took: Duration) -> Self {
        let end = name.floor_char_boundary(MAX_PART_NAME);
        Self {
            name: name[..end].into(),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// Who handles a request, as its server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandledBy {
    /// The server's incarnation.
    pub node: NodeId,
    /// Where the server listens, if it does.
    pub server: Option<Address>,
    /// The method's name.
    pub method: Arc<str>,
}

/// Bytes beside the arguments of one request, which say what is to be done with its answer: the stack of a chain, for instance. At
/// most [`MAX_CONTINUATION`]. Unlike [`Metadata`] they are this request's only: what its handler delegates does not inherit them.
///
/// What it prints for debugging has their number only.
#[derive(Clone, PartialEq, Eq)]
pub struct Continuation(Bytes);

/// Why bytes are no [`Continuation`].
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("a continuation of {size} bytes: at most {MAX_CONTINUATION} are allowed")]
pub struct ContinuationError {
    /// How many there are.
    pub size: usize,
}

impl ContinuationError {
    /// What kind of error it is: always [`Code::ResourceExhausted`].
    pub fn code(&self) -> Code {
        Code::ResourceExhausted
    }
}

impl Continuation {
    /// A continuation of these bytes.
    ///
    /// # Errors
    ///
    /// If they are more than [`MAX_CONTINUATION`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, ContinuationError> {
        let bytes = bytes.into();
        match bytes.len() {
            size if size > MAX_CONTINUATION => Err(ContinuationError { size }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Continuation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Continuation({} bytes)", self.0.len())
    }
}

/// Pairs of keys and values that travel down the tree of a call, the W3C trace context and credentials included. Values are text or
/// bytes; a key may stand once for each.
///
/// At most [`MAX_METADATA`] bytes, all keys and values together.
/// What it prints for debugging has the keys only: values may be credentials.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    texts: Vec<(String, String)>,
    binary: Vec<(String, Bytes)>,
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
        value: impl Fn(&mut Reader<'_>) -> Result<V, DecodeError>,
    ) -> Result<Vec<(String, V)>, DecodeError> {
        let what = "metadata";
        let (mut pairs, mut size) = (Vec::new(), self.size());
        while !reader.is_empty() {
            let key = reader.str(MAX_METADATA, what)?;
            let value = value(reader)?;
            size += key.len() + value.as_ref().len();
            if key.is_empty() || size > MAX_METADATA {
                return Err(DecodeError::Malformed {
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
            return Err(DecodeError::Malformed {
                what,
                why: "a key that stands twice",
            });
        }
        Ok(pairs)
    }

    fn read_texts(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let text = |reader: &mut Reader<'_>| Ok(reader.str(MAX_METADATA, "metadata")?.to_owned());
        self.texts = self.read(reader, text)?;
        Ok(())
    }

    fn read_binary(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
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

fn put_pairs<V: AsRef<[u8]>>(out: &mut Vec<u8>, pairs: &[(String, V)]) {
    for (key, value) in pairs {
        varint::put_bytes(out, key.as_bytes());
        varint::put_bytes(out, value.as_ref());
    }
}

impl Options {
    /// About how much memory they take.
    pub fn size(&self) -> usize {
        let bytes = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
        let metadata = &self.metadata;
        let pairs = metadata.texts.len() + metadata.binary.len();
        let pairs = metadata.size() + pairs * (size_of::<(String, Bytes)>() + 64);
        let records = self.trace.len() * (size_of::<TraceRecord>() + 768);
        let handled_by = self.handled_by.as_ref().map_or(0, |handled_by| {
            handled_by.method.len() + size_of::<HandledBy>()
        });
        size_of::<Self>()
            + bytes(&self.seal)
            + bytes(&self.continuation)
            + pairs
            + records
            + handled_by
            + self.method.as_ref().map_or(0, |method| method.len())
    }

    /// What a request inherits that a server delegates: all that is said of the call and of its tree, and not what is of this one
    /// request: how long the initiator has not heard of it, its seal, its continuation, its body, its trace records, its durable
    /// id.
    pub fn inherited(&self) -> Self {
        Self {
            ping: self.ping,
            budgets: self.budgets,
            age: self.age,
            metadata: self.metadata.clone(),
            attempt: self.attempt,
            heartbeats: self.heartbeats,
            repeatable: self.repeatable,
            ..Self::default()
        }
    }

    /// Whether no optional field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Appends the length of all fields and the fields.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let mut fields = Vec::new();
        if let Some(ping) = self.ping {
            put_field(&mut fields, tag::PING, |field| {
                varint::put_duration(field, ping.period);
                varint::put_duration(field, ping.timeout);
            });
        }
        if let Some(budgets) = &self.budgets {
            put_field(&mut fields, tag::BUDGETS, |field| budgets.put(field));
        }
        if let Some(age) = self.age {
            put_field(&mut fields, tag::AGE, |field| {
                varint::put_duration(field, age)
            });
        }
        if let Some(quiet) = self.quiet {
            put_field(&mut fields, tag::QUIET, |field| {
                varint::put_duration(field, quiet)
            });
        }
        if !self.metadata.texts.is_empty() {
            put_field(&mut fields, tag::METADATA, |field| {
                put_pairs(field, &self.metadata.texts)
            });
        }
        if !self.trace.is_empty() {
            put_field(&mut fields, tag::TRACE, |field| {
                put_records(field, &self.trace)
            });
        }
        if self.undelivered {
            put_field(&mut fields, tag::UNDELIVERED, |_| ());
        }
        if self.attempt > 0 {
            put_field(&mut fields, tag::ATTEMPT, |field| {
                varint::put(field, u64::from(self.attempt))
            });
        }
        if let Some(handled_by) = &self.handled_by {
            put_field(&mut fields, tag::HANDLED_BY, |field| handled_by.put(field));
        }
        if let Some(seal) = &self.seal {
            put_field(&mut fields, tag::SEAL, |field| field.put_slice(seal));
        }
        if let Some(method) = &self.method {
            put_field(&mut fields, tag::METHOD, |field| {
                varint::put_bytes(field, method.as_bytes())
            });
        }
        if let Some(continuation) = &self.continuation {
            put_field(&mut fields, tag::CONTINUATION, |field| {
                field.put_slice(continuation)
            });
        }
        if let Some(heartbeats) = self.heartbeats {
            put_field(&mut fields, tag::HEARTBEATS, |field| {
                varint::put_duration(field, heartbeats.every);
                varint::put_duration(field, heartbeats.timeout);
                varint::put_duration(field, heartbeats.hop);
            });
        }
        if let Some(body) = self.body {
            put_field(&mut fields, tag::BODY, |field| varint::put(field, body));
        }
        if self.repeatable {
            put_field(&mut fields, tag::REPEATABLE, |_| ());
        }
        if !self.metadata.binary.is_empty() {
            put_field(&mut fields, tag::BINARY_METADATA, |field| {
                put_pairs(field, &self.metadata.binary)
            });
        }
        if let Some(durable) = &self.durable {
            put_field(&mut fields, tag::DURABLE, |field| durable.put(field));
        }
        varint::put_bytes(out, &fields);
    }

    /// What a seal covers of them besides what directs messages. The number of a body is its connection's business.
    pub(crate) fn sealed(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            continuation: self.continuation.clone(),
            body: self.body.map(|_| 0),
            repeatable: self.repeatable,
            durable: self.durable,
            ..Self::default()
        }
    }

    /// Most messages have none: their code stays out of the way of what reads each message.
    #[inline(never)]
    pub(super) fn read_boxed(reader: &mut Reader<'_>) -> Result<Box<Self>, DecodeError> {
        Self::read(reader).map(Box::new)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "optional fields";
        let mut fields = Reader::new(reader.bytes(MAX_OPTIONS, what)?);
        let mut options = Self::default();
        let mut last_tag = None;
        while !fields.is_empty() {
            let tag = fields.varint(what)?;
            if last_tag.is_some_and(|last| last >= tag) {
                return Err(DecodeError::Malformed {
                    what,
                    why: "tags that do not ascend",
                });
            }
            last_tag = Some(tag);
            let mut field = Reader::new(fields.bytes(MAX_OPTIONS, what)?);
            if options.read_field(tag, &mut field)? {
                field.finish(what)?;
            } else if tag % 2 == 1 {
                return Err(DecodeError::NotUnderstood { what, bits: tag });
            }
        }
        Ok(options)
    }

    /// Reads one field; `false` if its tag is unknown.
    fn read_field(&mut self, tag: u64, field: &mut Reader<'_>) -> Result<bool, DecodeError> {
        match tag {
            tag::PING => {
                let what = "ping settings";
                self.ping = Some(PingSettings {
                    period: field.duration(what)?,
                    timeout: field.duration(what)?,
                });
            }
            tag::BUDGETS => self.budgets = Some(Budgets::read(field)?),
            tag::AGE => self.age = Some(field.duration("age")?),
            tag::QUIET => self.quiet = Some(field.duration("quiet time")?),
            tag::METADATA => self.metadata.read_texts(field)?,
            tag::TRACE => self.trace = read_records(field)?,
            tag::UNDELIVERED => self.undelivered = true,
            tag::ATTEMPT => self.attempt = field.u32("attempt")?,
            tag::HANDLED_BY => self.handled_by = Some(HandledBy::read(field)?),
            tag::SEAL => self.seal = Some(read_all(field, MAX_SEAL, "seal")?),
            tag::METHOD => {
                let method = field.str(MAX_METHOD_NAME, "method of a status")?;
                self.method = Some(method.into());
            }
            tag::CONTINUATION => {
                self.continuation = Some(read_all(field, MAX_CONTINUATION, "continuation")?)
            }
            tag::HEARTBEATS => self.heartbeats = Some(Heartbeats::read(field)?),
            tag::BODY => self.body = Some(field.varint("body")?),
            tag::REPEATABLE => self.repeatable = true,
            tag::BINARY_METADATA => self.metadata.read_binary(field)?,
            tag::DURABLE => self.durable = Some(DurableId::read(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Budgets {
    pub(crate) const DEFAULT: Self = Self {
        requests: 1 << 16,
        responses: 1 << 20,
        bytes: 1 << 40,
        depth: 4096,
    };

    /// The smaller of both, each for itself.
    #[must_use]
    pub fn at_most(self, most: &Self) -> Self {
        Self {
            requests: self.requests.min(most.requests),
            responses: self.responses.min(most.responses),
            bytes: self.bytes.min(most.bytes),
            depth: self.depth.min(most.depth),
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, u64::from(self.requests));
        varint::put(out, u64::from(self.responses));
        varint::put(out, self.bytes);
        varint::put(out, u64::from(self.depth));
    }

    fn read(field: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "budgets";
        Ok(Self {
            requests: field.u32(what)?,
            responses: field.u32(what)?,
            bytes: field.varint(what)?,
            depth: field.u32(what)?,
        })
    }
}

impl HandledBy {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.node.put(out);
        put_server(out, self.server.as_ref());
        varint::put_bytes(out, self.method.as_bytes());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "who handles it";
        Ok(Self {
            node: NodeId::read(reader)?,
            server: read_server(reader, what)?,
            method: reader.str(MAX_METHOD_NAME, what)?.into(),
        })
    }
}

/// Appends where a server listens, if it does.
fn put_server(out: &mut Vec<u8>, server: Option<&Address>) {
    out.put_u8(u8::from(server.is_some()));
    if let Some(server) = server {
        server.put(out);
    }
}

fn read_server(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<Option<Address>, DecodeError> {
    match reader.u8(what)? {
        0 => Ok(None),
        1 => Ok(Some(Address::read(reader)?)),
        _ => Err(DecodeError::Malformed {
            what,
            why: "a server that is neither there nor not",
        }),
    }
}

fn put_field(out: &mut Vec<u8>, tag: u64, value: impl FnOnce(&mut Vec<u8>)) {
    let mut field = Vec::new();
    value(&mut field);
    varint::put(out, tag);
    varint::put_bytes(out, &field);
}

fn read_all(
    field: &mut Reader<'_>,
    limit: usize,
    what: &'static str,
) -> Result<Bytes, DecodeError> {
    let mut all = Vec::new();
    while !field.is_empty() {
        all.push(field.u8(what)?);
        if all.len() > limit {
            return Err(DecodeError::TooLong {
                what,
                len: all.len() as u64,
                limit,
            });
        }
    }
    Ok(all.into())
}

/// Appends trace records: their number, then each.
pub(super) fn put_records(out: &mut Vec<u8>, records: &[TraceRecord]) {
    let records = &records[..records.len().min(MAX_TRACE_RECORDS)];
    varint::put(out, records.len() as u64);
    for record in records {
        record.request.path.put(out);
        varint::put(out, u64::from(record.request.hop));
        record.node.put(out);
        put_server(out, record.server.as_ref());
        varint::put_bytes(out, record.method.as_bytes());
        varint::put(out, record.arrived_us);
        varint::put(out, record.queued_us);
        varint::put(out, record.ran_us);
        let parts = &record.parts[..record.parts.len().min(MAX_TRACE_PARTS)];
        varint::put(out, parts.len() as u64);
        for part in parts {
            varint::put_bytes(out, part.name.as_bytes());
            varint::put(out, part.took_us);
        }
    }
}

pub(super) fn read_records(reader: &mut Reader<'_>) -> Result<Vec<TraceRecord>, DecodeError> {
    let what = "trace records";
    let count = reader.varint(what)?;
    if count > MAX_TRACE_RECORDS as u64 {
        return Err(DecodeError::TooLong {
            what,
            len: count,
            limit: MAX_TRACE_RECORDS,
        });
    }
    (0..count).map(|_| read_record(reader)).collect()
}

fn read_record(reader: &mut Reader<'_>) -> Result<TraceRecord, DecodeError> {
    let what = "trace record";
    Ok(TraceRecord {
        request: RequestId {
            path: Path::read(reader)?,
            hop: reader.u32(what)?,
        },
        node: NodeId::read(reader)?,
        server: read_server(reader, what)?,
        method: reader.str(MAX_METHOD_NAME, what)?.to_owned(),
        arrived_us: reader.varint(what)?,
        queued_us: reader.varint(what)?,
        ran_us: reader.varint(what)?,
        parts: read_parts(reader)?,
    })
}

fn read_parts(reader: &mut Reader<'_>) -> Result<Vec<TracePart>, DecodeError> {
    let what = "parts of a trace record";
    let count = reader.varint(what)?;
    if count > MAX_TRACE_PARTS as u64 {
        return Err(DecodeError::TooLong {
            what,
            len: count,
            limit: MAX_TRACE_PARTS,
        });
    }
    let read = |_| {
        Ok(TracePart {
            name: reader.str(MAX_PART_NAME, what)?.into(),
            took_us: reader.varint(what)?,
        })
    };
    (0..count).map(read).collect()
}

crate::debug_as_text!(ContinuationError, MetadataError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_even_fields_are_skipped_and_odd_ones_refused() {
        let even = [4, 200, 1, 1, 9];
        assert_eq!(
            Options::read(&mut Reader::new(&even)),
            Ok(Options::default())
        );
        let odd = [4, 201, 1, 1, 9];
        assert_eq!(
            Options::read(&mut Reader::new(&odd)),
            Err(DecodeError::NotUnderstood {
                what: "optional fields",
                bits: 201
            })
        );
    }

    /// A child must not get its parent's stack, whoever sends it on.
    #[test]
    fn what_is_of_one_request_is_not_inherited() {
        let ping = PingSettings {
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        };
        let mut metadata = Metadata::default();
        metadata.insert("key", "value").expect("small");
        let inherited = Options {
            ping: Some(ping),
            budgets: Some(Budgets::default()),
            age: Some(Duration::from_secs(3)),
            metadata,
            attempt: 4,
            repeatable: true,
            ..Options::default()
        };
        let own = Options {
            quiet: Some(Duration::from_secs(5)),
            seal: Some(Bytes::from_static(b"seal")),
            continuation: Some(Bytes::from_static(b"stack")),
            body: Some(6),
            durable: Some(DurableId::new(7, 8)),
            undelivered: true,
            method: Some("test.Work/one".into()),
            handled_by: Some(HandledBy {
                node: NodeId::new(7).expect("not zero"),
                server: None,
                method: "test.Work/one".into(),
            }),
            ..inherited.clone()
        };
        assert_eq!(own.inherited(), inherited);
    }

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
        let error = DecodeError::Malformed {
            what: "metadata",
            why: "an empty key or too many bytes",
        };
        assert_eq!(read(most + 1), Err(error));
    }
}
