//! The streams' sockets and rings: how they come and go, what is read from them and written to them.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::endpoint::{Closed, ConnId, Endpoint as Core, StreamEnd};
use wallaby_proto::{Address, NodeId};

use super::epoll::{Epoll, Interest, Ready};
use super::rings::Rings;
use super::sockets::{Channel, Listener};
use super::stream::{Read, Stream, StreamTable};
use crate::error::{BindError, ConnectError, dial_failed};
use crate::log::Logs;
use crate::transport::{Identity, PAUSE, end_of};

/// Most connections that a listener lets in at a time.
const ACCEPTED: usize = 16;

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
    pub(super) table: StreamTable,
    /// Those that share memory.
    pub(super) rings: Rings,
    /// Those that may have something to write.
    pub(super) unwritten: Vec<ConnId>,
    /// Those of whose input some was not handled, and whose peers have read what waited for them.
    unread: Vec<ConnId>,
    /// When listeners are listened to again.
    accept_again: Option<Duration>,
    /// What is said in the log, of streams and of all else.
    pub(super) logs: Logs,
}

/// What is ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whom {
    Datagrams,
    Listener(usize),
    Peer(ConnId),
    /// The socket of a peer that shares memory.
    Life(ConnId),
    Bell(ConnId),
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
            token if token & LIFE != 0 => Whom::Life(ConnId::from_number(token & !LIFE)),
            token if token & BELL != 0 => Whom::Bell(ConnId::from_number(token & !BELL)),
            token => Whom::Peer(ConnId::from_number(token)),
        };
        Some((whom, ready))
    }

    /// When something has to be done next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.accept_again
    }

    /// Whether there is input that was not handled and may be now.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Whether something is to be written or told before a wait.
    pub(super) fn has_output(&self) -> bool {
        !self.unwritten.is_empty() || self.has_unread()
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

impl Streams {
    /// Whether there is more to wait for than datagrams.
    pub(super) fn are_there(&self) -> bool {
        self.table.len() > 0 || !self.listeners.is_empty()
    }

    /// Whether all streams go through shared memory.
    pub(super) fn are_all_rings(&self) -> bool {
        self.table.len() == self.rings.len()
    }

    // How streams begin.

    /// Begins a stream to a server, whose rings hold so many bytes if it shares memory.
    pub(super) fn dial(&mut self, core: &mut Core, id: ConnId, to: &Address, ring: usize) {
        let why = match Channel::dial(to, ring) {
            Some(Ok((channel, connected))) => {
                if connected {
                    self.logs.connected(core.node(), to);
                }
                let stream = Stream::new(channel, connected, Identity::default());
                return self.begin(core, id, stream);
            }
            Some(Err(error)) => dial_failed(to, &error),
            None => ConnectError::NoTransport { server: to.clone() },
        };
        self.fail_dial(core, id, why);
    }

    /// A dial has failed.
    pub(super) fn fail_dial(&self, core: &mut Core, id: ConnId, why: ConnectError) {
        if let Some(to) = why.server() {
            self.logs.vain(core.node(), to, &why);
        }
        core.handle_dial_failed(id, why);
    }

    fn begin(&mut self, core: &mut Core, id: ConnId, mut stream: Stream) {
        stream.interest = stream.wanted(true);
        let token = match stream.rings() {
            Some(_) => {
                self.rings.begin();
                id.number() | LIFE
            }
            None => id.number(),
        };
        let (descriptor, interest) = (stream.channel.descriptor(), stream.interest);
        let epoll = self.epoll();
        let added = epoll.and_then(|epoll| epoll.add(descriptor, token, interest));
        self.table.insert(id, stream);
        self.unwritten.push(id);
        check_awaited(core, id, added);
    }

    /// The memory that a stream goes through is there: its bell is waited for.
    pub(super) fn await_bell(&mut self, core: &mut Core, id: ConnId, bell: RawFd) {
        let epoll = self.epoll();
        let added = epoll.and_then(|epoll| epoll.add_bell(bell, id.number() | BELL));
        check_awaited(core, id, added);
    }

    /// Lets in who has connected.
    pub(super) fn accept(&mut self, core: &mut Core, index: usize, now: Duration) {
        for _ in 0..ACCEPTED {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            match listener.accept() {
                Ok((channel, peer)) => {
                    let connected = matches!(channel, Channel::Socket(_));
                    self.logs.accepted(core.node(), &peer);
                    let id = core.handle_accepted();
                    self.begin(core, id, Stream::new(channel, connected, peer));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.logs.accept_failed(&error);
                        self.attend(index, Interest::default());
                        self.accept_again = Some(now.saturating_add(PAUSE));
                        return;
                    }
                },
            }
        }
    }

    /// Listens again, if that was put off until now.
    pub(super) fn accept_again(&mut self, now: Duration) {
        if self.accept_again.take_if(|due| *due <= now).is_some() {
            for index in 0..self.listeners.len() {
                self.attend(index, Interest::READABLE);
            }
        }
    }

    // What arrives.

    /// A stream's socket takes bytes again, or it is decided whether it is connected.
    pub(super) fn writable(&mut self, core: &mut Core, id: ConnId) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let was_connecting = stream.is_connecting();
        let result = stream.writable();
        self.unwritten.push(id);
        if let Some(to) = core.server(id).filter(|_| was_connecting) {
            match result {
                Ok(()) => self.logs.connected(core.node(), &to),
                Err(error) => self.fail_dial(core, id, dial_failed(&to, &error)),
            }
        }
    }

    /// Reads what has arrived on a stream; whether there may be more, `None` if it has ended.
    pub(super) fn read(
        &mut self,
        core: &mut Core,
        id: ConnId,
        input: &mut BytesMut,
    ) -> Option<bool> {
        let stream = self.table.get_mut(id)?;
        if stream.is_connecting() {
            return None;
        }
        let end = match stream.read(input) {
            Ok(Read::All) => return Some(false),
            Ok(Read::Some) => return Some(true),
            Ok(Read::End) => StreamEnd::Closed,
            Err(error) => end_of(&error),
        };
        core.handle_ended(id, input, end);
        stream.keep(input, false);
        None
    }

    /// What was not handled of the input of a stream, if that may be now: it is lent until [`Self::keep_input`].
    pub(super) fn take_unread(&mut self, input: &mut BytesMut) -> Option<ConnId> {
        loop {
            let id = self.unread.pop()?;
            if let Some(stream) = self.table.get_mut(id) {
                stream.lend(input);
                return Some(id);
            }
        }
    }

    /// All whole messages that had arrived were handled, unless the rest is `held`.
    pub(super) fn keep_input(&mut self, id: ConnId, input: &mut BytesMut, held: bool) {
        match self.table.get_mut(id) {
            Some(stream) => stream.keep(input, held),
            None => input.clear(), // nobody handles what it had sent after its end
        }
    }

    // What leaves.

    /// Writes what a stream takes now.
    pub(super) fn write(&mut self, core: &mut Core, id: ConnId) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if let Err(error) = stream.write(core, id) {
            tracing::debug!(%error, "a connection takes nothing more");
            core.handle_write_failed(id);
        }
        let takes_input = match stream.is_full() {
            true => core.handle_blocked(id),
            false => core.handle_written(id),
        };
        if stream.unread && takes_input {
            stream.unread = false;
            self.unread.push(id);
        }
        let wanted = stream.wanted(takes_input);
        if wanted != stream.interest {
            stream.interest = wanted;
            let socket = stream.channel.descriptor();
            if stream.rings().is_some() {
                self.rings.wake(id, stream);
            } else if let Some(epoll) = &self.epoll
                && let Err(error) = epoll.change(socket, id.number(), wanted)
            {
                tracing::error!(%error, "cannot wait for a connection");
            }
        }
    }

    /// A stream has ended.
    pub(super) fn close(&mut self, node: NodeId, id: ConnId, closed: &Closed) {
        let Some(mut stream) = self.table.remove(id) else {
            return; // its dial had failed
        };
        match stream.is_connecting() {
            true => self.logs.not_opened(node, &closed.why),
            false => self.logs.closed(node, &stream.peer, &closed.why),
        }
        stream.say(&closed.last_words);
        stream.channel.shut_down();
        if let Some(rings) = stream.rings() {
            self.rings.end();
            if let (Some(bell), Some(epoll)) = (rings.bell(), &self.epoll) {
                let _ = epoll.remove(bell); // it was never added if there was no memory for that
            }
        }
    }
}

/// A stream ends that cannot be waited for.
fn check_awaited(core: &mut Core, id: ConnId, added: io::Result<()>) {
    if let Err(error) = added {
        let end = StreamEnd::Lost(format!("cannot wait for it: {error}"));
        core.handle_ended(id, &mut BytesMut::new(), end);
    }
}
