//! A request: work for a server, and all it needs to know of the call.

use std::time::Duration;

use bytes::{BufMut, Bytes};

use crate::address::Address;
use crate::id::{CallId, NodeId, Path, RequestId, Token};
use crate::manifest::Manifest;
use crate::varint::{self, Reader};
use crate::wire::options::MessageOptions;
use crate::wire::{Body, LinkEnds, WireError, check_flags};

/// Work for a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The call it belongs to.
    pub call: CallId,
    /// What answers must show that do not come back over the connection this came on.
    pub token: Token,
    /// Its place in the tree.
    pub id: RequestId,
    /// How many hops led here: 0 if the initiator sent it.
    pub depth: u32,
    /// How many responses earlier hops of its branch have sent; numbers go on from there (docs/protocol.md, rule 2).
    pub base: u32,
    /// Where answers go.
    pub reply_to: ReplyTo,
    /// A manifest on its way to the initiator.
    pub manifest: Option<Manifest>,
    /// How much time remains; `None` is the receiver's default.
    pub deadline: Option<Duration>,
    /// The sequence of the initiator's oldest call that is still alive, as far as the sender knows.
    pub oldest: u64,
    /// Whether each hop of this call reports its timings.
    pub traced: bool,
    /// Whether the payload is compressed, as negotiated in the handshake.
    pub compressed: bool,
    /// Fields that most requests do without.
    pub options: Option<Box<MessageOptions>>,
    /// What is to be done.
    pub method: MethodRef,
    /// The arguments.
    pub payload: Bytes,
    /// How long it has waited on its way, as far as the connection can tell that it came over. It does not travel.
    pub waited: Duration,
}

/// How a request names its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MethodRef {
    /// By the number that this connection gave it.
    Number(u32),
    /// By its name's hash, where there is no connection to number it on.
    Hash(u64),
}

/// Where the answers to a request go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyTo {
    /// The sender is the initiator: back over the connection, or to the address that its handshake gave.
    Peer,
    /// The initiator is not the sender; it is reached at this address.
    At(Address),
    /// The initiator is not the sender and cannot be dialled: back along the way the request came.
    Relay,
}

/// Most responses that earlier hops of a branch may have sent: its server counts on from there without overflow.
const MAX_BASE: u32 = 1 << 31;

const DIRECT: u64 = 1 << 0;
const PLACE: u64 = 1 << 1;
const BASE: u64 = 1 << 2;
const MANIFEST: u64 = 1 << 3;
const DEADLINE: u64 = 1 << 4;
const OLDEST: u64 = 1 << 5;
const OPTIONS: u64 = 1 << 6;
const ADDRESS: u64 = 1 << 7;
const HASHED: u64 = 1 << 8;
const TRACED: u64 = 1 << 9;
const COMPRESSED: u64 = 1 << 10;
const KNOWN: u64 = (1 << 11) - 1;
/// Those of fields that stand between token and method.
const COLD: u64 = PLACE | BASE | MANIFEST | DEADLINE | OLDEST | OPTIONS | ADDRESS;

impl Request {
    /// The time that is left when it arrives; `default` is that of a request which states none.
    #[inline]
    pub fn time(&self, default: Duration) -> Duration {
        self.deadline.unwrap_or(default).saturating_sub(self.waited)
    }

    /// Whether its sender tells what its clock shows, so that what it waits on its way counts: a server passes it on, and it has a
    /// deadline. Initiators stop their calls themselves; the clock of their machine may have stood still.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.depth > 0 && self.deadline.is_some()
    }

    /// The number of the body that follows it.
    pub(crate) fn body(&self) -> Option<u64> {
        self.options.as_ref()?.body
    }

    fn flags(&self) -> u64 {
        let when = |condition: bool, flag: u64| if condition { flag } else { 0 };
        when(self.reply_to == ReplyTo::Peer, DIRECT)
            | when(self.id != RequestId::FIRST || self.depth > 0, PLACE)
            | when(self.base > 0, BASE)
            | when(self.manifest.is_some(), MANIFEST)
            | when(self.deadline.is_some(), DEADLINE)
            | when(self.oldest < self.call.sequence, OLDEST)
            | when(self.options.is_some(), OPTIONS)
            | when(matches!(self.reply_to, ReplyTo::At(_)), ADDRESS)
            | when(matches!(self.method, MethodRef::Hash(_)), HASHED)
            | when(self.traced, TRACED)
            | when(self.compressed, COMPRESSED)
    }

    /// Whether it has only what each request of an initiator has: its flags are [`DIRECT`] alone if its method has a number.
    #[inline]
    fn is_least(&self) -> bool {
        self.reply_to == ReplyTo::Peer
            && self.oldest >= self.call.sequence
            && self.options.is_none()
            && self.deadline.is_none()
            && self.manifest.is_none()
            && self.id == RequestId::FIRST
            && (self.depth | self.base) == 0
            && !(self.traced | self.compressed)
    }

    /// Appends everything but the payload.
    #[inline]
    pub(crate) fn put_header(&self, out: &mut Vec<u8>, link: LinkEnds) {
        debug_assert!(self.reply_to != ReplyTo::Peer || self.call.initiator == link.sender);
        let MethodRef::Number(number) = self.method else {
            return self.put_any(out, link);
        };
        if !self.is_least() {
            return self.put_any(out, link);
        }
        debug_assert_eq!(self.flags(), DIRECT);
        varint::put(out, DIRECT);
        self.put_ahead(out, link);
        self.token.put(out);
        varint::put(out, u64::from(number));
    }

    #[inline]
    fn put_ahead(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let ahead = self.call.sequence.wrapping_sub(link.previous);
        varint::put_signed(out, ahead.cast_signed());
    }

    #[inline(never)]
    fn put_any(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let flags = self.flags();
        varint::put(out, flags);
        if flags & DIRECT != 0 {
            self.put_ahead(out, link);
        } else {
            self.call.initiator.put(out);
            varint::put(out, self.call.sequence);
        }
        self.token.put(out);
        if flags & COLD != 0 {
            self.put_cold(out, flags);
        }
        match self.method {
            MethodRef::Number(number) => varint::put(out, u64::from(number)),
            MethodRef::Hash(hash) => out.put_u64(hash),
        }
    }

    /// Appends what stands between token and method.
    #[inline(never)]
    fn put_cold(&self, out: &mut Vec<u8>, flags: u64) {
        if let ReplyTo::At(address) = &self.reply_to {
            address.put(out);
        }
        if flags & PLACE != 0 {
            self.id.path.put(out);
            varint::put(out, u64::from(self.id.hop));
            varint::put(out, u64::from(self.depth));
        }
        if flags & BASE != 0 {
            varint::put(out, u64::from(self.base));
        }
        if let Some(manifest) = &self.manifest {
            manifest.put(out, &self.id.path);
        }
        if let Some(deadline) = self.deadline {
            match flags & DIRECT != 0 {
                true => varint::put_duration(out, deadline),
                false => varint::put_deadline(out, deadline),
            }
        }
        if flags & OLDEST != 0 {
            varint::put(out, self.call.sequence - self.oldest);
        }
        if let Some(options) = &self.options {
            options.put(out);
        }
    }

    /// Reads the body of its frame.
    pub(super) fn read(body: Bytes, link: LinkEnds) -> Result<Self, WireError> {
        let mut reader = Reader::new(&body);
        let begin = Begin::read(&mut reader, link)?;
        let mut request = begin.request(MethodRef::Number(0), Bytes::new());
        request.read_rest(&mut reader, begin)?;
        let header = reader.position();
        request.payload = body.behind(header);
        Ok(request)
    }

    /// Reads what stands between the beginning and the payload.
    #[inline(always)]
    pub(crate) fn read_rest(
        &mut self,
        reader: &mut Reader<'_>,
        begin: Begin,
    ) -> Result<(), WireError> {
        self.read_cold(reader, begin.flags)?;
        self.method = begin.read_method(reader)?;
        Ok(())
    }

    /// Reads what stands between token and method.
    #[inline(never)]
    fn read_cold(&mut self, reader: &mut Reader<'_>, flags: u64) -> Result<(), WireError> {
        let has = |flag: u64| flags & flag != 0;
        if has(ADDRESS) {
            self.reply_to = ReplyTo::At(Address::read(reader)?);
        }
        if has(PLACE) {
            self.read_place(reader)?;
        }
        if has(BASE) {
            self.base = reader.u32("request")?;
            if self.base > MAX_BASE {
                return Err(malformed("a base that leaves no room for responses"));
            }
        }
        if has(MANIFEST) {
            self.manifest = Some(Manifest::read(reader, &self.id.path)?);
        }
        if has(DEADLINE) {
            self.deadline = Some(match has(DIRECT) {
                true => reader.duration("request")?,
                false => reader.deadline("request")?,
            });
        }
        if has(OLDEST) {
            let oldest = self.oldest.checked_sub(reader.varint("request")?);
            self.oldest = oldest.ok_or(malformed("an oldest call before the first"))?;
        }
        if has(OPTIONS) {
            self.options = Some(MessageOptions::read_boxed(reader)?);
        }
        Ok(())
    }

    fn read_place(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let path = Path::read(reader)?;
        if path.is_root() {
            return Err(malformed("the initiator's own place"));
        }
        let hop = reader.u32("request")?;
        self.id = RequestId { path, hop };
        self.depth = reader.u32("request")?;
        Ok(())
    }
}

/// The beginning of a request, which is all that most say besides method and payload. A request is a large value: one
/// of these is kept in registers until it is put together where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    flags: u64,
    pub(crate) call: CallId,
    token: Token,
}

impl Begin {
    #[inline(always)]
    pub(crate) fn read(reader: &mut Reader<'_>, link: LinkEnds) -> Result<Self, WireError> {
        let what = "request";
        let flags = reader.varint(what)?;
        check_flags(what, flags, KNOWN)?;
        if flags & (DIRECT | ADDRESS) == DIRECT | ADDRESS {
            return Err(malformed("a reply address besides the sender's own"));
        }
        let call = if flags & DIRECT != 0 {
            let ahead = reader.signed("call")?;
            CallId {
                initiator: link.sender,
                sequence: link.previous.wrapping_add_signed(ahead),
            }
        } else {
            CallId {
                initiator: NodeId::read(reader)?,
                sequence: reader.varint("call")?,
            }
        };
        let token = Token::read(reader)?;
        Ok(Self { flags, call, token })
    }

    /// Whether method and payload follow at once.
    pub(crate) fn is_plain(self) -> bool {
        self.flags & COLD == 0
    }

    /// Whether the sender is the initiator.
    pub(crate) fn is_direct(self) -> bool {
        self.flags & DIRECT != 0
    }

    #[inline(always)]
    pub(crate) fn read_method(self, reader: &mut Reader<'_>) -> Result<MethodRef, WireError> {
        let what = "request";
        Ok(match self.flags & HASHED {
            0 => MethodRef::Number(reader.u32(what)?),
            _ => MethodRef::Hash(u64::from_be_bytes(reader.array(what)?)),
        })
    }

    /// The request, if nothing else stands between.
    #[inline(always)]
    pub(crate) fn request(self, method: MethodRef, payload: Bytes) -> Request {
        Request {
            call: self.call,
            token: self.token,
            id: RequestId::FIRST,
            depth: 0,
            base: 0,
            reply_to: match self.is_direct() {
                true => ReplyTo::Peer,
                false => ReplyTo::Relay,
            },
            manifest: None,
            deadline: None,
            oldest: self.call.sequence,
            traced: self.flags & TRACED != 0,
            compressed: self.flags & COMPRESSED != 0,
            options: None,
            method,
            payload,
            waited: Duration::ZERO,
        }
    }
}

fn malformed(why: &'static str) -> WireError {
    let what = "request";
    WireError::Malformed { what, why }
}
