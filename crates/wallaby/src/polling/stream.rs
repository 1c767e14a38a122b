//! One stream's socket, or its rings in shared memory; and the table of all.

use std::io;

use bytes::BytesMut;
use wallaby_proto::endpoint::{ConnId, Endpoint as Core};

use super::epoll::Interest;
use super::sockets::Channel;
use crate::transport::shm::turned::{self, Found};
use crate::transport::{Identity, ReadRoom};

/// A stream to a peer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) channel: Channel,
    /// Who has connected, for the log.
    pub(super) peer: Identity,
    state: StreamState,
    /// What is awaited of the socket, or of the rings.
    pub(super) interest: Interest,
    /// It is among those whose rings are looked at in each turn.
    pub(super) awake: bool,
    /// What has arrived of a frame that is not whole; while input is handled, what was lent for it.
    input: BytesMut,
    /// Some of it was not handled, since too much waits to be written.
    pub(super) unread: bool,
    lent: bool,
    room: ReadRoom,
}

/// The streams of an endpoint, by their connections.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    slots: Vec<Option<(ConnId, Box<Stream>)>>,
    /// Those that have ended and whose slots were taken again before that was told.
    ended: Vec<(ConnId, Box<Stream>)>,
    len: usize,
}

impl StreamTable {
    pub(super) fn insert(&mut self, id: ConnId, stream: Stream) {
        let slot = id.slot();
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        let before = self.slots[slot].replace((id, Box::new(stream)));
        self.ended.extend(before);
        self.len += 1;
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Stream> {
        match self.slots.get_mut(id.slot())? {
            Some((known, stream)) if *known == id => Some(stream),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<Box<Stream>> {
        let slot = self.slots.get_mut(id.slot())?;
        let found = slot.take_if(|(known, _)| *known == id).or_else(|| {
            let position = self.ended.iter().position(|(known, _)| *known == id)?;
            Some(self.ended.swap_remove(position))
        });
        let (_, stream) = found?;
        self.len -= 1;
        Some(stream)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamState {
    /// It is not decided whether anybody is there.
    Connecting,
    /// The socket takes bytes.
    Open,
    /// The socket takes nothing now.
    Full,
    /// The peer takes nothing more; what it has sent before is still read.
    Broken,
}

/// What a read has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Nothing, or less than there was room for: no more was there.
    All,
    /// As much as there was room for.
    Some,
    /// The peer sends nothing more.
    End,
}

impl Stream {
    pub(super) fn new(channel: Channel, connected: bool, peer: Identity) -> Self {
        Self {
            channel,
            peer,
            state: if connected {
                StreamState::Open
            } else {
                StreamState::Connecting
            },
            interest: Interest::default(),
            awake: false,
            input: BytesMut::new(),
            unread: false,
            lent: false,
            room: ReadRoom::default(),
        }
    }

    /// What is to be awaited of the socket, if the endpoint takes input of it.
    pub(super) fn wanted(&self, takes_input: bool) -> Interest {
        match self.state {
            // The other side speaks first where shared memory is agreed on.
            StreamState::Connecting if self.rings().is_some() => Interest::READABLE,
            StreamState::Connecting => Interest {
                readable: false,
                writable: true,
            },
            StreamState::Full => Interest {
                readable: takes_input,
                writable: true,
            },
            StreamState::Open | StreamState::Broken => Interest::READABLE,
        }
    }

    /// The socket can be written to again, or it is decided whether it is connected.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub(super) fn writable(&mut self) -> io::Result<()> {
        match self.state {
            StreamState::Connecting => {
                if let Channel::Socket(socket) = &self.channel {
                    socket.take_error()?;
                }
            }
            StreamState::Full => {}
            StreamState::Open | StreamState::Broken => return Ok(()),
        }
        self.state = StreamState::Open;
        Ok(())
    }

    /// The connection over shared memory, if it goes through that.
    pub(super) fn rings(&self) -> Option<&turned::Connection> {
        match &self.channel {
            Channel::Socket(_) => None,
            Channel::Memory(rings) => Some(rings),
        }
    }

    pub(super) fn rings_mut(&mut self) -> Option<&mut turned::Connection> {
        match &mut self.channel {
            Channel::Socket(_) => None,
            Channel::Memory(rings) => Some(rings),
        }
    }

    /// What there is to do with its rings.
    pub(super) fn look(&mut self) -> Found {
        let awaited = self.awaited();
        match self.rings_mut() {
            Some(rings) => rings.look(awaited),
            None => Found::default(),
        }
    }

    /// Before a wait: whether nothing is to be done with its rings, so that the peer has to ring.
    pub(super) fn rest(&mut self) -> bool {
        let awaited = self.awaited();
        let rests = self.rings_mut().is_none_or(|rings| rings.rest(awaited));
        self.awake = !rests;
        rests
    }

    fn awaited(&self) -> Found {
        Found {
            readable: self.interest.readable,
            writable: self.interest.writable,
        }
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.state == StreamState::Connecting
    }

    /// Whether the socket takes nothing now.
    pub(super) fn is_full(&self) -> bool {
        self.state == StreamState::Full
    }

    /// Writes what the socket takes of what the endpoint has for it.
    ///
    /// # Errors
    ///
    /// If the peer takes nothing more.
    pub(super) fn write(&mut self, core: &mut Core, id: ConnId) -> io::Result<()> {
        while self.state == StreamState::Open {
            let output = core.output(id);
            if output.is_empty() {
                break;
            }
            let written = self.write_some(output)?;
            if !core.advance(id, written) {
                break;
            }
        }
        Ok(())
    }

    /// Says this at the end, if the socket takes it.
    pub(super) fn say(&mut self, mut words: &[u8]) {
        while self.state == StreamState::Open && !words.is_empty() {
            match self.write_some(words) {
                Ok(written) => words = &words[written..],
                Err(_) => return,
            }
        }
    }

    /// How many bytes the socket has taken.
    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.channel.write(bytes) {
            Ok(written) => return Ok(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.state = StreamState::Full
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.state = StreamState::Broken;
                return Err(error);
            }
        }
        Ok(0)
    }

    /// Reads what is there into `input`, which is lent until [`Self::keep`]: idle streams have no memory of their own for it.
    /// A stream in the midst of a frame has, and puts that in its place.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn read(&mut self, input: &mut BytesMut) -> io::Result<Read> {
        self.lend(input);
        self.room.make(input);
        let room = input.spare_capacity_mut().len();
        let read = match self.channel.read(input) {
            Ok(0) => return Ok(Read::End),
            Ok(read) => read,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(Read::All);
            }
            Err(error) => return Err(error),
        };
        self.room.note(read);
        Ok(if read < room { Read::All } else { Read::Some })
    }

    /// Lends what has arrived of a frame that is not whole, or was not handled.
    pub(super) fn lend(&mut self, input: &mut BytesMut) {
        if !self.input.is_empty() {
            std::mem::swap(&mut self.input, input);
            self.lent = true;
        }
    }

    /// All whole frames were taken from `input`, unless the rest is `held`: it is kept, and what was lent goes back.
    pub(super) fn keep(&mut self, input: &mut BytesMut, held: bool) {
        if std::mem::take(&mut self.lent) || !input.is_empty() {
            std::mem::swap(&mut self.input, input);
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        self.unread = held;
    }
}
