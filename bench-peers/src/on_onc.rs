//! ONC RPC by libtirpc, over UDP and over TCP: a server that is one loop (`svc_run`), a client handle for each server,
//! buffers of the default size. The client makes one call at a time; several under way are as many threads, each with a
//! handle of its own, and a call of several servers at once there is none.

use anyhow::{Context, Result, anyhow, bail, ensure};
use std::ffi::{CStr, c_char, c_int};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{IntoRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use std::{process, thread};
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::harness::{Latencies, Traffic};
use wallaby_bench::pattern::{Pattern, Routes, Shape};
use wallaby_bench::plan::{Plan, check};
use wallaby_bench::stack::{self, Stack};
use wallaby_bench::{Transport, take_one};

/// ONC RPC over TCP or UDP.
#[derive(Debug)]
pub(crate) struct Onc;

impl Stack for Onc {
    fn name(&self) -> &'static str {
        "onc"
    }

    fn system(
        &self,
        transport: Transport,
        pattern: Pattern,
        payload: usize,
    ) -> Option<&'static str> {
        let calls = match pattern {
            Pattern::Calls(Shape::Chain { .. }) => 1,
            Pattern::Concurrent { calls } => calls,
            Pattern::Calls(_) | Pattern::Multihop(_) => return None,
        };
        let possible = match transport {
            Transport::Unix | Transport::Shm => false,
            Transport::Tcp => true,
            Transport::Udp => {
                payload <= LARGEST_DATAGRAM && calls * (payload + DATAGRAM_COST) <= SOCKET_BUFFER
            }
        };
        possible.then(|| self.name())
    }

    fn connect(
        &self,
        mut fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn stack::Client>> {
        fleet.connect(None)?;
        let open = |address: &String| Handle::open(config.transport, address.parse()?);
        let servers: Result<_> = fleet.addresses().iter().map(open).collect();
        Ok(Box::new(Caller {
            transport: config.transport,
            servers: servers?,
            more: Vec::new(),
            plan: Plan::new(payload),
            fleet,
        }))
    }

    fn serve(&self, config: &ServerConfig) -> Result<()> {
        let anywhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let (address, fd) = match config.transport {
            Transport::Udp => {
                let socket = UdpSocket::bind(anywhere)?;
                (socket.local_addr()?, socket.into_raw_fd())
            }
            Transport::Tcp | Transport::Unix | Transport::Shm => {
                let listener = TcpListener::bind(anywhere)?;
                (listener.local_addr()?, listener.into_raw_fd())
            }
        };
        let is_stream = c_int::from(config.transport != Transport::Udp);
        thread::spawn(move || {
            // SAFETY: the descriptor is that of a bound socket, and nobody else's any more.
            unsafe { relay_onc_serve(fd, is_stream) };
            eprintln!("a server of ONC RPC ended");
            process::exit(1);
        });
        let mut control = Control;
        control.exchange_addresses(&address.to_string())?;
        control.attend(Traffic::default)
    }
}

struct Caller {
    transport: Transport,
    servers: Vec<Handle>,
    /// Further handles for the first server, of the threads that call it at the same time.
    more: Vec<Handle>,
    plan: Plan,
    fleet: Fleet,
}

impl Caller {
    fn operate(&mut self) -> Result<()> {
        for phase in self.plan.phases() {
            for &server in &phase.to {
                let handle = &mut self.servers[usize::from(server)];
                check(handle.call(phase.payload())?, phase.payload())?;
            }
        }
        Ok(())
    }

    fn keep_under_way(
        &mut self,
        calls: usize,
        operations: u64,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let first = self.fleet.addresses().first().context("no server")?;
        // The server's loop looks at each connection there is, so there are no more than are used. The operations that
        // settle a turn, which nobody counts, are the first to come here.
        self.more.truncate(calls);
        while self.more.len() < calls {
            self.more
                .push(Handle::open(self.transport, first.parse()?)?);
        }
        let payload = self
            .plan
            .phases()
            .first()
            .context("nothing was planned")?
            .payload();
        let left = &AtomicU64::new(operations);
        let call_while_left = |handle: &mut Handle| {
            let mut taken = Vec::new();
            while take_one(left) {
                let start = Instant::now();
                check(handle.call(payload)?, payload)?;
                taken.push(start.elapsed());
            }
            anyhow::Ok(taken)
        };
        let call_while_left = &call_while_left;
        thread::scope(|scope| {
            let start = |handle| scope.spawn(move || call_while_left(handle));
            let threads: Vec<_> = self.more[..calls].iter_mut().map(start).collect();
            for thread in threads {
                let taken = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
                taken
                    .into_iter()
                    .for_each(|latency| latencies.record(latency));
            }
            Ok(())
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

    // The limit is kept by that of each call.
    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        _limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        if let Pattern::Concurrent { calls } = pattern {
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

/// A client handle, used by one thread at a time.
struct Handle {
    client: NonNull<Client>,
    answer: Vec<u8>,
}

// SAFETY: libtirpc ties handles to no thread.
unsafe impl Send for Handle {}

impl Handle {
    fn open(transport: Transport, address: SocketAddrV4) -> Result<Self> {
        let fd: RawFd = match transport {
            Transport::Udp => UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.into_raw_fd(),
            Transport::Tcp | Transport::Unix | Transport::Shm => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.into_raw_fd()
            }
        };
        let is_stream = c_int::from(transport != Transport::Udp);
        // SAFETY: the handle takes over the descriptor.
        let client = unsafe { relay_onc_open(fd, address.port(), is_stream) };
        let client = NonNull::new(client).with_context(|| format!("no client for {address}"))?;
        let answer = Vec::new();
        Ok(Self { client, answer })
    }

    fn call(&mut self, payload: &[u8]) -> Result<&[u8]> {
        self.answer.resize(payload.len(), 0);
        let room = u32::try_from(payload.len())?;
        let mut length = 0;
        // SAFETY: the handle lives and is borrowed by this thread alone; the payload is only read, so many bytes of it;
        // the answer has room for as many.
        let status = unsafe {
            relay_onc_call(
                self.client.as_ptr(),
                payload.as_ptr().cast(),
                room,
                self.answer.as_mut_ptr().cast(),
                room,
                &mut length,
            )
        };
        if status != 0 {
            // SAFETY: libtirpc's texts for errors are constants that end with a zero.
            let text = unsafe { CStr::from_ptr(relay_onc_error(status)) };
            bail!("ONC RPC: {}", text.to_string_lossy());
        }
        ensure!(length <= room, "an answer that is too long");
        Ok(&self.answer[..length as usize])
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { relay_onc_close(self.client.as_ptr()) };
    }
}

/// A client handle in C.
#[repr(C)]
struct Client {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn relay_onc_serve(fd: c_int, is_stream: c_int);
    fn relay_onc_open(fd: c_int, port: u16, is_stream: c_int) -> *mut Client;
    fn relay_onc_call(
        client: *mut Client,
        bytes: *const c_char,
        count: u32,
        answer: *mut c_char,
        room: u32,
        length: *mut u32,
    ) -> c_int;
    fn relay_onc_error(status: c_int) -> *const c_char;
    fn relay_onc_close(client: *mut Client);
}

/// What fits into libtirpc's default datagram with its headers.
const LARGEST_DATAGRAM: usize = 8_000;
/// What the kernel counts for a datagram besides its payload, and how much a socket keeps: more under way would get lost,
/// and libtirpc sends again only after 15 seconds.
const DATAGRAM_COST: usize = 1_024;
const SOCKET_BUFFER: usize = 128 * 1024;
