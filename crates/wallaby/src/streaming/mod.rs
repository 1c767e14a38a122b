//! Streams of items of one type that follow requests, on top of [`Body`]; and streams as answers.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use wallaby_proto::items::ItemReader;

use crate::blocking;
use crate::body::{self, Body, BodyError};
use crate::codec::{Codec, Postcard};
use crate::method::sealed::Followed;

mod answers;
mod encoding;
mod error;
mod given;

use self::encoding::Encoding;
use self::error::StreamOrigin;
pub use self::error::{StreamError, StreamErrorKind};
use self::given::Given;
pub use self::given::{IntoItem, IntoStreaming, Items, items};

/// Longest item that is received if nothing else is said.
pub(crate) const LONGEST_ITEM: u64 = 1 << 20;

/// Items of one type, of any number, that follow a request while it is handled already: the last argument of a method.
///
/// ```
/// use wallaby::{Address, Endpoint, Request, Status, Streaming};
///
/// #[wallaby::service(package = "demo")]
/// trait Meter {
///     /// Adds up what comes.
///     async fn sum(from: u64, values: Streaming<u64>) -> u64;
/// }
///
/// struct MyMeter;
///
/// #[wallaby::serve]
/// impl Meter for MyMeter {
///     async fn sum(&self, from: u64, mut values: Streaming<u64>) -> Result<u64, Status> {
///         let mut sum = from;
///         while let Some(value) = values.next().await {
///             sum += value?;
///         }
///         Ok(sum)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Endpoint::builder().listen("mem://meter").serve(meter::service(MyMeter)).bind().await?;
/// let client = Endpoint::client()?;
/// let address: Address = "mem://meter".parse()?;
/// let sum = meter::at(&client, address).sum(1, wallaby::items(2..=4)).await?;
/// assert_eq!(sum, 10);
/// # Ok(())
/// # }
/// ```
///
/// A caller gives any [`Stream`] of items, or of results of items ([`IntoStreaming`]). The handler reads them while they
/// arrive, or hands what it has not read on with a delegation, which passes the bytes on as they are. They travel as a
/// [`Body`], with all that is said there of pace, limits and ends; besides, no item may be longer than
/// [`crate::Builder::longest_item`].
pub struct Streaming<T, C = Postcard> {
    source: Source<T>,
    /// So many items were read.
    read: u64,
    codec: PhantomData<fn() -> C>,
}

enum Source<T> {
    /// It has ended, and is whole.
    Done,
    Given(Given<T>),
    Received(Box<IncomingItems>),
    /// This was told: it must not look whole to another reader.
    Failed(Box<StreamError>),
}

/// Items that come in a body.
struct IncomingItems {
    body: Body,
    /// What is left of the chunk that is read.
    chunk: Bytes,
    items: ItemReader,
    origin: Arc<StreamOrigin>,
}

impl IncomingItems {
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamErrorKind>>> {
        loop {
            match self.items.next(&mut self.chunk) {
                Ok(None) => {}
                Ok(Some(item)) => return Poll::Ready(Some(Ok(item))),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            match ready!(self.body.poll_chunk(cx)) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    let cut = self.items.finish().err();
                    return Poll::Ready(cut.map(|error| Err(error.into())));
                }
            }
        }
    }

    /// All that was not read, from the beginning of an item.
    fn into_body(mut self) -> Body {
        self.body.put_back(self.chunk);
        let begun = self.items.into_begun();
        if begun.is_empty() {
            return self.body;
        }
        self.body.after(begun)
    }
}

impl<T, C> Streaming<T, C> {
    fn of(source: Source<T>) -> Self {
        Self {
            source,
            read: 0,
            codec: PhantomData,
        }
    }

    /// What follows this request.
    pub(crate) fn received(body: Body, request: &dyn Followed) -> Self {
        Self::of(Source::Received(Box::new(IncomingItems {
            body,
            chunk: Bytes::new(),
            items: ItemReader::new(request.longest_item()),
            origin: Arc::new(StreamOrigin::of(request)),
        })))
    }

    /// Takes items of at most so many bytes, whatever [`crate::Builder::longest_item`] says. It changes nothing for who it is handed
    /// on to.
    #[must_use]
    pub fn item_limit(mut self, bytes: u64) -> Self {
        if let Source::Received(arriving) = &mut self.source {
            arriving.items.set_limit(bytes);
        }
        self
    }

    fn error(&self, kind: StreamErrorKind) -> StreamError {
        let origin = match &self.source {
            Source::Received(arriving) => Some(Arc::clone(&arriving.origin)),
            Source::Done | Source::Given(_) | Source::Failed(_) => None,
        };
        StreamError::new(self.read, origin, kind)
    }
}

impl<T, C: Codec<T>> Streaming<T, C> {
    /// The next item; `None` when there are no more. After an error nothing more comes. Nothing is lost if the future is dropped
    /// before it is done.
    pub async fn next(&mut self) -> Option<Result<T, StreamError>> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// The next item, if it is there: [`next`](Self::next) for those that do not wait, as [`Body::try_next`] is.
    pub fn try_next(&mut self) -> Poll<Option<Result<T, StreamError>>> {
        self.poll_item(&mut body::asking())
    }

    /// [`next`](Self::next) for handlers that block.
    pub fn blocking_next(&mut self) -> Option<Result<T, StreamError>> {
        let next = blocking::wait(self.next());
        next.unwrap_or_else(|_| Some(Err(self.error(StreamErrorKind::WouldBlock))))
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, StreamError>>> {
        let next = match &mut self.source {
            Source::Done | Source::Failed(_) => return Poll::Ready(None),
            Source::Given(items) => {
                let next = ready!(items.poll_item(cx));
                next.map(|item| item.map_err(|why| BodyError::Source(why).into()))
            }
            Source::Received(arriving) => {
                let next = ready!(arriving.poll_item(cx));
                next.map(|item| C::decode(item?).map_err(StreamErrorKind::from))
            }
        };
        Poll::Ready(match next {
            None => {
                self.source = Source::Done;
                None
            }
            Some(Ok(item)) => {
                self.read += 1;
                Some(Ok(item))
            }
            Some(Err(kind)) => {
                let error = self.error(kind);
                self.source = Source::Failed(Box::new(error.clone()));
                Some(Err(error))
            }
        })
    }
}

impl<T: Send + 'static, C: Codec<T>> Streaming<T, C> {
    /// The items that were not read, as the bytes that they travel as.
    pub fn into_body(self) -> Body {
        match self.source {
            Source::Done => Body::from(Bytes::new()),
            Source::Given(items) => Body::from_stream(Encoding::<T, C>::new(items)),
            Source::Received(arriving) => arriving.into_body(),
            Source::Failed(error) => Body::broken(BodyError::Source(error.to_string())),
        }
    }
}

impl<T, C: Codec<T>> Stream for Streaming<T, C> {
    type Item = Result<T, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx)
    }
}

// Nothing in it is pinned in place.
impl<T, C> Unpin for Streaming<T, C> {}

impl<T, C> fmt::Debug for Streaming<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            Source::Done => "Streaming(read)",
            Source::Given(_) => "Streaming(to be sent)",
            Source::Received(_) => "Streaming(received)",
            Source::Failed(_) => "Streaming(failed)",
        })
    }
}
