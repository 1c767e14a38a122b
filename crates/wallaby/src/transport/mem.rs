//! `mem:`: streams between endpoints of one process.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use tokio::sync::mpsc;

use super::foreign::{Accepted, Listener, ReadHalf, Stream, WriteHalf};
use super::identity::{Identity, Proven};

/// Bytes that one direction holds before its writer has to wait.
const CAPACITY: usize = 256 * 1024;

/// Streams that wait to be accepted.
const BACKLOG: usize = 128;

/// The two ends that one side of a stream holds.
type Ends = (Reader, Writer);

static LISTENERS: LazyLock<Mutex<HashMap<String, mpsc::Sender<Ends>>>> =
    LazyLock::new(Mutex::default);

/// One direction of a stream.
#[derive(Debug, Default)]
struct Pipe {
    bytes: BytesMut,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug)]
struct Reader(Arc<Mutex<Pipe>>);

#[derive(Debug)]
struct Writer(Arc<Mutex<Pipe>>);

#[derive(Debug)]
pub(super) struct MemListener {
    name: String,
    streams: mpsc::Receiver<Ends>,
}

pub(super) fn listen(name: &str) -> io::Result<MemListener> {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    if listeners.contains_key(name) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let (sender, streams) = mpsc::channel(BACKLOG);
    listeners.insert(name.to_owned(), sender);
    Ok(MemListener {
        name: name.to_owned(),
        streams,
    })
}

pub(super) async fn dial(name: &str) -> io::Result<Stream> {
    let listener = LISTENERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(name)
        .cloned();
    let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
    let (there, here) = (Arc::default(), Arc::default());
    let theirs = (Reader(Arc::clone(&there)), Writer(Arc::clone(&here)));
    listener
        .send(theirs)
        .await
        .map_err(|_| io::ErrorKind::ConnectionRefused)?;
    Ok(stream((Reader(here), Writer(there))))
}

fn stream((reader, writer): Ends) -> Stream {
    Stream::new(reader, writer, Identity::new(Proven::ThisProcess, false))
}

impl Listener for MemListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let ends = ready!(self.streams.poll_recv(cx)).ok_or(io::ErrorKind::NotConnected)?;
        Poll::Ready(Ok(Accepted::Open(stream(ends))))
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        LISTENERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.name);
    }
}

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.bytes.is_empty() && !pipe.closed {
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = pipe.bytes.len().min(input.capacity() - input.len());
        input.extend_from_slice(&pipe.bytes[..len]);
        pipe.bytes.advance(len);
        let writer = pipe.writer.take();
        drop(pipe); // wakers may be foreign code
        writer.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(len))
    }
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = bytes.len().min(CAPACITY - pipe.bytes.len());
        if len == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        pipe.bytes.extend_from_slice(&bytes[..len]);
        let reader = pipe.reader.take();
        drop(pipe);
        reader.into_iter().for_each(Waker::wake);
        Ok(len)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.closed || pipe.bytes.len() < CAPACITY {
            return Poll::Ready(Ok(()));
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn shutdown(&self) {
        close(&self.0);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        close(&self.0);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        close(&self.0);
    }
}

fn close(pipe: &Mutex<Pipe>) {
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    pipe.closed = true;
    let (reader, writer) = (pipe.reader.take(), pipe.writer.take());
    drop(pipe);
    reader.into_iter().chain(writer).for_each(Waker::wake);
}
