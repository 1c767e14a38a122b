//! The floor: bare loops on blocking sockets. A request is its length, whom to pass it on to, and its argument; an answer is
//! one byte.

use super::line::{argument, grow, share};
use super::{Caller, Load, Way};
use crate::fleet::{Control, Fleet, ServerConfig, Transport};
use crate::floor::LARGEST_DATAGRAM;
use crate::floor::blocking::spawn;
use crate::harness::{Latencies, Traffic};
use crate::patience::within;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use wallaby_link::DelayLine;

/// Runs a server until its client has gone.
pub(super) fn serve(config: &ServerConfig) -> Result<()> {
    let mut control = Control;
    match config.transport {
        Transport::Udp => {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            control.exchange_addresses(&socket.local_addr()?.to_string())?;
            spawn(move || answer_datagrams(&socket))?;
        }
        Transport::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            control.exchange_addresses(&listener.local_addr()?.to_string())?;
            let outlet = Outlet::new(config.bandwidth)?;
            spawn(move || {
                loop {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    let outlet = outlet.clone();
                    spawn(move || answer_requests(stream, &outlet))?;
                }
            })?;
        }
        other => bail!("there is no such floor over {other}"),
    }
    control.attend(Traffic::default)
}

fn answer_datagrams(socket: &UdpSocket) -> Result<()> {
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        let (_, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&[ANSWER], from)?;
    }
}

fn answer_requests(stream: TcpStream, outlet: &Outlet) -> Result<()> {
    let stream = Arc::new(stream);
    let mut buffer = vec![0; READ];
    let mut next = HashMap::new();
    let mut start = 0;
    let mut end = 0;
    loop {
        // A request's beginning, which mostly arrives together with some of its argument.
        while end - start < HEAD {
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            let count = (&*stream).read(&mut buffer[end..])?;
            if count == 0 {
                return Ok(());
            }
            end += count;
        }
        let head = Head::read(&buffer[start..end]);
        start += HEAD;
        let to = head
            .next()
            .map(|(port, head)| connect(&mut next, port).map(|to| (to, head)));
        let to = to.transpose()?;
        if let Some((to, head)) = &to {
            outlet.send(to, &head.bytes())?;
        }
        let mut left = head.length as usize;
        while left > 0 {
            if start == end {
                (start, end) = (0, (&*stream).read(&mut buffer)?);
                ensure!(end > 0, "a request ended too early");
            }
            let piece = left.min(end - start);
            if let Some((to, _)) = &to {
                outlet.send(to, &buffer[start..start + piece])?;
            }
            (start, left) = (start + piece, left - piece);
        }
        if let Some((to, _)) = &to {
            read_answer(to)?;
        }
        outlet.send(&stream, &[ANSWER])?;
    }
}

fn connect(known: &mut HashMap<u16, Arc<TcpStream>>, port: u16) -> Result<Arc<TcpStream>> {
    if let Some(stream) = known.get(&port) {
        return Ok(Arc::clone(stream));
    }
    let stream = Arc::new(open(port)?);
    known.insert(port, Arc::clone(&stream));
    Ok(stream)
}

fn open(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn read_answer(mut stream: &TcpStream) -> Result<()> {
    let mut answer = [0];
    stream.read_exact(&mut answer).context("no answer")?;
    ensure!(answer == [ANSWER], "an answer that is none");
    Ok(())
}

/// What a request begins with.
struct Head {
    /// Of the argument.
    length: u32,
    /// The ports it is passed on to, in this order; 0 where there are no more.
    ports: [u16; PORTS],
}

impl Head {
    fn read(bytes: &[u8]) -> Self {
        let (length, ports) = bytes[..HEAD].split_at(4);
        let mut head = Self {
            length: u32::from_le_bytes([length[0], length[1], length[2], length[3]]),
            ports: [0; PORTS],
        };
        for (port, bytes) in head.ports.iter_mut().zip(ports.chunks_exact(2)) {
            *port = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        head
    }

    fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        for (bytes, port) in bytes[4..].chunks_exact_mut(2).zip(self.ports) {
            bytes.copy_from_slice(&port.to_le_bytes());
        }
        bytes
    }

    /// The first of the ports, and what it is to get.
    fn next(&self) -> Option<(u16, Self)> {
        let mut ports = self.ports;
        ports.rotate_left(1);
        let port = std::mem::take(&mut ports[PORTS - 1]);
        let length = self.length;
        (port != 0).then_some((port, Self { length, ports }))
    }
}

/// How bytes leave: at once, or over the emulated link of this process.
#[derive(Clone)]
struct Outlet(Option<Arc<DelayLine<Piece>>>);

/// Some bytes on their way.
struct Piece {
    to: Arc<TcpStream>,
    bytes: Bytes,
}

impl Outlet {
    fn new(bandwidth: Option<NonZeroU64>) -> Result<Self> {
        let line = bandwidth.map(|bandwidth| {
            DelayLine::with_bandwidth(Duration::ZERO, bandwidth, |piece: Piece| {
                // Who waits for it notices if it can't be written.
                let _ = { &*piece.to }.write_all(&piece.bytes);
            })
        });
        Ok(Self(line.transpose()?.map(Arc::new)))
    }

    fn send(&self, stream: &Arc<TcpStream>, bytes: &[u8]) -> Result<()> {
        self.send_to_all(std::slice::from_ref(stream), bytes)
    }

    /// Piece by piece to all of them, so that they have it at about the same time.
    fn send_to_all(&self, streams: &[Arc<TcpStream>], bytes: &[u8]) -> Result<()> {
        let Some(line) = &self.0 else {
            for stream in streams {
                { &**stream }.write_all(bytes)?;
            }
            return Ok(());
        };
        for piece in line.pieces(bytes.len()) {
            for stream in streams {
                let (to, size) = (Arc::clone(stream), piece.len());
                let bytes = Bytes::copy_from_slice(&bytes[piece.clone()]);
                let sent = line.send_bytes(Piece { to, bytes }, size);
                ensure!(sent.is_ok(), "the emulated link is full");
            }
        }
        Ok(())
    }
}

/// The client's side.
pub(super) struct Floor {
    fleet: Fleet,
    transport: Transport,
    ports: Vec<u16>,
    outlet: Outlet,
    datagrams: Option<UdpSocket>,
    /// For each caller a connection to each server.
    callers: Vec<Vec<Arc<TcpStream>>>,
}

impl Floor {
    pub(super) fn connect(fleet: Fleet, config: &ServerConfig) -> Result<Self> {
        let port = |address: &String| anyhow::Ok(address.parse::<SocketAddr>()?.port());
        let ports: Vec<u16> = fleet.addresses().iter().map(port).collect::<Result<_>>()?;
        let datagrams = match config.transport {
            Transport::Udp => Some(UdpSocket::bind("127.0.0.1:0")?),
            _ => None,
        };
        Ok(Self {
            fleet,
            transport: config.transport,
            ports,
            outlet: Outlet::new(config.bandwidth)?,
            datagrams,
            callers: Vec::new(),
        })
    }

    fn run_over_datagrams(
        &self,
        socket: &UdpSocket,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let argument = argument(load.bytes);
        let port = *self.ports.first().context("no server")?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (waker, ours) = (socket.try_clone()?, socket.local_addr()?);
        // An empty datagram to oneself; loopback does not lose it while somebody waits for one.
        let alarm = move || drop(waker.send_to(&[], ours));
        within(limit, self.fleet.lost(), alarm, || {
            share(&mut [()], operations, latencies, |()| {
                socket.send_to(&argument, server)?;
                let (length, _) = socket.recv_from(&mut [0; 2])?;
                ensure!(length == 1, "an answer that is none");
                Ok(())
            })
        })
    }
}

impl Caller for Floor {
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        if let Some(socket) = &self.datagrams {
            return self.run_over_datagrams(socket, load, operations, limit, latencies);
        }
        ensure!(self.transport == Transport::Tcp, "a floor over TCP or UDP");
        let ports = &self.ports;
        grow(&mut self.callers, load.callers, || {
            ports
                .iter()
                .map(|port| Ok(Arc::new(open(*port)?)))
                .collect()
        })?;
        let request = request(load, ports)?;
        let servers = match load.way {
            Way::Single | Way::Serial(_) => 1,
            Way::Parallel(degree) | Way::Consecutive(degree) => degree,
        };
        let streams: Vec<_> = self.callers.iter().flatten().cloned().collect();
        let alarm = move || {
            for stream in &streams {
                let _ = stream.shutdown(Shutdown::Both); // it may have ended, which is as good
            }
        };
        let outlet = &self.outlet;
        let callers = &mut self.callers;
        within(limit, self.fleet.lost(), alarm, || {
            share(callers, operations, latencies, |streams| {
                let streams = streams.get(..servers).context("too few servers")?;
                outlet.send_to_all(streams, &request)?;
                streams.iter().try_for_each(|stream| read_answer(stream))
            })
        })
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}

/// The bytes of a request.
fn request(load: &Load, servers: &[u16]) -> Result<Vec<u8>> {
    let mut ports = [0; PORTS];
    if let Way::Serial(degree) = load.way {
        let others = servers.get(1..degree).context("too few servers")?;
        ensure!(others.len() <= PORTS, "too long a chain");
        ports[..others.len()].copy_from_slice(others);
    }
    let length = u32::try_from(load.bytes)?;
    let mut request = Head { length, ports }.bytes().to_vec();
    request.extend_from_slice(&argument(load.bytes));
    Ok(request)
}

const ANSWER: u8 = 1;
/// Servers that a request may be passed on to.
const PORTS: usize = 8;
const HEAD: usize = 4 + 2 * PORTS;
/// How much is read at a time.
const READ: usize = 64 * 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_loses_a_port_at_each_server() {
        let load = Load {
            bytes: 5,
            callers: 1,
            way: Way::Serial(3),
        };
        let bytes = request(&load, &[10, 20, 30, 40]).unwrap();
        assert_eq!(bytes.len(), HEAD + 5);
        let head = Head::read(&bytes);
        assert_eq!(head.length, 5);
        let (port, head) = head.next().unwrap();
        assert_eq!(port, 20);
        let (port, head) = Head::read(&head.bytes()).next().unwrap();
        assert_eq!(port, 30);
        assert!(head.next().is_none());
    }
}
