//! Streams as answers: how a handler sends one, and how the initiator reads answers like a file.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use wallaby_proto::Path;

use super::IntoItem;
use crate::body::{Body, BodyError};
use crate::call::{Call, RawAnswer};
use crate::codec::Codec;
use crate::error::{CallError, SendError};
use crate::method::Many;
use crate::request::Request;

/// Most bytes of an answer that is a chunk of something longer.
const CHUNK: usize = 32 * 1024;

impl<T: Send + 'static, C: Codec<T>> Request<Many<T>, C> {
    /// Sends what a stream yields, values or results of values, an answer each, no faster than the initiator takes them.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply), or at the first error of the stream. What came before it is sent.
    pub async fn reply_all<S>(&self, items: S) -> Result<(), SendError>
    where
        S: Stream + Send,
        S::Item: IntoItem<T>,
    {
        let mut items = pin!(items);
        while let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await {
            match item.into_item() {
                Ok(item) => self.reply(item).await?,
                Err(why) => return Err(self.source_failed(why).await),
            }
        }
        Ok(())
    }

    /// Sends the bytes of a body, for instance those of a reader ([`Body::from_read`]), as answers of at most 32 KiB, no
    /// faster than the initiator takes them: it reads them by [`Call::into_body`].
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply), or if the body breaks. What came before is sent.
    pub async fn reply_body(&self, body: impl Into<Body> + Send) -> Result<(), SendError>
    where
        T: From<Bytes>,
    {
        let mut body = body.into();
        while let Some(chunk) = body.next().await {
            let mut chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return Err(self.source_failed(error.to_string()).await),
            };
            while !chunk.is_empty() {
                let answer = chunk.split_to(chunk.len().min(CHUNK));
                self.reply(answer.into()).await?;
            }
        }
        Ok(())
    }

    /// A status would take the place of the answer that is held back.
    async fn source_failed(&self, why: String) -> SendError {
        self.flush().await;
        SendError::Source(why)
    }
}

impl<T, C> Call<Many<T>, C>
where
    T: Into<Bytes> + Send + 'static,
    C: Codec<T> + 'static,
{
    /// The answers as the bytes of one stream, to be read like a file: a [`Body`] is an `AsyncRead`. They come no faster than
    /// they are read.
    ///
    /// All of them must be answers of one branch of the call: of one server, or of several that forward the rest to each
    /// other. Answers of a second branch, which have no place among the others, break it, and so does a status, or a failure
    /// of the call ([`BodyError::Call`]). It is broken from the beginning if the call's answers come in any order: make the call
    /// with [`in_order`](crate::Client::in_order).
    pub fn into_body(self) -> Body {
        if !self.is_in_order() {
            let why = "the call was not made with `in_order`: its answers may overtake each other";
            return Body::broken(BodyError::Source(why.into()));
        }
        Body::of_chunks(Chunks {
            call: self,
            branch: None,
        })
    }
}

/// The answers of a call, as long as they are those of one branch.
struct Chunks<T, C> {
    call: Call<Many<T>, C>,
    branch: Option<Path>,
}

impl<T: Into<Bytes> + Send + 'static, C: Codec<T>> Chunks<T, C> {
    /// The bytes of an answer. Answers of another branch have no place among these.
    fn chunk(&mut self, answer: Result<RawAnswer, CallError>) -> Result<Bytes, BodyError> {
        let failed = |error| BodyError::Call(Box::new(error));
        let answer = answer.map_err(failed)?;
        let request = answer.request;
        let branch = *self.branch.get_or_insert(request.path);
        if branch != request.path {
            return Err(BodyError::Source(format!(
                "request {request} answers besides {branch}: nothing tells the order of their answers"
            )));
        }
        let item = C::decode(answer.payload);
        let item = item.map_err(|error| failed(self.call.unreadable(request, error)))?;
        Ok(item.into())
    }
}

impl<T, C> Stream for Chunks<T, C>
where
    T: Into<Bytes> + Send + 'static,
    C: Codec<T>,
{
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.call.poll_raw(cx));
        Poll::Ready(next.map(|answer| self.chunk(answer)))
    }
}

// A call is not pinned in place.
impl<T, C> Unpin for Chunks<T, C> {}
