//! Thrift in C++: a threaded server with buffered transports and the binary protocol, as in its tutorial, but for larger
//! buffers. The client sends requests without waiting for the answers to former ones, which come in order over the same
//! connection.

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::{CStr, c_char, c_int};
use std::net::TcpStream;
use std::os::fd::IntoRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::time::{Duration, Instant};
use std::{process, slice, thread};
use wallaby_bench::Transport;
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::harness::{Latencies, Traffic};
use wallaby_bench::pattern::{Pattern, Routes, Shape};
use wallaby_bench::plan::{Plan, check};
use wallaby_bench::stack::{self, Stack};

/// Thrift over TCP.
#[derive(Debug)]
pub(crate) struct Thrift;

impl Stack for Thrift {
    fn name(&self) -> &'static str {
        "thrift"
    }

    fn system(&self, transport: Transport, pattern: Pattern, _: usize) -> Option<&'static str> {
        crate::calls_over_tcp(transport, pattern).then(|| self.name())
    }

    fn connect(
        &self,
        mut fleet: Fleet,
        _: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn stack::Client>> {
        fleet.connect(None)?;
        let servers = fleet.addresses().iter().map(|address| open(address));
        Ok(Box::new(Caller {
            servers: servers.collect::<Result<_>>()?,
            plan: Plan::new(payload),
            fleet,
        }))
    }

    fn serve(&self, _: &ServerConfig) -> Result<()> {
        let port = start_server()?;
        let mut control = Control;
        control.exchange_addresses(&format!("127.0.0.1:{port}"))?;
        control.attend(Traffic::default)
    }
}

/// Serves from threads of Thrift's own; the port. If that fails later on, the process ends.
fn start_server() -> Result<u16> {
    let (ports, port) = channel();
    let set = LISTENING.set(ports);
    set.map_err(|_| anyhow!("a second server in one process"))?;
    thread::spawn(|| {
        // SAFETY: the function that is handed over is there as long as the program.
        let failure = failure(unsafe { relay_thrift_serve(listening) });
        let failure = failure.err().unwrap_or_else(|| anyhow!("it ended"));
        eprintln!("a server failed: {failure}");
        process::exit(1);
    });
    port.recv().context("the server does not listen")
}

/// Who wants to know where this process's server listens.
static LISTENING: OnceLock<Sender<u16>> = OnceLock::new();

extern "C" fn listening(port: u16) {
    if let Some(ports) = LISTENING.get() {
        let _ = ports.send(port); // who asked is gone only when the process ends
    }
}

struct Caller {
    servers: Vec<(Requests, Answers)>,
    plan: Plan,
    fleet: Fleet,
}

impl Caller {
    fn operate(&mut self) -> Result<()> {
        for phase in self.plan.phases() {
            for &server in &phase.to {
                self.servers[usize::from(server)].0.send(phase.payload())?;
            }
            for &server in &phase.from {
                let answers = &mut self.servers[usize::from(server)].1;
                check(answers.receive()?, phase.payload())?;
            }
        }
        Ok(())
    }

    /// One thread sends and another receives: one alone would send megabytes to a server that waits for somebody to
    /// take its answers.
    fn keep_under_way(
        &mut self,
        calls: usize,
        operations: u64,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let Self { servers, plan, .. } = self;
        let phase = plan.phases().first().context("nothing was planned")?;
        let server = *phase.to.first().context("nobody to call")?;
        let (requests, answers) = &mut servers[usize::from(server)];
        // A place for each call that may be under way, and when those that are have begun.
        let (places, taken) = sync_channel(calls);
        let (starts, started) = channel();
        thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let gone = "nobody receives any more";
                for _ in 0..operations {
                    places.send(()).context(gone)?;
                    starts.send(Instant::now()).context(gone)?;
                    requests.send(phase.payload())?;
                }
                anyhow::Ok(())
            });
            for _ in 0..operations {
                check(answers.receive()?, phase.payload())?;
                let gone = "nobody sends any more";
                latencies.record(started.recv().context(gone)?.elapsed());
                taken.recv().context(gone)?;
            }
            drop(taken);
            drop(started);
            sender
                .join()
                .map_err(|_| anyhow!("the thread that sends panicked"))?
        })
    }
}

impl stack::Client for Caller {
    fn warm_up(&mut self) -> Result<()> {
        let servers = u8::try_from(self.servers.len())?;
        let route: Vec<u8> = (0..servers).collect();
        let every_one = Pattern::Calls(Shape::Chain {
            servers: route.len(),
        });
        self.plan.lay(every_one, &route, 0);
        self.operate()
    }

    // The limit is kept by the time limit of the sockets.
    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        _limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        if let Pattern::Concurrent { calls: calls @ 2.. } = pattern {
            self.plan.draw(pattern, routes, 0);
            return self.keep_under_way(calls, operations, latencies);
        }
        for operation in 0..operations {
            self.plan.draw(pattern, routes, operation);
            let start = Instant::now();
            self.operate()?;
            latencies.record(start.elapsed());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}

/// The half of a connection that sends.
struct Requests(NonNull<Client>);

/// The half that receives. It owns the connection: see [`open`].
struct Answers(NonNull<Client>);

// SAFETY: the halves use protocols, transports and descriptors of their own, and members of the client apart.
unsafe impl Send for Requests {}

impl Requests {
    fn send(&mut self, payload: &[u8]) -> Result<()> {
        // SAFETY: the client lives as long as its other half, which is dropped together with this one; only this half
        // sends; the payload is copied.
        failure(unsafe {
            relay_thrift_send(self.0.as_ptr(), payload.as_ptr().cast(), payload.len())
        })
    }
}

impl Answers {
    fn receive(&mut self) -> Result<&[u8]> {
        let (mut answer, mut length) = (ptr::null(), 0);
        // SAFETY: the client lives, only this half receives, and the places for the answer are there.
        failure(unsafe { relay_thrift_receive(self.0.as_ptr(), &mut answer, &mut length) })?;
        if answer.is_null() {
            bail!("an answer without a place");
        }
        // SAFETY: so many bytes are there until the next answer is received, for which the borrow must have ended.
        Ok(unsafe { slice::from_raw_parts(answer.cast(), length) })
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // SAFETY: nobody uses the client any more.
        unsafe { relay_thrift_close(self.0.as_ptr()) };
    }
}

/// Connects to a server. The halves stay together: as a pair in [`Caller`], whose borrow a thread that sends has.
fn open(address: &str) -> Result<(Requests, Answers)> {
    let stream =
        TcpStream::connect(address).with_context(|| format!("can't connect to {address}"))?;
    stream.set_nodelay(true)?;
    let to_write = stream.try_clone()?.into_raw_fd();
    let mut client = ptr::null_mut();
    // SAFETY: the client takes over both descriptors; the place for it is there.
    failure(unsafe {
        relay_thrift_open(stream.into_raw_fd(), to_write, PATIENCE_MS, &mut client)
    })?;
    let client = NonNull::new(client).context("no client was made")?;
    Ok((Requests(client), Answers(client)))
}

/// What a function says that failed; null: nothing did.
fn failure(text: *const c_char) -> Result<()> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: it ends with a zero and is good until this thread's next call.
    let text = unsafe { CStr::from_ptr(text) };
    bail!("thrift: {}", text.to_string_lossy())
}

/// A client in C++.
#[repr(C)]
struct Client {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn relay_thrift_serve(listening: extern "C" fn(u16)) -> *const c_char;
    fn relay_thrift_open(
        read_fd: c_int,
        write_fd: c_int,
        timeout_ms: c_int,
        client: *mut *mut Client,
    ) -> *const c_char;
    fn relay_thrift_send(
        client: *mut Client,
        payload: *const c_char,
        length: usize,
    ) -> *const c_char;
    fn relay_thrift_receive(
        client: *mut Client,
        answer: *mut *const c_char,
        length: *mut usize,
    ) -> *const c_char;
    fn relay_thrift_close(client: *mut Client);
}

/// A server that is silent for longer is given up.
const PATIENCE_MS: c_int = 30_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_carries_more_than_the_largest_message() {
        let port = start_server().unwrap();
        let (mut requests, mut answers) = open(&format!("127.0.0.1:{port}")).unwrap();
        let payload = vec![7; 32 * 1024];
        for _ in 0..4_000 {
            requests.send(&payload).unwrap();
            assert_eq!(answers.receive().unwrap().len(), payload.len());
        }
    }
}
