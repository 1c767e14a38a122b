//! The endpoint behind its lock, and everything that its parts share.
//!
//! Nobody calls the system, runs a handler, wakes a task or drops somebody's value while the lock is held: see
//! [`effects`](super::effects). Payloads and wakers are the exception: what frees the one (`Bytes::from_owner`), or clones the other,
//! must not call the endpoint.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use wallaby_proto::endpoint::{
    CallKey, ConnId, Endpoint as Proto, Lane, Output, RequestKey, SocketId,
};
use wallaby_proto::error::{Breakdown, handler_gone};
use wallaby_proto::{Address, NodeId};

use super::effects::{self, Effect, Inside};
use super::port::Port;
use super::stream::Stream;
use super::streams::Listening;
use super::waiters::{Wait, Waiters};
use crate::builder::Builder;
use crate::call::{CallEnd, CallWatch};
use crate::error::{ConnectError, Failure};
use crate::handling::{Handling, Job, WaitingHandler, Work};
use crate::health::HealthBoard;
use crate::log::{self, Logs, Watcher};
use crate::metrics::Meters;
use crate::pipeline::Store;
use crate::service::Registered;
use crate::timer::{self, Epoch, Instant};
use crate::transport::Identity;

/// A runtime looks at its sockets in the first turn; in the next ones connections read: what came, and that they ended.
const LISTENING_TURNS: u32 = 4;

/// What all parts of an endpoint share.
pub(crate) struct Inner {
    pub(crate) node: NodeId,
    /// Where others reach this endpoint.
    pub(crate) address: Option<Address>,
    /// As it was bound.
    pub(crate) settings: Builder,
    pub(crate) meters: Meters,
    pub(crate) logs: Logs,
    pub(crate) runtime: Handle,
    pub(super) me: Weak<Self>,
    /// What the endpoint's time counts from.
    epoch: Epoch,
    core: Mutex<Core>,
    /// When the endpoint is looked at next, in microseconds; `u64::MAX` if never.
    alarm: AtomicU64,
    /// When the runtime was last seen to drive connections, in microseconds.
    listened: AtomicU64,
    /// What messages that came down lines take until they are whole.
    pub(crate) stored: Store,
    pub(crate) health: HealthBoard,
    pub(crate) listeners: Mutex<Vec<(Arc<Listening>, AbortHandle)>>,
    /// What is dropped with the runtime.
    pub(crate) runtime_watch: Mutex<Option<AbortHandle>>,
}

/// The endpoint, and what its shell knows by the keys that it gives.
pub(crate) struct Core {
    pub(crate) endpoint: Proto,
    pub(crate) waiters: Waiters,
    /// Who waits for connections.
    connecting: HashMap<ConnId, Vec<oneshot::Sender<Result<(), ConnectError>>>>,
    streams: BySlot<ConnId, StreamState>,
    handlings: BySlot<RequestKey, Arc<Handling>>,
    pub(super) ports: Vec<(SocketId, Arc<Port>)>,
    /// Methods in the order in which the endpoint knows them.
    pub(crate) served: Vec<Arc<Registered>>,
    /// Who wants to know how calls end.
    pub(crate) watched: HashMap<CallKey, Vec<CallWatch>>,
    watcher: Watcher,
}

/// A call of several attempts of which none has delivered.
pub(crate) struct Undecided {
    endpoint: Arc<Inner>,
    number: u64,
}

impl Undecided {
    pub(crate) fn new(endpoint: &Arc<Inner>) -> Result<Self, Failure> {
        let number = endpoint.ask(|core| core.endpoint.undertake())?;
        let endpoint = Arc::clone(endpoint);
        Ok(Self { endpoint, number })
    }

    /// These of its attempts may still deliver; without any it pauses.
    pub(crate) fn race(&self, attempts: Vec<CallKey>) {
        (self.endpoint).enter(|core| core.endpoint.race(self.number, attempts));
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        (self.endpoint).enter(|core| core.endpoint.decide(self.number));
    }
}

/// A runtime that does nothing for so long is told of in the log.
const BLOCKED: Duration = Duration::from_secs(1);

/// What is due is looked at when this is dropped: by a task, or by whoever drops that as its runtime has ended. Calls that somebody
/// waits for elsewhere end all the same.
struct Look {
    endpoint: Arc<Inner>,
    /// When the timer's thread said that it was due.
    since: Instant,
}

impl Drop for Look {
    fn drop(&mut self) {
        self.endpoint.note_blocked(self.since.elapsed());
        self.endpoint.look();
    }
}

/// Somebody has the endpoint. When the lock is free again, what is to be done is done.
struct Entered<'a> {
    core: MutexGuard<'a, Core>,
    lock: Watched<'a>,
    inside: Inside,
}

/// Somebody is about to have the endpoint. If he panics then, that is the endpoint's end.
struct Watched<'a>(&'a Inner);

impl Drop for Watched<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.core.is_poisoned() {
            drop(self.0.lock());
        }
    }
}

/// How far a stream is.
pub(super) enum StreamState {
    /// It is being opened; by this task, once that has begun.
    Opening(Option<AbortHandle>),
    Open(Arc<Stream>),
}

/// What the driver has for keys of the endpoint, by the slots in them; what is there for an earlier key of a slot is not found.
struct BySlot<K, V>(Vec<Option<(K, V)>>);

impl<K: Copy + PartialEq, V> BySlot<K, V> {
    fn get(&self, slot: usize, key: K) -> Option<&V> {
        match self.0.get(slot)? {
            Some((known, value)) if *known == key => Some(value),
            _ => None,
        }
    }

    fn put(&mut self, slot: usize, key: K, value: V) -> Option<V> {
        if slot >= self.0.len() {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot].replace((key, value)).map(|before| before.1)
    }

    fn take(&mut self, slot: usize, key: K) -> Option<V> {
        let place = self.0.get_mut(slot)?;
        place
            .take_if(|(known, _)| *known == key)
            .map(|taken| taken.1)
    }

    fn take_all(&mut self) -> impl Iterator<Item = V> + use<K, V> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.flatten().map(|taken| taken.1)
    }
}

impl Inner {
    pub(crate) fn new(endpoint: Proto, settings: Builder, runtime: Handle) -> Arc<Self> {
        let (node, address) = (endpoint.node(), endpoint.address().cloned());
        Arc::new_cyclic(|me| Self {
            node,
            address,
            settings,
            meters: Meters::default(),
            logs: Logs::default(),
            runtime,
            me: me.clone(),
            epoch: Epoch::now(),
            core: Mutex::new(Core {
                endpoint,
                waiters: Waiters::default(),
                connecting: HashMap::new(),
                streams: BySlot(Vec::new()),
                handlings: BySlot(Vec::new()),
                ports: Vec::new(),
                served: Vec::new(),
                watched: HashMap::new(),
                watcher: Watcher::default(),
            }),
            alarm: AtomicU64::new(u64::MAX),
            listened: AtomicU64::new(0),
            stored: Store::default(),
            health: HealthBoard::default(),
            listeners: Mutex::default(),
            runtime_watch: Mutex::default(),
        })
    }

    /// Does something with the endpoint, and what that sets off.
    ///
    /// What is done inside must not call the endpoint again.
    pub(crate) fn enter<R>(self: &Arc<Self>, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut entered = self.get_in();
        let result = act(&mut entered.core);
        self.get_out(entered);
        result
    }

    // Not inlined: a call enters ten times, and each time these would be other lines of code.

    #[inline(never)]
    fn get_in(&self) -> Entered<'_> {
        let inside = Inside::enter();
        let now = self.epoch.elapsed();
        let mut core = self.lock();
        core.endpoint.set_time(now);
        core.endpoint.begin_turn();
        Entered {
            core,
            lock: Watched(self),
            inside,
        }
    }

    #[inline(never)]
    fn get_out(self: &Arc<Self>, entered: Entered<'_>) {
        let _inside = entered.inside;
        let _lock = entered.lock;
        let mut core = entered.core; // goes first, whatever happens
        if core.endpoint.has_output() || core.endpoint.is_draining() || log::warns() {
            core.drain(self);
        }
        let due = core.endpoint.poll_timeout();
        drop(core);
        if let Some(due) = due {
            self.look_by(due);
        }
    }

    /// Only asks the endpoint something.
    pub(crate) fn ask<R>(&self, ask: impl FnOnce(&mut Core) -> R) -> R {
        let _lock = Watched(self);
        let mut core = self.lock(); // goes first, whatever happens
        ask(&mut core)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        loop {
            match self.core.lock() {
                Ok(core) => return core,
                Err(poisoned) => self.end_after_panic(poisoned.into_inner()),
            }
        }
    }

    /// Somebody who had the endpoint has panicked: of what that has left half changed nothing is used any more, and who waits for
    /// something is told.
    #[cold]
    fn end_after_panic(&self, core: MutexGuard<'_, Core>) {
        let _inside = Inside::enter();
        let mut core = core; // goes first
        self.core.clear_poison();
        core.endpoint.handle_panic();
        let connecting = std::mem::take(&mut core.connecting);
        effects::push(Effect::Drop(Box::new(connecting)));
        for task in core.waiters.take_all() {
            effects::push(Effect::Wake(task));
        }
        if let Some(shell) = self.me.upgrade() {
            core.drain(&shell);
            effects::push(Effect::Panicked(shell));
        }
        // The endpoint does not know of these any more.
        for handling in core.handlings.take_all() {
            let status = Breakdown::Panicked.status();
            handling.cancel();
            effects::push(Effect::Stop(handling, Box::new(status)));
        }
    }

    /// How long ago it was made.
    pub(crate) fn up(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The endpoint's time at this moment, and the moment of a time of it.
    pub(crate) fn moment(&self, time: Duration) -> Instant {
        self.epoch.after(time)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.ask(|core| core.endpoint.is_closed())
    }

    // When something is due.

    /// The endpoint is looked at by then.
    fn look_by(&self, due: Duration) {
        let micros = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
        if micros < self.alarm.load(Ordering::Acquire) {
            self.set_alarm(micros);
        }
    }

    #[inline(never)]
    fn set_alarm(&self, micros: u64) {
        if self.alarm.fetch_min(micros, Ordering::AcqRel) > micros {
            // Not before the endpoint's own time, which has nanoseconds.
            let at = self
                .epoch
                .after(Duration::from_micros(micros.saturating_add(1)));
            timer::wake_endpoint(self.me.clone(), at);
        }
    }

    /// The timer's thread says that it is so late. What is due is looked at where connections are driven, so that a runtime that
    /// was blocked has read what arrived meanwhile before silence is judged (docs/protocol.md, rule 20).
    pub(crate) fn alarm(&self, now: Instant) {
        let alarm = self.alarm.load(Ordering::Acquire);
        if alarm == u64::MAX || now < self.epoch.after(Duration::from_micros(alarm)) {
            return; // an earlier alarm took its place
        }
        self.alarm.store(u64::MAX, Ordering::Release);
        if let Some(endpoint) = self.me.upgrade() {
            let look = Look {
                endpoint,
                since: Instant::now(),
            };
            self.runtime.spawn(async move { drop(look) });
        }
    }

    /// What the timer's thread wanted had to wait for so long.
    fn note_blocked(&self, late: Duration) {
        if late < BLOCKED {
            return;
        }
        if let Some(left_out) = self.logs.blocked.pass() {
            tracing::warn!(
                endpoint = %self.node,
                ?late,
                left_out,
                "the runtime was blocked: nothing was read and no handler ran meanwhile; what computes or sleeps without waiting belongs in a blocking handler, or `tokio::task::spawn_blocking`"
            );
        }
    }

    fn look(self: &Arc<Self>) {
        self.note_listening();
        self.enter(|core| core.endpoint.handle_timeout());
    }

    // Whether the runtime listens.

    /// Connections are driven.
    pub(super) fn note_listening(&self) {
        let micros = self.epoch.elapsed().as_micros() as u64;
        self.listened.store(micros, Ordering::Release);
    }

    /// Whether the runtime may have been blocked for so long that peers believe this endpoint dead, and have closed their connections
    /// without its having noticed.
    pub(crate) fn was_away(&self) -> bool {
        let listened = Duration::from_micros(self.listened.load(Ordering::Acquire));
        let unread_for = self.epoch.elapsed().saturating_sub(listened);
        self.settings.config.reads_first(unread_for)
    }

    /// Lets the runtime look at its sockets, and connections take what has arrived meanwhile.
    pub(crate) async fn listen(&self) {
        for _ in 0..LISTENING_TURNS {
            tokio::task::yield_now().await;
        }
        self.note_listening();
    }
}

impl Core {
    /// Hands on what the endpoint wants done.
    fn drain(&mut self, shell: &Arc<Inner>) {
        while let Some(output) = self.endpoint.poll_output() {
            match output {
                Output::Run(key) => self.run(shell, key),
                Output::Call(key) => {
                    self.wake(Wait::Answer(key));
                    if log::debugs() {
                        self.log_end(key);
                    }
                }
                Output::Write(conn) => {
                    if let Some(stream) = self.stream(conn) {
                        effects::write(shell, stream);
                    }
                }
                Output::Datagrams(socket) => {
                    if let Some(port) = self.port(socket) {
                        effects::send(shell, port);
                    }
                }
                output => self.follow(shell, output),
            }
        }
        if log::warns() {
            let now = shell.moment(self.endpoint.time());
            let counted = self.endpoint.counted();
            if let Some(trouble) = self.watcher.look(counted, now) {
                effects::push(Effect::Trouble(shell.node, trouble));
            }
        }
    }

    /// The same for what is rare.
    #[inline(never)]
    fn follow(&mut self, shell: &Arc<Inner>, output: Output) {
        match output {
            Output::Ended(key, end) => {
                if let Some(watches) = self.watched.remove(&key) {
                    let end = CallEnd::new(self.endpoint.call_id(key), &end);
                    // Before those are woken who wait for the call.
                    effects::push_first(Effect::CallEnded(watches, Box::new(end)));
                }
            }
            Output::Settled(key) => self.wake(Wait::Settled(key)),
            Output::Drained => self.wake(Wait::Drained),
            Output::Sent(key) => self.wake(Wait::Sent(key)),
            Output::Stopped(key, status) => {
                self.wake(Wait::Room(key, Lane::Answers));
                self.wake(Wait::Room(key, Lane::Requests));
                self.wake(Wait::Space(key));
                if let Some(handling) = self.handlings.take(key.slot(), key) {
                    handling.cancel();
                    effects::push(Effect::Stop(handling, status));
                }
            }
            Output::Placed(key, placed) => {
                let handling = self.handlings.get(key.slot(), key);
                if let Some(handling) = handling
                    && let Some(around) = handling.around()
                {
                    let handling = Arc::clone(handling);
                    effects::push(Effect::Placed(handling, around, placed));
                }
            }
            Output::Stuck(handler) => {
                if let Some(left_out) = shell.logs.stuck.pass() {
                    effects::push(Effect::Stuck(handler, left_out));
                }
            }
            Output::Lost(loss, left_out) => effects::push(Effect::Lost(loss, left_out)),
            Output::Room(key, lane) => self.wake(Wait::Room(key, lane)),
            Output::Space(key) => self.wake(Wait::Space(key)),
            Output::Body(body) => self.wake(Wait::Read(body)),
            Output::BodyRoom(body) => self.wake(Wait::Write(body)),
            Output::Connected(conn, result) => {
                let result = result.map_err(|error| *error);
                for waits in self.connecting.remove(&conn).into_iter().flatten() {
                    effects::push(Effect::Connected(waits, result.clone()));
                }
            }
            Output::Dial(conn, to) => {
                self.put_stream(conn, StreamState::Opening(None));
                effects::push(Effect::Dial(Arc::clone(shell), conn, *to));
            }
            Output::Socket(socket, towards) => {
                effects::push(Effect::Open(Arc::clone(shell), socket, towards));
            }
            Output::Close(conn, closed) => match self.streams.take(conn.slot(), conn) {
                Some(StreamState::Open(stream)) => {
                    effects::push(Effect::Close(Arc::clone(shell), stream, closed));
                }
                Some(StreamState::Opening(task)) => {
                    if let Some(task) = task {
                        task.abort();
                    }
                    effects::push(Effect::NotOpened(Arc::clone(shell), closed.why));
                }
                None => {}
            },
            Output::Run(_) | Output::Call(_) | Output::Write(_) | Output::Datagrams(_) => {}
        }
    }

    #[cold]
    #[inline(never)]
    fn log_end(&self, key: CallKey) {
        if let Some(ended) = self.endpoint.outcome(key) {
            let id = self.endpoint.call_id(key);
            effects::push(Effect::Ended(id, ended.clone()));
        }
    }

    /// Whoever waits for this is woken when the lock is free.
    fn wake(&mut self, what: Wait) {
        self.waiters
            .take(what)
            .for_each(|task| effects::push(Effect::Wake(task)));
    }

    /// A task waits for this.
    pub(crate) fn wait(&mut self, what: Wait, task: &Waker) {
        if let Some(before) = self.waiters.wait(what, task) {
            effects::push(Effect::Drop(Box::new(before)));
        }
    }

    /// Nobody waits for this any more.
    pub(crate) fn stop_waiting(&mut self, what: Wait) {
        for task in self.waiters.take(what) {
            effects::push(Effect::Drop(Box::new(task)));
        }
    }

    // Requests.

    /// A request's turn has come.
    fn run(&mut self, shell: &Arc<Inner>, key: RequestKey) {
        if let Some(handling) = self.handlings.get(key.slot(), key) {
            let handling = Arc::clone(handling);
            return Job::go_on(handling, self).map_or((), effects::run);
        }
        let Ok(incoming) = self.endpoint.take_request(key) else {
            return;
        };
        let Some(served) = self.served.get(incoming.method).map(Arc::clone) else {
            return self.endpoint.fail(key, &handler_gone());
        };
        let Some(handling) = Handling::new(shell, self, (key, &served), incoming.body) else {
            return;
        };
        if served.interceptors.is_empty() {
            effects::run(Job {
                handling: Arc::clone(&handling),
                work: Work::Handle(Arc::clone(&served.handler)),
                payload: incoming.payload,
                place: self.endpoint.keep_permit(key),
            });
        } else {
            let job = WaitingHandler::new(incoming.method, served, incoming.payload, None);
            handling.reroute(job);
            effects::push(Effect::Ask(Arc::clone(&handling)));
        }
        if let Some(before) = self.handlings.put(key.slot(), key, handling) {
            effects::push(Effect::Drop(Box::new(before)));
        }
    }

    /// A request has ended.
    pub(crate) fn forget_request(&mut self, key: RequestKey) {
        if let Some(handling) = self.handlings.take(key.slot(), key) {
            effects::push(Effect::Drop(Box::new(handling)));
        }
    }

    // Connections.

    /// Whoever waits for a connection is told what becomes of it.
    pub(crate) fn connect(
        &mut self,
        server: &Address,
    ) -> Result<Option<oneshot::Receiver<Result<(), ConnectError>>>, ConnectError> {
        let Some(conn) = self.endpoint.connect(server)? else {
            return Ok(None);
        };
        let (waits, told) = oneshot::channel();
        let others = self.connecting.entry(conn).or_default();
        // Those that have given up in the meantime; not each time, as many may wait.
        if others.len().is_power_of_two() {
            others.retain(|waits| !waits.is_closed());
        }
        others.push(waits);
        Ok(Some(told))
    }

    /// Who has brought what comes over a connection, as far as that is proven.
    pub(crate) fn identity(&self, conn: ConnId) -> Arc<Identity> {
        static NOBODY: LazyLock<Arc<Identity>> = LazyLock::new(Arc::default);
        let stream = self.stream(conn);
        stream.map_or_else(
            || Arc::clone(&NOBODY),
            |stream| Arc::clone(&stream.identity),
        )
    }

    pub(super) fn stream(&self, conn: ConnId) -> Option<&Arc<Stream>> {
        match self.streams.get(conn.slot(), conn)? {
            StreamState::Open(stream) => Some(stream),
            StreamState::Opening(_) => None,
        }
    }

    pub(super) fn put_stream(&mut self, conn: ConnId, stream: StreamState) {
        if let Some(before) = self.streams.put(conn.slot(), conn, stream) {
            effects::push(Effect::Drop(Box::new(before)));
        }
    }

    /// This task opens a stream; whether that is still to be opened.
    pub(super) fn opens(&mut self, conn: ConnId, task: AbortHandle) -> bool {
        let is_opening = self.is_opening(conn);
        if is_opening {
            self.put_stream(conn, StreamState::Opening(Some(task)));
        }
        is_opening
    }

    /// Whether a stream is still to be opened.
    pub(super) fn is_opening(&self, conn: ConnId) -> bool {
        let stream = self.streams.get(conn.slot(), conn);
        matches!(stream, Some(StreamState::Opening(_)))
    }

    pub(super) fn port(&self, socket: SocketId) -> Option<&Arc<Port>> {
        let port = self.ports.iter().find(|port| port.0 == socket)?;
        Some(&port.1)
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("node", &self.node).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio::sync::mpsc;

    use crate::error::{Breakdown, CallError, Failure};
    use crate::method::{Method, One};
    use crate::{Address, Client, Endpoint, Request, Service};

    static WAIT: Method<(String,), One<String>> = Method::new("test.Work/wait");

    /// A server whose handlers wait, and say when they begin and when they are dropped; a client, and a call that waits there.
    async fn waiting() -> (Endpoint, Endpoint, mpsc::UnboundedReceiver<&'static str>) {
        let (tells, told) = mpsc::unbounded_channel();
        let handler = move |request: Request<One<String>>, (_,): (String,)| {
            let tells = tells.clone();
            async move {
                let _ = tells.send("begins");
                let _dropped = Dropped(tells);
                std::future::pending::<()>().await;
                drop(request);
                Ok(())
            }
        };
        let service = Service::new("test").method(&WAIT, handler);
        let server = Endpoint::builder().serve(service);
        let server = server.listen("tcp://127.0.0.1:0").bind().await;
        let client = Endpoint::builder().bind().await;
        (server.expect("free"), client.expect("no address"), told)
    }

    struct Dropped(mpsc::UnboundedSender<&'static str>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send("is dropped");
        }
    }

    fn address(of: &Endpoint) -> Address {
        of.address().cloned().expect("it listens")
    }

    fn panic_in(endpoint: &Endpoint) {
        let inside = || endpoint.inner().enter(|_| panic!("a bug"));
        catch_unwind(AssertUnwindSafe(inside)).expect_err("it panics");
    }

    fn failure(ended: Result<String, CallError>) -> Failure {
        match ended {
            Err(CallError::Failed(failure)) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn calls_of_an_endpoint_in_which_something_has_panicked_fail_and_say_so() {
        let (server, client, mut told) = waiting().await;
        let calls = Client::new(&client, address(&server));
        let call = calls.call(&WAIT, ("a".into(),));
        assert_eq!(told.recv().await, Some("begins"));
        let waits = tokio::spawn(call.into_future());
        tokio::task::yield_now().await; // it waits
        panic_in(&client);
        let ended = waits.await.expect("no panic");
        assert_eq!(failure(ended), Failure::BrokenDown(Breakdown::Panicked));
        let later = calls.call(&WAIT, ("b".into(),)).await;
        assert_eq!(failure(later), Failure::BrokenDown(Breakdown::Panicked));
        assert_eq!(
            client.drain(std::time::Duration::from_secs(60)).await,
            Ok(())
        );
        while server.metrics().connections_ended == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn handlers_of_an_endpoint_in_which_something_has_panicked_are_dropped() {
        let (server, client, mut told) = waiting().await;
        let address = address(&server);
        let call = Client::new(&client, address.clone()).call(&WAIT, ("a".into(),));
        assert_eq!(told.recv().await, Some("begins"));
        panic_in(&server);
        assert_eq!(told.recv().await, Some("is dropped"));
        assert!(server.load().is_idle());
        let lost = failure(call.await);
        assert!(matches!(lost, Failure::Lost(_)), "{lost}");
        // It listens no more.
        let again = Endpoint::builder()
            .listen(&address.to_string())
            .bind()
            .await;
        again.expect("the address is free");
    }

    /// What was to be told of a handler when something panicked is told all the same.
    #[tokio::test]
    async fn handlers_that_were_stopped_in_the_moment_of_a_panic_are_dropped() {
        let (server, client, mut told) = waiting().await;
        let call = Client::new(&client, address(&server)).call(&WAIT, ("a".into(),));
        assert_eq!(told.recv().await, Some("begins"));
        let inside = || {
            server.inner().enter(|core| {
                core.endpoint.hang_up();
                panic!("a bug")
            })
        };
        catch_unwind(AssertUnwindSafe(inside)).expect_err("it panics");
        assert_eq!(told.try_recv(), Ok("is dropped"));
        drop(call);
    }
}
