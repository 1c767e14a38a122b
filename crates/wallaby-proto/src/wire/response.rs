//! What goes to the initiator: responses, and the ends of branches for which no response was left.

use bytes::Bytes;

use crate::id::{CallId, Path, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::varint::{self, Reader};
use crate::wire::options::MessageOptions;
use crate::wire::{Body, LinkEnds, WireError, check_flags, put_destination, read_destination};

/// An answer, or a status, for the initiator.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The call it belongs to.
    pub call: CallId,
    /// How many hops from the initiator the request was by whose way it was relayed last, counted from 1; 0 if no server
    /// has relayed it yet. It goes on by a nearer one only, so that it never runs in a circle. Its initiator is not told,
    /// and reads 0.
    pub distance: u32,
    /// Shown unless it goes back over the connection that the request came on.
    pub token: Option<Token>,
    /// The request that sent it.
    pub request: RequestId,
    /// Its number among the responses of its branch.
    pub index: u32,
    /// The branch ends with it and sent no requests: its facts are (0, index + 1) (docs/protocol.md, rule 4a).
    pub last: bool,
    /// The branch's own facts, where `last` does not say them, or those of an ancestor on their way.
    pub manifest: Option<Manifest>,
    /// The payload is a [`crate::Status`].
    pub status: bool,
    /// Whether the payload is compressed, as negotiated in the handshake.
    pub compressed: bool,
    /// Fields that most responses do without.
    pub options: Option<Box<MessageOptions>>,
    /// The answer.
    pub payload: Bytes,
}

/// The end of a branch for which no other message was left (a null response, thesis 4.3.1), or a branch's facts after
/// its last message had already gone out (rules 4c and 4d).
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// The call it belongs to.
    pub call: CallId,
    /// As [`Response::distance`].
    pub distance: u32,
    /// Shown unless it goes back over the connection that the request came on.
    pub token: Option<Token>,
    /// The request that ended its branch.
    pub request: RequestId,
    /// What the branch sent.
    pub facts: Facts,
    /// The facts of an ancestor on their way.
    pub manifest: Option<Manifest>,
    /// Fields that most ends do without.
    pub options: Option<Box<MessageOptions>>,
}

const DIRECT: u64 = 1 << 0;
const TOKEN: u64 = 1 << 1;
const PLACE: u64 = 1 << 2;
const INDEX: u64 = 1 << 3;
const LAST: u64 = 1 << 4;
const MANIFEST: u64 = 1 << 5;
const STATUS: u64 = 1 << 6;
const HOP: u64 = 1 << 7;
const OPTIONS: u64 = 1 << 8;
const COMPRESSED: u64 = 1 << 9;
const KNOWN: u64 = (1 << 10) - 1;
/// Those of fields behind the token.
const BEHIND: u64 = PLACE | INDEX | MANIFEST | HOP | OPTIONS;
const KNOWN_OF_END: u64 = KNOWN & !(INDEX | LAST | STATUS | COMPRESSED);

fn when(condition: bool, flag: u64) -> u64 {
    if condition { flag } else { 0 }
}

/// The flags for who sends what to whom, shared by both messages.
fn place_flags(call: CallId, token: Option<Token>, request: RequestId, link: LinkEnds) -> u64 {
    when(call.initiator == link.receiver, DIRECT)
        | when(token.is_some(), TOKEN)
        | when(request.path != Path::FIRST, PLACE)
        | when(request.hop > 0, HOP)
}

fn put_place(out: &mut Vec<u8>, request: RequestId) {
    if request.path != Path::FIRST {
        request.path.put(out);
    }
    if request.hop > 0 {
        varint::put(out, u64::from(request.hop));
    }
}

/// Reads the place of who sent a response or an end.
#[inline(always)]
fn read_place(reader: &mut Reader<'_>, flags: u64) -> Result<RequestId, WireError> {
    let path = match flags & PLACE {
        0 => Path::FIRST,
        _ => Path::read(reader)?,
    };
    if path.is_root() {
        return Err(malformed("the initiator's own place"));
    }
    let hop = match flags & HOP {
        0 => 0,
        _ => reader.u32("response")?,
    };
    Ok(RequestId { path, hop })
}

/// The beginning of an answer, which is all that most say besides the payload, and of an end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    flags: u64,
    call: CallId,
    distance: u32,
    token: Option<Token>,
}

impl Begin {
    #[inline(always)]
    fn read_known(
        reader: &mut Reader<'_>,
        link: LinkEnds,
        what: &'static str,
        known: u64,
    ) -> Result<Self, WireError> {
        let flags = reader.varint(what)?;
        check_flags(what, flags, known)?;
        let (call, distance) = read_destination(reader, flags & DIRECT != 0, link.receiver)?;
        let token = match flags & TOKEN {
            0 => None,
            _ => Some(Token::read(reader)?),
        };
        Ok(Self {
            flags,
            call,
            distance,
            token,
        })
    }

    /// Reads the header of a response: what it begins with, what few have behind that, and where the payload begins.
    #[inline(always)]
    pub(crate) fn read_header(
        mut reader: Reader<'_>,
        link: LinkEnds,
    ) -> Result<(Self, Behind, usize), WireError> {
        let begin = Self::read_known(&mut reader, link, "response", KNOWN)?;
        if begin.flags & BEHIND == 0 {
            return Ok((begin, Behind::NONE, reader.position()));
        }
        let mut rest = reader;
        let found = begin.read_behind(&mut rest)?;
        Ok((begin, found, rest.position()))
    }

    /// Reads what stands between the beginning and the payload.
    #[inline(never)]
    fn read_behind(self, reader: &mut Reader<'_>) -> Result<Behind, WireError> {
        let has = |flag: u64| self.flags & flag != 0;
        let request = read_place(reader, self.flags)?;
        let index = if has(INDEX) {
            reader.u32("response")?
        } else {
            0
        };
        if index == u32::MAX {
            return Err(malformed("a number that leaves no room for a count"));
        }
        let manifest = if has(MANIFEST) {
            Some(Manifest::read(reader, &request.path)?)
        } else {
            None
        };
        let options = if has(OPTIONS) {
            Some(MessageOptions::read_boxed(reader)?)
        } else {
            None
        };
        Ok(Behind {
            request,
            index,
            manifest,
            options,
        })
    }

    /// The response, with what stood between.
    #[inline(always)]
    pub(crate) fn response(self, behind: Behind, payload: Bytes) -> Response {
        Response {
            call: self.call,
            distance: self.distance,
            token: self.token,
            request: behind.request,
            index: behind.index,
            last: self.flags & LAST != 0,
            manifest: behind.manifest,
            status: self.flags & STATUS != 0,
            compressed: self.flags & COMPRESSED != 0,
            options: behind.options,
            payload,
        }
    }
}

/// What few answers have: it stands between their beginning and their payload.
#[derive(Debug)]
pub(crate) struct Behind {
    request: RequestId,
    index: u32,
    manifest: Option<Manifest>,
    options: Option<Box<MessageOptions>>,
}

impl Behind {
    /// It is not there.
    const NONE: Self = Self {
        request: RequestId::FIRST,
        index: 0,
        manifest: None,
        options: None,
    };
}

impl Response {
    /// Whether it has only what the one answer to a request of the receiver's has: the flags are [`DIRECT`] and [`LAST`].
    #[inline]
    fn is_least(&self, link: LinkEnds) -> bool {
        self.call.initiator == link.receiver
            && self.last
            && self.token.is_none()
            && self.options.is_none()
            && self.manifest.is_none()
            && self.request == RequestId::FIRST
            && self.index == 0
            && !(self.status | self.compressed)
    }

    /// Appends everything but the payload.
    #[inline]
    pub(crate) fn put_header(&self, out: &mut Vec<u8>, link: LinkEnds) {
        if !self.is_least(link) {
            return self.put_any(out, link);
        }
        debug_assert_eq!(self.flags(link), DIRECT | LAST);
        varint::put(out, DIRECT | LAST);
        varint::put(out, self.call.sequence);
    }

    fn flags(&self, link: LinkEnds) -> u64 {
        place_flags(self.call, self.token, self.request, link)
            | when(self.index > 0, INDEX)
            | when(self.last, LAST)
            | when(self.manifest.is_some(), MANIFEST)
            | when(self.status, STATUS)
            | when(self.options.is_some(), OPTIONS)
            | when(self.compressed, COMPRESSED)
    }

    #[inline(never)]
    fn put_any(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let flags = self.flags(link);
        varint::put(out, flags);
        put_destination(out, self.call, self.distance, link.receiver);
        if let Some(token) = self.token {
            token.put(out);
        }
        if flags & BEHIND != 0 {
            self.put_behind(out);
        }
    }

    #[inline(never)]
    fn put_behind(&self, out: &mut Vec<u8>) {
        put_place(out, self.request);
        if self.index > 0 {
            varint::put(out, u64::from(self.index));
        }
        if let Some(manifest) = &self.manifest {
            manifest.put(out, &self.request.path);
        }
        if let Some(options) = &self.options {
            options.put(out);
        }
    }

    /// Reads the body of its frame.
    pub(super) fn read(body: Bytes, link: LinkEnds) -> Result<Self, WireError> {
        let (begin, found, header) = Begin::read_header(Reader::new(&body), link)?;
        Ok(begin.response(found, body.behind(header)))
    }
}

impl End {
    pub(super) fn put(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let flags = place_flags(self.call, self.token, self.request, link)
            | when(self.manifest.is_some(), MANIFEST)
            | when(self.options.is_some(), OPTIONS);
        varint::put(out, flags);
        put_destination(out, self.call, self.distance, link.receiver);
        if let Some(token) = self.token {
            token.put(out);
        }
        put_place(out, self.request);
        self.facts.put(out);
        if let Some(manifest) = &self.manifest {
            manifest.put(out, &self.request.path);
        }
        if let Some(options) = &self.options {
            options.put(out);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, link: LinkEnds) -> Result<Self, WireError> {
        let begin = Begin::read_known(reader, link, "end", KNOWN_OF_END)?;
        let request = read_place(reader, begin.flags)?;
        let facts = Facts::read(reader)?;
        let manifest = match begin.flags & MANIFEST {
            0 => None,
            _ => Some(Manifest::read(reader, &request.path)?),
        };
        let options = match begin.flags & OPTIONS {
            0 => None,
            _ => Some(MessageOptions::read_boxed(reader)?),
        };
        Ok(Self {
            call: begin.call,
            distance: begin.distance,
            token: begin.token,
            request,
            facts,
            manifest,
            options,
        })
    }
}

fn malformed(why: &'static str) -> WireError {
    let what = "response";
    WireError::Malformed { what, why }
}
