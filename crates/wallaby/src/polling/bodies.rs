//! Bodies: those that come with requests are read while they arrive, those behind calls and delegations are written while there is
//! room.
//!
//! The application holds a body as a [`Body`], whatever drives its endpoint. Here it is the end of a [`Pipe`], into which the
//! endpoint puts what has come of a body that is read. A body that is written is asked for its bytes whenever there is room for
//! them. Nobody waits: who has read, written or dropped something leaves a note, and the next turn looks at it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_core::Stream;
use wallaby_proto::Code;
use wallaby_proto::endpoint::{BodyNext, Endpoint as Core, InBody, OutBody, RequestKey};

use crate::body::{self, Body, BodyError, WrittenBody};

/// So many bytes of a body at most are in a pipe, or one chunk that is longer.
const AHEAD: usize = 64 * 1024;

/// A body that the application writes by a [`BodyWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyKey(u64);

impl fmt::Display for BodyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes a body piece by piece; made by [`super::Endpoint::body_writer`]. What it writes is read as fast as whoever the body is
/// sent to takes it.
///
/// If it is dropped before it has [ended](Self::end) the body, that breaks: its reader gets an error.
pub struct BodyWriter {
    key: BodyKey,
    pipe: Arc<Pipe>,
    ended: bool,
}

/// Why nothing is written.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// There is no room now: [`super::Event::BodyRoom`] tells when there is.
    #[error("there is no room for more of the body now")]
    Full,
    /// Nobody wants more of it: its reader has dropped it, its call or its connection has ended, or it was ended here.
    #[error("nobody wants more of the body")]
    Stopped,
}

impl WriteError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Full => Code::ResourceExhausted,
            Self::Stopped => Code::Cancelled,
        }
    }
}

impl BodyWriter {
    /// Which body it is.
    pub fn key(&self) -> BodyKey {
        self.key
    }

    /// Writes as much as there is room for, which is taken off `chunk`: at most 64 KiB wait to be read.
    ///
    /// # Errors
    ///
    /// If nothing of it was written.
    pub fn write(&mut self, chunk: &mut Bytes) -> Result<(), WriteError> {
        let mut state = self.pipe.lock();
        if state.dropped || state.end.is_some() {
            return Err(WriteError::Stopped);
        }
        let room = AHEAD.saturating_sub(state.held);
        let part = chunk.split_to(room.min(chunk.len()));
        let nothing = part.is_empty() && !chunk.is_empty();
        state.full |= !chunk.is_empty();
        let reader = state.put(part);
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        match nothing {
            true => Err(WriteError::Full),
            false => Ok(()),
        }
    }

    /// Whether more of it is wanted.
    pub fn is_wanted(&self) -> bool {
        let state = self.pipe.lock();
        !state.dropped && state.end.is_none()
    }

    /// The body is whole.
    pub fn end(mut self) {
        self.end_with(Ok(()));
    }

    /// The body cannot go on: its reader gets an error with this text.
    pub fn fail(mut self, why: impl Into<String>) {
        self.end_with(Err(BodyError::Source(why.into())));
    }

    fn end_with(&mut self, end: Result<(), BodyError>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.pipe.end(end);
        }
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        self.end_with(Err(BodyError::Broken("its writer was dropped".into())));
    }
}

impl fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyWriter({})", self.key)
    }
}

/// Bytes on their way between an endpoint and its application.
struct Pipe {
    state: Mutex<PipeState>,
    /// What is noted when there is room again, or nobody reads any more.
    note: Note,
    notes: Arc<Notes>,
}

#[derive(Default)]
struct PipeState {
    chunks: VecDeque<Bytes>,
    held: usize,
    end: Option<Result<(), BodyError>>,
    /// Who has found nothing.
    reader: Option<Waker>,
    /// Somebody has more, and found no room.
    full: bool,
    /// Nobody reads any more.
    dropped: bool,
}

impl PipeState {
    /// More has come; who waits for it.
    fn put(&mut self, chunk: Bytes) -> Option<Waker> {
        if chunk.is_empty() {
            return None;
        }
        self.held += chunk.len();
        self.chunks.push_back(chunk);
        self.reader.take()
    }
}

impl Pipe {
    fn new(note: Note, notes: &Arc<Notes>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            note,
            notes: Arc::clone(notes),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more comes.
    fn end(&self, end: Result<(), BodyError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    fn body(self: &Arc<Self>) -> Body {
        Body::of_chunks(PipeReader(Arc::clone(self)))
    }
}

/// Where a pipe is read.
struct PipeReader(Arc<Pipe>);

impl Stream for PipeReader {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self(pipe) = &*self;
        let mut state = pipe.lock();
        if let Some(chunk) = state.chunks.pop_front() {
            state.held -= chunk.len();
            let has_room = state.held < AHEAD && std::mem::take(&mut state.full);
            drop(state);
            if has_room {
                pipe.notes.leave(pipe.note);
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
        match state.end.clone() {
            Some(end) => Poll::Ready(end.err().map(Err)),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.dropped = true;
        state.chunks = VecDeque::new();
        let is_over = state.end.is_some();
        drop(state);
        if !is_over {
            self.0.notes.leave(self.0.note);
        }
    }
}

/// What an endpoint is to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    /// A body that is read has room for more, or nobody reads it any more.
    Read(InBody),
    /// A body that is sent has more.
    Send(OutBody),
    /// Who writes this one has room, or need not go on.
    Write(BodyKey),
}

/// What was left for the next turn.
#[derive(Debug, Default)]
struct Notes {
    any: AtomicBool,
    notes: Mutex<Vec<Note>>,
}

impl Notes {
    fn leave(&self, note: Note) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            notes.push(note);
        }
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<Note> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *notes)
    }
}

/// Leaves a note when what a body is made of has more.
struct Sender {
    body: OutBody,
    notes: Arc<Notes>,
}

impl Wake for Sender {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notes.leave(Note::Send(self.body));
    }
}

/// A body that is sent.
struct Leaving {
    body: WrittenBody,
    waker: Waker,
}

/// What an application is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyNews {
    /// More has come of what follows this request.
    Came(RequestKey),
    Room(BodyKey),
}

/// Bodies of an endpoint.
#[derive(Default)]
pub(super) struct Bodies {
    notes: Arc<Notes>,
    /// What follows the request whose handler runs, until that takes it.
    untaken: Option<InBody>,
    arriving: BTreeMap<InBody, (RequestKey, Arc<Pipe>)>,
    leaving: BTreeMap<OutBody, Leaving>,
    writers: u64,
}

impl Bodies {
    /// Whether something is to be looked at.
    #[inline]
    pub(super) fn have_notes(&self) -> bool {
        self.notes.any.load(Ordering::Acquire)
    }

    /// A handler is to run, and this follows its request.
    pub(super) fn offer(&mut self, body: Option<InBody>) {
        self.untaken = body;
    }

    /// The handler has run; what it has not taken.
    pub(super) fn withdraw(&mut self) -> Option<InBody> {
        self.untaken.take()
    }

    /// What follows this request, whose handler runs.
    pub(super) fn take(&mut self, core: &mut Core, request: RequestKey) -> Option<Body> {
        let body = self.untaken.take()?;
        let pipe = Pipe::new(Note::Read(body), &self.notes);
        let taken = pipe.body();
        self.arriving.insert(body, (request, pipe));
        self.read(core, body); // what came with the request is there at once
        Some(taken)
    }

    /// One that the application writes.
    pub(super) fn writer(&mut self) -> (BodyWriter, Body) {
        self.writers += 1;
        let key = BodyKey(self.writers);
        let pipe = Pipe::new(Note::Write(key), &self.notes);
        let body = pipe.body();
        let ended = false;
        (BodyWriter { key, pipe, ended }, body)
    }

    /// This is to be sent.
    pub(super) fn send(&mut self, core: &mut Core, out: OutBody, body: Body) {
        let sender = Sender {
            body: out,
            notes: Arc::clone(&self.notes),
        };
        let leaving = Leaving {
            body: WrittenBody::new(out, body),
            waker: Waker::from(Arc::new(sender)),
        };
        self.leaving.insert(out, leaving);
        self.write(core, out);
    }

    /// Looks at what there are notes of; what the application is told.
    pub(super) fn attend(&mut self, core: &mut Core) -> Vec<BodyNews> {
        let notes = self.notes.take().into_iter();
        let news = notes.filter_map(|note| match note {
            Note::Read(body) => self.read(core, body),
            Note::Send(body) => {
                self.write(core, body);
                None
            }
            Note::Write(key) => Some(BodyNews::Room(key)),
        });
        news.collect()
    }

    /// Puts what has come of a body where it is read; whether somebody is told of that.
    pub(super) fn read(&mut self, core: &mut Core, body: InBody) -> Option<BodyNews> {
        let (request, pipe) = self.arriving.get(&body)?;
        let request = *request;
        let mut state = pipe.lock();
        let is_given_up = core.is_given_up(body);
        if is_given_up {
            (state.chunks, state.held) = (VecDeque::new(), 0);
        }
        let mut is_over = state.dropped;
        while !is_over && (state.held < AHEAD || is_given_up) {
            match core.read_body(body) {
                BodyNext::Chunk(chunk) => {
                    state.held += chunk.len();
                    state.chunks.push_back(chunk);
                }
                BodyNext::Pending => break,
                BodyNext::End(end) => {
                    state.end.get_or_insert(end.map_err(BodyError::from));
                    is_over = true;
                }
            }
        }
        state.full = !is_over && state.held >= AHEAD;
        let is_dropped = state.dropped;
        let more = !state.chunks.is_empty() || state.end.is_some();
        let reader = state.reader.take_if(|_| more);
        drop(state);
        if is_over {
            self.arriving.remove(&body);
        }
        if is_dropped {
            core.drop_body(body);
        }
        let reader = reader?;
        if body::is_asker(&reader) {
            return Some(BodyNews::Came(request));
        }
        reader.wake();
        None
    }

    /// Writes what is accepted of a body that is sent.
    pub(super) fn write(&mut self, core: &mut Core, out: OutBody) {
        let Some(Leaving { body, waker }) = self.leaving.get_mut(&out) else {
            return;
        };
        let sent = body.poll(&mut Context::from_waker(waker), |act| act(core));
        if sent.is_ready() {
            self.leaving.remove(&out);
        }
    }

    /// The endpoint is gone: nothing more comes.
    pub(super) fn close(&mut self) {
        for (_, pipe) in std::mem::take(&mut self.arriving).into_values() {
            let why = "its endpoint was closed".to_owned();
            pipe.end(Err(BodyError::Lost(why)));
        }
        self.leaving.clear();
    }
}

wallaby_proto::debug_as_text!(WriteError);
