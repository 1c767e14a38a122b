//! A body that two read, each at its own pace, but never further apart than a window.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use wallaby_proto::detach::detach;

use crate::body::{AHEAD, Body, BodyError};

/// One of the two readers of a body. Dropping it leaves the rest to the other; the body itself goes with the second.
pub(crate) struct Half {
    shared: Arc<SharedBody>,
    side: usize,
}

/// What a chunk that is kept costs besides its bytes: many short ones are not to take much more than the window.
pub(super) const EACH: u64 = 128;

/// Two readers of `body`; the faster one is never more than `window` bytes, and a chunk, ahead of the slower one.
pub(crate) fn split(body: Body, window: u64) -> (Body, Body) {
    let readers = Arc::new(Readers::default());
    let shared = Arc::new(SharedBody {
        window: window.max(1), // or neither would ever read
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

struct SharedBody {
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

impl SharedBody {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Read = Poll<Option<Result<Bytes, BodyError>>>;

impl State {
    /// What comes next for one side, and whether that concerns the other one.
    fn read(&mut self, side: usize, shared: &SharedBody) -> (Read, bool) {
        let own = &mut self.sides[side];
        if let Some(chunk) = own.chunks.pop_front() {
            own.bytes -= chunk.len() as u64 + EACH;
            return (Poll::Ready(Some(Ok(chunk))), true);
        }
        match &self.end {
            Some(Ok(())) => return (Poll::Ready(None), false),
            Some(Err(error)) => return (Poll::Ready(Some(Err(error.clone()))), false),
            None => {}
        }
        let behind = &self.sides[1 - side];
        let is_ahead = !behind.gone && behind.bytes >= shared.window;
        let Some(source) = &mut self.source else {
            return (Poll::Ready(None), false);
        };
        let context = &mut Context::from_waker(&shared.arrivals);
        let next = match is_ahead {
            true => source.poll_over(context).map(|error| Some(Err(error))),
            false => source.poll_chunk(context),
        };
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
            self.bytes += chunk.len() as u64 + EACH;
            let mut chunk = chunk.clone();
            if self.chunks.len() >= AHEAD {
                detach(&mut chunk);
            }
            self.chunks.push_back(chunk);
        }
    }
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Half({})", self.side)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Two chunks and a little.
    const WINDOW: u64 = 2 * (4 + EACH) + 1;

    /// A body of so many chunks of four bytes, which counts those that were asked for.
    fn counted(chunks: usize) -> (Arc<AtomicUsize>, Body) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let next = move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            (number < chunks).then(|| Ok::<_, String>(vec![number as u8; 4].into()))
        };
        (asked, Body::from_stream(Chunks(next)))
    }

    struct Chunks<F>(F);

    impl<F: FnMut() -> Option<Result<Bytes, String>> + Unpin> futures_core::Stream for Chunks<F> {
        type Item = Result<Bytes, String>;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            Poll::Ready((self.0)())
        }
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(body: &mut Body, woken: &Arc<Woken>) -> Option<Option<u8>> {
        let waker = Waker::from(Arc::clone(woken));
        match body.poll_chunk(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(next) => Some(next.map(|chunk| chunk.expect("no error")[0])),
        }
    }

    #[test]
    fn the_faster_reader_waits_for_the_slower_one() {
        let (asked, body) = counted(5);
        let (mut fast, mut slow) = split(body, WINDOW);
        let woken = [Arc::default(), Arc::default()];
        for number in 0..3 {
            assert_eq!(read(&mut fast, &woken[0]), Some(Some(number)));
        }
        assert_eq!(read(&mut fast, &woken[0]), None, "three chunks ahead");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        assert_eq!(read(&mut slow, &woken[1]), Some(Some(0)));
        assert_eq!(woken[0].0.load(Ordering::Relaxed), 1);
        assert_eq!(read(&mut fast, &woken[0]), Some(Some(3)));
        for number in 1..5 {
            assert_eq!(read(&mut slow, &woken[1]), Some(Some(number)));
        }
        assert_eq!(read(&mut slow, &woken[1]), Some(None));
        assert_eq!(read(&mut fast, &woken[0]), Some(Some(4)));
        assert_eq!(read(&mut fast, &woken[0]), Some(None));
    }

    #[test]
    fn one_that_is_gone_is_not_waited_for() {
        let (asked, body) = counted(9);
        let (mut stays, goes) = split(body, WINDOW);
        let woken = Arc::default();
        for number in 0..3 {
            assert_eq!(read(&mut stays, &woken), Some(Some(number)));
        }
        assert_eq!(read(&mut stays, &woken), None);
        drop(goes);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        for number in 3..9 {
            assert_eq!(read(&mut stays, &woken), Some(Some(number)));
        }
        drop(stays);
        assert_eq!(Arc::strong_count(&asked), 1, "the body is gone, too");
    }

    #[test]
    fn without_a_window_they_read_in_turn() {
        let (_, body) = counted(3);
        let (mut one, mut other) = split(body, 0);
        let woken = Arc::default();
        for number in 0..3 {
            assert_eq!(read(&mut one, &woken), Some(Some(number)));
            assert_eq!(read(&mut other, &woken), Some(Some(number)));
        }
    }

    /// Who asked last may go away: the other one is woken all the same.
    #[test]
    fn what_arrives_wakes_both() {
        let (sender, chunks) = tokio::sync::mpsc::unbounded_channel::<u8>();
        struct Piped(tokio::sync::mpsc::UnboundedReceiver<u8>);
        impl futures_core::Stream for Piped {
            type Item = Result<Bytes, String>;
            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<Option<Self::Item>> {
                let next = self.0.poll_recv(cx);
                next.map(|next| next.map(|byte| Ok(vec![byte].into())))
            }
        }
        let (mut one, mut other) = split(Body::from_stream(Piped(chunks)), WINDOW);
        let woken = [Arc::default(), Arc::default()];
        assert_eq!(read(&mut one, &woken[0]), None);
        assert_eq!(read(&mut other, &woken[1]), None);
        sender.send(7).expect("it is read");
        for woken in &woken {
            assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        }
        drop(other);
        assert_eq!(read(&mut one, &woken[0]), Some(Some(7)));
    }
}
