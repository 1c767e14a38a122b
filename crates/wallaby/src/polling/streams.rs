//! Streams among the peers: how they come and go, are written, and watched for silence.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::call::clock::earliest;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, ConnectionError, Event as News};
use wallaby_proto::{Address, NodeId};

use super::core::Core;
use super::epoll::{Epoll, Interest, Ready};
use super::peer::{Peer, PeerId, Way, nobody};
use super::rings::Rings;
use super::sending::output;
use super::sockets::{Channel, Listener};
use super::stream::{Place, Read, Stream};
use crate::error::{BindError, ConnectError};

/// Most connections that a listener lets in at a time.
const ACCEPTED: usize = 16;

/// How long nothing is accepted after that has failed: out of descriptors, most likely, and trying again at once would only burn
/// the processor.
const PAUSE: Duration = Duration::from_millis(20);

/// How long it is not told again that nothing is accepted, for the same reason.
const TOLD: Duration = Duration::from_secs(10);

/// How often it is looked whether there is room for more of large messages again.
const RETRY: Duration = Duration::from_millis(50);

/// How long the last words of a peer that takes nothing more may take to arrive: they are on their way already.
const DRAIN: Duration = Duration::from_secs(1);

/// What the socket of datagrams is called among those that are waited for. No peer's number is so small.
const DATAGRAMS: u64 = u32::MAX as u64;

/// What a peer's number has besides where it shares memory: its socket is a sign of life, its bell is another descriptor.
/// There are never so many peers that one has these bits in its own number.
const LIFE: u64 = 1 << 31;
const BELL: u64 = 1 << 30;

/// All streams have in common.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// As long as there is nothing to wait for but datagrams: none.
    epoll: Option<Epoll>,
    listeners: Vec<Listener>,
    /// Where datagrams arrive, and what of that is waited for.
    datagrams: Option<(RawFd, Interest)>,
    /// Those that share memory.
    pub(super) rings: Rings,
    /// Those that may have something to write.
    pub(super) unwritten: Vec<PeerId>,
    /// Dials that have failed at once.
    failed: VecDeque<(PeerId, ConnectError)>,
    /// When it is looked whether peers are silent, while something waits for one.
    look: Option<Duration>,
    /// When it is looked whether large messages grow.
    stall_check: Option<Duration>,
    /// When it is looked whether there is room for more of large messages, while some are held back.
    retry: Option<Duration>,
    /// Those of whose input some was not handled, and whose peers have read what waited for them.
    unread: Vec<PeerId>,
    /// When listeners are listened to again.
    accept_again: Option<Duration>,
    refusals: Refusals,
}

/// What was told of connections that could not be accepted: it may happen fifty times a second.
#[derive(Debug, Default)]
struct Refusals(Option<(io::ErrorKind, Duration)>);

impl Refusals {
    /// Whether it is worth telling: it is for another reason than the one before, or that was long ago.
    fn is_news(&mut self, why: io::ErrorKind, now: Duration) -> bool {
        let known = self
            .0
            .is_some_and(|(known, at)| known == why && now < at.saturating_add(TOLD));
        if !known {
            self.0 = Some((why, now));
        }
        !known
    }
}

/// What is ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whom {
    Datagrams,
    Listener(usize),
    Peer(PeerId),
    /// The socket of a peer that shares memory.
    Life(PeerId),
    Bell(PeerId),
}

impl Streams {
    /// Listens at an address; returns it as others see it.
    pub(super) fn listen(&mut self, address: &Address) -> Result<Address, BindError> {
        let (listener, found) = Listener::bind(address)?;
        let failed = |source| BindError::Listen {
            address: address.clone(),
            source,
        };
        let token = self.listeners.len() as u64;
        let epoll = self.epoll().map_err(failed)?;
        let added = epoll.add(listener.descriptor(), token, Interest::READABLE);
        added.map_err(failed)?;
        self.listeners.push(listener);
        Ok(found)
    }

    fn epoll(&mut self) -> io::Result<&mut Epoll> {
        match &mut self.epoll {
            Some(epoll) => Ok(epoll),
            none => Ok(none.insert(Epoll::new()?)),
        }
    }

    /// Datagrams that arrive end a wait, too; so does room for one that was refused.
    pub(super) fn watch_datagrams(&mut self, socket: RawFd, refused: bool) -> io::Result<()> {
        let interest = Interest {
            readable: true,
            writable: refused,
        };
        if self.datagrams == Some((socket, interest)) {
            return Ok(());
        }
        let known = self.datagrams.is_some_and(|known| known.0 == socket);
        let epoll = self.epoll()?;
        match known {
            true => epoll.change(socket, DATAGRAMS, interest)?,
            false => epoll.add(socket, DATAGRAMS, interest)?,
        }
        self.datagrams = Some((socket, interest));
        Ok(())
    }

    /// Waits until something is ready; how much is.
    pub(super) fn wait(&mut self, most: Duration) -> io::Result<usize> {
        let epoll = self.epoll()?;
        epoll.wait(most)?;
        Ok(epoll.len())
    }

    /// Whether more may be ready than the latest wait told.
    pub(super) fn is_full(&self) -> bool {
        self.epoll.as_ref().is_some_and(Epoll::is_full)
    }

    /// What the latest wait found.
    pub(super) fn ready(&self, index: usize) -> Option<(Whom, Ready)> {
        let ready = self.epoll.as_ref()?.found(index)?;
        let whom = match ready.token {
            DATAGRAMS => Whom::Datagrams,
            token if token < DATAGRAMS => Whom::Listener(token as usize),
            token if token & LIFE != 0 => Whom::Life(PeerId::from_number(token & !LIFE)),
            token if token & BELL != 0 => Whom::Bell(PeerId::from_number(token & !BELL)),
            token => Whom::Peer(PeerId::from_number(token)),
        };
        Some((whom, ready))
    }

    /// When something has to be done next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.epoll.as_ref()?;
        let looks = earliest(earliest(self.look, self.stall_check), self.retry);
        earliest(looks, self.accept_again)
    }

    /// Whether there is input that was not handled and may be now.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Whether something is to be written or told before a wait.
    pub(super) fn has_output(&self) -> bool {
        !self.unwritten.is_empty() || !self.failed.is_empty() || self.has_unread()
    }

    /// From now on this is awaited of a listener.
    fn attend(&self, index: usize, interest: Interest) {
        if let (Some(epoll), Some(listener)) = (&self.epoll, self.listeners.get(index))
            && let Err(error) = epoll.change(listener.descriptor(), index as u64, interest)
        {
            tracing::error!(%error, "cannot wait for connections");
        }
    }
}

impl Core {
    /// Whether there is more to wait for than datagrams.
    pub(super) fn has_streams(&self) -> bool {
        self.peers.streams() > 0 || !self.streams.listeners.is_empty()
    }

    /// Whether all streams go through shared memory.
    pub(super) fn has_rings_alone(&self) -> bool {
        self.peers.streams() == self.streams.rings.len()
    }

    // How streams begin.

    /// Begins a stream to a server. That nobody is there is told later, by an end like any other.
    pub(super) fn dial_stream(
        &mut self,
        to: &Address,
        expected: Option<NodeId>,
    ) -> Result<Way, ConnectError> {
        let Some(dialled) = Channel::dial(to, self.config.ring) else {
            let server = to.clone();
            return Err(ConnectError::NoTransport { server });
        };
        match dialled {
            Ok((channel, connected)) => {
                let connection =
                    Connection::dial(Arc::clone(&self.hello), expected).bounded(&self.bounds);
                let stream = Stream::new(connection, channel, connected);
                Ok(Way::Stream(Box::new(stream)))
            }
            Err(error) => Ok(Way::Failed(ConnectError::from_dial(to, &error))),
        }
    }

    /// A stream is among the peers from now on, and its handshake is to be written.
    pub(super) fn begin_stream(&mut self, id: PeerId) {
        let stream = match self.peers.get_mut(id).map(|peer| &mut peer.way) {
            Some(Way::Stream(stream)) => stream,
            Some(Way::Failed(error)) => {
                return self.streams.failed.push_back((id, error.clone()));
            }
            Some(Way::Session(_)) | None => return,
        };
        stream.interest = stream.wanted();
        let token = match stream.rings() {
            Some(_) => {
                self.streams.rings.begin();
                id.number() | LIFE
            }
            None => id.number(),
        };
        let (descriptor, interest) = (stream.channel.descriptor(), stream.interest);
        let epoll = self.streams.epoll();
        let added = epoll.and_then(|epoll| epoll.add(descriptor, token, interest));
        stream.queued = true;
        self.streams.unwritten.push(id);
        let first = self.now.saturating_add(self.stall_check());
        self.streams.stall_check.get_or_insert(first);
        if let Err(error) = added {
            self.cannot_wait(id, &error);
        }
    }

    fn cannot_wait(&mut self, id: PeerId, error: &io::Error) {
        let server = self.peers.get(id).map_or_else(nobody, Peer::server);
        let reason = format!("cannot wait for it: {error}");
        let error = ConnectError::Closed { server, reason };
        self.streams.failed.push_back((id, error));
    }

    /// The memory that a stream goes through is there: its bell is waited for.
    pub(super) fn await_bell(&mut self, id: PeerId, bell: RawFd) {
        let epoll = self.streams.epoll();
        let added = epoll.and_then(|epoll| epoll.add_bell(bell, id.number() | BELL));
        if let Err(error) = added {
            self.cannot_wait(id, &error);
        }
    }

    /// Lets in who has connected.
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTED {
            let Some(listener) = self.streams.listeners.get(index) else {
                return;
            };
            match listener.accept() {
                Ok(channel) => self.let_in(channel),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    why => {
                        if self.streams.refusals.is_news(why, self.now) {
                            tracing::error!(%error, "cannot accept a connection");
                        }
                        self.streams.attend(index, Interest::default());
                        self.streams.accept_again = Some(self.now.saturating_add(PAUSE));
                        return;
                    }
                },
            }
        }
    }

    /// Somebody has connected, and must say who they are soon.
    fn let_in(&mut self, channel: Channel) {
        let connection = Connection::accept(Arc::clone(&self.hello)).bounded(&self.bounds);
        let connected = matches!(channel, Channel::Socket(_));
        let stream = Box::new(Stream::new(connection, channel, connected));
        let id = self.welcome(Way::Stream(stream), None);
        self.begin_stream(id);
    }

    // What arrives.

    /// A stream's socket takes bytes again, or it is decided whether it is connected.
    pub(super) fn stream_writable(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let Some(stream) = peer.stream_mut() else {
            return;
        };
        let result = stream.writable();
        if !std::mem::replace(&mut stream.queued, true) {
            self.streams.unwritten.push(id);
        }
        if let Err(error) = result {
            let server = peer.server();
            self.stream_ended(id, ConnectError::from_dial(&server, &error));
        }
    }

    /// Reads what has arrived on a stream; whether there may be more, `None` if it has ended.
    pub(super) fn read_stream(&mut self, id: PeerId, input: &mut BytesMut) -> Option<bool> {
        let raw = self.raw;
        let peer = self.peers.get_mut(id)?;
        let stream = peer.stream_mut()?;
        if stream.is_connecting() {
            return None;
        }
        let reason = match stream.read(input, raw) {
            Ok(Read::All) => return Some(false),
            Ok(Read::Some) => return Some(true),
            Ok(Read::End) => "the peer closed it".to_owned(),
            Err(error) => {
                let broken = error.kind() == io::ErrorKind::InvalidData;
                self.counters.connections_broken += u64::from(broken);
                format!("cannot read: {error}")
            }
        };
        stream.keep(input);
        let server = peer.server();
        self.stream_ended(id, ConnectError::Closed { server, reason });
        None
    }

    /// The next thing that has arrived on a stream; nothing more if it has ended meanwhile.
    ///
    /// # Errors
    ///
    /// If the stream has to be broken off.
    pub(super) fn stream_news(
        &mut self,
        id: PeerId,
        input: &mut BytesMut,
    ) -> Result<Option<News>, ConnectionError> {
        match self.peers.get_mut(id).and_then(Peer::stream_mut) {
            Some(stream) => stream.connection.handle_input(input),
            None => Ok(None),
        }
    }

    /// What was not handled of the input of a stream, if that may be now: it is lent until [`Self::keep_input`].
    pub(super) fn take_unread(&mut self, input: &mut BytesMut) -> Option<PeerId> {
        loop {
            let id = self.streams.unread.pop()?;
            if let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) {
                stream.lend(input);
                return Some(id);
            }
        }
    }

    /// All whole messages that had arrived were handled.
    pub(super) fn keep_input(&mut self, id: PeerId, input: &mut BytesMut) {
        let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) else {
            return input.clear(); // nobody handles what it had sent after its end
        };
        stream.keep(input);
        if stream.connection.is_withholding() {
            self.streams
                .retry
                .get_or_insert(self.now.saturating_add(RETRY));
        }
        if stream.connection.has_output() && !std::mem::replace(&mut stream.queued, true) {
            self.streams.unwritten.push(id);
        }
    }

    // What leaves.

    /// Writes what streams take now.
    pub(super) fn write_streams(&mut self) {
        while let Some(id) = self.streams.unwritten.pop() {
            self.write_stream(id);
        }
    }

    /// Writes what a stream takes now.
    pub(super) fn write_stream(&mut self, id: PeerId) {
        let (now, raw) = (self.now, self.raw);
        let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) else {
            return;
        };
        stream.queued = false;
        let before = stream.connection.counters().bytes_sent;
        let written = stream.write(raw);
        let progress = stream.connection.counters().bytes_sent > before;
        if stream.unread && stream.connection.takes_input() {
            stream.unread = false;
            self.streams.unread.push(id);
        }
        let wanted = stream.wanted();
        if wanted != stream.interest {
            stream.interest = wanted;
            let socket = stream.channel.descriptor();
            if stream.rings().is_some() {
                self.streams.rings.wake(id, stream);
            } else if let Some(epoll) = &self.streams.epoll
                && let Err(error) = epoll.change(socket, id.number(), wanted)
            {
                tracing::error!(%error, "cannot wait for a connection");
            }
        }
        if !stream.large.is_empty() {
            self.note_left(id);
        }
        if self.streams.look.is_none() {
            let interval = self.config.keep_alive.interval();
            self.streams.look = interval.map(|interval| now.saturating_add(interval));
        }
        if progress && self.peers.get(id).is_some_and(Peer::holds_messages) {
            self.pump(id); // what waits for room, not for credit
        }
        self.may_rest(id);
        if let Err(error) = written {
            tracing::debug!(%error, "a connection takes nothing more");
            self.going_away(id);
            self.open_until(id, DRAIN);
        }
    }

    /// Who waits for the places of large messages learns those that are known now.
    #[cold]
    fn note_left(&mut self, id: PeerId) {
        loop {
            let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) else {
                return;
            };
            let Some((number, mark)) = stream.connection.next_left() else {
                return;
            };
            let known = stream.large.iter().position(|large| large.0 == number);
            match known.map(|position| stream.large.swap_remove(position).1) {
                Some(Place::Released(ticket, sent)) => {
                    self.records.placed(ticket, sent, output(id, mark));
                }
                Some(Place::Root(sequence, request)) => self.root_left(sequence, request, mark),
                None => {}
            }
        }
    }

    // How streams end.

    /// The peer has closed a stream, and says why.
    pub(super) fn closed_by_peer(&mut self, id: PeerId, reason: String) {
        let server = self.peers.get(id).map_or_else(nobody, Peer::server);
        self.stream_ended(id, ConnectError::Closed { server, reason });
    }

    /// Nobody here reads bodies of requests.
    #[cold]
    pub(super) fn stop_body(&mut self, id: PeerId, number: u64) {
        if let Some(Carrier::Stream(connection)) = self.carrier(id) {
            connection.stop_body(number);
        }
    }

    /// The peer has sent what it must not, or is silent: it is told so, and the stream ends.
    #[cold]
    pub(super) fn break_stream(&mut self, id: PeerId, error: ConnectionError) {
        self.counters.connections_broken += 1;
        self.say_goodbye(id, &error.to_string());
        let Some(peer) = self.peers.get(id) else {
            return;
        };
        let (server, source) = (peer.server(), error);
        tracing::debug!(%server, %source, "a connection is broken off");
        self.stream_ended(id, ConnectError::Handshake { server, source });
    }

    /// A stream has ended: why, for those who wait for it to open.
    #[cold]
    pub(super) fn stream_ended(&mut self, id: PeerId, error: ConnectError) {
        let at = self.peers.get(id).and_then(|peer| peer.at.clone());
        let source = match &error {
            ConnectError::Handshake { source, .. } => Some(source),
            _ => None,
        };
        if let (Some(ConnectionError::WrongNode { found, .. }), Some(at)) = (source, at) {
            self.found_at(&at, *found);
        }
        self.remove_peer(id, error);
    }

    /// A stream is not among the peers any more. What was not written is lost.
    pub(super) fn stream_removed(&mut self, id: PeerId, stream: &mut Stream) {
        let written = stream.connection.counters().bytes_sent;
        self.records.written(id.session(), written);
        for (_, place) in stream.large.drain(..) {
            if let Place::Released(ticket, sent) = place {
                self.records.dropped(ticket, sent);
            }
        }
        stream.channel.shut_down();
        if let Some(rings) = stream.rings() {
            self.streams.rings.end();
            if let (Some(bell), Some(epoll)) = (rings.bell(), &self.streams.epoll) {
                let _ = epoll.remove(bell); // it was never added if there was no memory for that
            }
        }
        if self.peers.streams() == 0 {
            (self.streams.look, self.streams.stall_check) = (None, None);
            self.streams.retry = None;
        }
    }

    /// Dials that have failed at once.
    pub(super) fn tell_failed(&mut self) {
        while let Some((id, error)) = self.streams.failed.pop_front() {
            self.stream_ended(id, error);
        }
    }

    // What is due.

    /// Does what is due.
    pub(super) fn look_at_streams(&mut self) {
        let now = self.now;
        let is_due = |due: &mut Option<Duration>| due.take_if(|due| *due <= now).is_some();
        if is_due(&mut self.streams.accept_again) {
            for index in 0..self.streams.listeners.len() {
                self.streams.attend(index, Interest::READABLE);
            }
        }
        let (look, stall_check) = (
            is_due(&mut self.streams.look),
            is_due(&mut self.streams.stall_check),
        );
        if is_due(&mut self.streams.retry) {
            self.grant_withheld();
        }
        if look {
            self.look_for_silence();
        }
        if stall_check {
            self.check_stalled();
        }
    }

    /// Looks whether peers are silent though something waits for them.
    fn look_for_silence(&mut self) {
        let (now, settings) = (self.now, self.config.keep_alive);
        let mut waits = false;
        for id in self.peers.ids() {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            let busy = peer.busy > 0;
            let Way::Stream(stream) = &mut peer.way else {
                continue;
            };
            let Stream {
                keep_alive,
                connection,
                ..
            } = &mut **stream;
            match keep_alive.look(&settings, connection, busy, now) {
                Ok(something) => {
                    waits |= something;
                    if connection.has_output() {
                        self.write_stream(id);
                    }
                }
                Err(error) => self.break_stream(id, error),
            }
        }
        let next = settings.interval().filter(|_| waits);
        self.streams.look = next.map(|interval| now.saturating_add(interval));
    }

    /// How often it is looked whether large messages grow.
    fn stall_check(&self) -> Duration {
        self.bounds.partials.limits().period
    }

    /// Grants credit for parts that was withheld, where there is room now.
    fn grant_withheld(&mut self) {
        for id in self.peers.ids() {
            let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) else {
                continue;
            };
            if !stream.connection.is_withholding() {
                continue;
            }
            stream.connection.grant_withheld();
            if stream.connection.is_withholding() {
                self.streams.retry = Some(self.now.saturating_add(RETRY));
            }
            if stream.connection.has_output() {
                self.write_stream(id);
            }
        }
    }

    fn check_stalled(&mut self) {
        let now = self.now;
        for id in self.peers.ids() {
            let stream = self.peers.get_mut(id).and_then(Peer::stream_mut);
            if let Some(Err(error)) = stream.map(|stream| stream.connection.check_stalled(now)) {
                self.break_stream(id, error);
            }
        }
        if self.peers.streams() > 0 {
            self.streams.stall_check = Some(self.now.saturating_add(self.stall_check()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_once_for_each_reason_and_while() {
        let mut refusals = Refusals::default();
        let (full, denied) = (io::ErrorKind::Other, io::ErrorKind::PermissionDenied);
        let mut now = Duration::ZERO;
        let mut told = |why, later| {
            now += later;
            refusals.is_news(why, now)
        };
        assert!(told(full, PAUSE));
        assert!(!told(full, PAUSE));
        assert!(told(denied, PAUSE));
        assert!(told(full, PAUSE));
        assert!(!told(full, TOLD - PAUSE));
        assert!(told(full, PAUSE));
    }
}
