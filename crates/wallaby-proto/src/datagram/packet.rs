//! The bytes of a datagram; `docs/protocol.md` draws them.
//!
//! Every datagram ends with a CRC32C over all before it, since UDP's own checksum misses one damaged datagram in 65,536
//! and may be switched off. What does not fit it, or is no datagram of these kinds, is as good as lost.

use std::iter;
use std::time::Duration;

use bytes::BufMut;

use crate::carrier::hello::MAGIC;
use crate::datagram::checksum::crc32c;
use crate::datagram::received::ReceivedPackets;
use crate::id::NodeId;
use crate::varint::{self, Reader};
use crate::wire::{MAX_BODY, WireError};

/// Bytes of the checksum at the end.
pub(super) const CHECKSUM: usize = 4;

/// So long is an [`Datagram::Ask`] to an address that the application has named: a path that carries less is noticed before
/// anything depends on it.
pub(super) const ASK_LEN: usize = 1200;

/// So long is one to an address that a peer has named, who may mean harm: no longer than it takes for a challenge with any
/// hello of this version.
pub(super) const SHORT_ASK_LEN: usize = 80;

/// Until an address is proven, it is sent at most so many times what came from it (RFC 9000, section 8).
pub(super) const AMPLIFICATION: usize = 3;

/// Most ranges of received packets that one acknowledgement names.
pub(super) const MAX_RANGES: usize = 32;

mod kind {
    pub(super) const ASK: u8 = 0x01;
    pub(super) const CHALLENGE: u8 = 0x02;
    pub(super) const OPEN: u8 = 0x03;
    pub(super) const GONE: u8 = 0x04;
    /// The lower bits are [`super::Flags`].
    pub(super) const DATA: u8 = 0x10;
}

/// What stands in a packet besides messages; the others are [`crate::wire::kind`]s.
mod frame {
    pub(super) const PADDING: u8 = 0x00;
    pub(super) const PIECE: u8 = crate::wire::kind::PART;
    pub(super) const PROBE: u8 = crate::wire::kind::PROBE;
}

/// The kind of a request that also says what its method is: its receiver has not confirmed to know it.
pub(super) const INTRODUCTION: u8 = 0x30;

/// The kind of a request that says before what its sender's clock showed.
pub(super) const TIMED: u8 = 0x31;

/// What begins a packet says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    const KNOWN: u8 = 0x03;
    pub(super) const NONE: Self = Self(0);
    /// An acknowledgement follows the packet's number.
    pub(super) const ACK: Self = Self(0x01);
    /// The sender waits for the acknowledgement: it should not be delayed.
    pub(super) const URGENT: Self = Self(0x02);

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn byte(self) -> u8 {
        kind::DATA | self.0
    }

    fn read(byte: u8) -> Option<Self> {
        (byte & !Self::KNOWN == kind::DATA).then_some(Self(byte & Self::KNOWN))
    }
}

/// A datagram, up to the packet in it: that is read by the session that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Datagram<'a> {
    /// Somebody wants a session; nothing is proven yet.
    Ask { client: u64, len: usize },
    /// The answer: with this session id you show that you are where you say.
    Challenge {
        client: u64,
        server: u64,
        issued: u64,
        hello: &'a [u8],
    },
    /// A packet of a session that may be new to its receiver.
    Open {
        server: u64,
        client: u64,
        issued: u64,
        hello: &'a [u8],
        flags: Flags,
    },
    /// A packet of a session that is known.
    Data { session: u64, flags: Flags },
    /// This incarnation knows no such session.
    Gone { session: u64, node: NodeId },
}

/// Why a datagram was dropped before anything in it counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The checksum does not fit.
    Corrupt,
    /// The checksum fits, but it is no datagram of this protocol.
    Malformed,
}

/// Reads a datagram; the reader then stands before the packet, if there is one.
pub(super) fn read(datagram: &[u8]) -> Result<(Datagram<'_>, Reader<'_>), Unreadable> {
    let Some((body, checksum)) = datagram.split_last_chunk::<CHECKSUM>() else {
        return Err(Unreadable::Corrupt);
    };
    if crc32c(body) != u32::from_be_bytes(*checksum) {
        return Err(Unreadable::Corrupt);
    }
    let mut reader = Reader::new(body);
    match read_kind(&mut reader, datagram.len()) {
        Ok(Some(datagram)) => Ok((datagram, reader)),
        Ok(None) | Err(_) => Err(Unreadable::Malformed),
    }
}

fn read_kind<'a>(reader: &mut Reader<'a>, len: usize) -> Result<Option<Datagram<'a>>, WireError> {
    let what = "datagram";
    let kind = reader.u8(what)?;
    if let Some(flags) = Flags::read(kind) {
        let session = read_u64(reader)?;
        return Ok(Some(Datagram::Data { session, flags }));
    }
    Ok(match kind {
        kind::ASK => {
            let magic = reader.array(what)?;
            let (_lowest, _highest) = (reader.u8(what)?, reader.u8(what)?);
            let client = read_u64(reader)?;
            (magic == MAGIC).then_some(Datagram::Ask { client, len })
        }
        kind::CHALLENGE => Some(Datagram::Challenge {
            client: read_u64(reader)?,
            server: read_u64(reader)?,
            issued: read_u64(reader)?,
            hello: reader.bytes(ASK_LEN, what)?,
        }),
        kind::OPEN => {
            let server = read_u64(reader)?;
            let client = read_u64(reader)?;
            let issued = read_u64(reader)?;
            let hello = reader.bytes(ASK_LEN, what)?;
            Flags::read(reader.u8(what)?).map(|flags| Datagram::Open {
                server,
                client,
                issued,
                hello,
                flags,
            })
        }
        kind::GONE => Some(Datagram::Gone {
            session: read_u64(reader)?,
            node: NodeId::read(reader)?,
        }),
        _ => None,
    })
}

fn read_u64(reader: &mut Reader<'_>) -> Result<u64, WireError> {
    Ok(u64::from_be_bytes(reader.array("datagram")?))
}

pub(super) fn put_ask(out: &mut Vec<u8>, versions: (u8, u8), client: u64, len: usize) {
    let start = out.len();
    out.put_u8(kind::ASK);
    out.put_slice(&MAGIC);
    out.put_u8(versions.0);
    out.put_u8(versions.1);
    out.put_u64(client);
    out.resize(start + len - CHECKSUM, 0);
    seal(out, start);
}

pub(super) fn put_challenge(
    out: &mut Vec<u8>,
    client: u64,
    server: u64,
    issued: u64,
    hello: &[u8],
) {
    let start = out.len();
    out.put_u8(kind::CHALLENGE);
    out.put_u64(client);
    out.put_u64(server);
    out.put_u64(issued);
    varint::put_bytes(out, hello);
    seal(out, start);
}

/// Begins a datagram for a receiver that may not know the session; a packet follows. Returns where its flags are.
pub(super) fn put_open(
    out: &mut Vec<u8>,
    server: u64,
    client: u64,
    issued: u64,
    hello: &[u8],
) -> usize {
    out.put_u8(kind::OPEN);
    out.put_u64(server);
    out.put_u64(client);
    out.put_u64(issued);
    varint::put_bytes(out, hello);
    out.put_u8(Flags::NONE.byte());
    out.len() - 1
}

/// What such a datagram takes besides the hello and what any other takes.
pub(super) const OPEN_OVERHEAD: usize = 8 + 8 + 3 + 1;

/// Begins a datagram of a known session; a packet follows. Returns where its flags are.
pub(super) fn put_data(out: &mut Vec<u8>, session: u64) -> usize {
    out.put_u8(Flags::NONE.byte());
    out.put_u64(session);
    out.len() - 1 - 8
}

pub(super) fn put_gone(out: &mut Vec<u8>, session: u64, node: NodeId) {
    let start = out.len();
    out.put_u8(kind::GONE);
    out.put_u64(session);
    node.put(out);
    seal(out, start);
}

/// Ends the datagram that begins at `start`.
pub(super) fn seal(out: &mut Vec<u8>, start: usize) {
    let checksum = crc32c(&out[start..]);
    out.put_u32(checksum);
}

/// Which packets of the other side have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ack {
    /// How long the newest of them has waited for this.
    pub(super) delay: Duration,
    newest: (u64, u64),
    /// Empty, and so without memory of its own, unless something is missing.
    older: Vec<(u64, u64)>,
}

impl Ack {
    /// First and last number of each range, the newest first.
    pub(super) fn ranges(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        iter::once(self.newest).chain(self.older())
    }

    /// The same without the newest: mostly there is none.
    pub(super) fn older(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.older.iter().copied()
    }

    /// The range of the newest packet.
    pub(super) fn newest(&self) -> (u64, u64) {
        self.newest
    }

    /// The newest packet.
    pub(super) fn largest(&self) -> u64 {
        self.newest.1
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "acknowledgement";
        let below = || WireError::Malformed {
            what,
            why: "a range below number 0",
        };
        let largest = reader.varint(what)?;
        let delay = reader.duration(what)?;
        let more = reader.varint(what)?;
        if more >= MAX_RANGES as u64 {
            return Err(WireError::TooLong {
                what,
                len: more + 1,
                limit: MAX_RANGES,
            });
        }
        let first = largest
            .checked_sub(reader.varint(what)?)
            .ok_or_else(below)?;
        let mut older = Vec::with_capacity(more as usize);
        let mut next = first;
        for _ in 0..more {
            // Two ranges have at least one number between them.
            let last = reader
                .varint(what)?
                .checked_add(2)
                .and_then(|gap| next.checked_sub(gap))
                .ok_or_else(below)?;
            next = last.checked_sub(reader.varint(what)?).ok_or_else(below)?;
            older.push((next, last));
        }
        Ok(Self {
            delay,
            newest: (first, largest),
            older,
        })
    }
}

/// Appends an acknowledgement of `room` bytes at most, the newest ranges first; there is at least one.
pub(super) fn put_ack(out: &mut Vec<u8>, received: &ReceivedPackets, delay: Duration, room: usize) {
    let mut ranges = received.ranges().rev();
    let Some((mut first, largest)) = ranges.next() else {
        debug_assert!(false, "something was received");
        return;
    };
    let start = out.len();
    varint::put(out, largest);
    varint::put_duration(out, delay);
    let count_at = out.len();
    out.put_u8(0); // below MAX_RANGES, so one byte
    varint::put(out, largest - first);
    let mut more = 0;
    for (next, last) in ranges.take(MAX_RANGES - 1) {
        if out.len() - start + 2 * varint::MAX_LEN > room {
            break;
        }
        varint::put(out, first - last - 2);
        varint::put(out, last - next);
        (first, more) = (next, more + 1);
    }
    out[count_at] = more;
}

/// Longest acknowledgement that rides with messages. One that has more to say leaves the oldest ranges out: what they
/// would acknowledge is sent again at worst.
pub(super) const ACK_ROOM: usize = 48;

/// Something in a packet, behind its acknowledgement; bytes are named by where they are in the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// Nothing but: acknowledge this packet.
    Probe,
    /// A message.
    Whole {
        number: u64,
        kind: u8,
        start: usize,
        end: usize,
    },
    /// A piece of a message.
    Piece {
        number: u64,
        kind: u8,
        total: usize,
        offset: usize,
        start: usize,
        end: usize,
    },
}

impl Frame {
    /// The next frame of a packet, `None` at its end.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, WireError> {
        if reader.is_empty() {
            return Ok(None);
        }
        Self::read_next(reader)
    }

    fn read_next(reader: &mut Reader<'_>) -> Result<Option<Self>, WireError> {
        let what = "packet";
        loop {
            if reader.is_empty() {
                return Ok(None);
            }
            match reader.u8(what)? {
                frame::PADDING => {}
                frame::PROBE => return Ok(Some(Self::Probe)),
                frame::PIECE => return Self::read_piece(reader).map(Some),
                kind => {
                    let number = reader.varint(what)?;
                    let len = reader.bytes(MAX_BODY, what)?.len();
                    let end = reader.position();
                    return Ok(Some(Self::Whole {
                        number,
                        kind,
                        start: end - len,
                        end,
                    }));
                }
            }
        }
    }

    fn read_piece(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "piece";
        let number = reader.varint(what)?;
        let kind = reader.u8(what)?;
        let total = reader.varint(what)?;
        if total > MAX_BODY as u64 {
            return Err(WireError::TooLong {
                what,
                len: total,
                limit: MAX_BODY,
            });
        }
        let offset = reader.varint(what)?;
        let len = reader.bytes(MAX_BODY, what)?.len();
        if len == 0 || offset.saturating_add(len as u64) > total {
            return Err(WireError::Malformed {
                what,
                why: "nothing of its message",
            });
        }
        let end = reader.position();
        Ok(Self::Piece {
            number,
            kind,
            total: total as usize,
            offset: offset as usize,
            start: end - len,
            end,
        })
    }
}

pub(super) fn put_probe(out: &mut Vec<u8>) {
    out.put_u8(frame::PROBE);
}

/// Appends so many bytes that say nothing.
pub(super) fn put_padding(out: &mut Vec<u8>, count: usize) {
    out.put_bytes(frame::PADDING, count);
}

/// Appends what stands before a message's bytes.
pub(super) fn put_whole(out: &mut Vec<u8>, number: u64, kind: u8, len: usize) {
    out.put_u8(kind);
    varint::put(out, number);
    varint::put(out, len as u64);
}

/// Whether a message of this length has room.
pub(super) fn fits_whole(number: u64, len: usize, room: usize) -> bool {
    let most = 1 + 2 * varint::MAX_LEN;
    len + most <= room || len + 1 + varint_len(number) + varint_len(len as u64) <= room
}

/// Appends what stands before a piece's bytes.
pub(super) fn put_piece(
    out: &mut Vec<u8>,
    number: u64,
    kind: u8,
    total: usize,
    offset: usize,
    len: usize,
) {
    out.put_u8(frame::PIECE);
    varint::put(out, number);
    out.put_u8(kind);
    varint::put(out, total as u64);
    varint::put(out, offset as u64);
    varint::put(out, len as u64);
}

/// What a piece takes at most besides its bytes.
pub(super) const PIECE_OVERHEAD: usize = 2 + varint::MAX_LEN + 3 * 3;

fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_varints() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift] {
                assert_eq!(varint_len(value), varint::encode(value).1, "{value}");
            }
        }
    }

    #[test]
    fn acknowledgements_survive_and_drop_their_oldest_ranges_for_want_of_room() {
        let mut received = ReceivedPackets::default();
        let numbers: Vec<u64> = (0..200).filter(|n| n % 7 != 3 && n % 11 != 5).collect();
        numbers.iter().for_each(|&number| {
            received.insert(number);
        });
        for room in [ACK_ROOM, 1000] {
            let mut out = Vec::new();
            put_ack(&mut out, &received, Duration::from_micros(300), room);
            assert!(out.len() <= room);
            let mut reader = Reader::new(&out);
            let ack = Ack::read(&mut reader).expect("what was written");
            assert!(reader.is_empty());
            assert_eq!(Some(&ack.largest()), numbers.last());
            assert_eq!(ack.delay, Duration::from_micros(300));
            let oldest = ack.ranges().last().expect("a range").0;
            let named: Vec<u64> = (ack.ranges().rev())
                .flat_map(|(first, last)| first..=last)
                .collect();
            let expected: Vec<u64> = (numbers.iter().copied())
                .filter(|&number| number >= oldest)
                .collect();
            assert_eq!(named, expected);
        }
    }

    #[test]
    fn too_many_ranges_are_refused_with_their_number() {
        let read = |more: u64| {
            let mut out = Vec::new();
            varint::put(&mut out, 1000);
            varint::put_duration(&mut out, Duration::ZERO);
            varint::put(&mut out, more);
            varint::put(&mut out, 0);
            (0..2 * more).for_each(|_| varint::put(&mut out, 0));
            Ack::read(&mut Reader::new(&out))
        };
        let most = read(MAX_RANGES as u64 - 1).expect("as many as there may be");
        assert_eq!(most.ranges().count(), MAX_RANGES);
        let ranges: Vec<_> = most.ranges().take(3).collect();
        assert_eq!(ranges, [(1000, 1000), (998, 998), (996, 996)]);
        let error = read(MAX_RANGES as u64).expect_err("one more");
        let (what, limit) = ("acknowledgement", MAX_RANGES);
        let len = MAX_RANGES as u64 + 1;
        assert_eq!(error, WireError::TooLong { what, len, limit });
    }

    #[test]
    fn pieces_lie_within_their_message() {
        let is_read = |total: usize, offset, len| {
            let mut out = Vec::new();
            put_piece(&mut out, 7, 0x10, total, offset, len);
            out.extend_from_slice(&[1; 100][..len]);
            Frame::read_piece(&mut Reader::new(&out[1..])).is_ok()
        };
        assert!(is_read(100, 0, 100) && is_read(100, 99, 1) && is_read(MAX_BODY, 0, 1));
        assert!(!is_read(100, 0, 0), "nothing");
        assert!(!is_read(100, 100, 1), "behind its end");
        assert!(!is_read(100, 99, 2), "across its end");
        assert!(
            !is_read(MAX_BODY + 1, 0, 1),
            "of a message that is too long"
        );
    }

    #[test]
    fn an_acknowledgement_takes_the_room_it_is_given_wherever_it_stands() {
        let mut received = ReceivedPackets::default();
        (0..100).for_each(|number| received.insert(1000 * number));
        let written = |before: usize, room: usize| {
            let mut out = vec![0; before];
            put_ack(&mut out, &received, Duration::ZERO, room);
            let len = out.len() - before;
            assert!(len <= room, "{len} bytes for {room}");
            len
        };
        for room in ACK_ROOM..100 {
            assert!(written(0, room) + 2 * varint::MAX_LEN + 3 > room);
            assert_eq!(written(0, room), written(1000, room), "{room}");
        }
    }

    /// An ask says what it is, and how long it is counts: else anybody could make this side send.
    #[test]
    fn an_ask_is_no_ask_if_it_says_something_else() {
        let mut ask = Vec::new();
        put_ask(&mut ask, (1, 1), 7, SHORT_ASK_LEN);
        ask.truncate(ask.len() - CHECKSUM);
        let read_sealed = |mut bytes: Vec<u8>| {
            seal(&mut bytes, 0);
            let len = bytes.len();
            read(&bytes).map(|(kind, _)| kind == Datagram::Ask { client: 7, len })
        };
        assert_eq!(read_sealed(ask.clone()), Ok(true));
        let mut cut = ask.clone();
        cut.truncate(14);
        assert_eq!(read_sealed(cut), Err(Unreadable::Malformed));
        ask[1] ^= 1;
        assert_eq!(read_sealed(ask), Err(Unreadable::Malformed));
    }
}
