//! What settings make of times and counts that nobody means: calls end, by an answer or an error, and nothing panics or spins.
//! Apart from other tests, as each panic ends the process.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use bytes::Bytes;
use wallaby_onc::client::{self, TcpChannel, UdpChannel};
use wallaby_onc::server::{self, Server};
use wallaby_onc::{AcceptError, Channel, Principal, Procedure, Program, Programs, Reason, Refusal};

const TIMES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_millis(3),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

const COUNTS: [usize; 3] = [0, 1, usize::MAX];

/// A call of which nothing becomes ends after this.
const SOON: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
struct Echo;

impl Program for Echo {
    const PROGRAM: u32 = 0x2000_0009;
    const VERSION: u32 = 1;

    async fn handle(&self, _: &Principal, procedure: u32, bytes: Bytes) -> Result<Bytes, Refusal> {
        match procedure {
            1 => Ok(bytes),
            _ => Err(AcceptError::ProcedureUnavailable.into()),
        }
    }
}

fn programs() -> Programs {
    Programs::new().with(Echo)
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn call(channel: &impl Channel) -> Result<Bytes, Reason> {
    let echo = Procedure {
        program: Echo::PROGRAM,
        version: Echo::VERSION,
        number: 1,
    };
    let answer = channel.call(echo, Bytes::from_static(b"abcd")).await;
    if let Ok(answer) = &answer {
        assert_eq!(answer, &b"abcd"[..]);
    }
    answer
}

/// A panic in a task or thread of a server counts, too.
fn no_panics() {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            std::process::exit(1);
        }));
    });
}

/// Everything waits for a time, or is one of so many.
fn all<T: Clone>(
    default: &T,
    times: &[fn(&mut T, Duration)],
    counts: &[fn(&mut T, usize)],
) -> Vec<T> {
    let of_times = times.iter().flat_map(|set| TIMES.map(|time| (set, time)));
    let of_times = of_times.map(|(set, time)| {
        let mut options = default.clone();
        set(&mut options, time);
        options
    });
    let of_counts = counts
        .iter()
        .flat_map(|set| COUNTS.map(|count| (set, count)));
    let of_counts = of_counts.map(|(set, count)| {
        let mut options = default.clone();
        set(&mut options, count);
        options
    });
    of_times.chain(of_counts).collect()
}

#[tokio::test]
async fn every_setting_of_a_client() {
    no_panics();
    let server = Server::new(programs(), server::ServerOptions::default());
    let tcp = server.listen_tcp(anywhere()).await.unwrap();
    let udp = server.listen_udp(anywhere()).await.unwrap();
    let default = client::ClientOptions::default().timeout(SOON);
    let settings = all(
        &default,
        &[
            |options, time| options.timeout = time,
            |options, time| options.retransmit_after = time,
            |options, time| options.retransmit_at_most = time,
        ],
        &[
            |options, count| options.max_calls = count,
            |options, count| options.max_record = count,
            |options, count| options.max_unsent = count,
        ],
    );
    for options in settings {
        println!("{options:?}");
        if let Ok(channel) = TcpChannel::connect(tcp, options.clone()).await {
            println!("tcp {:?}", call(&channel).await);
        }
        if let Ok(channel) = UdpChannel::connect(udp, options).await {
            println!("udp {:?}", call(&channel).await);
        }
    }
}

#[tokio::test]
async fn every_setting_of_a_server() {
    no_panics();
    let settings = all(
        &server::ServerOptions::default(),
        &[
            |options, time| options.write_timeout = time,
            |options, time| options.keep_replies = time,
            |options, time| options.shutdown_timeout = time,
        ],
        &[
            |options, count| options.max_connections = count,
            |options, count| options.max_requests = count,
            |options, count| options.max_requests_per_connection = count,
            |options, count| options.max_requests_over_udp = count,
            |options, count| options.max_record = count,
            |options, count| options.max_kept_replies = count,
            |options, count| options.max_kept_bytes = count,
        ],
    );
    for options in settings {
        println!("{options:?}");
        let server = Server::new(programs(), options);
        let tcp = server.listen_tcp(anywhere()).await.unwrap();
        let udp = server.listen_udp(anywhere()).await.unwrap();
        let options = client::ClientOptions::default().timeout(SOON);
        if let Ok(channel) = TcpChannel::connect(tcp, options.clone()).await {
            println!("tcp {:?}", call(&channel).await);
        }
        let channel = UdpChannel::connect(udp, options).await.unwrap();
        println!("udp {:?}", call(&channel).await);
        server.shutdown().await;
    }
}

/// A call that is sent again without a pause would do nothing else.
#[tokio::test]
async fn nobody_is_flooded() {
    no_panics();
    let silent = UdpSocket::bind(anywhere()).unwrap();
    let at = silent.local_addr().unwrap();
    for time in [Duration::ZERO, Duration::from_nanos(1)] {
        let options = client::ClientOptions {
            retransmit_after: time,
            retransmit_at_most: time,
            ..client::ClientOptions::default().timeout(SOON)
        };
        let channel = UdpChannel::connect(at, options).await.unwrap();
        assert!(call(&channel).await.is_err());
        let again = channel.counters().retransmissions;
        assert!(again <= 200, "{again} in 200 ms");
    }
}
