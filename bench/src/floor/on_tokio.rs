//! Floors on tokio's sockets and its current-thread runtime.

use super::blocking::spawn;
use super::message::Frames;
use super::server::Outlets;
use super::socket::{Listener, Stream, WELCOME};
use super::{
    Directory, Iterate, LARGEST_DATAGRAM, LARGEST_PAYLOAD, await_departure, check_answer,
    check_frame, departure,
};
use crate::harness::Latencies;
use crate::patience::{Lost, block_on};
use crate::plan::{CLIENT, PREFIX, Phase, Plan, Targets, check};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::VecDeque;
use std::io::{ErrorKind, Result as IoResult};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::{TcpStream, UdpSocket, UnixStream, tcp, unix};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

enum Reader {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// Hands a connected stream to the runtime that this is called on.
fn adopt(stream: Stream) -> IoResult<(Reader, Writer)> {
    Ok(match stream {
        Stream::Tcp(stream) => {
            stream.set_nonblocking(true)?;
            let (reader, writer) = TcpStream::from_std(stream)?.into_split();
            (Reader::Tcp(reader), Writer::Tcp(writer))
        }
        Stream::Unix(stream) => {
            stream.set_nonblocking(true)?;
            let (reader, writer) = UnixStream::from_std(stream)?.into_split();
            (Reader::Unix(reader), Writer::Unix(writer))
        }
    })
}

impl Reader {
    async fn read(&mut self, buffer: &mut [u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(reader) => reader.read(buffer).await,
            Self::Unix(reader) => reader.read(buffer).await,
        }
    }
}

impl Reader {
    fn try_read(&self, buffer: &mut [u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(reader) => reader.try_read(buffer),
            Self::Unix(reader) => reader.try_read(buffer),
        }
    }

    /// Waits until there is something to read, or also until something can be written.
    async fn readable_or_writable(&self, or_writable: bool) -> IoResult<()> {
        let interest = match or_writable {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        match self {
            Self::Tcp(reader) => reader.ready(interest).await?,
            Self::Unix(reader) => reader.ready(interest).await?,
        };
        Ok(())
    }
}

impl Writer {
    fn try_write(&self, bytes: &[u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(writer) => writer.try_write(bytes),
            Self::Unix(writer) => writer.try_write(bytes),
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> IoResult<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self {
                    Self::Tcp(writer) => writer.writable().await?,
                    Self::Unix(writer) => writer.writable().await?,
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Starts a thread that accepts connections, and one with a runtime for all of them.
pub(crate) fn serve_streams(
    listener: Listener,
    servers: Vec<Option<Stream>>,
    link: Duration,
) -> Result<()> {
    let (accepted, connections) = mpsc::unbounded_channel();
    spawn(move || {
        loop {
            accepted
                .send(listener.accept()?)
                .map_err(|_| anyhow!("the runtime has ended"))?;
        }
    })?;
    spawn(move || runtime()?.block_on(serve_connections(connections, servers, link)))
}

async fn serve_connections(
    mut connections: mpsc::UnboundedReceiver<(Stream, bool)>,
    servers: Vec<Option<Stream>>,
    link: Duration,
) -> Result<()> {
    // What comes from other servers comes over others; but dropped, these halves would end the connections.
    let mut unread = Vec::new();
    let mut adopt_writer = |stream: Stream| {
        let (reader, writer) = adopt(stream)?;
        unread.push(reader);
        Ok(writer)
    };
    let servers = servers.into_iter();
    let servers = servers.map(|stream| stream.map(&mut adopt_writer).transpose());
    let servers: IoResult<_> = servers.collect();
    let outlets = Arc::new(Outlets::new(servers?));
    while let Some((stream, from_client)) = connections.recv().await {
        let (reader, writer) = adopt(stream)?;
        // To other servers one writes over one's own connections; but dropped, this half would end theirs.
        let mut unused = Some(writer);
        if from_client && let Some(writer) = unused.take() {
            outlets.set_client(writer)?;
            outlets.of(CLIENT)?.write_all(&WELCOME).await?;
        }
        let outlets = Arc::clone(&outlets);
        tokio::spawn(async move {
            let _unused = unused;
            if let Err(error) = pass_on(reader, &outlets, link).await {
                eprintln!("a server of a floor failed: {error:#}");
                process::exit(1);
            }
        });
    }
    Ok(())
}

/// The bare loop.
async fn pass_on(mut reader: Reader, outlets: &Outlets<Writer>, link: Duration) -> Result<()> {
    let mut frames = Frames::new(LARGEST_PAYLOAD);
    let mut targets = Targets::default();
    loop {
        let count = reader.read(frames.space()).await?;
        if count == 0 {
            return Ok(());
        }
        frames.filled(count);
        let answers = frames.take_answers()?;
        if !answers.is_empty() {
            await_departure(departure(link));
            outlets.of(CLIENT)?.write_all(answers).await?;
        }
        while let Some(frame) = frames.take()? {
            targets.of(&mut frame[PREFIX..])?;
            await_departure(departure(link));
            for (place, &target) in targets.as_slice().iter().enumerate() {
                targets.address(place, &mut frame[PREFIX..]);
                outlets.of(target)?.write_all(frame).await?;
            }
        }
    }
}

/// Starts a thread with a runtime and the bare loop.
pub(crate) fn serve_datagrams(
    socket: std::net::UdpSocket,
    directory: Directory,
    link: Duration,
) -> Result<()> {
    spawn(move || {
        runtime()?.block_on(async {
            socket.set_nonblocking(true)?;
            let socket = UdpSocket::from_std(socket)?;
            let mut buffer = vec![0; LARGEST_DATAGRAM];
            let mut targets = Targets::default();
            loop {
                let (count, _) = socket.recv_from(&mut buffer).await?;
                let payload = &mut buffer[..count];
                targets.of(payload)?;
                await_departure(departure(link));
                for (place, &target) in targets.as_slice().iter().enumerate() {
                    targets.address(place, payload);
                    socket.send_to(payload, directory.of(target)?).await?;
                }
            }
        })
    })
}

/// The client's side.
pub(crate) struct Caller {
    runtime: Runtime,
    sockets: Sockets,
    link: Duration,
}

enum Sockets {
    Streams(Vec<(Reader, Writer, Frames)>),
    Datagrams {
        socket: UdpSocket,
        directory: Directory,
        buffer: Vec<u8>,
    },
}

impl Caller {
    pub(crate) fn with_streams(
        streams: Vec<Stream>,
        payload: usize,
        link: Duration,
    ) -> Result<Self> {
        let runtime = runtime()?;
        let sockets = {
            let _inside = runtime.enter();
            let adopt = |stream| {
                adopt(stream).map(|(reader, writer)| (reader, writer, Frames::new(payload)))
            };
            let streams: IoResult<_> = streams.into_iter().map(adopt).collect();
            Sockets::Streams(streams?)
        };
        Ok(Self {
            runtime,
            sockets,
            link,
        })
    }

    pub(crate) fn with_datagrams(
        socket: std::net::UdpSocket,
        directory: Directory,
        link: Duration,
    ) -> Result<Self> {
        let runtime = runtime()?;
        socket.set_nonblocking(true)?;
        let socket = {
            let _inside = runtime.enter();
            UdpSocket::from_std(socket)?
        };
        let buffer = vec![0; LARGEST_DATAGRAM];
        Ok(Self {
            runtime,
            sockets: Sockets::Datagrams {
                socket,
                directory,
                buffer,
            },
            link,
        })
    }

    pub(super) fn run(
        &mut self,
        limit: Duration,
        lost: &Lost,
        job: &mut dyn Iterate,
    ) -> Result<()> {
        let Self {
            runtime,
            sockets,
            link,
        } = self;
        block_on(runtime, limit, lost, sockets.run(job, *link))
    }
}

impl Caller {
    /// Runs operations of one server with `calls` of them under way.
    pub(super) fn run_concurrently(
        &mut self,
        limit: Duration,
        lost: &Lost,
        plan: &Plan,
        calls: usize,
        operations: u64,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let Self {
            runtime, sockets, ..
        } = self;
        block_on(runtime, limit, lost, async {
            let phase = plan.phases().first().context("nothing was planned")?;
            let server = *phase.to.first().context("nobody to send to")?;
            match sockets {
                Sockets::Datagrams { .. } => bail!("datagrams get lost where many are under way"),
                Sockets::Streams(streams) => {
                    let stream = &mut streams[usize::from(server)];
                    keep_under_way(stream, phase.frame(0), calls, operations, latencies).await
                }
            }
        })
    }
}

/// Writes as many frames at once as may be under way, reads as many answers at once as there are.
async fn keep_under_way(
    (reader, writer, frames): &mut (Reader, Writer, Frames),
    frame: &[u8],
    calls: usize,
    operations: u64,
    latencies: &mut Latencies,
) -> Result<()> {
    let batch = frame.repeat((BATCH / frame.len()).clamp(1, calls));
    let operations = usize::try_from(operations)?;
    let (mut written, mut answered) = (0, 0); // bytes; answers
    let mut starts = VecDeque::with_capacity(calls);
    while answered < operations {
        let begun = operations.min(answered + calls);
        starts.resize(begun - answered, Instant::now());
        let writable = begun * frame.len();
        while written < writable {
            let next = &batch[written % frame.len()..];
            match writer.try_write(&next[..next.len().min(writable - written)]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        reader.readable_or_writable(written < writable).await?;
        match reader.try_read(frames.space()) {
            Ok(0) => bail!("a server closed its connection"),
            Ok(count) => frames.filled(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(error) => return Err(error.into()),
        }
        while let Some(answer) = frames.take()? {
            check(&answer[PREFIX..], &frame[PREFIX..])?;
            let start: Instant = starts.pop_front().context("an answer to no request")?;
            latencies.record(start.elapsed());
            answered += 1;
        }
    }
    Ok(())
}

impl Sockets {
    async fn run(&mut self, job: &mut dyn Iterate, link: Duration) -> Result<()> {
        while let Some((plan, operation)) = job.next() {
            for phase in plan.phases() {
                await_departure(departure(link));
                self.phase(phase, operation).await?;
            }
        }
        Ok(())
    }

    async fn phase(&mut self, phase: &Phase, operation: u64) -> Result<()> {
        for (place, &server) in phase.to.iter().enumerate() {
            match self {
                Self::Streams(streams) => {
                    streams[usize::from(server)]
                        .1
                        .write_all(phase.frame(place))
                        .await?
                }
                Self::Datagrams {
                    socket, directory, ..
                } => {
                    let address = directory.of(server)?;
                    socket.send_to(phase.payload_to(place), address).await?;
                }
            }
        }
        for &server in &phase.from {
            self.receive(server, operation).await?;
        }
        Ok(())
    }

    /// Receives one answer: from this server, or over datagrams from anybody.
    async fn receive(&mut self, server: u8, operation: u64) -> Result<()> {
        match self {
            Self::Streams(streams) => {
                let (reader, _, frames) = &mut streams[usize::from(server)];
                while !check_frame(frames, operation)? {
                    let count = reader.read(frames.space()).await?;
                    if count == 0 {
                        bail!("server {server} closed its connection");
                    }
                    frames.filled(count);
                }
                Ok(())
            }
            Self::Datagrams { socket, buffer, .. } => {
                let (count, _) = socket.recv_from(buffer).await?;
                ensure!(count > 0, "interrupted");
                check_answer(&buffer[..count], operation)
            }
        }
    }
}

/// Bytes that are written at once, if there are more.
const BATCH: usize = 64 * 1024;

/// Without timers: these loops need none, and would pay for them at each wait.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
}
