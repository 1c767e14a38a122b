//! Floors on blocking sockets.

use super::caller::{self, Exchange, Sockets};
use super::message::Frames;
use super::server::{Outlets, pass_on};
use super::socket::{Listener, Stream, WELCOME};
use super::{Directory, Iterate, LARGEST_DATAGRAM, LARGEST_PAYLOAD, check_frame};
use crate::patience::Lost;
use crate::plan::{PREFIX, Targets};
use anyhow::{Result, bail};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

/// Starts a thread that accepts connections, and one for each of them.
pub(crate) fn serve_streams(
    listener: Listener,
    servers: Vec<Option<Stream>>,
    link: Duration,
) -> Result<()> {
    let outlets = Arc::new(Outlets::new(servers));
    spawn(move || {
        loop {
            let (stream, from_client) = listener.accept()?;
            if from_client {
                outlets.set_client(stream.try_clone()?)?;
                stream.write_all(&WELCOME)?;
            }
            let outlets = Arc::clone(&outlets);
            spawn(move || attend(&stream, &outlets, link))?;
        }
    })
}

/// The bare loop.
fn attend(stream: &Stream, outlets: &Outlets<Stream>, link: Duration) -> Result<()> {
    let mut frames = Frames::new(LARGEST_PAYLOAD);
    let mut targets = Targets::default();
    loop {
        let count = stream.read(frames.space())?;
        if count == 0 {
            return Ok(());
        }
        frames.filled(count);
        while let Some(frame) = frames.take()? {
            pass_on(frame, PREFIX, &mut targets, link, |target, frame| {
                Ok(outlets.of(target)?.write_all(frame)?)
            })?;
        }
    }
}

/// Starts a thread with the bare loop.
pub(crate) fn serve_datagrams(
    socket: UdpSocket,
    directory: Directory,
    link: Duration,
) -> Result<()> {
    spawn(move || {
        let mut buffer = vec![0; LARGEST_DATAGRAM];
        let mut targets = Targets::default();
        loop {
            let (count, _) = socket.recv_from(&mut buffer)?;
            let payload = &mut buffer[..count];
            pass_on(payload, 0, &mut targets, link, |target, payload| {
                socket.send_to(payload, directory.of(target)?)?;
                Ok(())
            })?;
        }
    })
}

/// A thread whose failure is the end of this server, so that the client does not wait for it.
pub(crate) fn spawn(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let guarded = move || {
        if let Err(error) = work() {
            eprintln!("a server of a floor failed: {error:#}");
            process::exit(1);
        }
    };
    thread::Builder::new()
        .name("floor".into())
        .stack_size(STACK)
        .spawn(guarded)?;
    Ok(())
}

/// The client's side.
pub(crate) struct Caller {
    sockets: Sockets,
    link: Duration,
}

impl Caller {
    pub(crate) fn with_streams(streams: Vec<Stream>, payload: usize, link: Duration) -> Self {
        Self {
            sockets: Sockets::streams(streams, payload),
            link,
        }
    }

    pub(crate) fn with_datagrams(socket: UdpSocket, directory: Directory, link: Duration) -> Self {
        Self {
            sockets: Sockets::datagrams(socket, directory),
            link,
        }
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
            Sockets::Streams(streams) => Ok(streams[usize::from(server)].0.write_all(frame)?),
            Sockets::Datagrams(datagrams) => datagrams.send(server, frame),
        }
    }

    fn receive(&mut self, server: u8, operation: u64) -> Result<()> {
        let (stream, frames) = match &mut self.sockets {
            Sockets::Streams(streams) => &mut streams[usize::from(server)],
            Sockets::Datagrams(datagrams) => return datagrams.receive(operation),
        };
        while !check_frame(frames, operation)? {
            let count = stream.read(frames.space())?;
            if count == 0 {
                bail!("server {server} closed its connection");
            }
            frames.filled(count);
        }
        Ok(())
    }
}

/// The loops need next to none, and there are as many threads as connections.
const STACK: usize = 128 * 1_024;
