//! Our clients and servers beside those of libtirpc, and rpcinfo and rpcbind with both.
//!
//! Needs rpcgen, a C compiler, libtirpc, and for some of it rpcbind, rpcinfo and a network namespace; where something is
//! missing, the test says so and does nothing.

#![cfg(all(feature = "net", target_os = "linux"))]

mod cross;
mod namespace;
mod tools;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use wallaby_onc::client::{TcpChannel, UdpChannel};
use wallaby_onc::rpcbind::{Directory, PORT, Registration, Rpcbind, SOCKET};
use wallaby_onc::server::{self, Server};
use wallaby_onc::{Peer, client};

use tools::{Process, command, find, made, said, skip};

const NETWORKS: [&str; 2] = ["udp", "tcp"];

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// What a program says, while the runtime goes on.
async fn output(program: &Path, arguments: &[&str]) -> Output {
    let mut command = command(program);
    command.args(arguments).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("it does not panic")
        .expect("what was found runs")
}

#[tokio::test]
async fn a_client_of_rpcgen_calls_our_server() {
    let Some(made) = made() else { return };
    let server = cross::server();
    let any = loopback(0);
    let udp = server.listen_udp(any).await.expect("a port").port();
    let tcp = server.listen_tcp(any).await.expect("a port").port();
    for (network, port) in [("udp", udp), ("tcp", tcp)] {
        let output = output(&made.client, &[network, &port.to_string()]).await;
        assert_eq!(said(&output), cross::expected(network, true), "{network}");
    }
}

#[tokio::test]
async fn our_client_calls_a_server_of_rpcgen() {
    let Some(made) = made() else { return };
    let mut server = Process::start(command(&made.server).stdout(Stdio::piped()));
    let ports = server.line();
    let mut ports = ports.split_whitespace().map(|port| port.parse::<u16>());
    let mut port = || ports.next().expect("two ports").expect("a port");
    let (udp, tcp) = (loopback(port()), loopback(port()));
    let channel = UdpChannel::connect(udp, cross::options()).await;
    cross::calls(channel.expect("a socket"), 8000).await;
    let channel = TcpChannel::connect(tcp, cross::options()).await;
    cross::calls(channel.expect("a connection"), 300_000).await;
}

/// Everything that the two ends say to an rpcbind, whichever it is.
async fn with_rpcbind(rpcinfo: &Path) {
    let made = made().expect("it was looked at before");
    let program = cross::PROGRAM.to_string();
    // Our server, found by a client of rpcgen.
    let server = cross::server();
    for listening in [
        server.listen_udp(loopback(0)).await,
        server.listen_tcp(loopback(0)).await,
    ] {
        listening.expect("a port");
    }
    let rpcbind = Rpcbind::local().await.expect("it is there");
    let registration = Registration::new(&server, rpcbind.clone()).await;
    let registration = registration.expect("nothing else is registered");
    for network in NETWORKS {
        let said = said(&output(&made.client, &[network, "0"]).await);
        assert_eq!(said, cross::expected(network, false), "{network}");
    }

    // rpcinfo lists it, and calls it.
    let listed = said(&output(rpcinfo, &["-p", "127.0.0.1"]).await);
    for address in server.addresses() {
        let port = address.socket_address().expect("an IP address").port();
        let has = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first() == Some(&&*program) && words.get(3) == Some(&&*port.to_string())
        };
        assert_eq!(
            listed.lines().filter(|line| has(line)).count(),
            2,
            "{listed}"
        );
    }
    let short = said(&output(rpcinfo, &["-s", "127.0.0.1"]).await);
    let line = short.lines().find(|line| line.contains(&*program));
    let line = line.unwrap_or_else(|| panic!("{program} is missing: {short}"));
    assert!(line.contains("1,2") || line.contains("2,1"), "{short}");
    for network in ["-u", "-t"] {
        for version in ["1", "2"] {
            let answer = output(rpcinfo, &[network, "127.0.0.1", &program, version]).await;
            let text = said(&answer);
            assert!(answer.status.success(), "{text}");
            assert!(text.contains("ready and waiting"), "{text}");
        }
    }
    registration.unregister().await.expect("rpcbind is there");
    let listed = said(&output(rpcinfo, &["-p", "127.0.0.1"]).await);
    assert!(!listed.contains(&*program), "{listed}");

    // A server of rpcgen registers, and our client finds it.
    let mut server = Process::start(&mut command(&made.registered));
    let found = loop {
        assert!(!server.has_ended(), "the server could not register");
        let ports = [
            rpcbind.port(cross::PROGRAM, 2, false).await,
            rpcbind.port(cross::PROGRAM, 2, true).await,
        ];
        match ports.map(|port| port.expect("rpcbind answers")) {
            [Some(udp), Some(tcp)] => break (loopback(udp), loopback(tcp)),
            _ => tokio::task::yield_now().await,
        }
    };
    let channel = UdpChannel::connect(found.0, cross::options()).await;
    cross::calls(channel.expect("a socket"), 8000).await;
    let channel = TcpChannel::connect(found.1, cross::options()).await;
    cross::calls(channel.expect("a connection"), 300_000).await;
    drop(server);

    // It was killed, so it is still registered; rpcinfo removes that, as the superuser may.
    for version in ["1", "2"] {
        let deleted = output(rpcinfo, &["-d", &program, version]).await;
        assert!(deleted.status.success(), "{}", said(&deleted));
    }
    let left = rpcbind.dump().await.expect("rpcbind answers");
    assert!(left.iter().all(|each| each.program != cross::PROGRAM));
}

/// All the ways to ask, and the latest version over each.
async fn asked_in_every_way(rpcinfo: &Path) {
    let options = || client::ClientOptions::default().timeout(Duration::from_secs(20));
    let at = loopback(PORT);
    let ways = [
        Rpcbind::over_udp(at, options()).await,
        Rpcbind::over_tcp(at, options()).await,
        Rpcbind::over_unix(Path::new(SOCKET), options()).await,
    ];
    let mut dumps = Vec::new();
    for way in ways {
        let way = way.expect("it is there");
        let port = way.port(100_000, 2, true).await.expect("an answer");
        assert_eq!(port, Some(PORT));
        let elsewhere = Peer::Tcp(loopback(9));
        let set = way.set(0x2000_0055, 1, &elsewhere).await;
        assert!(set.expect("an answer"));
        assert!(way.unset(0x2000_0055, 1, None).await.expect("an answer"));
        let mut all = way.dump().await.expect("an answer");
        all.sort();
        dumps.push(all);
    }
    let udp = Rpcbind::over_udp(at, options()).await.expect("a socket");
    let found = udp.address(100_000, 4, "udp").await.expect("an answer");
    assert_eq!(found, Some(Peer::Udp(at)));
    assert!(dumps[0].len() > 5 && dumps.iter().all(|all| *all == dumps[0]));
    let statistics = output(rpcinfo, &["-m", "127.0.0.1"]).await;
    let text = said(&statistics);
    assert!(statistics.status.success(), "{text}");
    assert!(text.contains("RPCBIND (version 4) statistics"), "{text}");
    let addresses = said(&output(rpcinfo, &["-l", "127.0.0.1", "100000", "4"]).await);
    assert!(
        addresses.contains("tcp") && addresses.contains("127.0.0.1.0.111"),
        "{addresses}"
    );
}

/// Waits until rpcbind listens everywhere.
async fn is_up(rpcbind: &mut Process) -> bool {
    loop {
        if rpcbind.has_ended() {
            return false;
        }
        let options = client::ClientOptions::default;
        let unix = Rpcbind::over_unix(Path::new(SOCKET), options()).await;
        let tcp = Rpcbind::over_tcp(loopback(PORT), options()).await;
        if let (Ok(_), Ok(tcp)) = (unix, tcp)
            && tcp.dump().await.is_ok()
        {
            return true;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_systems_rpcbind_brings_both_together() {
    const THIS: &str = "the_systems_rpcbind_brings_both_together";
    let (Some(_), Some(rpcbind), Some(rpcinfo)) = (made(), find("rpcbind"), find("rpcinfo")) else {
        return skip(&format!("{THIS}: rpcbind or rpcinfo is missing"));
    };
    if !namespace::is_entered(THIS) {
        return;
    }
    let mut rpcbind = Process::start(command(&rpcbind).args(["-f", "-w"]));
    if !is_up(&mut rpcbind).await {
        return skip(&format!("{THIS}: rpcbind does not start here"));
    }
    asked_in_every_way(&rpcinfo).await;
    with_rpcbind(&rpcinfo).await;
}

#[tokio::test]
async fn our_rpcbind_brings_both_together() {
    const THIS: &str = "our_rpcbind_brings_both_together";
    let (Some(_), Some(rpcinfo)) = (made(), find("rpcinfo")) else {
        return skip(&format!("{THIS}: rpcinfo is missing"));
    };
    if !namespace::is_entered(THIS) {
        return;
    }
    let directory = Directory::new(Default::default());
    let server = Server::new(directory.programs(), server::ServerOptions::default());
    let all = (Ipv4Addr::UNSPECIFIED, PORT).into();
    server.listen_tcp(all).await.expect("it is free");
    server.listen_udp(all).await.expect("it is free");
    let unix = server.listen_unix(Path::new(SOCKET)).await;
    unix.expect("it is free");
    directory.add_itself(&server);
    asked_in_every_way(&rpcinfo).await;
    with_rpcbind(&rpcinfo).await;
}
