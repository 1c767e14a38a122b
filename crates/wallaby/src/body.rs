//! Bodies: bytes, as many as there are, that follow a request while it is handled already.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use thiserror::Error;
use tokio::io::{AsyncRead, ReadBuf};
use wallaby_proto::connection::{BodyEvent, BodyRefusal};
use wallaby_proto::detach::detach;
use wallaby_proto::{Code, Status};

use crate::blocking;
use crate::driver::peer::Peer;
use crate::error::CallError;
use crate::pipeline::Half;

/// How much is read at a time from what a body is made of.
const READ: usize = 32 * 1024;

/// What arrives in shorter pieces than this is copied: each would keep all of the buffer alive that it arrived in.
const PIECE: usize = 8 * 1024;

/// So many chunks that nobody has read yet may keep their buffers.
pub(crate) const AHEAD: usize = 4;

/// Why a body is given up at both ends.
pub(crate) const CALL_ENDED: &str = "its call has ended";

/// Bytes of any number that follow a request on its connection, while it is handled already.
///
/// As the last argument of a method it is declared in its service. To any other method the initiator attaches one with the call
/// ([`crate::Client::call_with_body`], [`crate::RawCall::send_with_body`]), a handler with a delegation
/// ([`crate::Target::with_body`]), and a handler takes that of its request ([`crate::Request::take_body`]). It is read as a
/// stream of chunks, or as [`AsyncRead`]; items of one type are a [`crate::Streaming`]. Where chunks end says nothing. A body that a handler has received may go on with a
/// delegation: what arrives is then passed on, without being kept.
///
/// No more of it is under way than the receiver's limit for the answers of a call ([`crate::Builder::limits`]): who reads
/// slowly slows its sender down, and nobody else. A handler that drops it, or ends its request, stops the sender. The end of
/// the call, or of the connection, breaks it: it then ends with an error, never early. At most 64 travel on a connection at a
/// time in one direction; requests with more wait. They travel over `tcp:`, `unix:`, `shm:` and `mem:`; over `udp:` a call
/// with one fails, and says so.
///
/// ```
/// # use wallaby::{Body, Client, Method, One, CallError};
/// static STORE: Method<(String,), One<u64>> = Method::new("example.Files/store");
///
/// # async fn example(client: Client, file: tokio::io::Empty) -> Result<(), CallError> {
/// let stored = client.call_with_body(&STORE, ("a.txt".into(),), Body::from_read(file)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Body {
    source: Source,
    /// What is left of the chunk that is read.
    chunk: Bytes,
}

enum Source {
    /// Nothing more comes.
    Done,
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>),
    Received(Received),
    /// Somebody else reads it, too.
    Half(Half),
    /// Nothing of it comes any more, and this is told.
    Broken(BodyError),
    /// This was told: it must not look whole to another reader.
    Failed(BodyError),
}

/// Why a body ends before it is whole.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BodyError {
    /// Its sender could not go on, or its call has ended.
    #[error("the body is broken: {0}")]
    Broken(String),
    /// The connection that it came over has ended.
    #[error("the connection of the body has ended: {0}")]
    Lost(String),
    /// What it is made of can't be read.
    #[error("cannot read the body: {0}")]
    Source(String),
    /// It is what a call answers ([`crate::Call::into_body`]), and a status came in its place, or the call has failed.
    #[error("the answers end with an error: {0}")]
    Call(Box<CallError>),
    /// A blocking read on a thread of an async runtime, which it would stop.
    #[error("a blocking read inside an async runtime would stop it")]
    WouldBlock,
    /// It is longer than the application takes.
    #[error("the body is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
}

impl BodyError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Broken(_) | Self::Source(_) | Self::Call(_) => Code::Aborted,
            Self::Lost(_) => Code::Unavailable,
            Self::TooLong { .. } => Code::ResourceExhausted,
            Self::WouldBlock => Code::Internal,
        }
    }

    /// What the receiver of a body is told that ends so. It says itself that the body is broken: a reason that came over
    /// several hops is the one of the first.
    fn into_reason(self) -> String {
        match self {
            Self::Broken(reason) => reason,
            error => error.to_string(),
        }
    }
}

impl From<BodyError> for Status {
    fn from(error: BodyError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl Body {
    /// A body of what a stream yields.
    pub fn from_stream<S, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: fmt::Display,
    {
        Self::of(Source::Stream(Box::pin(Chunks(Box::pin(stream)))))
    }

    /// A body of what a reader yields.
    pub fn from_read(reader: impl AsyncRead + Send + 'static) -> Self {
        Self::of(Source::Stream(Box::pin(Reading {
            reader: Box::pin(reader),
            room: BytesMut::new(),
        })))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            chunk: Bytes::new(),
        }
    }

    /// One of chunks that may end with an error of its own.
    pub(crate) fn of_chunks(
        chunks: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
    ) -> Self {
        Self::of(Source::Stream(Box::pin(chunks)))
    }

    /// One of which nothing comes but this.
    pub(crate) fn broken(error: BodyError) -> Self {
        Self::of(Source::Broken(error))
    }

    /// One whose call has ended.
    pub(crate) fn given_up() -> Self {
        Self::broken(call_ended())
    }

    pub(crate) fn received(received: Received) -> Self {
        Self::of(Source::Received(received))
    }

    /// Whether its request was stopped, without reading; who asks is woken when it is.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        match &self.source {
            Source::Received(received) => received.inbound.poll_over(cx),
            Source::Broken(error) => Poll::Ready(error.clone()),
            Source::Done | Source::Stream(_) | Source::Half(_) | Source::Failed(_) => Poll::Pending,
        }
    }

    pub(crate) fn half(half: Half) -> Self {
        Self::of(Source::Half(half))
    }

    /// One that is here; `keep` lives as long as it does.
    pub(crate) fn stored(chunks: Vec<Bytes>, keep: Arc<dyn Send + Sync>) -> Self {
        let chunks = chunks.into_iter();
        Self::of(Source::Stream(Box::pin(Stored {
            chunks,
            _keep: keep,
        })))
    }

    /// Puts back the end of the chunk that was read last.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        self.chunk = bytes;
    }

    /// The same behind these bytes.
    pub(crate) fn after(self, bytes: Bytes) -> Self {
        let mut body = match self.chunk.is_empty() {
            true => self,
            false => Self::of(Source::Stream(Box::pin(self))),
        };
        body.chunk = bytes;
        body
    }

    /// The next chunk; `None` when the body is whole. After an error nothing more comes.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// [`next`](Self::next) for handlers that block.
    pub fn blocking_next(&mut self) -> Option<Result<Bytes, BodyError>> {
        blocking::wait(self.next()).unwrap_or_else(|_| Some(Err(BodyError::WouldBlock)))
    }

    /// All of it, if that is no more than `limit` bytes.
    ///
    /// # Errors
    ///
    /// If it breaks, or is longer.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, BodyError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            if all.len() + chunk.len() > limit {
                return Err(BodyError::TooLong { limit });
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if !self.chunk.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.chunk))));
        }
        let next = match &mut self.source {
            Source::Done | Source::Failed(_) => return Poll::Ready(None),
            Source::Stream(stream) => ready!(stream.as_mut().poll_next(cx)),
            Source::Received(received) => ready!(received.poll_next(cx)),
            Source::Half(half) => ready!(half.poll_next(cx)),
            Source::Broken(error) => Some(Err(error.clone())),
        };
        match &next {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.source = Source::Failed(error.clone()),
            None => self.source = Source::Done,
        }
        Poll::Ready(next)
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self {
            source: Source::Done,
            chunk: bytes,
        }
    }
}

impl Stream for Body {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_chunk(cx)
    }
}

impl AsyncRead for Body {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.chunk.is_empty() {
            match ready!(self.poll_chunk(cx)) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let len = self.chunk.len().min(buffer.remaining());
        buffer.put_slice(&self.chunk.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            Source::Done => "Body(in memory)",
            Source::Stream(_) => "Body(to be sent)",
            Source::Received(_) | Source::Half(_) => "Body(received)",
            Source::Broken(_) | Source::Failed(_) => "Body(broken)",
        })
    }
}

/// Chunks that are here.
struct Stored {
    chunks: std::vec::IntoIter<Bytes>,
    _keep: Arc<dyn Send + Sync>,
}

impl Stream for Stored {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.chunks.next().map(Ok))
    }
}

/// The chunks of somebody's stream.
struct Chunks<S>(Pin<Box<S>>);

impl<S: Stream<Item = Result<Bytes, E>>, E: fmt::Display> Stream for Chunks<S> {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.0.as_mut().poll_next(cx));
        Poll::Ready(next.map(|chunk| chunk.map_err(|error| BodyError::Source(error.to_string()))))
    }
}

/// The chunks of a reader.
struct Reading<R> {
    reader: Pin<Box<R>>,
    room: BytesMut,
}

impl<R: AsyncRead> Stream for Reading<R> {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { reader, room } = &mut *self;
        room.resize(READ, 0);
        let mut buffer = ReadBuf::new(room);
        let read = ready!(reader.as_mut().poll_read(cx, &mut buffer));
        let len = buffer.filled().len();
        Poll::Ready(match read {
            Ok(()) if len == 0 => None,
            Ok(()) => Some(Ok(room.split_to(len).freeze())),
            Err(error) => Some(Err(BodyError::Source(error.to_string()))),
        })
    }
}

/// What follows a request that has come, as the request keeps it.
#[derive(Debug)]
pub(crate) struct Following {
    /// Until the handler takes it.
    unread: Option<Body>,
    inbound: Arc<Inbound>,
}

impl Following {
    pub(crate) fn new(received: Received) -> Self {
        let inbound = Arc::clone(&received.inbound);
        let unread = Some(Body::received(received));
        Self { unread, inbound }
    }

    /// What its request's handler is to have of it.
    pub(crate) fn put(&mut self, body: Body) {
        self.unread = Some(body);
    }

    /// For whoever asks first.
    pub(crate) fn take(&mut self) -> Option<Body> {
        self.unread.take()
    }

    /// Its request was stopped: who takes it from now on gets an error. The rest is up to [`GivenUp::tell`], since it may
    /// wake tasks and drop what others made.
    pub(crate) fn give_up(&mut self) -> GivenUp {
        let unread = self.unread.take();
        if unread.is_some() {
            self.unread = Some(Body::given_up());
        }
        let inbound = Arc::clone(&self.inbound);
        GivenUp { unread, inbound }
    }
}

/// A body whose request was stopped.
pub(crate) struct GivenUp {
    unread: Option<Body>,
    inbound: Arc<Inbound>,
}

impl GivenUp {
    /// Whoever reads it learns that its call has ended; if nobody does, its sender is stopped.
    pub(crate) fn tell(self) {
        self.inbound.give_up();
        drop(self.unread);
    }
}

fn call_ended() -> BodyError {
    BodyError::Broken(CALL_ENDED.into())
}

/// A body on its way to a request: whoever sends the request takes it, once.
#[derive(Debug, Clone)]
pub(crate) struct Attached(Arc<Mutex<Option<Body>>>);

impl Attached {
    pub(crate) fn new(mut body: Body) -> Self {
        if let Source::Failed(error) = body.source {
            body.source = Source::Broken(error);
        }
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(crate) fn take(&self) -> Option<Body> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Body>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has arrived of a body and waits for its reader; its connection knows it.
#[derive(Debug, Default)]
pub(crate) struct Inbound(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    chunks: VecDeque<Bytes>,
    /// Short pieces behind those, together.
    pieces: BytesMut,
    end: Option<Result<(), BodyError>>,
    /// Why its reader gets no more of it, though more may come.
    over: Option<BodyError>,
    reader: Option<Waker>,
}

impl Inbound {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of it has arrived; whether it has ended.
    pub(crate) fn handle(&self, event: BodyEvent) -> bool {
        let mut waiting = self.lock();
        match event {
            BodyEvent::Bytes(bytes) => waiting.push(bytes),
            BodyEvent::Whole => waiting.end = Some(Ok(())),
            BodyEvent::Broken(why) => waiting.end = Some(Err(BodyError::Broken(why))),
        }
        waiting.wake()
    }

    /// Its request was stopped.
    pub(crate) fn give_up(&self) {
        let mut waiting = self.lock();
        waiting.over = Some(call_ended());
        (waiting.chunks, waiting.pieces) = Default::default();
        waiting.wake();
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let mut waiting = self.lock();
        match &waiting.over {
            Some(over) => Poll::Ready(over.clone()),
            None => {
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Its connection has ended.
    pub(crate) fn lost(&self, reason: &str) {
        let mut waiting = self.lock();
        let lost = || Err(BodyError::Lost(reason.to_owned()));
        waiting.end.get_or_insert_with(lost);
        waiting.wake();
    }
}

impl Waiting {
    /// Keeps what has arrived in about as much memory as it has bytes, however small the pieces are that it came in.
    fn push(&mut self, mut bytes: Bytes) {
        if self.over.is_some() {
            return;
        }
        if bytes.len() < PIECE {
            return self.pieces.extend_from_slice(&bytes);
        }
        if !self.pieces.is_empty() {
            let pieces = std::mem::take(&mut self.pieces);
            self.chunks.push_back(pieces.freeze());
        }
        if self.chunks.len() >= AHEAD {
            detach(&mut bytes);
        }
        self.chunks.push_back(bytes);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let pieces = || std::mem::take(&mut self.pieces).freeze();
        let next = self.chunks.pop_front().unwrap_or_else(pieces);
        (!next.is_empty()).then_some(next)
    }

    fn wake(&mut self) -> bool {
        self.reader.take().into_iter().for_each(Waker::wake);
        self.end.is_some()
    }
}

/// The reader's end of a body that arrives. Its connection is not idle as long as this lives.
#[derive(Debug)]
pub(crate) struct Received {
    inbound: Arc<Inbound>,
    peer: Arc<Peer>,
    number: u64,
    /// Bytes that were taken and not granted anew.
    taken: u64,
    /// So many are worth granting.
    worth: u64,
}

impl Received {
    /// `limit` is how much of it may be under way.
    pub(crate) fn new(inbound: Arc<Inbound>, peer: Arc<Peer>, number: u64, limit: u64) -> Self {
        peer.hold();
        Self {
            inbound,
            peer,
            number,
            taken: 0,
            worth: (limit / 4).max(1),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut waiting = self.inbound.lock();
        if let Some(over) = &waiting.over {
            return Poll::Ready(Some(Err(over.clone())));
        }
        if let Some(chunk) = waiting.pop() {
            let open = waiting.end.is_none();
            drop(waiting);
            self.taken += chunk.len() as u64;
            if open && self.taken >= self.worth {
                let taken = std::mem::take(&mut self.taken);
                self.peer.grant_body(self.number, taken);
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
        match &waiting.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
            None => {
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if self.inbound.lock().end.is_none() {
            self.peer.stop_body(self.number);
        }
        self.peer.release();
    }
}

/// Sends a body after its request, until it is whole, or its receiver wants no more, or `over` says why it is given up.
pub(crate) async fn send(
    mut body: Body,
    peer: Arc<Peer>,
    number: u64,
    over: impl Future<Output = String>,
) {
    let _wanted = peer.want();
    let mut over = pin!(over);
    let mut going = pin!(go_on(&mut body, &peer, number));
    let given_up = poll_fn(|cx| match going.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => over.as_mut().poll(cx).map(Some),
    })
    .await;
    if let Some(reason) = given_up {
        break_off(&peer, number, &reason).await;
    }
}

async fn go_on(body: &mut Body, peer: &Arc<Peer>, number: u64) {
    while let Some(chunk) = next_while_wanted(body, peer, number).await {
        let mut chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return break_off(peer, number, &error.into_reason()).await,
        };
        while !chunk.is_empty() {
            let room = peer.room();
            match peer.try_body(number, &mut chunk) {
                Ok(()) => {}
                Err(BodyRefusal::Blocked) => room.await,
                Err(BodyRefusal::Stopped) => return,
            }
        }
    }
    end(peer, number, Ok(())).await;
}

/// The next chunk of a body; `None` at its end, and when its receiver wants no more.
async fn next_while_wanted(
    body: &mut Body,
    peer: &Arc<Peer>,
    number: u64,
) -> Option<Result<Bytes, BodyError>> {
    loop {
        let mut changed = pin!(peer.room());
        if !peer.wants_body(number) {
            return None;
        }
        let next = poll_fn(|cx| match body.poll_chunk(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending => changed.as_mut().poll(cx).map(|()| None),
        });
        if let Some(next) = next.await {
            return next;
        }
    }
}

async fn break_off(peer: &Arc<Peer>, number: u64, reason: &str) {
    end(peer, number, Err(reason)).await;
}

async fn end(peer: &Arc<Peer>, number: u64, how: Result<(), &str>) {
    loop {
        let room = peer.room();
        match peer.end_body(number, how) {
            Err(BodyRefusal::Blocked) => room.await,
            Ok(()) | Err(BodyRefusal::Stopped) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A buffer that something arrived in, and whether anybody still keeps it.
    struct Buffer {
        bytes: [u8; 2 * PIECE],
        _kept: Arc<()>,
    }

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    #[test]
    fn short_pieces_do_not_keep_their_buffers() {
        let inbound = Inbound::default();
        let kept = Arc::new(());
        let mut expected = Vec::new();
        for (round, len) in [1, 1, 7, PIECE, 1, 2 * PIECE, 3, 3].into_iter().enumerate() {
            let buffer = Buffer {
                bytes: [round as u8; 2 * PIECE],
                _kept: Arc::clone(&kept),
            };
            expected.extend_from_slice(&buffer.bytes[..len]);
            let buffer = Bytes::from_owner(buffer);
            inbound.handle(BodyEvent::Bytes(buffer.slice(..len)));
        }
        // The two long ones are not copied.
        assert_eq!(Arc::strong_count(&kept), 1 + 2);
        let mut chunks = Vec::new();
        while let Some(chunk) = inbound.lock().pop() {
            chunks.push(chunk);
        }
        assert_eq!(chunks.concat(), expected);
        assert_eq!(chunks.len(), 5, "pieces that arrive together are one");
    }

    /// As one that has read so far ahead that it must not read now.
    #[test]
    fn who_only_waits_for_its_end_is_woken_by_it() {
        struct Woken(AtomicBool);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let inbound = Inbound::default();
        inbound.handle(BodyEvent::Bytes(Bytes::from_static(&[1; PIECE])));
        let woken = Arc::new(Woken(false.into()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert_eq!(inbound.poll_over(&mut context), Poll::Pending);
        inbound.give_up();
        assert!(woken.0.load(Ordering::Relaxed));
        assert_eq!(inbound.poll_over(&mut context), Poll::Ready(call_ended()));
    }

    #[test]
    fn what_is_given_up_keeps_nothing() {
        let inbound = Inbound::default();
        inbound.handle(BodyEvent::Bytes(Bytes::from_static(&[1; PIECE])));
        inbound.handle(BodyEvent::Bytes(Bytes::from_static(&[1])));
        inbound.give_up();
        inbound.handle(BodyEvent::Bytes(Bytes::from_static(&[2])));
        assert_eq!(inbound.lock().pop(), None);
    }
}
