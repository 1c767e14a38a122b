//! What is done when an endpoint's lock is free: waking, running handlers, dialling, writing.
//!
//! Effects are gathered on the thread that has entered an endpoint, and done in the order of their causes when it has left the
//! lock. What they set off, here or at other endpoints of this process, comes behind them. Handlers run when the rest is done.
//! Bytes are written at the end, a connection at a time: so what handlers send leaves together.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use tokio::sync::oneshot;
use wallaby_proto::call::watch::Loss;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{Closed, ConnId, Placed, SocketId, StuckHandler};
use wallaby_proto::{Address, CallId, NodeId, Status};

use super::port::Port;
use super::shared::{Inner, locked};
use super::stream::Stream;
use crate::call::{CallEnd, CallWatch, Outcome};
use crate::error::ConnectError;
use crate::handling::{Handling, Job};
use crate::intercept::{Around, Asking};
use crate::log::{self, Trouble};
use crate::panics::contain;

/// Handlers that a thread runs before others of the runtime have their turn. Each that is done makes room for the next, and other
/// threads may go on to bring more: the stream that this thread reads, and all that is to be written, would wait for all of these.
const RUNS: u32 = 64;

/// Something to be done.
pub(crate) enum Effect {
    Wake(Waker),
    /// Interceptors are asked about a request.
    Ask(Arc<Handling>),
    /// A message of a request has got its place: those around it are told.
    Placed(Arc<Handling>, Arc<Around>, Box<Placed>),
    /// A request was stopped, with this status.
    Stop(Arc<Handling>, Box<Status>),
    /// A handler that was stopped goes on for long: somebody should know that, and how many others there were.
    Stuck(Box<StuckHandler>, u64),
    /// A part of a call is lost: somebody should know.
    Lost(Box<Loss>, u64),
    /// A stream is to be opened.
    Dial(Arc<Inner>, ConnId, Address),
    /// A socket is to be opened from which this address is reached.
    Open(Arc<Inner>, SocketId, std::net::SocketAddr),
    /// A stream has ended.
    Close(Arc<Inner>, Arc<Stream>, Box<Closed>),
    /// A dial is given up.
    NotOpened(Arc<Inner>, ConnectError),
    /// A connection that somebody waits for is open, or why it is not.
    Connected(
        oneshot::Sender<Result<(), ConnectError>>,
        Result<(), ConnectError>,
    ),
    /// A call sends a request to this server: somebody wants to read that.
    Sends(CallId, Arc<MethodDefinition>, Address),
    /// A call has ended: somebody wants to read that.
    Ended(CallId, Outcome),
    /// A call has ended: those who wanted to know are told.
    CallEnded(Vec<CallWatch>, Box<CallEnd>),
    /// Something has panicked in an endpoint: what it has besides is closed.
    Panicked(Arc<Inner>),
    /// Something that an operator should know.
    Trouble(NodeId, Trouble),
    /// Somebody's value, whose drop may do anything.
    Drop(Box<dyn Any + Send>),
}

/// Where something is to be written.
enum Writable {
    Stream(Arc<Inner>, Arc<Stream>),
    Port(Arc<Inner>, Arc<Port>),
}

impl Writable {
    fn flush(self) {
        match self {
            Self::Stream(endpoint, stream) => stream.flush(&endpoint),
            Self::Port(endpoint, port) => port.flush(&endpoint),
        }
    }
}

thread_local! {
    static EFFECTS: RefCell<Effects> = const { RefCell::new(Effects::new()) };
    /// How many this thread is inside of, one within the other: the outermost does all of it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Whether there may be something to be done: mostly there is nothing.
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
}

/// For threads that end: what they keep of an endpoint may be dropped when their own effects are gone.
static LAST: Mutex<Effects> = Mutex::new(Effects::new());

/// Effects of a thread.
struct Effects {
    /// Handlers that have run since the outermost has entered.
    ran: u32,
    list: VecDeque<Effect>,
    /// Handlers whose turn has come.
    runs: VecDeque<Job>,
    outputs: VecDeque<Writable>,
}

impl Effects {
    const fn new() -> Self {
        Self {
            ran: 0,
            list: VecDeque::new(),
            runs: VecDeque::new(),
            outputs: VecDeque::new(),
        }
    }
}

/// Does something with the effects of this thread.
fn with<R>(act: impl FnOnce(&mut Effects) -> R) -> R {
    let mut act = Some(act);
    let mut once = |effects: &mut Effects| act.take().map(|act| act(effects));
    match EFFECTS.try_with(|effects| once(&mut effects.borrow_mut())) {
        Ok(result) => result,
        Err(_) => once(&mut locked(&LAST)),
    }
    .expect("it is done in one of two places")
}

/// Adds to what is to be done.
fn add(add: impl FnOnce(&mut Effects)) {
    with(add);
    IS_DUE.set(true);
}

/// To be done as soon as this thread has left the endpoints that it is in.
pub(crate) fn push(effect: Effect) {
    add(|effects| effects.list.push_back(effect));
}

/// The same, before all that this thread has still to do.
pub(crate) fn push_first(effect: Effect) {
    add(|effects| effects.list.push_front(effect));
}

/// A handler's turn has come.
pub(crate) fn run(job: Job) {
    add(|effects| effects.runs.push_back(job));
}

/// Something is to be written to a stream.
pub(super) fn write(endpoint: &Arc<Inner>, stream: &Arc<Stream>) {
    let output = Writable::Stream(Arc::clone(endpoint), Arc::clone(stream));
    add(|effects| effects.outputs.push_back(output));
}

/// Datagrams are to be sent from a socket.
pub(super) fn send(endpoint: &Arc<Inner>, port: &Arc<Port>) {
    let output = Writable::Port(Arc::clone(endpoint), Arc::clone(port));
    add(|effects| effects.outputs.push_back(output));
}

/// Somebody enters: what there is to do is done when the outermost has left.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get();
        if depth > 1 || !IS_DUE.get() {
            return DEPTH.set(depth - 1);
        }
        do_all();
    }
}

/// The outermost stays inside until all is done: what comes meanwhile is done in turn.
#[inline(never)]
fn do_all() {
    let _leave = Leave;
    while do_next() {}
    IS_DUE.set(false);
}

/// Also if something panics.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        with(|effects| effects.ran = 0);
    }
}

/// What is next.
enum NextEffect {
    Effect(Effect),
    Run(Job),
    /// It has a task of its own.
    Later(Job),
    Output(Writable),
}

/// Does what is next; whether there was something. Whatever panics there, the others are not the ones to suffer for it.
fn do_next() -> bool {
    let next = with(|effects| {
        if let Some(effect) = effects.list.pop_front() {
            return Some(NextEffect::Effect(effect));
        }
        if let Some(job) = effects.runs.pop_front() {
            effects.ran += 1;
            return Some(match effects.ran <= RUNS {
                true => NextEffect::Run(job),
                false => NextEffect::Later(job),
            });
        }
        effects.outputs.pop_front().map(NextEffect::Output)
    });
    match next {
        Some(NextEffect::Effect(Effect::Wake(task))) => contain("a waker", || task.wake()),
        Some(NextEffect::Effect(effect)) => contain("a value", || effect.perform()),
        Some(NextEffect::Run(job)) => contain("an endpoint", || job.start()),
        Some(NextEffect::Later(job)) => job.start_later(),
        Some(NextEffect::Output(output)) => contain("an endpoint", || output.flush()),
        None => return false,
    }
    true
}

impl Effect {
    /// Apart, as it takes much of the stack for what is rare.
    #[inline(never)]
    fn perform(self) {
        match self {
            Self::Wake(task) => task.wake(),
            Self::Ask(handling) => Asking::begin(handling),
            Self::Placed(handling, around, placed) => {
                if let Err(panic) = around.tell(&placed) {
                    handling.fail_now(&handling.interceptor_panicked(panic));
                }
            }
            Self::Stop(handling, status) => handling.handle_stopped(&status),
            Self::Stuck(stuck, left_out) => log::stuck(&stuck, left_out),
            Self::Lost(loss, left_out) => log::lost(&loss, left_out),
            Self::Dial(endpoint, conn, to) => endpoint.dial(conn, to),
            Self::Open(endpoint, socket, towards) => endpoint.open_socket(socket, towards),
            Self::NotOpened(endpoint, why) => endpoint.logs.not_opened(endpoint.node, &why),
            Self::Close(endpoint, stream, closed) => {
                (endpoint.logs).closed(endpoint.node, &stream.identity, &closed.why);
                stream.close(&closed.last_words);
            }
            Self::Connected(waits, result) => drop(waits.send(result)),
            Self::Sends(call, method, server) => {
                tracing::debug!(%call, method = method.name().as_ref(), %server, "sends");
            }
            Self::Ended(call, outcome) => tracing::debug!(%call, ?outcome, "ended"),
            Self::CallEnded(watches, end) => CallWatch::tell(&watches, &end),
            Self::Panicked(endpoint) => endpoint.shut_after_panic(),
            Self::Trouble(endpoint, trouble) => trouble.tell(endpoint),
            Self::Drop(value) => drop(value),
        }
    }
}
