//! An rpcbind of ours, asked and registered with.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use wallaby_onc::auth::{AuthError, OpaqueAuth};
use wallaby_onc::client::{self, TcpChannel, UdpChannel};
use wallaby_onc::message::{CallBody, Denial, MessageBody, Reply, RpcMessage};
use wallaby_onc::rpcbind::interface::rpcbind::{port_mapper, rpcbind_3, rpcbind_4};
use wallaby_onc::rpcbind::interface::{
    PROTOCOL_TCP, PROTOCOL_UDP, PortCall, PortCallResult, PortMapping, PortMappingEntry,
    RemoteCall, Rpcb,
};
use wallaby_onc::rpcbind::{Directory, DirectoryOptions, Forward, Mapping, Registration, Rpcbind};
use wallaby_onc::server::{self, Server};
use wallaby_onc::xdr::{self, Xdr};
use wallaby_onc::{
    AcceptError, Origin, Peer, Principal, Procedure, Program, Programs, Reason, Refusal, RpcError,
};

/// Says what it was told.
struct Echo;

impl Program for Echo {
    const PROGRAM: u32 = 0x2000_0010;
    const VERSION: u32 = 5;

    async fn handle(
        &self,
        _: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        match procedure {
            0 => Ok(Bytes::new()),
            1 => Ok(arguments),
            2 => Ok(vec![0; 20_000].into()),
            _ => Err(AcceptError::ProcedureUnavailable.into()),
        }
    }
}

const ECHO: u32 = Echo::PROGRAM;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let within = Duration::from_secs(60);
    timeout(within, what).await.expect("it is done by now")
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An rpcbind at ports that are free.
struct Running {
    directory: Directory,
    _server: Server,
    tcp: SocketAddr,
    udp: SocketAddr,
    unix: PathBuf,
}

async fn running(name: &str, options: DirectoryOptions) -> Running {
    let directory = Directory::new(options);
    let server = Server::new(directory.programs(), server::ServerOptions::default());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let unix = folder.join(format!("rpcbind-{name}-{}.sock", std::process::id()));
    server.listen_unix(&unix).await.unwrap();
    let any = address("0.0.0.0:0");
    let tcp = server.listen_tcp(any).await.unwrap();
    let udp = server.listen_udp(any).await.unwrap();
    directory.add_itself(&server);
    Running {
        directory,
        _server: server,
        tcp: address(&format!("127.0.0.1:{}", tcp.port())),
        udp: address(&format!("127.0.0.1:{}", udp.port())),
        unix,
    }
}

impl Running {
    async fn over_tcp(&self) -> Rpcbind {
        let options = client::ClientOptions::default();
        Rpcbind::over_tcp(self.tcp, options).await.unwrap()
    }

    async fn over_udp(&self) -> Rpcbind {
        let options = client::ClientOptions::default();
        Rpcbind::over_udp(self.udp, options).await.unwrap()
    }

    async fn over_unix(&self) -> Rpcbind {
        let options = client::ClientOptions::default();
        Rpcbind::over_unix(&self.unix, options).await.unwrap()
    }

    async fn channel(&self) -> TcpChannel {
        let options = client::ClientOptions::default();
        TcpChannel::connect(self.tcp, options).await.unwrap()
    }

    async fn datagrams(&self) -> UdpChannel {
        let options = client::ClientOptions::default();
        UdpChannel::connect(self.udp, options).await.unwrap()
    }

    fn of(&self, program: u32) -> Vec<Mapping> {
        let mut mappings = self.directory.mappings();
        mappings.retain(|mapping| mapping.program == program);
        mappings
    }
}

fn rpcb(netid: &str, address: &str) -> Rpcb {
    Rpcb {
        program_number: ECHO,
        version_number: Echo::VERSION,
        netid: netid.into(),
        address: address.into(),
        owner: "me".into(),
    }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, RpcError>) -> Refusal {
    match answer {
        Err(RpcError {
            reason: Reason::Refused(refusal),
            ..
        }) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[tokio::test]
async fn programs_are_registered_found_and_forgotten() {
    let rpcbind = running("found", DirectoryOptions::default()).await;
    for (asked, over) in [
        (rpcbind.over_tcp().await, "tcp"),
        (rpcbind.over_udp().await, "udp"),
        (rpcbind.over_unix().await, "unix"),
    ] {
        let (tcp, udp) = (
            Peer::Tcp(address("127.0.0.1:2049")),
            Peer::Udp(address("0.0.0.0:2050")),
        );
        assert!(soon(asked.set(ECHO, 1, &tcp)).await.unwrap(), "{over}");
        assert!(asked.set(ECHO, 1, &udp).await.unwrap());
        // The same again is no harm; another address is.
        assert!(asked.set(ECHO, 1, &tcp).await.unwrap());
        let other = Peer::Tcp(address("127.0.0.1:2051"));
        assert!(!asked.set(ECHO, 1, &other).await.unwrap());
        assert!(asked.set(ECHO, 3, &other).await.unwrap());

        assert_eq!(asked.port(ECHO, 1, true).await.unwrap(), Some(2049));
        assert_eq!(asked.port(ECHO, 1, false).await.unwrap(), Some(2050));
        assert_eq!(asked.port(ECHO, 2, true).await.unwrap(), Some(2051));
        assert_eq!(asked.port(ECHO + 1, 1, true).await.unwrap(), None);
        let dumped = asked.dump().await.unwrap();
        let dumped: Vec<_> = dumped.iter().filter(|each| each.program == ECHO).collect();
        assert_eq!(dumped.len(), 3);
        assert_eq!(dumped[1].peer(), Some(udp));

        assert!(asked.unset(ECHO, 1, Some("udp")).await.unwrap());
        // What is not there is forgotten already.
        assert!(asked.unset(ECHO, 1, Some("udp")).await.unwrap());
        assert!(asked.unset(ECHO, 1, None).await.unwrap());
        assert!(asked.unset(ECHO, 3, None).await.unwrap());
        assert!(rpcbind.of(ECHO).is_empty());
    }
    // Itself, it cannot be talked out of.
    let asked = rpcbind.over_unix().await;
    assert!(!asked.unset(100_000, 2, None).await.unwrap());
    let elsewhere = Peer::Tcp(address("127.0.0.1:1"));
    assert!(!asked.set(100_000, 9, &elsewhere).await.unwrap());
    assert_eq!(rpcbind.of(100_000).len(), 9);
}

#[tokio::test]
async fn an_address_is_told_as_the_caller_can_use_it() {
    let rpcbind = running("merged", DirectoryOptions::default()).await;
    let local = rpcbind.over_unix().await;
    let everywhere = Peer::Udp(address("0.0.0.0:2050"));
    assert!(local.set(ECHO, 1, &everywhere).await.unwrap());
    let options = client::ClientOptions::default();
    let at = SocketAddr::new("127.0.0.2".parse().unwrap(), rpcbind.udp.port());
    let asked = Rpcbind::over_udp(at, options).await.unwrap();
    let found = soon(asked.address(ECHO, 1, "udp")).await.unwrap();
    assert_eq!(found, Some(Peer::Udp(address("127.0.0.2:2050"))));
    assert_eq!(asked.address(ECHO + 1, 1, "udp").await.unwrap(), None);
    let found = local.address(ECHO, 1, "udp").await.unwrap();
    assert_eq!(found, Some(Peer::Udp(address("127.0.0.1:2050"))));
}

#[tokio::test]
async fn a_server_is_registered_for_as_long_as_it_lives() {
    let rpcbind = running("registration", DirectoryOptions::default()).await;
    let server = Server::new(Programs::new().with(Echo), server::ServerOptions::default());
    let tcp = server.listen_tcp(address("127.0.0.1:0")).await.unwrap();
    server.listen_udp(address("127.0.0.1:0")).await.unwrap();
    // What a former life left behind is replaced.
    let left = Peer::Tcp(address("127.0.0.1:9"));
    let asked = rpcbind.over_tcp().await;
    asked.set(ECHO, Echo::VERSION, &left).await.unwrap();
    let registration = Registration::new(&server, asked).await.unwrap();
    let registered = rpcbind.of(ECHO);
    assert_eq!(registered.len(), 2);
    assert_eq!(registered[0].peer(), Some(Peer::Tcp(tcp)));
    registration.unregister().await.unwrap();
    assert!(rpcbind.of(ECHO).is_empty());

    // Dropping blocks, and the rpcbind is in this runtime.
    for asked in [
        rpcbind.over_tcp().await,
        rpcbind.over_udp().await,
        rpcbind.over_unix().await,
    ] {
        let registration = Registration::new(&server, asked).await.unwrap();
        assert_eq!(rpcbind.of(ECHO).len(), 2);
        tokio::task::spawn_blocking(move || drop(registration))
            .await
            .unwrap();
        assert!(rpcbind.of(ECHO).is_empty());
    }
}

#[tokio::test]
async fn a_full_table_and_somebody_elses_program_refuse() {
    let options = DirectoryOptions {
        max_mappings: 10,
        ..DirectoryOptions::default()
    };
    let rpcbind = running("full", options).await;
    let own = rpcbind.over_unix().await;
    let unknown = rpcbind.over_tcp().await;
    let here = Peer::Tcp(address("127.0.0.1:2049"));
    assert!(own.set(ECHO, 1, &here).await.unwrap());
    assert!(
        !own.set(ECHO, 2, &here).await.unwrap(),
        "ten are registered"
    );
    // Over TCP, nobody knows who asks.
    assert!(!unknown.unset(ECHO, 1, None).await.unwrap());
    let server = Server::new(Programs::new().with(Echo), server::ServerOptions::default());
    server.listen_tcp(address("127.0.0.1:0")).await.unwrap();
    let error = Registration::new(&server, unknown).await.unwrap_err();
    assert!(error.to_string().contains("536870928 version 5"), "{error}");
    assert!(own.unset(ECHO, 1, None).await.unwrap());
}

/// A call's message.
fn message(procedure: Procedure, arguments: &impl Xdr) -> Bytes {
    let body = MessageBody::Call(CallBody {
        procedure,
        credential: OpaqueAuth::none(),
        verifier: OpaqueAuth::none(),
        arguments: xdr::encode(arguments).unwrap(),
    });
    RpcMessage { xid: 1, body }.encode().unwrap()
}

fn procedure(version: u32, number: u32) -> Procedure {
    Procedure {
        program: 100_000,
        version,
        number,
    }
}

fn from(peer: &str) -> Option<Origin> {
    Some(Origin {
        peer: Peer::Udp(address(peer)),
        local: Peer::Udp(address("192.0.2.1:111")),
        uid: None,
    })
}

#[tokio::test]
async fn only_this_machine_registers() {
    let directory = Directory::new(DirectoryOptions::default());
    let programs = directory.programs();
    let four = rpcb("udp", "0.0.0.0.8.1");
    let two = PortMapping {
        program_number: ECHO,
        version_number: 1,
        protocol: PROTOCOL_UDP,
        port: 2049,
    };
    let mut answers = Vec::new();
    for number in [port_mapper::SET, port_mapper::UNSET] {
        for call in [
            message(procedure(2, number), &two),
            message(procedure(3, number), &four),
            message(procedure(4, number), &four),
        ] {
            answers.push(programs.answer(call, from("192.0.2.7:1023")).await);
        }
    }
    for answer in answers {
        let Ok(RpcMessage {
            body: MessageBody::Reply(reply),
            ..
        }) = RpcMessage::decode(answer.expect("a refusal"))
        else {
            panic!("expected a reply");
        };
        let denied = Reply::Denied(Denial::Auth(AuthError::TooWeak));
        assert_eq!(reply, denied);
    }
    assert!(directory.mappings().is_empty());
}

#[tokio::test]
async fn calls_are_passed_on_and_failures_of_them_are_silent() {
    let rpcbind = running("callit", DirectoryOptions::default()).await;
    let server = Server::new(Programs::new().with(Echo), server::ServerOptions::default());
    let udp = server.listen_udp(address("127.0.0.1:0")).await.unwrap();
    let asked = rpcbind.over_unix().await;
    let registration = Registration::new(&server, asked).await.unwrap();

    let mut two = PortCall {
        program_number: ECHO,
        version_number: Echo::VERSION,
        procedure_number: 1,
        arguments: "hear me.".into(),
    };
    let port_mapper = port_mapper::Client(rpcbind.datagrams().await);
    let answer = soon(port_mapper.callit(&two)).await.unwrap();
    assert_eq!(answer.results, "hear me.");
    assert_eq!(answer.port, u32::from(udp.port()));
    let mut four = RemoteCall {
        program_number: ECHO,
        version_number: Echo::VERSION,
        procedure_number: 1,
        arguments: "hear me.".into(),
    };
    let client = rpcbind_4::Client(rpcbind.datagrams().await);
    let [high, low] = udp.port().to_be_bytes();
    for answer in [client.bcast(&four).await, client.indirect(&four).await] {
        let answer = answer.unwrap();
        assert_eq!(answer.results, "hear me.");
        assert_eq!(answer.address, &*format!("127.0.0.1.{high}.{low}"));
    }

    // No such procedure, too many results, no such program, ourselves, and arguments that cannot be read.
    let programs = rpcbind.directory.programs();
    for (program, number) in [(ECHO, 9), (ECHO, 2), (ECHO + 1, 1), (100_000, 0)] {
        (two.program_number, four.program_number) = (program, program);
        (two.procedure_number, four.procedure_number) = (number, number);
        for call in [
            message(procedure(2, 5), &two),
            message(procedure(3, 5), &four),
            message(procedure(4, 5), &four),
            message(procedure(4, 5), &7_u32),
        ] {
            let answer = soon(programs.answer(call, from("127.0.0.1:700"))).await;
            assert_eq!(answer, None, "{program} {number}");
        }
        // Who asks for failures is told.
        refusal(soon(client.indirect(&four)).await);
    }
    // From elsewhere nothing is passed on, unless it is wanted.
    (four.program_number, four.procedure_number) = (ECHO, 1);
    let call = message(procedure(4, 5), &four);
    let answer = programs.answer(call.clone(), from("192.0.2.7:700")).await;
    assert_eq!(answer, None);
    let generous = Directory::new(DirectoryOptions {
        forward: Forward::Everybody,
        ..DirectoryOptions::default()
    });
    let set = rpcb("udp", &format!("127.0.0.1.{high}.{low}"));
    let set = message(procedure(4, rpcbind_4::SET), &set);
    let generous = generous.programs();
    generous.answer(set, None).await;
    let answer = generous.answer(call, from("192.0.2.7:700"));
    assert!(soon(answer).await.is_some());
    registration.unregister().await.unwrap();
}

#[tokio::test]
async fn what_is_passed_on_is_bounded_in_number_and_time() {
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = Peer::Udp(silent.local_addr().unwrap());
    let call = RemoteCall {
        program_number: ECHO,
        version_number: 1,
        procedure_number: 1,
        arguments: Bytes::new(),
    };
    let failed = Refusal::from(AcceptError::SystemError);
    let none = DirectoryOptions {
        max_forwarded: 0,
        ..DirectoryOptions::default()
    };
    let short = DirectoryOptions {
        forward_timeout: Duration::from_millis(10),
        ..DirectoryOptions::default()
    };
    for (name, options, arrives) in [("none", none, false), ("short", short, true)] {
        let rpcbind = running(name, options).await;
        let own = rpcbind.over_unix().await;
        assert!(own.set(ECHO, 1, &at).await.unwrap());
        let client = rpcbind_4::Client(rpcbind.channel().await);
        assert_eq!(refusal(soon(client.indirect(&call)).await), failed);
        let mut buffer = [0; 100];
        assert_eq!(silent.try_recv(&mut buffer).is_ok(), arrives, "{name}");
        // What is registered but not of this machine gets nothing.
        let elsewhere = Peer::Udp(address("192.0.2.1:9"));
        assert!(own.set(ECHO, 2, &elsewhere).await.unwrap());
        let mut other = call.clone();
        other.version_number = 2;
        let unavailable = AcceptError::ProgramUnavailable.into();
        assert_eq!(refusal(soon(client.indirect(&other)).await), unavailable);
    }
}

#[tokio::test]
async fn statistics_stay_small() {
    let rpcbind = running("statistics", DirectoryOptions::default()).await;
    let four = rpcbind_4::Client(rpcbind.channel().await);
    for program in 0..100 {
        let mut wanted = rpcb("", "");
        wanted.program_number = program;
        assert_eq!(four.getaddr(&wanted).await.unwrap(), "");
    }
    let statistics = four.getstat().await.unwrap();
    assert_eq!(statistics.versions[2].addresses.len(), 64);
    assert_eq!(statistics.versions[2].calls[3], 100);
}

#[tokio::test]
async fn the_rest_of_the_procedures_answer() {
    let rpcbind = running("rest", DirectoryOptions::default()).await;
    let three = rpcbind_3::Client(rpcbind.datagrams().await);
    let four = rpcbind_4::Client(rpcbind.channel().await);
    assert!(four.set(&rpcb("tcp", "0.0.0.0.8.1")).await.unwrap());
    assert!(four.set(&rpcb("udp", "127.0.0.1.8.2")).await.unwrap());
    for (netid, address) in [
        ("tcp", "127.0.0.1"),
        ("rawip", "127.0.0.1.8.1"),
        ("udp", "1.2.3.4.0.0"),
    ] {
        assert!(!four.set(&rpcb(netid, address)).await.unwrap(), "{netid}");
    }

    let found = four.getversaddr(&rpcb("", "")).await.unwrap();
    assert_eq!(found, "127.0.0.1.8.1");
    let mut other = rpcb("", "");
    other.version_number += 1;
    assert_eq!(four.getversaddr(&other).await.unwrap(), "");
    assert_eq!(four.getaddr(&other).await.unwrap(), "127.0.0.1.8.1");
    assert_eq!(three.getaddr(&other).await.unwrap(), "127.0.0.1.8.2");

    let list = four.getaddrlist(&rpcb("", "")).await.unwrap();
    let list: Vec<_> = list
        .iter()
        .map(|entry| {
            let each = &entry.description;
            format!(
                "{} {} {} {} {}",
                each.netid, each.address, each.semantics, each.family, each.protocol
            )
        })
        .collect();
    assert_eq!(
        list,
        [
            "tcp 127.0.0.1.8.1 3 inet tcp",
            "udp 127.0.0.1.8.2 1 inet udp"
        ]
    );

    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(three.gettime().await.unwrap().abs_diff(now as u32) < 100);

    let text = "192.0.2.1.8.1".into();
    let address = four.uaddr2_taddr(&text).await.unwrap();
    assert_eq!(address.bytes.len(), 16);
    assert_eq!(&address.bytes[2..8], [8, 1, 192, 0, 2, 1]);
    assert_eq!(four.taddr2_uaddr(&address).await.unwrap(), text);
    let nonsense = four.uaddr2_taddr(&"nowhere".into()).await.unwrap();
    assert!(nonsense.bytes.is_empty());
    assert_eq!(four.taddr2_uaddr(&nonsense).await.unwrap(), "");

    let statistics = four.getstat().await.unwrap();
    let [_, of_three, of_four] = &statistics.versions;
    assert_eq!((of_four.set, of_four.calls[1], of_four.calls[9]), (2, 5, 2));
    let counted = &of_three.addresses[0].counted;
    assert_eq!((counted.found, counted.missed), (1, 0));
    assert_eq!(of_four.addresses[1].counted.missed, 1);
}

/// A port mapper of before rpcbind.
#[derive(Default)]
struct Old(Mutex<Vec<PortMapping>>);

impl port_mapper::Server for Old {
    async fn nothing(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn set(&self, _: &Principal, wanted: PortMapping) -> Result<bool, Refusal> {
        self.0.lock().unwrap().push(wanted);
        Ok(true)
    }

    async fn unset(&self, _: &Principal, wanted: PortMapping) -> Result<bool, Refusal> {
        let mut all = self.0.lock().unwrap();
        let before = all.len();
        all.retain(|each| each.program_number != wanted.program_number);
        Ok(all.len() < before)
    }

    async fn getport(&self, _: &Principal, wanted: PortMapping) -> Result<u32, Refusal> {
        let all = self.0.lock().unwrap();
        let mut found = all.iter().filter(|each| each.protocol == wanted.protocol);
        Ok(found.next().map_or(0, |each| each.port))
    }

    async fn dump(&self, _: &Principal) -> Result<Vec<PortMappingEntry>, Refusal> {
        let all = self.0.lock().unwrap();
        let entries = all.iter().map(|each| PortMappingEntry {
            mapping: each.clone(),
        });
        Ok(entries.collect())
    }

    async fn callit(&self, _: &Principal, _: PortCall) -> Result<PortCallResult, Refusal> {
        Err(Refusal::Silent)
    }
}

#[tokio::test]
async fn a_port_mapper_is_spoken_to_in_its_version() {
    let programs = Programs::new().with(port_mapper::Service(Old::default()));
    let server = Server::new(programs, server::ServerOptions::default());
    let at = server.listen_udp(address("127.0.0.1:0")).await.unwrap();
    let options = client::ClientOptions::default();
    let asked = Rpcbind::over_udp(at, options).await.unwrap();
    let tcp = Peer::Tcp(address("0.0.0.0:2049"));
    assert!(soon(asked.set(ECHO, 1, &tcp)).await.unwrap());
    assert_eq!(asked.port(ECHO, 1, true).await.unwrap(), Some(2049));
    let all = asked.dump().await.unwrap();
    assert_eq!((all.len(), all[0].peer()), (1, Some(tcp)));
    assert!(asked.unset(ECHO, 1, Some("tcp")).await.unwrap());
    assert_eq!(asked.port(ECHO, 1, true).await.unwrap(), None);
    // What it has no words for is refused with its own reason.
    let six = Peer::Tcp(address("[::1]:2049"));
    let mismatch = AcceptError::ProgramMismatch { low: 2, high: 2 };
    assert_eq!(refusal(asked.set(ECHO, 1, &six).await), mismatch.into());
    assert_eq!(PROTOCOL_TCP, 6);
}
