//! A body that two read, each at its own pace, but never further apart than a window.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;

use crate::body::{Body, BodyError};

/// One of the two readers of a body. Dropping it leaves the rest to the other; the body itself goes with the second.
pub(crate) struct Half {
    shared: Arc<Shared>,
    side: usize,
}

/// Two readers of `body`; the faster one is never more than `window` bytes, and a chunk, ahead of the slower one.
pub(crate) fn split(body: Body, window: u64) -> (Body, Body) {
    let readers = Arc::new(Readers::default());
    let shared = Arc::new(Shared {
        window,
        arrivals: Waker::from(Arc::clone(&readers)),
        readers,
        state: Mutex::new(State {
            source: Some(body),
            sides: [Side::default(), Side::default()],
            end: None,
        }),
    });
    let half = |side| {
        let shared = Arc::clone(&shared);
        Body::half(Half { shared, side })
    };
    (half(0), half(1))
}

struct Shared {
    window: u64,
    readers: Arc<Readers>,
    /// Wakes both readers: whichever of them asked last may not be the one that goes on reading.
    arrivals: Waker,
    state: Mutex<State>,
}

struct State {
    /// Until both readers are gone, or it has ended.
    source: Option<Body>,
    sides: [Side; 2],
    end: Option<Result<(), BodyError>>,
}

/// What the other one has read and this one has not.
#[derive(Default)]
struct Side {
    chunks: VecDeque<Bytes>,
    bytes: u64,
    gone: bool,
}

/// Who waits. A lock of its own: a body wakes its reader while it holds locks that reading it takes.
#[derive(Default)]
struct Readers(Mutex<[Option<Waker>; 2]>);

impl Readers {
    fn lock(&self) -> MutexGuard<'_, [Option<Waker>; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_one(&self, side: usize) {
        let waker = self.lock()[side].take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Readers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = std::mem::take(&mut *self.lock());
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Half {
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        // Before looking, so that nothing is missed.
        self.shared.readers.lock()[self.side] = Some(cx.waker().clone());
        let (next, told) = self.shared.lock().read(self.side, &self.shared);
        if told {
            self.shared.readers.wake_one(1 - self.side);
        }
        next
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let side = &mut state.sides[self.side];
        side.gone = true;
        let chunks = std::mem::take(&mut side.chunks);
        let alone = !state.sides[1 - self.side].gone;
        let source = if alone { None } else { state.source.take() };
        drop(state);
        self.shared.readers.wake_one(1 - self.side);
        drop((chunks, source));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Read = Poll<Option<Result<Bytes, BodyError>>>;

impl State {
    /// What comes next for one side, and whether that concerns the other one.
    fn read(&mut self, side: usize, shared: &Shared) -> (Read, bool) {
        let own = &mut self.sides[side];
        if let Some(chunk) = own.chunks.pop_front() {
            own.bytes -= chunk.len() as u64;
            return (Poll::Ready(Some(Ok(chunk))), true);
        }
        match &self.end {
            Some(Ok(())) => return (Poll::Ready(None), false),
            Some(Err(error)) => return (Poll::Ready(Some(Err(error.clone()))), false),
            None => {}
        }
        let behind = &self.sides[1 - side];
        if !behind.gone && behind.bytes >= shared.window {
            return (Poll::Pending, false);
        }
        let Some(source) = &mut self.source else {
            return (Poll::Ready(None), false);
        };
        let next = source.poll_chunk(&mut Context::from_waker(&shared.arrivals));
        match &next {
            Poll::Pending => return (next, false),
            Poll::Ready(Some(Ok(chunk))) => self.sides[1 - side].push(chunk),
            Poll::Ready(Some(Err(error))) => self.end = Some(Err(error.clone())),
            Poll::Ready(None) => self.end = Some(Ok(())),
        }
        if self.end.is_some() {
            self.source = None;
        }
        (next, true)
    }
}

impl Side {
    fn push(&mut self, chunk: &Bytes) {
        if !self.gone {
            self.bytes += chunk.len() as u64;
            self.chunks.push_back(chunk.clone());
        }
    }
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Half({})", self.side)
    }
}
