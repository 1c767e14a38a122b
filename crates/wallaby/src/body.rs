//! Bodies: bytes, as many as there are, that follow a request while it is handled already.

mod sending;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use thiserror::Error;
use tokio::io::{AsyncRead, ReadBuf};
use wallaby_proto::endpoint::{BodyEnd, BodyNext, InBody};
use wallaby_proto::error::CALL_ENDED;
use wallaby_proto::{Address, Code, RequestId, Status};

#[cfg(target_os = "linux")]
pub(crate) use self::sending::WrittenBody;
pub(crate) use self::sending::spawn;
use crate::blocking;
use crate::driver::shared::Inner;
use crate::driver::waiters::Wait;
use crate::error::{CallError, Failure};
use crate::pipeline::Half;

/// How much is read at a time from what a body is made of.
const READ: usize = 32 * 1024;

/// So many chunks that nobody has read yet may keep their buffers.
pub(crate) const AHEAD: usize = 4;

/// Bytes of any number that follow a request on its connection, while it is handled already.
///
/// As the last argument of a method it is declared in its service. To any other method the initiator attaches one with the call
/// ([`crate::Client::call_with_body`], [`crate::RawCall::send_with_body`]), a handler with a delegation
/// ([`crate::Target::with_body`]), and a handler takes that of its request ([`crate::RequestInfo::take_body`]). It is read as a
/// stream of chunks, or as [`AsyncRead`]; items of one type are a [`crate::Streaming`]. Where chunks end says nothing. A body that
/// a handler has received may go on with a delegation: what arrives is then passed on, without being kept.
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
    Received(ReceivedBody),
    /// Somebody else reads it, too.
    Half(Half),
    /// Nothing of it comes any more, and this is told.
    Broken(BodyError),
    /// This was told: it must not look whole to another reader.
    Failed(BodyError),
}

/// Why a body ends before it is whole.
#[derive(Clone, PartialEq, Eq, Error)]
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
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Broken(_) | Self::Source(_) => Code::Aborted,
            Self::Call(error) => error.code(),
            Self::Lost(_) => Code::Unavailable,
            Self::TooLong { .. } => Code::ResourceExhausted,
            Self::WouldBlock => Code::Internal,
        }
    }

    /// What the receiver of a body is told that ends so. It says itself that the body is broken: a reason that came over
    /// several hops is the one of the first.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Broken(reason) => reason,
            error => error.to_string(),
        }
    }
}

/// Why a request is not sent that was to be followed by a body.
pub(crate) fn is_gone(server: Address) -> Failure {
    Failure::Refused {
        request: RequestId::FIRST,
        server,
        reason: "its body went with another request".into(),
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

    /// What follows a request that has come.
    pub(crate) fn received(endpoint: &Arc<Inner>, body: InBody) -> Self {
        let endpoint = Arc::clone(endpoint);
        Self::of(Source::Received(ReceivedBody { endpoint, body }))
    }

    /// Whether its request was stopped, without reading; who asks is woken when it is.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        match &self.source {
            Source::Received(received) => received.poll_over(cx),
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

    /// For another reader: what was told of its end is told again.
    pub(crate) fn handed_on(mut self) -> Self {
        if let Source::Failed(error) = self.source {
            self.source = Source::Broken(error);
        }
        self
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

    /// The next chunk, if it is there: [`next`](Self::next) for those that do not wait. Of a body that comes to a polling endpoint
    /// an event tells when there is more (`polling::Event::Body`).
    pub fn try_next(&mut self) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.poll_chunk(&mut asking())
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

/// Nobody to wake: who asks so is told by an event.
struct Asker;

impl Wake for Asker {
    fn wake(self: Arc<Self>) {}
}

static ASKER: LazyLock<Waker> = LazyLock::new(|| Waker::from(Arc::new(Asker)));

/// For who asks and does not wait.
pub(crate) fn asking() -> Context<'static> {
    Context::from_waker(&ASKER)
}

/// Whether that is who asks and does not wait.
#[cfg(target_os = "linux")]
pub(crate) fn is_asker(waker: &Waker) -> bool {
    waker.data() == ASKER.data()
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

/// A body on its way to a request: whoever sends the request takes it, once.
#[derive(Debug, Clone)]
pub(crate) struct Attached(Arc<Mutex<Option<Body>>>);

impl Attached {
    pub(crate) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Some(body.handed_on()))))
    }

    pub(crate) fn take(&self) -> Option<Body> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Body>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end of a body that arrives.
pub(crate) struct ReceivedBody {
    endpoint: Arc<Inner>,
    body: InBody,
}

impl ReceivedBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.endpoint
            .enter(|core| match core.endpoint.read_body(self.body) {
                BodyNext::Chunk(bytes) => Poll::Ready(Some(Ok(bytes))),
                BodyNext::End(Ok(())) => Poll::Ready(None),
                BodyNext::End(Err(end)) => Poll::Ready(Some(Err(end.into()))),
                BodyNext::Pending => {
                    core.wait(Wait::Read(self.body), cx.waker());
                    Poll::Pending
                }
            })
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<BodyError> {
        self.endpoint.enter(|core| {
            if core.endpoint.is_given_up(self.body) {
                return Poll::Ready(BodyError::Broken(CALL_ENDED.into()));
            }
            core.wait(Wait::Read(self.body), cx.waker());
            Poll::Pending
        })
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        self.endpoint.enter(|core| {
            core.endpoint.drop_body(self.body);
            core.stop_waiting(Wait::Read(self.body));
        });
    }
}

impl From<BodyEnd> for BodyError {
    fn from(end: BodyEnd) -> Self {
        match end {
            BodyEnd::Broken(why) => Self::Broken(why),
            BodyEnd::Lost(why) => Self::Lost(why),
        }
    }
}

wallaby_proto::debug_as_text!(BodyError);
