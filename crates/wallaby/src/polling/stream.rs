//! One stream: a connection of the protocol on a socket, or on rings in shared memory.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::RequestId;
use wallaby_proto::call::records::{Sent, Ticket};
use wallaby_proto::connection::{Connection, KeepAlive};

use super::epoll::Interest;
use super::sockets::Channel;
use crate::transport::shm::turned::{self, Found};

/// Least and most room for one read. A small room is used over and over and stays in the cache.
const READ: (usize, usize) = (2 * 1024, 64 * 1024);

/// A stream to a peer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
    stage: Stage,
    /// What is awaited of the socket, or of the rings.
    pub(super) interest: Interest,
    /// It is among those whose rings are looked at in each turn.
    pub(super) awake: bool,
    /// It is among those that may have something to write.
    pub(super) queued: bool,
    /// What has arrived of a frame that is not whole; while input is handled, what was lent for it.
    input: BytesMut,
    /// Some of it was not handled, since too much waits to be written.
    pub(super) unread: bool,
    lent: bool,
    /// Room for the next read: grows while reads fill it.
    room: usize,
    /// Messages that travel in parts and whose places are waited for, by number.
    pub(super) large: Vec<(u64, Place)>,
    pub(super) keep_alive: KeepAlive,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not decided whether anybody is there.
    Connecting,
    /// The socket takes bytes.
    Open,
    /// The socket takes nothing now.
    Full,
    /// The peer takes nothing more; what it has sent before is still read.
    Broken,
}

/// Whoever waits for the place of a large message in the output.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// A request released it: its record.
    Released(Ticket, Sent),
    /// It is this initial request of the call with this sequence.
    Root(u64, RequestId),
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
    pub(super) fn new(connection: Connection, channel: Channel, connected: bool) -> Self {
        Self {
            connection,
            channel,
            stage: if connected {
                Stage::Open
            } else {
                Stage::Connecting
            },
            interest: Interest::default(),
            awake: false,
            queued: false,
            input: BytesMut::new(),
            unread: false,
            lent: false,
            room: READ.0,
            large: Vec::new(),
            keep_alive: KeepAlive::default(),
        }
    }

    /// What is to be awaited of the socket. A peer that does not take what waits for it is not read: it must not make this
    /// side pile up answers.
    pub(super) fn wanted(&self) -> Interest {
        match self.stage {
            // The other side speaks first where shared memory is agreed on.
            Stage::Connecting if self.rings().is_some() => Interest::READABLE,
            Stage::Connecting => Interest {
                readable: false,
                writable: true,
            },
            Stage::Full => Interest {
                readable: self.connection.takes_input(),
                writable: true,
            },
            Stage::Open | Stage::Broken => Interest::READABLE,
        }
    }

    /// The socket can be written to again, or it is decided whether it is connected.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub(super) fn writable(&mut self) -> io::Result<()> {
        match self.stage {
            Stage::Connecting => {
                if let Channel::Socket(socket) = &self.channel {
                    socket.take_error()?;
                }
            }
            Stage::Full => {}
            Stage::Open | Stage::Broken => return Ok(()),
        }
        self.stage = Stage::Open;
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
        self.stage == Stage::Connecting
    }

    /// Whether everything up to this mark has been handed to the system.
    pub(super) fn has_written(&self, mark: u64) -> bool {
        self.connection.counters().bytes_sent >= mark
    }

    /// Writes what the socket takes.
    ///
    /// # Errors
    ///
    /// If the peer takes nothing more.
    pub(super) fn write(&mut self, now: Duration) -> io::Result<()> {
        if self.stage != Stage::Open {
            return Ok(());
        }
        if self.connection.keeps_pace() {
            self.connection.set_time(now);
        }
        loop {
            let output = self.connection.output();
            if output.is_empty() {
                return Ok(());
            }
            match self.channel.write(output) {
                Ok(written) => self.connection.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stage = Stage::Full;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.stage = Stage::Broken;
                    return Err(error);
                }
            }
        }
    }

    /// Reads what is there into `input`, which is lent until [`Self::keep`]: idle streams have no memory of their own for it.
    /// A stream in the midst of a frame has, and puts that in its place.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn read(&mut self, input: &mut BytesMut, now: Duration) -> io::Result<Read> {
        if self.connection.wants_time() {
            self.connection.set_time(now);
        }
        self.lend(input);
        if input.capacity() - input.len() < self.room {
            input.reserve(2 * self.room);
        }
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
        if read >= self.room {
            self.room = (self.room * 2).min(READ.1);
        } else if read < self.room / 4 {
            self.room = (self.room / 2).max(READ.0);
        }
        Ok(if read < room { Read::All } else { Read::Some })
    }

    /// Lends what has arrived of a frame that is not whole, or was not handled.
    pub(super) fn lend(&mut self, input: &mut BytesMut) {
        if !self.input.is_empty() {
            std::mem::swap(&mut self.input, input);
            self.lent = true;
        }
    }

    /// All whole frames were taken from `input`: the rest is kept, and what was lent goes back.
    pub(super) fn keep(&mut self, input: &mut BytesMut) {
        if std::mem::take(&mut self.lent) || !input.is_empty() {
            std::mem::swap(&mut self.input, input);
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        self.unread = !self.connection.takes_input();
    }
}
