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
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Most sockets that one look tells of.
const BATCH: usize = 64;

/// What the listener is called among those that are waited for.
const LISTENER: u64 = u64::MAX;

/// The system's list of sockets that are waited for.
struct Epoll {
    list: OwnedFd,
    events: Box<[libc::epoll_event; BATCH]>,
}

impl Epoll {
    fn new() -> Result<Self> {
        // SAFETY: the call takes a number only.
        let list = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        ensure!(list >= 0, io::Error::last_os_error());
        Ok(Self {
            // SAFETY: it is a descriptor that was opened above, and nobody else has it.
            list: unsafe { OwnedFd::from_raw_fd(list) },
            events: Box::new([libc::epoll_event { events: 0, u64: 0 }; BATCH]),
        })
    }

    fn add(&self, socket: BorrowedFd<'_>, token: u64) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        let (list, socket) = (self.list.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: the structure outlives the call, which only reads it.
        let added = unsafe { libc::epoll_ctl(list, libc::EPOLL_CTL_ADD, socket, &raw mut event) };
        ensure!(added == 0, io::Error::last_os_error());
        Ok(())
    }

    /// Waits until something can be read; of how many sockets.
    fn wait(&mut self) -> Result<usize> {
        let (list, events) = (self.list.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: there is room for so many events, and nobody else refers to it.
        let found = unsafe { libc::epoll_wait(list, events, BATCH as libc::c_int, -1) };
        match usize::try_from(found) {
            Ok(found) => Ok(found),
            Err(_) => {
                let error = io::Error::last_os_error();
                ensure!(error.kind() == io::ErrorKind::Interrupted, error);
                Ok(0)
            }
        }
    }

    /// One of those that the latest wait found.
    fn found(&self, index: usize) -> u64 {
        self.events[index].u64
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
    let mut socket = libc::pollfd {
        fd: stream.as_fd().as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the structure outlives the call; there is one, as it says.
    let polled = unsafe { libc::poll(&raw mut socket, 1, -1) };
    ensure!(polled >= 0, io::Error::last_os_error());
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
