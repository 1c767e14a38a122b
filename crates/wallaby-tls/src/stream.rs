//! An open stream in two halves, over one TLS connection.
//!
//! Both halves share the connection under a lock. What is written is encrypted at once into a buffer with a limit and goes to
//! the socket as far as that takes it. The rest leaves when the socket has room: the reading task sees to it, since only that
//! one waits. It also sends what the protocol itself has to say, such as an answer to a change of keys.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustls::Connection;
use tokio::net::TcpStream;
use wallaby::transport::{ReadHalf, WriteHalf};

/// Most bytes that wait to be taken by the socket, a connection.
const WAITING: usize = 64 * 1024;

/// How long a stream that was shut down may take to write what it still has.
const LINGER: Duration = Duration::from_secs(2);

/// Most streams that do that at a time; the eldest makes room.
const LINGERING: usize = 64;

/// How often it tries.
const STEP: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Shared {
    socket: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tls: Connection,
    /// The reading task, while it waits.
    reader: Option<Waker>,
    /// Nothing more is written.
    closed: bool,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Shared>);

/// The sending end.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Shared>);

/// The halves of a connection whose handshake is done.
pub(crate) fn split(socket: TcpStream, mut tls: Connection) -> (Reader, Writer) {
    tls.set_buffer_limit(Some(WAITING));
    let state = State {
        tls,
        reader: None,
        closed: false,
    };
    let shared = Arc::new(Shared {
        socket,
        state: Mutex::new(state),
    });
    (Reader(Arc::clone(&shared)), Writer(shared))
}

/// What TLS has found wrong, in words.
pub(crate) fn failed(error: rustls::Error) -> io::Error {
    let kind = match error {
        // The peer refuses: it breaks no rule.
        rustls::Error::AlertReceived(_) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, format!("TLS: {error}"))
}

/// Reads what the socket has, once.
pub(crate) fn receive(socket: &TcpStream, tls: &mut Connection) -> io::Result<usize> {
    tls.read_tls(&mut Socket(socket))
}

/// Writes what there is to write; whether that is all.
pub(crate) fn send(socket: &TcpStream, tls: &mut Connection) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(&mut Socket(socket)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The socket, which never waits.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what there is; the task of `cx` is woken when more fits. Ready when nothing is left.
    fn poll_send(&self, tls: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !send(&self.socket, tls)? {
            ready!(self.socket.poll_write_ready(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn end(&self) {
        // An error means that the peer was faster.
        let _ = socket2::SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }
}

impl State {
    /// Moves what has been decrypted into the spare room of `input`; `None` if nothing has.
    fn take(&mut self, input: &mut BytesMut) -> io::Result<Option<usize>> {
        let before = input.len();
        while input.len() < input.capacity() {
            let mut plain = self.tls.reader();
            match plain.fill_buf() {
                Ok([]) if input.len() == before => return Ok(Some(0)),
                Ok([]) => break,
                Ok(bytes) => {
                    let len = bytes.len().min(input.capacity() - input.len());
                    input.extend_from_slice(&bytes[..len]);
                    plain.consume(len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) if input.len() > before => break, // told the next time
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let why = "TLS: the connection ended without saying so";
                    return Err(io::Error::new(error.kind(), why));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(input.len() - before).filter(|read| *read > 0))
    }
}

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        let shared = &*self.0;
        let mut state = shared.lock();
        loop {
            if let Some(read) = state.take(input)? {
                return Poll::Ready(Ok(read));
            }
            // A socket that breaks is found by reading: what the peer has said before is heard.
            let _ = shared.poll_send(&mut state.tls, cx);
            match shared.socket.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    state.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
            match receive(&shared.socket, &mut state.tls) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            if let Err(error) = state.tls.process_new_packets() {
                let _ = send(&shared.socket, &mut state.tls); // the alert, if it fits
                return Poll::Ready(Err(failed(error)));
            }
        }
    }
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let shared = &*self.0;
        let mut state = shared.lock();
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut taken = 0;
        loop {
            let more = state.tls.writer().write(&bytes[taken..])?;
            taken += more;
            let all = match send(&shared.socket, &mut state.tls) {
                Ok(all) => all,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break, // bytes were taken: the next write tells
            };
            if taken == bytes.len() || more == 0 || !all {
                // Who waits for the socket to take the rest is the reading task.
                if !all {
                    state.reader.take().into_iter().for_each(Waker::wake);
                }
                break;
            }
        }
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        self.0.poll_send(&mut state.tls, cx)
    }

    fn shutdown(&self) {
        let mut state = self.0.lock();
        if state.closed {
            return;
        }
        state.closed = true;
        state.tls.send_close_notify();
        let rest = send(&self.0.socket, &mut state.tls);
        drop(state);
        match rest {
            Ok(false) => linger(Arc::clone(&self.0)),
            Ok(true) | Err(_) => self.0.end(),
        }
    }
}

/// Streams that were shut down and still have something to write, the eldest first, each with the end of its time.
static WITH_A_REST: Mutex<VecDeque<(Instant, Arc<Shared>)>> = Mutex::new(VecDeque::new());

fn with_a_rest() -> MutexGuard<'static, VecDeque<(Instant, Arc<Shared>)>> {
    WITH_A_REST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the rest written, as long as that may take. Rare, and the runtime may have no timers: so a thread does it for all.
fn linger(shared: Arc<Shared>) {
    let mut all = with_a_rest();
    if all.len() == LINGERING
        && let Some((_, eldest)) = all.pop_front()
    {
        eldest.end();
    }
    let has_thread = !all.is_empty();
    all.push_back((Instant::now() + LINGER, shared));
    if !has_thread {
        let thread = thread::Builder::new().name("wallaby-tls".into());
        if thread.spawn(write_rests).is_err() {
            all.drain(..).for_each(|(_, shared)| shared.end());
        }
    }
}

fn write_rests() {
    loop {
        thread::sleep(STEP);
        let mut all = with_a_rest();
        all.retain(|(until, shared)| {
            let rest = send(&shared.socket, &mut shared.lock().tls);
            let goes_on = matches!(rest, Ok(false)) && Instant::now() < *until;
            if !goes_on {
                shared.end();
            }
            goes_on
        });
        if all.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::version::TLS13;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use socket2::SockRef;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// A socket that takes nothing more, as its peer does not read.
    async fn full(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let at = listener.local_addr().expect("it is bound");
        let (socket, peer) = tokio::join!(TcpStream::connect(at), listener.accept());
        let (socket, (peer, _)) = (socket.expect("it listens"), peer.expect("it comes"));
        let small = SockRef::from(&socket).set_send_buffer_size(4096);
        small.expect("it can be small");
        while let Ok(ready) = timeout(STEP, socket.writable()).await {
            ready.expect("it is open");
            while socket.try_write(&[0; 4096]).is_ok() {}
        }
        (socket, peer)
    }

    fn ended(of: &Shared) -> bool {
        let sent = SockRef::from(&of.socket).send(b"more");
        sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Peers that do not read cost no thread each, and few sockets, however many there are.
    #[test]
    fn streams_that_linger_are_few_and_hold_up_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = Arc::new(config);
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a port is free");
            let small = SockRef::from(&listener).set_recv_buffer_size(4096);
            small.expect("it can be small");
            let (mut writers, mut peers) = (Vec::new(), Vec::new());
            for _ in 0..=LINGERING {
                let (socket, peer) = full(&listener).await;
                let name = "localhost".try_into().expect("a name");
                let tls = ClientConnection::new(Arc::clone(&config), name);
                let tls = tls.expect("it is usable").into(); // its hello waits to be written
                writers.push(split(socket, tls).1);
                peers.push(peer);
            }
            for writer in &writers {
                writer.shutdown();
            }
            let ended: Vec<_> = writers.iter().map(|writer| ended(&writer.0)).collect();
            assert!(ended[0], "the eldest makes room");
            assert!(ended[1..].iter().all(|ended| !ended), "{ended:?}");
            let (mut told, mut youngest) = (Vec::new(), peers.pop().expect("it is there"));
            let read = timeout(15 * LINGER, youngest.read_to_end(&mut told)).await;
            read.expect("it ends").expect("it ends in order");
            assert!(told.iter().any(|byte| *byte != 0), "what waited arrives");
            let other = tokio::task::spawn_blocking(|| ());
            let done = timeout(15 * LINGER, other).await;
            done.expect("no thread waits for peers").expect("no panic");
        });
    }
}
