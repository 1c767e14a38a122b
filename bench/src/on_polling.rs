//! The patterns by Wallaby's polling driver: one thread a process, which turns its endpoint and waits in its socket,
//! or for its sockets.

use crate::fleet::{Control, Fleet, ServerConfig, Transport};
use crate::harness::{Latencies, Traffic};
use crate::on_wallaby::{PASS, SPREAD, TAKE, addresses, next, step};
use crate::pattern::{Form, Pattern, Routes, Shape};
use crate::plan::{CLIENT, Plan, check, is_line};
use crate::stack;
use crate::throughput::MOST_BYTES;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, panic};
use wallaby::polling::{
    Builder, CallKey, CallOptions, Datagrams, Endpoint, Event, Limits, Udp, Wait,
};
use wallaby::{Address, Code, Status};

/// How long a turn waits at most: then it is looked whether the other side is gone.
pub(crate) const LOOK: Wait = Wait::For(Duration::from_millis(200));

/// A socket whose datagrams leave after the emulated delay of a link, in order.
pub(crate) struct Delayed {
    socket: Udp,
    link: Duration,
    waiting: VecDeque<(Duration, SocketAddr, Vec<u8>)>,
}

/// How an endpoint waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// As it does by itself: over UDP in its receive, otherwise by an epoll.
    Own,
    /// Over UDP by an epoll, since it listens elsewhere as well.
    Epoll,
    /// Not at all: it is turned again and again.
    Busy,
}

impl Waiting {
    fn wait(self) -> Wait {
        match self {
            Self::Own | Self::Epoll => LOOK,
            Self::Busy => Wait::Not,
        }
    }
}

impl Delayed {
    pub(crate) fn bind(link: Duration, waiting: Waiting) -> Result<Endpoint<Self>> {
        let delayed = Self {
            socket: Udp::bind(([127, 0, 0, 1], 0).into())?,
            link,
            waiting: VecDeque::new(),
        };
        let builder = builder();
        let builder = match waiting {
            Waiting::Own | Waiting::Busy => builder,
            Waiting::Epoll => builder.listen("tcp://127.0.0.1:0"),
        };
        Ok(builder.bind_to(delayed)?)
    }

    /// Sends what is due; how long until the next is.
    fn send_due(&mut self) -> Option<Duration> {
        while let Some((due, to, datagram)) = self.waiting.front() {
            let left = due.saturating_sub(self.socket.now());
            if !left.is_zero() {
                return Some(left);
            }
            let _ = self.socket.send(datagram, *to); // if there is no room, it is lost, as in networks
            self.waiting.pop_front();
        }
        None
    }
}

impl Datagrams for Delayed {
    fn now(&self) -> Duration {
        self.socket.now()
    }

    fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    fn send(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.link.is_zero() {
            return self.socket.send(datagram, to);
        }
        let due = self.now() + self.link;
        self.waiting.push_back((due, to, datagram.to_vec()));
        Ok(())
    }

    fn gather(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.link.is_zero() {
            return self.socket.gather(datagram, to);
        }
        self.send(datagram, to)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }

    fn receive(&mut self, wait: Duration, full: bool) -> io::Result<usize> {
        if self.link.is_zero() {
            return self.socket.receive(wait, full);
        }
        let next = self.send_due().unwrap_or(wait);
        let received = self.socket.receive(wait.min(next), full)?;
        self.send_due();
        Ok(received)
    }

    fn batch(&self) -> usize {
        self.socket.batch()
    }

    fn received(&self, index: usize) -> Option<(&[u8], SocketAddr)> {
        self.socket.received(index)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    fn take_unreachable(&mut self) -> Option<SocketAddr> {
        self.socket.take_unreachable()
    }
}

/// As many messages may wait as benchmarks ever have under way: the other driver waits by itself, this one refuses.
fn builder() -> Builder {
    let mut limits = Limits::default();
    limits.waiting = 2 * MOST_BYTES;
    Endpoint::builder().limits(limits)
}

/// An endpoint on a stream transport; a client's has its own place in the folder.
fn bind_stream(config: &ServerConfig, who: &str) -> Result<Endpoint> {
    let address = match config.transport {
        Transport::Tcp => "tcp://127.0.0.1:0".to_owned(),
        transport @ (Transport::Unix | Transport::Shm) => {
            let path = config.folder.join(format!("{}-{who}", config.stack));
            format!("{transport}://{}", path.display())
        }
        Transport::Udp => bail!("there are no streams over udp"),
    };
    Ok(builder().bind(&address)?)
}

/// Runs a server until its client has gone.
pub(crate) fn serve(config: &ServerConfig, waiting: Waiting) -> Result<()> {
    match config.transport {
        Transport::Udp => turn(Delayed::bind(config.link, waiting)?, waiting.wait()),
        _ => turn(
            bind_stream(config, &config.index.to_string())?,
            waiting.wait(),
        ),
    }
}

fn turn<D: Datagrams>(mut endpoint: Endpoint<D>, wait: Wait) -> Result<()> {
    let directory: Arc<OnceLock<Vec<Address>>> = Arc::default();
    let known = Arc::clone(&directory);
    endpoint.serve(&PASS, move |request, (message,)| {
        match next(message)? {
            (message, CLIENT) => request.respond(&message)?,
            (message, server) => {
                request.forward(locate(&known, server)?.clone(), PASS.target((message,)))?
            }
        }
        Ok(())
    })?;
    let known = Arc::clone(&directory);
    endpoint.serve(&SPREAD, move |mut request, (message,)| {
        let (mut message, targets) = step(message)?;
        for (place, &server) in targets.as_slice().iter().enumerate() {
            targets.address(place, &mut message);
            let message = Bytes::copy_from_slice(&message);
            if server == CLIENT {
                request.reply(&message)?;
            } else if is_line(&message) {
                let target = PASS.target((message,));
                request.delegate(locate(&known, server)?.clone(), target)?;
            } else {
                let target = SPREAD.target((message,));
                request.delegate(locate(&known, server)?.clone(), target)?;
            }
        }
        Ok(())
    })?;
    endpoint.serve(&TAKE, |request, (message,)| {
        drop(message);
        request.respond(&Bytes::new())?;
        Ok(())
    })?;
    // Instructions are read on a thread of their own.
    let over = Arc::new(AtomicBool::new(false));
    let (address, ends) = (endpoint.address(), Arc::clone(&over));
    let control = thread::Builder::new().name("bench-control".into());
    let control = control.spawn(move || {
        let attended = attend(&address, &directory);
        ends.store(true, Ordering::Relaxed);
        attended
    })?;
    while !over.load(Ordering::Relaxed) {
        endpoint.turn(wait)?;
        while endpoint.next_event().is_some() {}
    }
    control
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn attend(address: &Address, directory: &OnceLock<Vec<Address>>) -> Result<()> {
    let mut control = Control;
    let peers = control.exchange_addresses(&address.to_string())?;
    if directory.set(addresses(&peers.servers)?).is_err() {
        bail!("was told the addresses twice");
    }
    control.attend(Traffic::default)
}

fn locate(directory: &OnceLock<Vec<Address>>, server: u8) -> Result<&Address, Status> {
    let all = directory.get();
    let address = all.and_then(|addresses| addresses.get(usize::from(server)));
    address.ok_or_else(|| Status::new(Code::NotFound, format!("there is no server {server}")))
}

/// Connects a client.
pub(crate) fn connect(
    fleet: Fleet,
    config: &ServerConfig,
    payload: usize,
    waiting: Waiting,
) -> Result<Box<dyn stack::Client>> {
    Ok(match config.transport {
        Transport::Udp => {
            let endpoint = Delayed::bind(config.link, waiting)?;
            Box::new(Caller::connect(fleet, endpoint, payload, waiting.wait())?)
        }
        _ => {
            let endpoint = bind_stream(config, "client")?;
            Box::new(Caller::connect(fleet, endpoint, payload, waiting.wait())?)
        }
    })
}

/// The client's side.
struct Caller<D: Datagrams> {
    fleet: Fleet,
    endpoint: Endpoint<D>,
    servers: Vec<Address>,
    plan: Plan,
    operation: u64,
    options: CallOptions,
    wait: Wait,
}

impl<D: Datagrams> Caller<D> {
    fn connect(
        mut fleet: Fleet,
        endpoint: Endpoint<D>,
        payload: usize,
        wait: Wait,
    ) -> Result<Self> {
        fleet.connect(None)?;
        Ok(Self {
            endpoint,
            servers: addresses(fleet.addresses())?,
            fleet,
            plan: Plan::new(payload),
            operation: 0,
            options: CallOptions::default(),
            wait,
        })
    }

    fn call(&mut self, server: u8, message: &Bytes) -> Result<CallKey> {
        let server = self.server(server)?;
        let method = PASS.definition();
        Ok(self
            .endpoint
            .call_raw(server, method, message.clone(), &self.options)?)
    }

    fn server(&self, server: u8) -> Result<Address> {
        let server = self.servers.get(usize::from(server));
        server.context("there is no such server").cloned()
    }

    /// The next thing that happens, before `end`.
    fn event(&mut self, end: Instant) -> Result<Event> {
        loop {
            if let Some(event) = self.endpoint.next_event() {
                return Ok(event);
            }
            ensure!(Instant::now() < end, "no answer came in time");
            self.endpoint.turn(self.wait)?;
        }
    }

    /// The operation that was planned.
    fn operate(&mut self, pattern: Pattern, end: Instant) -> Result<()> {
        match pattern.form() {
            Form::Multihop => self.call_all(end),
            Form::Calls => self.call_each(end),
        }
    }

    /// One call with all that was planned.
    fn call_all(&mut self, end: Instant) -> Result<()> {
        let phase = self.plan.phases().first().context("nothing was planned")?;
        let (to, mut answers) = (phase.to.len(), phase.from.len());
        let call = self.endpoint.begin(&self.options)?;
        for place in 0..to {
            let phase = &self.plan.phases()[0];
            let message = Bytes::copy_from_slice(phase.payload_to(place));
            let server = self.server(phase.to[place])?;
            let method = match is_line(&message) {
                true => PASS.definition(),
                false => SPREAD.definition(),
            };
            self.endpoint.send(call, server, method, message)?;
        }
        self.endpoint.close_call(call);
        loop {
            match self.event(end)? {
                Event::Answer(answer) => {
                    check(&answer.payload()?, self.plan.phases()[0].payload())?;
                    answers = answers
                        .checked_sub(1)
                        .context("more answers came than were to")?;
                }
                Event::Complete { .. } => break,
                other => bail!("a call ended by {other:?}"),
            }
        }
        ensure!(answers == 0, "{answers} answers did not come");
        Ok(())
    }

    /// A call for each request of the tree, made as soon as the answer above it is there.
    fn call_each(&mut self, end: Instant) -> Result<()> {
        let phase = self.plan.phases().first().context("nothing was planned")?;
        let message = Bytes::copy_from_slice(phase.payload());
        let mut next: Vec<usize> = self.plan.tree().roots().collect();
        let mut under_way: Vec<(CallKey, usize)> = Vec::with_capacity(self.plan.route().len());
        loop {
            for request in next.drain(..) {
                let server = self.plan.route()[request];
                under_way.push((self.call(server, &message)?, request));
            }
            if under_way.is_empty() {
                return Ok(());
            }
            match self.event(end)? {
                Event::Answer(answer) => check(&answer.payload()?, &message)?,
                Event::Complete { call, .. } => {
                    let known = under_way.iter().position(|(key, _)| *key == call);
                    let (_, request) =
                        under_way.swap_remove(known.context("an unknown call ended")?);
                    next.extend(&self.plan.tree().nodes()[request].children);
                }
                other => bail!("a call ended by {other:?}"),
            }
        }
    }

    /// The planned call over and over, so many at a time.
    fn keep_under_way(
        &mut self,
        calls: usize,
        operations: u64,
        end: Instant,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let phase = self.plan.phases().first().context("nothing was planned")?;
        let message = Bytes::copy_from_slice(phase.payload());
        let server = *phase.to.first().context("nobody to call")?;
        let mut under_way = HashMap::with_capacity(calls);
        let (mut left, mut done) = (operations, 0);
        while done < operations {
            while left > 0 && under_way.len() < calls {
                let start = Instant::now();
                let call = self.call(server, &message)?;
                under_way.insert(call, start);
                left -= 1;
            }
            match self.event(end)? {
                Event::Answer(answer) => check(&answer.payload()?, &message)?,
                Event::Complete { call, .. } => {
                    let start = under_way.remove(&call).context("an unknown call ended")?;
                    latencies.record(start.elapsed());
                    done += 1;
                }
                other => bail!("a call ended by {other:?}"),
            }
        }
        Ok(())
    }
}

impl<D: Datagrams> stack::Client for Caller<D> {
    fn warm_up(&mut self) -> Result<()> {
        let (pool, end) = (
            self.servers.len() as u8,
            Instant::now() + Duration::from_secs(60),
        );
        for (first, second) in
            (0..pool).flat_map(|first| (0..pool).map(move |second| (first, second)))
        {
            let route = if first == second {
                &[first][..]
            } else {
                &[first, second]
            };
            let pattern = Pattern::Multihop(Shape::Chain {
                servers: route.len(),
            });
            self.operation += 1;
            self.plan.lay(pattern, route, self.operation);
            self.operate(pattern, end)?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        if let Pattern::Concurrent { calls } = pattern {
            self.operation += 1;
            self.plan.draw(pattern, routes, self.operation);
            return self.keep_under_way(calls, operations, end, latencies);
        }
        for _ in 0..operations {
            self.operation += 1;
            self.plan.draw(pattern, routes, self.operation);
            let start = Instant::now();
            self.operate(pattern, end)?;
            latencies.record(start.elapsed());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}
