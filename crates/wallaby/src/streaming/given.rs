//! What becomes a stream of items: any stream of values, or of results.

use std::any::Any;
use std::fmt::Display;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::{Source, Streaming};
use crate::codec::{Codec, Postcard};

/// What a caller gives for an argument [`Streaming<T>`](Streaming): a [`Stream`] of `T`, or of `Result<T, E>`, whose first
/// error breaks the stream for its reader. One that a handler has received goes on as it is, without being decoded.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no stream of `{T}`",
    label = "expected a `Stream` of `{T}`, or of `Result<{T}, _>`",
    note = "`wallaby::items` makes a stream of what an iterator yields"
)]
pub trait IntoStreaming<T, C = Postcard> {
    /// The items, to be sent.
    fn into_streaming(self) -> Streaming<T, C>;
}

impl<S, T, C> IntoStreaming<T, C> for S
where
    S: Stream + Send + 'static,
    S::Item: IntoItem<T>,
    T: Send + 'static,
    C: Codec<T>,
{
    fn into_streaming(mut self) -> Streaming<T, C> {
        // A received one is a stream of results, too, but its bytes can go on as they are.
        let same = (&mut self as &mut dyn Any).downcast_mut::<Streaming<T, C>>();
        if let Some(same) = same {
            return std::mem::replace(same, Streaming::of(Source::Done));
        }
        Streaming::of(Source::Given(Given::new(self)))
    }
}

/// An item of a stream: a value, or a `Result` whose error ends the stream.
#[diagnostic::on_unimplemented(
    message = "the items of the stream are `{Self}`, not `{T}`",
    label = "expected items `{T}`, or `Result<{T}, _>`"
)]
pub trait IntoItem<T> {
    /// The value, or the text of the error.
    fn into_item(self) -> Result<T, String>;
}

impl<T> IntoItem<T> for T {
    fn into_item(self) -> Result<T, String> {
        Ok(self)
    }
}

impl<T, E: Display> IntoItem<T> for Result<T, E> {
    fn into_item(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// A stream that was given.
pub(super) struct Given<T>(Pin<Box<dyn Stream<Item = Result<T, String>> + Send>>);

impl<T: 'static> Given<T> {
    fn new<S>(items: S) -> Self
    where
        S: Stream + Send + 'static,
        S::Item: IntoItem<T>,
    {
        Self(Box::pin(Values {
            items: Box::pin(items),
            value: PhantomData,
        }))
    }
}

impl<T> Given<T> {
    pub(super) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, String>>> {
        self.0.as_mut().poll_next(cx)
    }
}

/// The values of somebody's stream.
struct Values<S, T> {
    items: Pin<Box<S>>,
    value: PhantomData<fn() -> T>,
}

impl<T, S: Stream> Stream for Values<S, T>
where
    S::Item: IntoItem<T>,
{
    type Item = Result<T, String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.items.as_mut().poll_next(cx));
        Poll::Ready(next.map(IntoItem::into_item))
    }
}

/// A stream of what an iterator yields.
pub fn items<I: IntoIterator>(iterator: I) -> Items<I::IntoIter> {
    Items(iterator.into_iter())
}

/// See [`items`].
#[derive(Debug, Clone)]
#[must_use = "a stream yields nothing until it is read"]
pub struct Items<I>(I);

// The iterator is not pinned in place.
impl<I> Unpin for Items<I> {}

impl<I: Iterator> Stream for Items<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
