//! Messages on their way out, kept until the other side has acknowledged them.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use crate::connection::ConnectionLimits;
use crate::datagram::packet;
use crate::datagram::recovery::Chunk;
use crate::datagram::window::WINDOW;
use crate::detach::{FEW, detach};
use crate::wire::MAX_BODY;

/// Most pieces of a message.
pub(super) const MAX_PIECES: usize = 128;

/// Header buffers that are kept for the next messages, and the longest of them.
const SPARE: (usize, usize) = (64, 1024);

/// Packets without a piece of a large message, while one waits: then it is its turn.
const PACKETS_BETWEEN_PIECES: u32 = 8;

/// A message.
#[derive(Debug)]
struct QueuedMessage {
    kind: u8,
    lane: u8,
    /// How many pieces it has; 1 if it travels whole.
    pieces: u8,
    /// The next piece that was never sent.
    next: u8,
    /// How many pieces have not arrived.
    missing: u8,
    /// A bit for each piece that has arrived; of a message that has, none matters any more.
    arrived: u128,
    /// A bit for each piece that waits to be sent again.
    lost: u128,
    piece_len: u32,
    header: Vec<u8>,
    payload: Bytes,
    /// The method that it introduces.
    introduces: Option<u16>,
}

impl QueuedMessage {
    fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    fn has_arrived(&self) -> bool {
        self.missing == 0
    }

    fn has_piece(&self, piece: u8) -> bool {
        self.has_arrived() || self.pieces > 1 && self.arrived >> piece & 1 == 1
    }

    /// Whether the first of several pieces comes next.
    fn begins_pieces(&self) -> bool {
        self.pieces > 1 && self.next == 0
    }

    /// Where this piece begins and ends.
    fn piece(&self, piece: u8) -> (usize, usize) {
        let start = usize::from(piece) * self.piece_len as usize;
        (start, self.len().min(start + self.piece_len as usize))
    }

    fn write(&self, out: &mut Vec<u8>, number: u64, piece: u8) {
        if self.pieces == 1 {
            packet::put_whole(out, number, self.kind, self.len());
            out.extend_from_slice(&self.header);
            return out.extend_from_slice(&self.payload);
        }
        let (start, end) = self.piece(piece);
        packet::put_piece(out, number, self.kind, self.len(), start, end - start);
        let header = self.header.len();
        out.extend_from_slice(&self.header[start.min(header)..end.min(header)]);
        out.extend_from_slice(&self.payload[start.max(header) - header..end.max(header) - header]);
    }

    /// Whether there is room for this piece in a packet.
    fn fits(&self, number: u64, piece: u8, room: usize) -> bool {
        if self.pieces == 1 {
            return packet::fits_whole(number, self.len(), room);
        }
        let (start, end) = self.piece(piece);
        packet::PIECE_OVERHEAD + end - start <= room
    }
}

/// How much may be under way in pieces at a time: so many messages, whatever their length, or more of them as long as
/// they are together not longer than so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Streams {
    /// What a side allows that says so in its hello.
    pub(super) fn of(limits: &ConnectionLimits) -> Self {
        Self {
            count: limits.streams as usize,
            bytes: usize::try_from(limits.parts).unwrap_or(usize::MAX),
        }
    }

    /// What the receiver makes room for, since control messages in pieces come on top.
    pub(super) fn with_control(self) -> Self {
        Self {
            count: self.count.saturating_add(CONTROL_STREAMS.count),
            bytes: (self.bytes).saturating_add(CONTROL_STREAMS.count * MAX_BODY),
        }
    }

    /// Whether a message of this length may begin besides those under way.
    pub(super) fn admit(self, count: usize, bytes: usize, len: usize) -> bool {
        count < self.count || bytes.saturating_add(len) <= self.bytes
    }
}

/// Control messages may have so many of theirs in pieces under way, besides those that the peer allows.
const CONTROL_STREAMS: Streams = Streams { count: 4, bytes: 0 };

/// Messages of which something was never sent, in order. One in pieces is sent to its end before the next begins: so
/// the first are whole at the other side as early as can be.
#[derive(Debug, Default)]
struct MessageLane {
    waiting: VecDeque<u64>,
    /// Messages in pieces of which some have been sent and not all have arrived.
    begun: BTreeSet<u64>,
    /// The bytes of these.
    begun_bytes: usize,
}

impl MessageLane {
    /// Whether what comes next of this message, the first that waits, may be sent besides what is under way.
    fn admits(&self, record: &QueuedMessage, streams: Streams) -> bool {
        !record.begins_pieces() || streams.admit(self.begun.len(), self.begun_bytes, record.len())
    }
}

/// Sent first: what concerns the session, and messages without credit.
const CONTROL: u8 = 0;
/// Messages that travel whole.
const SMALL: u8 = 1;
/// Messages in pieces.
const LARGE: u8 = 2;

/// What goes with a message into the queue.
#[derive(Debug)]
pub(super) struct NewMessage {
    pub(super) kind: u8,
    pub(super) payload: Bytes,
    /// It goes first.
    pub(super) control: bool,
    pub(super) introduces: Option<u16>,
    /// Most bytes of a frame in each packet.
    pub(super) room: usize,
}

/// All messages of a session that have not arrived at the other side.
#[derive(Debug, Default)]
pub(super) struct OutboundQueue {
    /// Number of the first of `records`: all before have arrived.
    first: u64,
    records: VecDeque<QueuedMessage>,
    spare: Vec<Vec<u8>>,
    lanes: [MessageLane; 3],
    lost: VecDeque<Chunk>,
    bytes: usize,
    packets_without_piece: u32,
}

impl OutboundQueue {
    /// Bytes of messages that have not arrived.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many numbers are taken: from the first that has not arrived on.
    pub(super) fn numbers(&self) -> u64 {
        self.records.len() as u64
    }

    /// Whether everything has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All messages before this one have arrived.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// All messages before this one have been sent, to their last pieces, once at least; those of which some pieces have
    /// arrived have arrived wholly.
    pub(super) fn left(&self) -> u64 {
        let arrives = |number: &&u64| self.record(**number).arrived != 0;
        let waiting = self.lanes.iter().filter_map(|lane| lane.waiting.front());
        let arriving = (self.lanes.iter()).filter_map(|lane| lane.begun.iter().find(arrives));
        (waiting.chain(arriving)).fold(self.next(), |first, number| first.min(*number))
    }

    /// Whether this message has left, whatever those before it have.
    pub(super) fn has_left(&self, number: u64) -> bool {
        let index = number.checked_sub(self.first);
        let record = index.and_then(|index| self.records.get(index as usize));
        record.is_none_or(|record| {
            record.has_arrived() || record.next == record.pieces && record.arrived == 0
        })
    }

    /// The number of the next message.
    pub(super) fn next(&self) -> u64 {
        self.first + self.numbers()
    }

    fn record(&self, number: u64) -> &QueuedMessage {
        &self.records[(number - self.first) as usize]
    }

    /// The messages that have not arrived, and whether any byte of them was sent.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        (self.first..)
            .zip(&self.records)
            .filter(|(_, record)| !record.has_arrived())
            .map(|(number, record)| (number, record.next > 0))
    }

    /// An empty buffer for a header.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a message: its header is in a buffer of [`OutboundQueue::buffer`]. There must be a number left. Returns it.
    pub(super) fn push(&mut self, header: Vec<u8>, mut message: NewMessage) -> u64 {
        debug_assert!(self.numbers() < WINDOW);
        if self.records.len() >= FEW {
            detach(&mut message.payload);
        }
        let number = self.first + self.records.len() as u64;
        let len = header.len() + message.payload.len();
        let whole = packet::fits_whole(number, len, message.room);
        let (pieces, piece_len) = if whole {
            (1, len)
        } else {
            let piece_len = message.room.saturating_sub(packet::PIECE_OVERHEAD);
            let piece_len = piece_len.max(len.div_ceil(MAX_PIECES)).max(1);
            (len.div_ceil(piece_len), piece_len)
        };
        let lane = match (message.control, whole) {
            (true, _) => CONTROL,
            (false, true) => SMALL,
            (false, false) => LARGE,
        };
        self.bytes += len;
        self.lanes[usize::from(lane)].waiting.push_back(number);
        self.records.push_back(QueuedMessage {
            kind: message.kind,
            lane,
            pieces: pieces as u8,
            next: 0,
            missing: pieces as u8,
            arrived: 0,
            lost: 0,
            piece_len: piece_len as u32,
            header,
            payload: message.payload,
            introduces: message.introduces,
        });
        number
    }

    /// This chunk has arrived; returns the method that is now known to the other side.
    pub(super) fn settle(&mut self, chunk: Chunk) -> Option<u16> {
        let index = chunk.number.checked_sub(self.first)? as usize;
        let record = self.records.get_mut(index)?;
        if record.has_piece(chunk.piece) {
            return None;
        }
        record.missing -= 1;
        if !record.has_arrived() {
            record.arrived |= 1 << chunk.piece;
            return None;
        }
        let len = record.len();
        self.bytes -= len;
        if record.pieces > 1 {
            let lane = &mut self.lanes[usize::from(record.lane)];
            lane.begun.remove(&chunk.number);
            lane.begun_bytes -= len;
        }
        record.payload = Bytes::new();
        let mut header = std::mem::take(&mut record.header);
        if self.spare.len() < SPARE.0 && header.capacity() <= SPARE.1 {
            header.clear();
            self.spare.push(header);
        }
        let introduced = record.introduces;
        while self.records.front().is_some_and(QueuedMessage::has_arrived) {
            self.records.pop_front();
            self.first += 1;
        }
        introduced
    }

    /// This chunk must be sent again.
    pub(super) fn resend(&mut self, chunk: Chunk) {
        let Some(index) = chunk.number.checked_sub(self.first) else {
            return;
        };
        let Some(record) = self.records.get_mut(index as usize) else {
            return;
        };
        let bit = 1 << chunk.piece;
        if !record.has_piece(chunk.piece) && record.lost & bit == 0 {
            record.lost |= bit;
            self.lost.push_back(chunk);
        }
    }

    /// Forgets all messages: none of them will be sent (again).
    pub(super) fn clear(&mut self) {
        self.first += self.records.len() as u64;
        self.records.clear();
        self.lanes = Default::default();
        self.lost.clear();
        self.bytes = 0;
    }

    fn is_settled(&self, chunk: Chunk) -> bool {
        let Some(index) = chunk.number.checked_sub(self.first) else {
            return true;
        };
        (self.records.get(index as usize)).is_none_or(|record| record.has_piece(chunk.piece))
    }

    /// Whether something waits to be sent, where so many `streams` may be under way.
    pub(super) fn has_work(&mut self, streams: Streams) -> bool {
        if !self.is_sending() {
            return false; // the common case
        }
        while let Some(&chunk) = self.lost.front()
            && self.is_settled(chunk)
        {
            self.lost.pop_front();
        }
        !self.lost.is_empty()
            || !self.lanes[usize::from(SMALL)].waiting.is_empty()
            || self.may_send(CONTROL, CONTROL_STREAMS)
            || self.may_send(LARGE, streams)
    }

    /// Whether something may wait to be sent.
    pub(super) fn is_sending(&self) -> bool {
        !self.lost.is_empty() || self.is_waiting()
    }

    /// Whether something waits that was never sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// Appends what fits into `room` bytes of a packet; its chunks go to `chunks`.
    pub(super) fn fill(
        &mut self,
        out: &mut Vec<u8>,
        room: usize,
        streams: Streams,
        chunks: &mut VecDeque<Chunk>,
    ) {
        let limit = out.len() + room;
        let first = chunks.len();
        let pieces_turn = self.packets_without_piece >= PACKETS_BETWEEN_PIECES;
        self.packets_without_piece += 1;
        self.fill_from(CONTROL, out, limit, CONTROL_STREAMS, chunks);
        self.fill_from_lost(out, limit, chunks);
        if pieces_turn && chunks.len() == first {
            self.fill_from(LARGE, out, limit, streams, chunks);
        }
        self.fill_from(SMALL, out, limit, streams, chunks);
        self.fill_from(LARGE, out, limit, streams, chunks);
    }

    fn fill_from_lost(&mut self, out: &mut Vec<u8>, limit: usize, chunks: &mut VecDeque<Chunk>) {
        while let Some(&chunk) = self.lost.front() {
            if !self.is_settled(chunk) {
                let record = &mut self.records[(chunk.number - self.first) as usize];
                let room = limit.saturating_sub(out.len());
                if !record.fits(chunk.number, chunk.piece, room) {
                    return;
                }
                record.write(out, chunk.number, chunk.piece);
                record.lost &= !(1 << chunk.piece);
                chunks.push_back(chunk);
            }
            self.lost.pop_front();
        }
    }

    #[inline]
    fn fill_from(
        &mut self,
        lane: u8,
        out: &mut Vec<u8>,
        limit: usize,
        streams: Streams,
        chunks: &mut VecDeque<Chunk>,
    ) {
        if !self.lanes[usize::from(lane)].waiting.is_empty() {
            self.fill_from_waiting(lane, out, limit, streams, chunks);
        }
    }

    fn fill_from_waiting(
        &mut self,
        lane: u8,
        out: &mut Vec<u8>,
        limit: usize,
        streams: Streams,
        chunks: &mut VecDeque<Chunk>,
    ) {
        let is_large = lane == LARGE;
        let lane = &mut self.lanes[usize::from(lane)];
        while let Some(&number) = lane.waiting.front() {
            let record = &mut self.records[(number - self.first) as usize];
            let piece = record.next;
            let room = limit.saturating_sub(out.len());
            if !lane.admits(record, streams) || !record.fits(number, piece, room) {
                return;
            }
            record.write(out, number, piece);
            chunks.push_back(Chunk { number, piece });
            if is_large {
                self.packets_without_piece = 0;
            }
            if record.begins_pieces() {
                lane.begun.insert(number);
                lane.begun_bytes += record.len();
            }
            record.next = piece + 1;
            if record.next == record.pieces {
                lane.waiting.pop_front();
            }
        }
    }

    /// Whether the message of this lane whose turn it is may be sent.
    fn may_send(&self, lane: u8, streams: Streams) -> bool {
        let lane = &self.lanes[usize::from(lane)];
        (lane.waiting.front()).is_some_and(|number| {
            let record = &self.records[(number - self.first) as usize];
            lane.admits(record, streams)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 100;

    fn push(outgoing: &mut OutboundQueue, len: usize, introduces: Option<u16>) -> u64 {
        let message = NewMessage {
            kind: 0x10,
            payload: vec![7; len].into(),
            control: false,
            introduces,
            room: ROOM,
        };
        let header = outgoing.buffer();
        outgoing.push(header, message)
    }

    /// What the next packet holds.
    fn packet(outgoing: &mut OutboundQueue, streams: Streams) -> (usize, Vec<Chunk>) {
        let (mut out, mut chunks) = (Vec::new(), VecDeque::new());
        assert!(outgoing.has_work(streams));
        outgoing.fill(&mut out, ROOM, streams, &mut chunks);
        (out.len(), chunks.into())
    }

    fn all(outgoing: &mut OutboundQueue, streams: Streams) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        while outgoing.has_work(streams) {
            chunks.extend(packet(outgoing, streams).1);
        }
        chunks
    }

    #[test]
    fn large_messages_begin_when_others_have_arrived_whole() {
        let mut outgoing = OutboundQueue::default();
        let streams = Streams {
            count: 1,
            bytes: 3000,
        };
        for number in 0..5 {
            assert_eq!(push(&mut outgoing, 1490, None), number);
        }
        let first = all(&mut outgoing, streams);
        assert!(first.iter().all(|chunk| chunk.number < 2), "2,980 bytes");
        for number in [0, 1] {
            let of_it: Vec<Chunk> = (first.iter().copied())
                .filter(|chunk| chunk.number == number)
                .collect();
            let (last, others) = of_it.split_last().expect("pieces");
            for chunk in others {
                assert_eq!(outgoing.settle(*chunk), None);
            }
            assert!(!outgoing.has_work(streams), "a piece is missing");
            outgoing.settle(*last);
            let next = all(&mut outgoing, streams);
            assert!(
                next.iter().all(|chunk| chunk.number == number + 2),
                "one more"
            );
            assert!(!next.is_empty());
        }
        assert_eq!((outgoing.first(), outgoing.bytes()), (2, 3 * 1490));
        assert_eq!(outgoing.numbers(), 3);
    }

    #[test]
    fn what_has_arrived_in_part_has_left_with_the_rest() {
        let mut outgoing = OutboundQueue::default();
        let streams = Streams { count: 1, bytes: 0 };
        let large = push(&mut outgoing, 250, None);
        let small = push(&mut outgoing, 10, None);
        let sent = all(&mut outgoing, streams);
        assert_eq!(outgoing.left(), small + 1, "perhaps nobody is there");
        let mut pieces = sent.into_iter().filter(|chunk| chunk.number == large);
        let last = pieces.next().expect("several pieces");
        pieces.for_each(|piece| _ = outgoing.settle(piece));
        assert_eq!(outgoing.left(), large, "one is sent again");
        assert!(!outgoing.has_left(large));
        assert!(
            outgoing.has_left(small),
            "it does not wait for the one before it"
        );
        outgoing.settle(last);
        assert!(outgoing.has_left(large));
        assert_eq!(outgoing.left(), small + 1);
    }

    #[test]
    fn what_has_arrived_is_not_sent_again() {
        let mut outgoing = OutboundQueue::default();
        let streams = Streams { count: 1, bytes: 0 };
        let small = push(&mut outgoing, 10, Some(5));
        let large = push(&mut outgoing, 250, None);
        let chunks = all(&mut outgoing, streams);
        let lost = chunks.clone();
        lost.iter().for_each(|chunk| outgoing.resend(*chunk));
        lost.iter().for_each(|chunk| outgoing.resend(*chunk));
        // They were late, not lost, but for one piece.
        let piece = Chunk {
            number: large,
            piece: 1,
        };
        let late = chunks.iter().filter(|chunk| **chunk != piece);
        let introduced: Vec<u16> = late.filter_map(|chunk| outgoing.settle(*chunk)).collect();
        assert_eq!(introduced, [5]);
        assert_eq!(outgoing.first(), small + 1);
        assert_eq!(all(&mut outgoing, streams), [piece]);
        assert_eq!(outgoing.settle(piece), None);
        assert!(outgoing.is_empty());
        assert_eq!(outgoing.bytes(), 0);
        outgoing.resend(piece);
        assert!(!outgoing.has_work(streams));
        push(&mut outgoing, 250, None);
        assert!(outgoing.has_work(streams), "the other large one is over");
    }

    #[test]
    fn a_packet_is_filled_to_its_last_byte_and_no_further() {
        let whole = (1..=ROOM).filter(|&len| {
            let mut outgoing = OutboundQueue::default();
            push(&mut outgoing, len, None);
            let (written, chunks) = packet(&mut outgoing, Streams { count: 1, bytes: 0 });
            assert!(
                written <= ROOM && chunks.len() == 1,
                "{len} bytes take {written}"
            );
            outgoing.settle(chunks[0]);
            outgoing.is_empty()
        });
        let longest = whole.max().expect("a short one");
        let mut outgoing = OutboundQueue::default();
        push(&mut outgoing, longest, None);
        let streams = Streams { count: 1, bytes: 0 };
        assert_eq!(packet(&mut outgoing, streams).0, ROOM);
    }

    #[test]
    fn small_messages_go_where_no_large_ones_are_taken() {
        let mut outgoing = OutboundQueue::default();
        let none = Streams { count: 0, bytes: 0 };
        push(&mut outgoing, 250, None);
        let small = push(&mut outgoing, 10, None);
        assert_eq!(
            all(&mut outgoing, none),
            [Chunk {
                number: small,
                piece: 0
            }]
        );
        assert_eq!(
            outgoing.pending().collect::<Vec<_>>(),
            [(0, false), (1, true)]
        );
        outgoing.clear();
        assert_eq!((outgoing.first(), outgoing.bytes()), (2, 0));
        assert!(outgoing.is_empty() && !outgoing.has_work(none));
    }

    #[test]
    fn buffers_are_used_again_unless_they_are_many_or_long() {
        let mut outgoing = OutboundQueue::default();
        for capacity in [SPARE.1, SPARE.1 + 1] {
            let message = NewMessage {
                kind: 0x10,
                payload: Bytes::new(),
                control: true,
                introduces: None,
                room: ROOM,
            };
            let number = outgoing.push(Vec::with_capacity(capacity), message);
            outgoing.settle(Chunk { number, piece: 0 });
        }
        assert_eq!(outgoing.spare.len(), 1, "the longer one is not kept");
        assert_eq!(outgoing.buffer().capacity(), SPARE.1);
    }

    #[test]
    fn of_many_buffers_only_some_are_kept() {
        let mut outgoing = OutboundQueue::default();
        let count = 2 * SPARE.0 as u64;
        for number in 0..count {
            assert_eq!(push(&mut outgoing, 1, None), number);
        }
        for number in 0..count {
            outgoing.settle(Chunk { number, piece: 0 });
        }
        assert_eq!(outgoing.spare.len(), SPARE.0);
    }
}
