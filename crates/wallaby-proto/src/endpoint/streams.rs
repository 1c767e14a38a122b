//! Streams: what their shells tell of them, what leaves by them, and how they are watched for silence.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use super::Endpoint;
use super::conn::{Conn, Link};
use super::draining::Lifecycle;
use super::event::{Closed, Output};
use super::probe::Probe;
use crate::call::clock::earliest;
use crate::call::records::{RelayId, ReleasedMessage, Ticket};
use crate::carrier::Carrier;
use crate::connection::{Connection, ConnectionError, KeepAlive, NamedBy};
use crate::error::{CLOSED, ConnectError};
use crate::{Address, ConnId, RequestId};

/// Most messages that are handled of one stream's input at a time.
const MESSAGES: usize = 32;

/// How often it is looked whether there is room for more of large messages again.
const RETRY: Duration = Duration::from_millis(50);

/// How long the last words of a peer that takes nothing more may take to arrive: they are on their way already.
const DRAIN: Duration = Duration::from_secs(1);

/// A stream to a peer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) connection: Connection,
    /// Its shell was told that there is something to write.
    pub(super) told: bool,
    /// The transport took not all of it last time.
    pub(super) blocked: bool,
    /// Bytes that had left at the last word of its shell.
    left: u64,
    /// Messages that travel in parts and whose places are waited for, by number.
    pub(super) large: Vec<(u64, MarkOwner)>,
    keep_alive: KeepAlive,
    /// Who has named its address, if it was dialled.
    pub(super) named_by: NamedBy,
    /// How many bytes of it its peer has handled that is closed now.
    pub(super) read: Option<u64>,
}

/// Who is told where a message stands in the output.
#[derive(Debug, Clone, Copy)]
pub(super) enum MarkOwner {
    /// A request released it: its record.
    Released(Ticket, ReleasedMessage),
    /// The initiator is told of it until it has been written.
    Relay(RelayId),
    /// It is this initial request of the call with this sequence.
    Root(u64, RequestId),
    /// It announces this request.
    Announced(Ticket),
}

/// How a stream has ended, as its shell has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The peer has closed it.
    Closed,
    /// It goes on no longer: why, as the system says.
    Lost(String),
    /// The peer does not keep to what its transport says: how, as that says.
    Broken(String),
}

/// What became of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputOutcome {
    /// All whole frames were taken. What is left belongs in front of what comes next.
    All,
    /// The peer does not take what waits for it, so it is not read either: what is left may be given again when
    /// [`handle_written`](Endpoint::handle_written) says so.
    Held,
    /// There may be more in it.
    More,
    /// The stream has ended; its input is of no use.
    Ended,
}

/// When streams are looked at.
#[derive(Debug, Default)]
pub(super) struct StreamTimes {
    /// Whether peers are silent, while something waits for one.
    silence: Option<Duration>,
    /// Whether large messages grow.
    stalled: Option<Duration>,
    /// Whether there is room for more of large messages, while some are held back.
    withheld: Option<Duration>,
}

impl StreamTimes {
    pub(super) fn due(&self) -> Option<Duration> {
        earliest(earliest(self.silence, self.stalled), self.withheld)
    }
}

impl Stream {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            told: false,
            blocked: false,
            left: 0,
            large: Vec::new(),
            keep_alive: KeepAlive::default(),
            named_by: NamedBy::Application,
            read: None,
        }
    }
}

impl Stream {
    /// A large message whose place is known now: its number, its place, and whose it is.
    fn next_left(&mut self) -> Option<(u64, u64, Option<MarkOwner>)> {
        let (number, mark) = self.connection.next_left()?;
        let known = self.large.iter().position(|large| large.0 == number);
        let owner = known.map(|position| self.large.swap_remove(position).1);
        Some((number, mark, owner))
    }
}

impl<P: Probe> Endpoint<P> {
    // What a shell tells of streams.

    /// Somebody has connected, and must say soon who they are. If too many have that said nothing, the oldest goes.
    pub fn handle_accepted(&mut self) -> ConnId {
        let connection = Connection::accept(Arc::clone(&self.hello)).bounded(&self.bounds);
        let stream = Box::new(Stream::new(connection));
        let id = self.welcome(Link::Stream(stream), None);
        self.begin_stream(id);
        if self.is_closed() {
            self.close_conn(id, CLOSED);
        }
        id
    }

    /// A dial has failed ([`Output::Dial`]): why. Of one that succeeds nothing needs to be told.
    pub fn handle_dial_failed(&mut self, id: ConnId, why: ConnectError) {
        self.metrics.dials_failed += 1;
        if matches!(&why, ConnectError::Handshake { source, .. } if source.is_violation()) {
            self.metrics.connections_broken += 1;
        }
        self.stream_ended(id, why);
        self.settle();
    }

    /// Bytes have arrived on a stream. Some messages of them are handled; what is not taken must be given again, in front of
    /// what follows.
    pub fn handle_input(&mut self, id: ConnId, input: &mut BytesMut) -> InputOutcome {
        let read = self.take_messages(id, input);
        self.settle();
        let Some(stream) = self.conns.get_mut(id).and_then(Conn::stream_mut) else {
            return InputOutcome::Ended;
        };
        if stream.connection.is_withholding() {
            let retry = self.now.saturating_add(RETRY);
            self.stream_times.withheld.get_or_insert(retry);
            self.due = self.due.min(retry);
        }
        self.note_output(id);
        match self.takes_input(id) {
            true => read,
            false => InputOutcome::Held,
        }
    }

    /// Messages are handled where they are read to: they are large values.
    fn take_messages(&mut self, id: ConnId, input: &mut BytesMut) -> InputOutcome {
        let raw = self.raw;
        let Some(stream) = self.stream_mut(id) else {
            return InputOutcome::Ended;
        };
        if stream.connection.wants_time() {
            stream.connection.set_time(raw);
        }
        for _ in 0..MESSAGES {
            if input.is_empty() {
                return InputOutcome::All;
            }
            let Some(stream) = self.stream_mut(id) else {
                return InputOutcome::Ended;
            };
            match &mut stream.connection.handle_input(input) {
                Ok(Some(news)) => self.handle_news(id, news),
                Ok(None) => return InputOutcome::All,
                Err(error) => {
                    self.break_stream(id, error.clone());
                    return InputOutcome::Ended;
                }
            }
        }
        InputOutcome::More
    }

    /// What is to be written to a stream next.
    pub fn output(&mut self, id: ConnId) -> &[u8] {
        match self.on_pace(id) {
            Some(connection) => connection.output(),
            None => &[],
        }
    }

    /// The same, taken out in exchange for a buffer whose bytes were written: a shell behind a lock need not hold it while it
    /// writes. What was taken counts as not written until [`advance`](Self::advance) says so.
    pub fn take_output(&mut self, id: ConnId, buffer: &mut Vec<u8>) {
        buffer.clear();
        if let Some(connection) = self.on_pace(id) {
            connection.take_output(buffer);
        }
    }

    /// A stream that is to be written to, and knows the time if that matters.
    fn on_pace(&mut self, id: ConnId) -> Option<&mut Connection> {
        let raw = self.raw;
        let connection = &mut self.stream_mut(id)?.connection;
        if connection.keeps_pace() {
            connection.set_time(raw);
        }
        Some(connection)
    }

    /// So many bytes of [`output`](Self::output) were written; whether there is more.
    pub fn advance(&mut self, id: ConnId, written: usize) -> bool {
        let Some(stream) = self.stream_mut(id) else {
            return false;
        };
        stream.connection.advance(written);
        stream.connection.has_output()
    }

    /// All that there was to write was written. Whether the peer is to be read: one that does not take what waits for it must not
    /// make this side pile up answers.
    pub fn handle_written(&mut self, id: ConnId) -> bool {
        self.note_output_of(id, false)
    }

    /// As much was written as the transport takes: the shell goes on when it takes bytes again. Whether the peer is to be read, as
    /// [`handle_written`](Self::handle_written) says.
    pub fn handle_blocked(&mut self, id: ConnId) -> bool {
        self.note_output_of(id, true)
    }

    fn note_output_of(&mut self, id: ConnId, blocked: bool) -> bool {
        let Some(stream) = self.stream_mut(id) else {
            return false;
        };
        let takes_input = stream.connection.takes_input();
        stream.blocked = blocked;
        stream.told = false;
        let left = stream.connection.counters().bytes_sent;
        let progress = left > std::mem::replace(&mut stream.left, left);
        if !stream.large.is_empty() {
            self.note_left(id);
        }
        self.begin_looking();
        self.look_at_bodies(id);
        if progress && self.conns.get(id).is_some_and(Conn::holds_messages) {
            self.pump(id); // what waits for room, not for credit
        }
        if progress && self.queue_room.has_refused() {
            self.note_space(); // what need not wait needs no room
        }
        self.may_rest(id);
        takes_input
    }

    /// Whether input of a stream is taken: see [`InputOutcome::Held`].
    pub fn takes_input(&self, id: ConnId) -> bool {
        let stream = self.conns.get(id).and_then(Conn::stream);
        stream.is_none_or(|stream| stream.connection.takes_input())
    }

    /// A stream takes nothing more, and has no [`output`](Self::output) from now on. What its peer has sent before is still read for a
    /// second: all of its input is taken.
    pub fn handle_write_failed(&mut self, id: ConnId) {
        if let Some(stream) = self.stream_mut(id) {
            stream.connection.shut_output();
            self.going_away(id);
            self.end_written_bodies(id);
            self.open_until(id, DRAIN);
        }
    }

    /// A stream has ended. What had come over it before and waits in the shell is handled first, whether it was
    /// [held](InputOutcome::Held) or not.
    pub fn handle_ended(&mut self, id: ConnId, input: &mut BytesMut, end: StreamEnd) {
        if let Some(stream) = self.stream_mut(id) {
            stream.connection.shut_output();
        }
        while self.take_messages(id, input) == InputOutcome::More {}
        match end {
            StreamEnd::Closed => self.closed_by_peer(id, "the peer closed it".to_owned()),
            StreamEnd::Lost(reason) => self.closed_by_peer(id, reason),
            StreamEnd::Broken(reason) if self.conns.contains(id) => {
                self.break_stream(id, ConnectionError::Transport { reason });
            }
            StreamEnd::Broken(_) => {} // what it brought last was wrong, too
        }
        self.settle();
    }

    /// Where the other end of a connection is, for messages; `None` if it came in and does not say.
    pub fn server(&self, id: ConnId) -> Option<Address> {
        self.conns.get(id)?.server()
    }

    /// Tells all peers that this endpoint is gone, and begins nothing any more: its requests [are ended](Self::stop_all), its calls
    /// fail with [`Failure::Closed`](crate::error::Failure::Closed), and connections end with their last words. Sessions over
    /// datagrams say nothing but that: what else is to be sent must have left before.
    pub fn close(&mut self) {
        if !self.is_closed() {
            self.stop_all();
            self.hang_up();
        }
    }

    /// The same without a word of its requests, as if its process had died: who waits for them finds that out. Only who works for them
    /// here is told ([`Output::Stopped`]).
    pub fn hang_up(&mut self) {
        let is_told = self.is_ending();
        if !self.reach(Lifecycle::Closed) {
            return;
        }
        let why = self.why_closed();
        for id in self.conns.ids() {
            if let Some(carrier) = self.carrier(id).filter(|_| is_told) {
                carrier.stop_reading();
            }
            self.close_conn(id, CLOSED);
        }
        for sequence in self.calls.live() {
            self.end_call(sequence, Err(why.clone()));
            // One that had ended before may have waited for what ran on: nobody tells this endpoint of it any more.
            if self.calls.get(sequence).is_some() {
                self.call_over(sequence);
            }
        }
        self.leave_requests();
        self.farewells.clear();
    }

    // How they begin and end.

    fn stream_mut(&mut self, id: ConnId) -> Option<&mut Stream> {
        self.conns.get_mut(id).and_then(Conn::stream_mut)
    }

    /// A stream is among the connections from now on, and its handshake is to be written.
    pub(super) fn begin_stream(&mut self, id: ConnId) {
        self.note_output(id);
        let first = self.now.saturating_add(self.stall_check());
        self.stream_times.stalled.get_or_insert(first);
        self.note_due(first);
    }

    /// If there is something to write to a stream, its shell is told.
    pub(super) fn note_output(&mut self, id: ConnId) {
        if let Some(stream) = self.conns.get_mut(id).and_then(Conn::stream_mut)
            && stream.connection.has_output()
            && !std::mem::replace(&mut stream.told, true)
        {
            self.outputs.push_back(Output::Write(id));
        }
    }

    /// The peer has closed a stream, and says why.
    pub(super) fn closed_by_peer(&mut self, id: ConnId, reason: String) {
        let server = self.server(id);
        self.stream_ended(id, ConnectError::Closed { server, reason });
    }

    /// The peer has sent what it must not, or is silent: it is told so, and the stream ends.
    #[cold]
    pub(super) fn break_stream(&mut self, id: ConnId, error: ConnectionError) {
        self.metrics.connections_broken += 1;
        self.say_goodbye(id, &error.to_string());
        let (server, source) = (self.server(id), error);
        self.stream_ended(id, ConnectError::Handshake { server, source });
    }

    /// A stream has ended: why, for those who wait for it to open.
    #[cold]
    fn stream_ended(&mut self, id: ConnId, error: ConnectError) {
        let at = self.conns.get(id).and_then(|conn| conn.at.clone());
        let source = match &error {
            ConnectError::Handshake { source, .. } => Some(source),
            _ => None,
        };
        if let (Some(ConnectionError::WrongNode { found, .. }), Some(at)) = (source, at) {
            self.dialling.found(&at, *found);
        }
        self.remove_conn(id, error);
    }

    /// A stream is not among the connections any more. What was not written is lost.
    pub(super) fn stream_removed(&mut self, id: ConnId, stream: &mut Stream, why: &ConnectError) {
        let written = stream.connection.counters().bytes_sent;
        self.records.written(id, written);
        // The shell may have written what it did not say any more.
        while let Some(left) = stream.next_left() {
            self.note_place(id, left);
        }
        for (_, owner) in stream.large.drain(..) {
            self.note_dropped(owner);
        }
        let last_words = BytesMut::from(stream.connection.output());
        let why = why.clone();
        let closed = Box::new(Closed { last_words, why });
        self.outputs.push_back(Output::Close(id, closed));
        if self.conns.streams() == 0 {
            self.stream_times = StreamTimes::default();
        }
    }

    // What leaves.

    /// Who waits for the places of large messages learns those that are known now.
    #[cold]
    fn note_left(&mut self, id: ConnId) {
        while let Some(left) = self.stream_mut(id).and_then(Stream::next_left) {
            self.note_place(id, left);
        }
    }

    #[cold]
    fn note_place(&mut self, id: ConnId, (number, mark, owner): (u64, u64, Option<MarkOwner>)) {
        if let Some(owner) = owner {
            self.note_mark(id, owner, mark);
        }
        self.probe.placed(id, number, mark);
    }

    // What is due.

    /// Does what is due.
    pub(super) fn look_at_streams(&mut self) {
        let now = self.now;
        let is_due = |due: &mut Option<Duration>| due.take_if(|due| *due <= now).is_some();
        let times = &mut self.stream_times;
        let (silence, stalled) = (is_due(&mut times.silence), is_due(&mut times.stalled));
        if is_due(&mut times.withheld) {
            self.grant_withheld();
        }
        if silence {
            self.look_for_silence();
        }
        if stalled {
            self.check_stalled();
        }
    }

    /// Something may wait for a peer: soon it is looked whether that is silent.
    pub(super) fn begin_looking(&mut self) {
        if self.stream_times.silence.is_none() {
            let interval = self.config.keep_alive.interval();
            let first = interval.map(|interval| self.now.saturating_add(interval));
            self.stream_times.silence = first;
            if let Some(first) = first {
                self.note_due(first);
            }
        }
    }

    /// Looks whether peers are silent though something waits for them.
    fn look_for_silence(&mut self) {
        let (now, settings) = (self.now, self.config.keep_alive);
        let mut waits = false;
        for id in self.conns.ids() {
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            let busy = conn.busy > 0;
            let Some(stream) = conn.stream_mut() else {
                continue;
            };
            let (keep_alive, connection) = (&mut stream.keep_alive, &mut stream.connection);
            match keep_alive.look(&settings, connection, busy, now) {
                Ok(something) => {
                    waits |= something;
                    self.note_output(id);
                }
                Err(error) => {
                    self.metrics.connections_silent += 1;
                    self.break_stream(id, error);
                }
            }
        }
        let next = settings.interval().filter(|_| waits);
        self.stream_times.silence = next.map(|interval| now.saturating_add(interval));
    }

    /// How often it is looked whether large messages grow.
    fn stall_check(&self) -> Duration {
        self.bounds.partials.limits().period
    }

    /// Grants credit for parts that was withheld, where there is room now.
    fn grant_withheld(&mut self) {
        for id in self.conns.ids() {
            let Some(stream) = self.stream_mut(id) else {
                continue;
            };
            if !stream.connection.is_withholding() {
                continue;
            }
            stream.connection.grant_withheld();
            if stream.connection.is_withholding() {
                self.stream_times.withheld = Some(self.now.saturating_add(RETRY));
            }
            self.note_output(id);
        }
    }

    fn check_stalled(&mut self) {
        let now = self.now;
        for id in self.conns.ids() {
            let stream = self.stream_mut(id);
            if let Some(Err(error)) = stream.map(|stream| stream.connection.check_stalled(now)) {
                self.break_stream(id, error);
            }
        }
        if self.conns.streams() > 0 {
            self.stream_times.stalled = Some(self.now.saturating_add(self.stall_check()));
        }
    }
}
