//! An open stream in two halves, over one TLS connection.
//!
//! Both halves share the connection under a lock. What is written is encrypted at once into a buffer with a limit and goes to
//! the socket as far as that takes it. The rest leaves when the socket has room: the reading task sees to it, since only that
//! one waits. It also sends what the protocol itself has to say, such as an answer to a change of keys.

use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustls::Connection;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use wallaby::transport::{ReadHalf, WriteHalf};

/// Most bytes that wait to be taken by the socket, a connection.
const WAITING: usize = 64 * 1024;

/// How long a stream that was shut down may take to write what it still has.
const LINGER: Duration = Duration::from_secs(2);

/// How often it tries.
const STEP: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Shared {
    socket: TcpStream,
    state: Mutex<State>,
    runtime: Handle,
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
        runtime: Handle::current(),
    });
    (Reader(Arc::clone(&shared)), Writer(shared))
}

/// What TLS has found wrong, in words.
pub(crate) fn failed(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
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
        if let Ok(false) = send(&self.0.socket, &mut state.tls) {
            let shared = Arc::clone(&self.0);
            self.0.runtime.spawn_blocking(move || linger(&shared));
        } else {
            self.0.end();
        }
    }
}

/// Writes what was taken before the end, as long as that may take. Rare, and the runtime may have no timers: so by a thread.
fn linger(shared: &Shared) {
    let begun = Instant::now();
    while let Ok(false) = send(&shared.socket, &mut shared.lock().tls) {
        if begun.elapsed() > LINGER {
            break;
        }
        std::thread::sleep(STEP);
    }
    shared.end();
}
