//! Bodies that a test watches: it sends their chunks one by one, or knows every byte.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;
use wallaby::{Body, BodyError, Code, Status};

/// A body whose chunks the test sends one by one.
pub(crate) fn piped() -> (mpsc::UnboundedSender<Result<Bytes, String>>, Body) {
    let (sender, chunks) = mpsc::unbounded_channel();
    (sender, Body::from_stream(Piped(chunks)))
}

struct Piped(mpsc::UnboundedReceiver<Result<Bytes, String>>);

impl Stream for Piped {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// A body of so many bytes, each of which tells its place, and how many of them were asked for.
pub(crate) fn counted(total: u64) -> (Arc<AtomicU64>, Body) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Counted {
        sent: 0,
        total,
        count: Arc::clone(&count),
    };
    (count, Body::from_stream(counted))
}

struct Counted {
    sent: u64,
    total: u64,
    count: Arc<AtomicU64>,
}

/// Bytes of a chunk that is counted; a multiple of the pattern's length.
pub(crate) const CHUNK: u64 = 251 * 40;

/// Bytes that tell their places.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| (0..CHUNK).map(byte_at).collect());

impl Stream for Counted {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let len = CHUNK.min(self.total - self.sent);
        if len == 0 {
            return Poll::Ready(None);
        }
        self.sent += len;
        self.count.store(self.sent, Ordering::Relaxed);
        Poll::Ready(Some(Ok(PATTERN.slice(..len as usize))))
    }
}

/// The byte of such a body at a place.
pub(crate) fn byte_at(place: u64) -> u8 {
    (place % 251) as u8
}

/// Reads all of such a body and checks it; how long it was.
pub(crate) async fn check(mut body: Body) -> Result<u64, BodyError> {
    let mut place = 0;
    while let Some(chunk) = body.next().await {
        let mut chunk = chunk?;
        while !chunk.is_empty() {
            let from = (place % CHUNK) as usize;
            let len = chunk.len().min(PATTERN.len() - from);
            assert_eq!(chunk.split_to(len), PATTERN[from..from + len], "at {place}");
            place += len as u64;
        }
    }
    Ok(place)
}

/// What a handler answers that could not read a body.
pub(crate) fn broken(error: BodyError) -> Status {
    Status::new(Code::Aborted, error.to_string())
}
