//! Floors on nonblocking sockets behind one epoll: what whoever waits for several sockets on one thread cannot do without.

use super::blocking::spawn;
use super::caller::{self, Exchange, Sockets};
use super::message::Frames;
use super::server::pass_on;
use super::socket::{Listener, Stream, WELCOME};
use super::{Directory, Iterate, LARGEST_DATAGRAM, LARGEST_PAYLOAD, check_frame};
use crate::patience::Lost;
use crate::plan::{CLIENT, PREFIX, Targets};
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Most sockets that one look tells of.
const BATCH: usize = 64;

/// What the listener is called among those that are waited for.
const LISTENER: u64 = u64::MAX;

/// The system's list of sockets that are waited for.
struct Epoll {
    list: nix::sys::epoll::Epoll,
    events: Box<[EpollEvent; BATCH]>,
}

impl Epoll {
    fn new() -> Result<Self> {
        Ok(Self {
            list: nix::sys::epoll::Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: Box::new([EpollEvent::empty(); BATCH]),
        })
    }

    fn add(&self, socket: BorrowedFd<'_>, token: u64) -> Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        Ok(self.list.add(socket, event)?)
    }

    /// Waits until something can be read; of how many sockets.
    fn wait(&mut self) -> Result<usize> {
        match self.list.wait(&mut self.events[..], EpollTimeout::NONE) {
            Err(Errno::EINTR) => Ok(0),
            found => Ok(found?),
        }
    }

    /// One of those that the latest wait found.
    fn found(&self, index: usize) -> u64 {
        self.events[index].data()
    }
}

/// Writes all of it, as far as it fits at once and then as room comes.
fn write_all(stream: &Stream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_room(stream)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn await_room(stream: &Stream) -> Result<()> {
    let mut socket = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    poll(&mut socket, PollTimeout::NONE)?;
    Ok(())
}

/// Reads once what is there; `false` if nothing more comes.
fn read_once(stream: &Stream, frames: &mut Frames) -> Result<bool> {
    match stream.read(frames.space()) {
        Ok(count) => {
            frames.filled(count);
            Ok(count > 0)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// What a server reads from and writes to.
struct Streams {
    epoll: Epoll,
    /// By when they were accepted; those that have ended are gone.
    accepted: Vec<Option<(Stream, Frames)>>,
    client: Option<usize>,
    servers: Vec<Option<Stream>>,
}

impl Streams {
    fn accept(&mut self, listener: &Listener) -> Result<()> {
        let (stream, from_client) = listener.accept()?;
        if from_client {
            ensure!(self.client.is_none(), "a second client connected");
            self.client = Some(self.accepted.len());
            stream.write_all(&WELCOME)?;
        }
        stream.stop_blocking()?;
        self.epoll.add(stream.as_fd(), self.accepted.len() as u64)?;
        let frames = Frames::new(LARGEST_PAYLOAD);
        self.accepted.push(Some((stream, frames)));
        Ok(())
    }

    /// Passes on what has arrived on a stream.
    fn pass_on(&mut self, from: usize, link: Duration) -> Result<()> {
        let Some((stream, mut frames)) = self.accepted.get_mut(from).and_then(Option::take) else {
            return Ok(());
        };
        if !read_once(&stream, &mut frames)? {
            return Ok(()); // its descriptor is closed and so not waited for any more
        }
        let mut targets = Targets::default();
        while let Some(frame) = frames.take()? {
            pass_on(frame, PREFIX, &mut targets, link, |target, frame| {
                let own = target == CLIENT && self.client == Some(from);
                let outlet = if own {
                    Some(&stream)
                } else {
                    self.outlet(target)
                };
                let outlet = outlet.with_context(|| format!("no connection to {target}"))?;
                write_all(outlet, frame)
            })?;
        }
        self.accepted[from] = Some((stream, frames));
        Ok(())
    }

    fn outlet(&self, target: u8) -> Option<&Stream> {
        if target == CLIENT {
            let client = self.accepted.get(self.client?)?.as_ref();
            return client.map(|(stream, _)| stream);
        }
        self.servers.get(usize::from(target))?.as_ref()
    }
}

/// Starts a thread with the bare loop.
pub(crate) fn serve_streams(
    listener: Listener,
    servers: Vec<Option<Stream>>,
    link: Duration,
) -> Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(listener.as_fd(), LISTENER)?;
    for stream in servers.iter().flatten() {
        stream.stop_blocking()?;
    }
    let mut streams = Streams {
        epoll,
        accepted: Vec::new(),
        client: None,
        servers,
    };
    spawn(move || {
        loop {
            for index in 0..streams.epoll.wait()? {
                match streams.epoll.found(index) {
                    LISTENER => streams.accept(&listener)?,
                    from => streams.pass_on(from as usize, link)?,
                }
            }
        }
    })
}

/// Starts a thread with the bare loop.
pub(crate) fn serve_datagrams(
    socket: UdpSocket,
    directory: Directory,
    link: Duration,
) -> Result<()> {
    let mut epoll = Epoll::new()?;
    epoll.add(socket.as_fd(), 0)?;
    spawn(move || {
        let mut buffer = vec![0; LARGEST_DATAGRAM];
        let mut targets = Targets::default();
        loop {
            for _ in 0..epoll.wait()? {
                let (count, _) = socket.recv_from(&mut buffer)?;
                let payload = &mut buffer[..count];
                pass_on(payload, 0, &mut targets, link, |target, payload| {
                    socket.send_to(payload, directory.of(target)?)?;
                    Ok(())
                })?;
            }
        }
    })
}

/// The client's side.
pub(crate) struct Caller {
    epoll: Epoll,
    sockets: Sockets,
    link: Duration,
}

impl Caller {
    pub(crate) fn with_streams(
        streams: Vec<Stream>,
        payload: usize,
        link: Duration,
    ) -> Result<Self> {
        let epoll = Epoll::new()?;
        for (server, stream) in streams.iter().enumerate() {
            stream.stop_blocking()?;
            epoll.add(stream.as_fd(), server as u64)?;
        }
        Ok(Self {
            epoll,
            sockets: Sockets::streams(streams, payload),
            link,
        })
    }

    pub(crate) fn with_datagrams(
        socket: UdpSocket,
        directory: Directory,
        link: Duration,
    ) -> Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(socket.as_fd(), 0)?;
        Ok(Self {
            epoll,
            sockets: Sockets::datagrams(socket, directory),
            link,
        })
    }

    pub(super) fn run(
        &mut self,
        limit: Duration,
        lost: &Lost,
        job: &mut dyn Iterate,
    ) -> Result<()> {
        let link = self.link;
        caller::run(self, link, limit, lost, job)
    }
}

impl Exchange for Caller {
    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn send(&self, server: u8, frame: &[u8]) -> Result<()> {
        match &self.sockets {
            Sockets::Streams(streams) => write_all(&streams[usize::from(server)].0, frame),
            Sockets::Datagrams(datagrams) => datagrams.send(server, frame),
        }
    }

    fn receive(&mut self, server: u8, operation: u64) -> Result<()> {
        loop {
            if let Sockets::Streams(streams) = &mut self.sockets
                && check_frame(&mut streams[usize::from(server)].1, operation)?
            {
                return Ok(());
            }
            for index in 0..self.epoll.wait()? {
                let from = self.epoll.found(index);
                match &mut self.sockets {
                    Sockets::Streams(streams) => {
                        let (stream, frames) = &mut streams[from as usize];
                        if !read_once(stream, frames)? {
                            bail!("server {from} closed its connection");
                        }
                    }
                    Sockets::Datagrams(datagrams) => return datagrams.receive(operation),
                }
            }
        }
    }
}
