//! What is peculiar to UDP: loss, duplicates, disorder, and how many datagrams calls cost.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::common::{Net, at, client, failure, heap, patience, service, status, until, work};
use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use wallaby::{Address, CallError, Code, Endpoint, Failure, One, Request, SendError, Service};

/// What a proxy does to datagrams, per mille.
#[derive(Clone, Copy, Default)]
struct Faults {
    dropped: u64,
    duplicated: u64,
    /// Kept until the next one has passed.
    overtaken: u64,
}

/// Stands between an endpoint and all who send to it.
struct Proxy {
    address: Address,
    target: OnceLock<SocketAddr>,
    faults: Faults,
    random: Mutex<u64>,
    /// Datagrams that came, on their way to the endpoint and back.
    passed: [AtomicU64; 2],
    /// Faults that happened.
    happened: AtomicU64,
    /// Nothing passes.
    cut: AtomicBool,
    /// Milliseconds that each datagram takes on its way to the endpoint, behind the one before.
    slow: AtomicU64,
}

impl Proxy {
    async fn new(faults: Faults, seed: u64) -> Arc<Self> {
        let front = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Arc::new(Self {
            address: Address::Udp(front.local_addr().expect("it is bound")),
            target: OnceLock::new(),
            faults,
            random: Mutex::new(seed | 1),
            passed: Default::default(),
            happened: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            slow: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&proxy).run(Arc::new(front)));
        proxy
    }

    async fn run(self: Arc<Self>, front: Arc<UdpSocket>) {
        let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let (mut buffer, mut kept) = (vec![0; 65_536], None);
        while let Ok((len, from)) = front.recv_from(&mut buffer).await {
            let target = *self.target.get().expect("set before anything is sent");
            let back = match backs.entry(from) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let back = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
                    let back = new.insert(Arc::new(back));
                    let (proxy, front) = (Arc::clone(&self), Arc::clone(&front));
                    tokio::spawn(proxy.run_back(Arc::clone(back), front, from));
                    back
                }
            };
            for datagram in self.pass(0, &buffer[..len], &mut kept) {
                let slow = self.slow.load(Ordering::SeqCst);
                if slow > 0 {
                    tokio::time::sleep(Duration::from_millis(slow)).await;
                }
                let _ = back.send_to(&datagram, target).await;
            }
        }
    }

    async fn run_back(
        self: Arc<Self>,
        back: Arc<UdpSocket>,
        front: Arc<UdpSocket>,
        to: SocketAddr,
    ) {
        let (mut buffer, mut kept) = (vec![0; 65_536], None);
        while let Ok((len, _)) = back.recv_from(&mut buffer).await {
            for datagram in self.pass(1, &buffer[..len], &mut kept) {
                let _ = front.send_to(&datagram, to).await;
            }
        }
    }

    /// What of a datagram leaves the proxy, and when.
    fn pass(&self, way: usize, datagram: &[u8], kept: &mut Option<Vec<u8>>) -> Vec<Vec<u8>> {
        self.passed[way].fetch_add(1, Ordering::SeqCst);
        if self.cut.load(Ordering::SeqCst) || self.happens(self.faults.dropped) {
            return Vec::new();
        }
        let datagram = datagram.to_vec();
        if kept.is_none() && self.happens(self.faults.overtaken) {
            *kept = Some(datagram);
            return Vec::new();
        }
        let mut leaving = vec![datagram.clone()];
        if self.happens(self.faults.duplicated) {
            leaving.push(datagram);
        }
        leaving.extend(kept.take());
        leaving
    }

    fn happens(&self, per_mille: u64) -> bool {
        let mut random = self.random.lock().expect("not poisoned");
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let happens = *random % 1000 < per_mille;
        self.happened
            .fetch_add(u64::from(happens), Ordering::SeqCst);
        happens
    }

    fn passed(&self) -> [u64; 2] {
        [0, 1].map(|way| self.passed[way].load(Ordering::SeqCst))
    }
}

/// Endpoints listen at real addresses that only their proxies know.
async fn behind(proxy: &Arc<Proxy>, service: Service, real: SocketAddr) -> Endpoint {
    let endpoint = Endpoint::builder()
        .listen(&format!("udp://{real}"))
        .advertise(proxy.address.clone())
        .serve(service)
        .bind()
        .await
        .expect("the address is free");
    proxy.target.get_or_init(|| real);
    endpoint
}

/// An address where nobody listens now.
fn free() -> SocketAddr {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("it is bound")
}

/// How often each request was executed, by server and number.
type Executed = Arc<Mutex<HashMap<(usize, u32), u32>>>;

/// Counts, and sends on what has hops left.
fn counting(server: usize, next: Option<Address>, executed: Executed) -> Service {
    service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let (next, executed) = (next.clone(), Arc::clone(&executed));
            async move {
                let (number, hops) = what.split_once(' ').expect("two numbers");
                let (number, hops): (u32, usize) =
                    (number.parse().expect("one"), hops.parse().expect("one"));
                *executed
                    .lock()
                    .expect("not poisoned")
                    .entry((server, number))
                    .or_default() += 1;
                match next {
                    Some(next) if hops > 1 => {
                        let onward = work::one(format!("{number} {}", hops - 1));
                        Ok(request.forward(next, onward).await?)
                    }
                    _ => Ok(request.respond(format!("{number} from {server}")).await?),
                }
            }
        },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_with_faults_loses_no_call_and_repeats_none() {
    patience(async {
        let seed = std::env::var("WALLABY_SEED").map_or_else(
            |_| u64::from(std::process::id()) << 20 | 0x5eed,
            |seed| seed.parse().expect("a number"),
        );
        println!("WALLABY_SEED={seed}");
        let faults = Faults {
            dropped: 50,
            duplicated: 50,
            overtaken: 50,
        };
        let executed = Executed::default();
        let (mut servers, mut proxies, mut next) = (Vec::new(), Vec::new(), None);
        for server in (0..4).rev() {
            let proxy = Proxy::new(faults, seed + server as u64).await;
            let service = counting(server, next.take(), Arc::clone(&executed));
            servers.push(behind(&proxy, service, free()).await);
            next = Some(proxy.address.clone());
            proxies.push(proxy);
        }
        let root = next.expect("the first server");
        let route_back = Proxy::new(faults, seed + 9).await;
        let initiator = behind(&route_back, service(), free()).await;

        let begun = Instant::now();
        let mut calls = JoinSet::new();
        for number in 0..1000_u32 {
            let hops = [1, 2, 4][number as usize % 3];
            let call = work::at(&initiator, &root).one(format!("{number} {hops}"));
            calls.spawn(async move { (number, hops, call.await) });
            if calls.len() == 32 {
                let (number, hops, answer) =
                    calls.join_next().await.expect("32").expect("no panic");
                check(number, hops, answer);
            }
        }
        for (number, hops, answer) in calls.join_all().await {
            check(number, hops, answer);
        }
        proxies.push(route_back);
        let happened = |proxy: &Arc<Proxy>| proxy.happened.load(Ordering::SeqCst);
        let faults: u64 = proxies.iter().map(happened).sum();
        println!("1,000 calls with {faults} faults in {:?}", begun.elapsed());
        assert!(faults > 100, "only {faults} faults");

        let executed = executed.lock().expect("not poisoned");
        for number in 0..1000_u32 {
            let hops = [1, 2, 4][number as usize % 3];
            for server in 0..4 {
                let times = executed.get(&(server, number)).copied().unwrap_or(0);
                assert_eq!(times, u32::from(server < hops), "{number} at {server}");
            }
        }
    })
    .await;
}

/// The call with this number, which had so many hops, got this answer.
fn check(number: u32, hops: usize, answer: Result<String, CallError>) {
    let answer = answer.unwrap_or_else(|error| panic!("call {number}: {error}"));
    assert_eq!(answer, format!("{number} from {}", hops - 1));
}

/// Who dialled is reached over the same session: acknowledgements ride on what goes the other way.
#[tokio::test]
async fn two_servers_that_call_each_other_share_a_session() {
    patience(async {
        let net = Net::udp();
        let servers = [
            net.serve(counting(0, None, Executed::default())).await,
            net.serve(counting(1, None, Executed::default())).await,
        ];
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            let call = work::at(&servers[from], at(&servers[to])).one("1 1".into());
            assert_eq!(call.await.expect("it is answered"), format!("1 from {to}"));
        }
        for server in &servers {
            assert_eq!(server.metrics().connections_opened, 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_costs_a_datagram() {
    patience(async {
        const CALLS: u64 = 300;
        let proxy = Proxy::new(Faults::default(), 1).await;
        let server = behind(&proxy, counting(0, None, Executed::default()), free()).await;
        let client = client();
        let work = work::at(&client, &proxy.address);
        for number in 0..3 {
            work.one(format!("{number} 1")).await.expect("an answer");
        }
        let before = proxy.passed();
        for number in 0..CALLS {
            work.one(format!("{number} 1")).await.expect("an answer");
        }
        let after = proxy.passed();
        for way in [0, 1] {
            let cost = after[way] - before[way];
            // Credit goes along with messages. Only where the machine paused for long, an acknowledgement went alone.
            assert!(
                (CALLS..=CALLS + CALLS / 10).contains(&cost),
                "{cost} datagrams for {CALLS} messages, way {way}"
            );
        }
        assert_eq!(server.metrics().requests_received, CALLS + 3);
    })
    .await;
}

/// Callers that get their answers together, and at once make their next calls, share datagrams.
#[tokio::test]
async fn messages_of_many_callers_share_datagrams() {
    patience(async {
        const CALLERS: u64 = 64;
        const ROUNDS: u64 = 20;
        let proxy = Proxy::new(Faults::default(), 1).await;
        let server = behind(&proxy, counting(0, None, Executed::default()), free()).await;
        let client = client();
        let work = work::at(&client, &proxy.address);
        work.one("0 1".into()).await.expect("an answer");
        let before = proxy.passed();
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS as u32 {
            let work = work.clone();
            callers.spawn(async move {
                for _ in 0..ROUNDS {
                    work.one(format!("{caller} 1")).await.expect("an answer");
                }
            });
        }
        callers.join_all().await;
        let after = proxy.passed();
        for way in [0, 1] {
            let cost = after[way] - before[way];
            // The first round, in which nobody has waited yet, costs a datagram a call.
            let limit = CALLERS + CALLERS * (ROUNDS - 1) / 2;
            assert!(
                cost <= limit,
                "{cost} datagrams, way {way}, at most {limit}"
            );
        }
        drop(server);
    })
    .await;
}

/// After such a pause a peer is asked whether it is still there before it gets a request.
const PAUSE: Duration = Duration::from_millis(150);

/// The server dies without a word, and another life takes its address.
async fn restart(proxy: &Arc<Proxy>, server: &mut Endpoint, service: Service, real: SocketAddr) {
    proxy.cut.store(true, Ordering::SeqCst);
    let before = proxy.passed()[1];
    server.close();
    until(|| proxy.passed()[1] > before).await; // it would have said goodbye
    let former = server.node();
    *server = behind(proxy, service, real).await;
    proxy.cut.store(false, Ordering::SeqCst);
    assert_ne!(former, server.node());
}

/// Calls and delegations that come after a pause go to the new life; none of them is lost with the old one.
#[tokio::test]
async fn the_first_call_after_a_restart_gets_its_answer() {
    patience(async {
        let (proxy, real) = (Proxy::new(Faults::default(), 1).await, free());
        let serve = || counting(1, None, Executed::default());
        let mut last = behind(&proxy, serve(), real).await;
        let net = Net::udp();
        let next = Some(proxy.address.clone());
        let cautious = || Endpoint::builder().confirm_after(PAUSE / 2);
        let first = cautious().serve(counting(0, next, Executed::default()));
        let first = net.bind(first).await;
        let client = cautious().bind().await.expect("an endpoint");
        let (near, far) = (work::at(&client, at(&first)), &proxy.address);
        for number in 0..4 {
            let answer = near.one(format!("{number} 2")).await;
            assert_eq!(answer.expect("an answer"), format!("{number} from 1"));
            let answer = work::at(&client, far).one(format!("{number} 1")).await;
            assert_eq!(answer.expect("an answer"), format!("{number} from 1"));
            assert_eq!(last.metrics().requests_received, 2);
            tokio::time::sleep(PAUSE).await;
            restart(&proxy, &mut last, serve(), real).await;
        }
    })
    .await;
}

/// The old session may be used once more if its peer was heard just before; its end is told long before anybody would
/// count as silent.
#[tokio::test]
async fn a_restart_at_the_same_address_is_noticed() {
    patience(async {
        let (proxy, real) = (Proxy::new(Faults::default(), 1).await, free());
        let serve = || counting(0, None, Executed::default());
        let mut server = behind(&proxy, serve(), real).await;
        let client = client();
        let work = work::at(&client, &proxy.address);
        work.one("1 1".into()).await.expect("an answer");
        restart(&proxy, &mut server, serve(), real).await;

        let begun = Instant::now();
        match work.one("2 1".into()).await {
            Ok(answer) => assert_eq!(answer, "2 from 0", "the restart took long"),
            lost => {
                let lost = failure(lost);
                assert!(matches!(lost, Failure::Lost(_)), "{lost}");
                assert!(begun.elapsed().as_secs() < 4, "{:?}", begun.elapsed());
                assert_eq!(server.metrics().requests_received, 0);
            }
        }
        let answer = work.one("3 1".into()).await;
        assert_eq!(answer.expect("an answer"), "3 from 0");
        until(|| client.metrics().connections_ended >= 1).await;
    })
    .await;
}

/// Not above, not below: messages of every size up to the longest travel both ways, and longer ones say what would help.
#[tokio::test]
async fn messages_have_up_to_64_kib() {
    patience(async {
        let net = Net::udp();
        let echo = service().method(
            &heap::ONE,
            |request: Request<One<_>, _>, (what,): (Bytes,)| async move {
                if what == "more" {
                    let sent = request.respond(Bytes::from(vec![7; 65_537])).await;
                    let limit = match &sent {
                        Err(SendError::TooLarge { limit, .. }) => *limit,
                        _ => 0,
                    };
                    assert_eq!(limit, 65_536, "{sent:?}");
                    return Ok(sent?);
                }
                Ok(request.respond(what).await?)
            },
        );
        let server = net.serve(echo).await;
        let client = client();
        let heap = heap::at(&client, at(&server));
        for size in [0, 1, 1_000, 1_200, 1_201, 9_000, 65_535, 65_536] {
            let sent = Bytes::from_iter((0..size).map(|byte| byte as u8));
            assert_eq!(heap.one(sent.clone()).await.expect("an answer"), sent);
        }
        let refused = failure(heap.one(Bytes::from(vec![0; 65_537])).await);
        assert!(matches!(refused, Failure::TooLarge { limit: 65_536, .. }));
        let text = refused.to_string();
        assert!(text.contains("tcp:") && text.contains("unix:"), "{text}");
        let refused = status(heap.one("more".into()).await);
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let text = refused.to_string();
        assert!(text.contains("tcp:") && text.contains("unix:"), "{text}");
    })
    .await;
}

/// Who does not listen is not reached, even by one who finds the socket that it dials from.
/// As long as its datagrams leave, are sent again and are acknowledged, no server can know the request.
#[tokio::test]
async fn a_request_that_is_long_on_its_way_is_no_failure() {
    let proxy = Proxy::new(Faults::default(), 1).await;
    let echo = service().method(
        &heap::ONE,
        |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
    );
    let _server = behind(&proxy, echo, free()).await;
    let client = Endpoint::builder().ping(Duration::from_millis(100), Duration::from_secs(1));
    let client = client.bind().await.expect("there is a runtime");
    proxy.slow.store(40, Ordering::SeqCst);
    let begun = Instant::now();
    let payload = Bytes::from(vec![7; 60_000]);
    let answer = heap::at(&client, proxy.address.clone()).one(payload.clone());
    assert!(answer.await.expect("an answer") == payload);
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(1500), "else nothing was slow");
}

#[tokio::test]
async fn who_does_not_listen_takes_no_sessions() {
    patience(async {
        let spy = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let silent = client();
        let nobody = Address::Udp(spy.local_addr().expect("it is bound"));
        let reached = silent.connect(nobody);
        let mut buffer = [0; 2048];
        spy.set_nonblocking(true).expect("it can");
        let spy = UdpSocket::from_std(spy).expect("a runtime");
        let found = tokio::select! {
            _ = reached => panic!("nobody answers there"),
            found = spy.recv_from(&mut buffer) => found.expect("an ask").1,
        };
        let curious = client();
        let call = work::at(&curious, Address::Udp(found)).one("1 1".into());
        failure(call.await);
        assert_eq!(silent.metrics().connections_opened, 0);
    })
    .await;
}

/// An endpoint that nobody talks to costs nothing: its thread goes to sleep.
#[test]
fn an_idle_endpoint_sleeps() {
    let bound = Arc::new(AtomicBool::new(false));
    let (sleeps, slept) = std::sync::mpsc::channel();
    let seen = Arc::clone(&bound);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .on_thread_park(move || {
            if seen.load(Ordering::SeqCst) {
                let _ = sleeps.send(());
            }
        })
        .build()
        .expect("a runtime");
    std::thread::spawn(move || {
        runtime.block_on(async {
            let bind = Endpoint::builder().listen("udp://127.0.0.1:0").bind();
            let _endpoint = bind.await.expect("binds");
            for _ in 0..10 {
                tokio::task::yield_now().await; // its tasks begin
            }
            bound.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        });
    });
    let patience = std::time::Duration::from_secs(30);
    slept.recv_timeout(patience).expect("it sleeps");
}
