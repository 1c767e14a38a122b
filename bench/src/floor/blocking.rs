//! Floors on blocking sockets.

use super::message::Frames;
use super::socket::{Listener, Stream, WELCOME};
use super::{
    Directory, Iterate, LARGEST_DATAGRAM, LARGEST_PAYLOAD, await_departure, check_answer,
    check_frame, departure,
};
use crate::patience::{Lost, within};
use crate::plan::{CLIENT, PREFIX, Targets};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::net::UdpSocket;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{process, thread};

/// The streams a server writes to.
struct Outlets {
    servers: Vec<Option<Stream>>,
    client: OnceLock<Stream>,
}

impl Outlets {
    fn of(&self, target: u8) -> Result<&Stream> {
        let outlet = match target {
            CLIENT => self.client.get(),
            server => self
                .servers
                .get(usize::from(server))
                .and_then(Option::as_ref),
        };
        outlet.with_context(|| format!("no connection to {target}"))
    }
}

/// Starts a thread that accepts connections, and one for each of them.
pub(crate) fn serve_streams(
    listener: Listener,
    servers: Vec<Option<Stream>>,
    link: Duration,
) -> Result<()> {
    let outlets = Arc::new(Outlets {
        servers,
        client: OnceLock::new(),
    });
    spawn(move || {
        loop {
            let (stream, from_client) = listener.accept()?;
            if from_client {
                let for_answers = stream.try_clone()?;
                outlets
                    .client
                    .set(for_answers)
                    .map_err(|_| anyhow!("a second client connected"))?;
                stream.write_all(&WELCOME)?;
            }
            let outlets = Arc::clone(&outlets);
            spawn(move || pass_on(&stream, &outlets, link))?;
        }
    })
}

/// The bare loop.
fn pass_on(stream: &Stream, outlets: &Outlets, link: Duration) -> Result<()> {
    let mut frames = Frames::new(LARGEST_PAYLOAD);
    let mut targets = Targets::default();
    loop {
        let count = stream.read(frames.space())?;
        if count == 0 {
            return Ok(());
        }
        frames.filled(count);
        while let Some(frame) = frames.take()? {
            targets.of(&mut frame[PREFIX..])?;
            await_departure(departure(link));
            for (place, &target) in targets.as_slice().iter().enumerate() {
                targets.address(place, &mut frame[PREFIX..]);
                outlets.of(target)?.write_all(frame)?;
            }
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
            targets.of(payload)?;
            await_departure(departure(link));
            for (place, &target) in targets.as_slice().iter().enumerate() {
                targets.address(place, payload);
                let address = directory
                    .of(target)
                    .with_context(|| format!("no address of {target}"))?;
                socket.send_to(payload, address)?;
            }
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

enum Sockets {
    Streams(Vec<(Stream, Frames)>),
    Datagrams {
        socket: UdpSocket,
        directory: Directory,
        buffer: Vec<u8>,
    },
}

impl Caller {
    pub(crate) fn with_streams(streams: Vec<Stream>, payload: usize, link: Duration) -> Self {
        let streams = streams
            .into_iter()
            .map(|stream| (stream, Frames::new(payload)))
            .collect();
        Self {
            sockets: Sockets::Streams(streams),
            link,
        }
    }

    pub(crate) fn with_datagrams(socket: UdpSocket, directory: Directory, link: Duration) -> Self {
        let buffer = vec![0; LARGEST_DATAGRAM];
        Self {
            sockets: Sockets::Datagrams {
                socket,
                directory,
                buffer,
            },
            link,
        }
    }

    pub(super) fn run(
        &mut self,
        limit: Duration,
        lost: &Lost,
        job: &mut dyn Iterate,
    ) -> Result<()> {
        let alarm = self.sockets.alarm()?;
        within(limit, lost, alarm, || {
            while let Some((plan, operation)) = job.next() {
                for phase in plan.phases() {
                    await_departure(departure(self.link));
                    for (place, &server) in phase.to.iter().enumerate() {
                        self.sockets.send(server, phase.frame(place))?;
                    }
                    for &server in &phase.from {
                        self.sockets.receive(server, operation)?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl Sockets {
    fn send(&self, server: u8, frame: &[u8]) -> Result<()> {
        match self {
            Self::Streams(streams) => streams[usize::from(server)].0.write_all(frame)?,
            Self::Datagrams {
                socket, directory, ..
            } => {
                let address = directory.of(server).context("no such server")?;
                socket.send_to(&frame[PREFIX..], address)?;
            }
        }
        Ok(())
    }

    /// Receives one answer: from this server, or over datagrams from anybody.
    fn receive(&mut self, server: u8, operation: u64) -> Result<()> {
        match self {
            Self::Streams(streams) => {
                let (stream, frames) = &mut streams[usize::from(server)];
                while !check_frame(frames, operation)? {
                    let count = stream.read(frames.space())?;
                    if count == 0 {
                        bail!("server {server} closed its connection");
                    }
                    frames.filled(count);
                }
                Ok(())
            }
            Self::Datagrams { socket, buffer, .. } => {
                let (count, _) = socket.recv_from(buffer)?;
                ensure!(count > 0, "interrupted");
                check_answer(&buffer[..count], operation)
            }
        }
    }

    /// What wakes a thread that waits for these sockets.
    fn alarm(&self) -> Result<impl FnOnce() + Send + use<>> {
        let (streams, datagram) = match self {
            Self::Streams(streams) => {
                let clones: Result<Vec<_>, _> = streams
                    .iter()
                    .map(|(stream, _)| stream.try_clone())
                    .collect();
                (clones?, None)
            }
            Self::Datagrams { socket, .. } => (
                Vec::new(),
                Some((socket.try_clone()?, socket.local_addr()?)),
            ),
        };
        Ok(move || {
            streams.iter().for_each(Stream::shut_down);
            if let Some((socket, address)) = datagram {
                // An empty datagram to oneself; loopback does not lose it while somebody waits for one.
                let _ = socket.send_to(&[], address);
            }
        })
    }
}

/// The loops need next to none, and there are as many threads as connections.
const STACK: usize = 128 * 1_024;
