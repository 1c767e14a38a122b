//! A network of datagrams from outside, by the public trait alone: addresses that the system does not have, and losses.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{at, patience, service, sorted, until, work};
use wallaby::transport::{DatagramNetwork, DatagramSocket};
use wallaby::{Address, ConnectError, Endpoint, Many, Request, Service};

/// Datagrams that wait in a socket.
const ROOM: usize = 64;

/// One in so many is lost.
const LOST: u64 = 7;

#[derive(Default)]
struct Network(Arc<Mutex<Wires>>);

#[derive(Debug, Default)]
struct Wires {
    mailboxes: HashMap<SocketAddr, Mailbox>,
    sent: u64,
    bound: u16,
}

#[derive(Debug, Default)]
struct Mailbox {
    datagrams: VecDeque<(Vec<u8>, SocketAddr)>,
    unreachable: VecDeque<SocketAddr>,
    reader: Option<Waker>,
    writers: Vec<Waker>,
    /// Nothing can be received, and so often was that tried.
    broken: bool,
    tries: u32,
}

#[derive(Debug)]
struct Socket {
    wires: Arc<Mutex<Wires>>,
    local: SocketAddr,
}

impl DatagramNetwork for Network {
    fn bind(&self, at: SocketAddr) -> io::Result<Box<dyn DatagramSocket>> {
        let mut wires = self.0.lock().expect("no panic");
        wires.bound += 1;
        let ip = match at.ip().is_unspecified() {
            true => IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200)),
            false => at.ip(),
        };
        let port = if at.port() == 0 {
            wires.bound
        } else {
            at.port()
        };
        let local = SocketAddr::new(ip, port);
        if wires.mailboxes.contains_key(&local) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        wires.mailboxes.insert(local, Mailbox::default());
        let wires = Arc::clone(&self.0);
        Ok(Box::new(Socket { wires, local }))
    }
}

impl Socket {
    fn own<R>(&self, with: impl FnOnce(&mut Mailbox) -> R) -> R {
        let mut wires = self.wires.lock().expect("no panic");
        with(wires.mailboxes.get_mut(&self.local).expect("it is bound"))
    }
}

impl DatagramSocket for Socket {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.own(|own| {
            if own.broken {
                own.tries += 1;
                return Poll::Ready(Err(io::Error::other("the network is down")));
            }
            let Some((datagram, from)) = own.datagrams.pop_front() else {
                own.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            own.writers.drain(..).for_each(Waker::wake);
            buffer[..datagram.len()].copy_from_slice(&datagram);
            Poll::Ready(Ok((datagram.len(), from)))
        })
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        let mut wires = self.wires.lock().expect("no panic");
        wires.sent += 1;
        if wires.sent.is_multiple_of(LOST) {
            return Ok(());
        }
        let Some(there) = wires.mailboxes.get_mut(&to) else {
            let own = wires.mailboxes.get_mut(&self.local).expect("it is bound");
            own.unreachable.push_back(to);
            return Ok(());
        };
        if there.datagrams.len() == ROOM {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        there.datagrams.push_back((datagram.to_vec(), self.local));
        there.reader.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whoever is full has a reader, which will soon have made room.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wires = self.wires.lock().expect("no panic");
        let mut full = (wires.mailboxes.values_mut()).filter(|other| other.datagrams.len() == ROOM);
        match full.next() {
            None => Poll::Ready(Ok(())),
            Some(full) => {
                full.writers.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn take_unreachable(&self) -> Option<SocketAddr> {
        self.own(|own| own.unreachable.pop_front())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Ok(mut wires) = self.wires.lock() {
            wires.mailboxes.remove(&self.local);
        }
    }
}

/// Answers, and hands on to the server named.
fn hops() -> Service {
    service().method(
        &work::MANY,
        |request: Request<Many<_>>, (next,): (String,)| async move {
            request.reply(format!("before {next}")).await?;
            if !next.is_empty() {
                let next: Address = next.parse().expect("an address");
                request.forward(next, work::many(String::new())).await?;
            }
            Ok(())
        },
    )
}

#[tokio::test]
async fn calls_pass_a_network_that_the_system_does_not_know() {
    let network: Arc<Network> = Arc::default();
    let builder = || Endpoint::builder().datagrams(Arc::clone(&network) as _);
    let serve = |number| {
        let builder = builder().listen(&format!("udp://203.0.113.{number}:7000"));
        async { builder.serve(hops()).bind().await.expect("it is free") }
    };
    let (first, second) = (serve(1).await, serve(2).await);
    let client = builder().bind().await.expect("there is a runtime");
    for _ in 0..100 {
        let mut call = work::at(&client, at(&first)).many(at(&second).to_string());
        let (answers, statuses) = patience(sorted(&mut call)).await;
        let expected = ["before ".to_owned(), format!("before {}", at(&second))];
        assert_eq!((answers, statuses), (expected.to_vec(), vec![]));
    }
    let taken = builder().listen("udp://203.0.113.1:7000").bind().await;
    assert!(taken.is_err(), "somebody has the address");
    first.close();
    let again = builder().listen("udp://203.0.113.1:7000").bind().await;
    assert!(again.is_ok(), "it is free again");

    let nobody = "udp://203.0.113.99:7000"
        .parse::<Address>()
        .expect("an address");
    let error = patience(client.connect(nobody))
        .await
        .expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
}

/// A socket of which nothing can be received is not asked all the time, and is of use again once something can.
#[tokio::test]
async fn a_socket_that_fails_does_not_keep_its_endpoint_busy() {
    const PAUSE: Duration = Duration::from_millis(20);
    patience(async {
        let network: Arc<Network> = Arc::default();
        let builder = || Endpoint::builder().datagrams(Arc::clone(&network) as _);
        let server = builder().listen("udp://203.0.113.1:7000").serve(hops());
        let server = server.bind().await.expect("it is free");
        let client = builder().bind().await.expect("there is a runtime");
        let work = work::at(&client, at(&server));
        let (answers, _) = sorted(&mut work.many(String::new())).await;
        assert_eq!(answers, ["before "]);

        let own = |with: &dyn Fn(&mut Mailbox) -> u32| {
            let mut wires = network.0.lock().expect("no panic");
            let address = SocketAddr::from(([203, 0, 113, 1], 7000));
            with(wires.mailboxes.get_mut(&address).expect("it is bound"))
        };
        let since = Instant::now();
        own(&|own| {
            own.broken = true;
            own.reader.take().into_iter().for_each(Waker::wake);
            0
        });
        let mut call = work.many(String::new());
        until(|| own(&|own| own.tries) >= 26).await;
        let time = since.elapsed();
        assert!(time >= 4 * PAUSE, "26 tries in {time:?}");
        own(&|own| {
            own.broken = false;
            0
        });
        let (answers, _) = sorted(&mut call).await;
        assert_eq!(answers, ["before "]);
    })
    .await;
}
