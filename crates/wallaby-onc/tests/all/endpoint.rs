//! One implementation of an interface, served over ONC RPC and over Wallaby's own transports.

#![cfg(all(feature = "net", feature = "wallaby"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use wallaby::{Address, Client, Endpoint};
use wallaby_onc::auth::{AuthError, AuthSys};
use wallaby_onc::client::{self, TcpChannel, UdpChannel};
use wallaby_onc::endpoint::{self, EndpointChannel, XdrCodec};
use wallaby_onc::server::{self, Server};
use wallaby_onc::xdr::Text;
use wallaby_onc::{
    AcceptError, Channel, Credential, Principal, Procedure, Programs, Reason, Refusal,
};

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod interface {
    include!("../generated/cross_methods.rs");
}

use interface::cross::cross_v1::{self, methods};
use interface::{Block, Found, People, Person, PersonList};

/// The one implementation.
struct Ours {
    name: &'static str,
    calls: AtomicUsize,
}

impl Ours {
    fn named(name: &'static str) -> Arc<cross_v1::Service<Self>> {
        let calls = AtomicUsize::new(0);
        Arc::new(cross_v1::Service(Self { name, calls }))
    }
}

impl cross_v1::Server for Ours {
    async fn greet(&self, _: &Principal, name: Text) -> Result<Text, Refusal> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(format!("Hello {name}, from {}", self.name).into())
    }

    async fn older(&self, _: &Principal, mut people: People) -> Result<People, Refusal> {
        people.0.iter_mut().for_each(|each| each.one.age += 1);
        Ok(people)
    }

    async fn reverse(&self, _: &Principal, block: Block) -> Result<Block, Refusal> {
        let bytes: Bytes = block.bytes.iter().rev().copied().collect();
        Ok(Block { bytes })
    }

    async fn lookup(&self, _: &Principal, name: Text) -> Result<Found, Refusal> {
        match &name[..] {
            b"trouble" => Err(AcceptError::SystemError.into()),
            _ => Ok(Found::Default(2)),
        }
    }

    async fn who(&self, caller: &Principal) -> Result<u32, Refusal> {
        match &caller.identity {
            Credential::Sys(user) => Ok(user.uid),
            _ => Err(AuthError::TooWeak.into()),
        }
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let within = Duration::from_secs(60);
    timeout(within, what).await.expect("it is done by now")
}

/// What an endpoint serves, at this address.
async fn serve(address: &str, service: wallaby::Service) -> (Endpoint, Address) {
    let endpoint = Endpoint::bind(address).await.unwrap();
    endpoint.serve(service).unwrap();
    let address = endpoint.address().expect("it listens").clone();
    (endpoint, address)
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, wallaby_onc::RpcError>) -> Refusal {
    match answer.map_err(|error| error.reason) {
        Err(Reason::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

/// The same calls, whatever they go over: with and without a credential.
async fn calls(known: impl Channel + Clone, nobody: impl Channel + Clone) {
    let client = cross_v1::Client(known.clone());
    let greeting = soon(client.greet(&"Ada".into())).await.unwrap();
    assert_eq!(greeting, "Hello Ada, from one");
    let person = |age| PersonList {
        one: Person {
            name: "Ada".into(),
            age,
        },
    };
    let older = client.older(&People(vec![person(36)])).await.unwrap();
    assert_eq!(older.0, [person(37)]);
    let block = Block {
        bytes: vec![1; 3000].into(),
    };
    assert_eq!(client.reverse(&block).await.unwrap(), block);
    let user = AuthSys::of_this_process().unwrap();
    assert_eq!(client.who().await.unwrap(), user.uid);
    let nobody = cross_v1::Client(nobody);
    assert_eq!(refusal(nobody.who().await), AuthError::TooWeak.into());
    let trouble = client.lookup(&"trouble".into()).await;
    assert_eq!(refusal(trouble), AcceptError::SystemError.into());
    for (number, error) in [
        (99, AcceptError::ProcedureUnavailable),
        (cross_v1::OLDER, AcceptError::GarbageArguments),
    ] {
        let procedure = Procedure {
            program: cross_v1::PROGRAM,
            version: cross_v1::VERSION,
            number,
        };
        match known
            .call(procedure, Bytes::from_static(b"\0\0\0\x07"))
            .await
        {
            Err(Reason::Refused(refusal)) => assert_eq!(refusal, error.into()),
            other => panic!("expected a refusal, found {other:?}"),
        }
    }
}

#[tokio::test]
async fn one_implementation_is_called_both_ways() {
    let service = Ours::named("one");
    let programs = Programs::new().with(Arc::clone(&service));
    let server = Server::new(programs, server::ServerOptions::default());
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let udp = server.listen_udp(any).await.unwrap();
    let tcp = server.listen_tcp(any).await.unwrap();
    let user = AuthSys::of_this_process().unwrap().credential().unwrap();
    let nobody = client::ClientOptions::default;
    let known = || nobody().credential(user.clone());
    calls(
        UdpChannel::connect(udp, known()).await.unwrap(),
        UdpChannel::connect(udp, nobody()).await.unwrap(),
    )
    .await;
    calls(
        TcpChannel::connect(tcp, known()).await.unwrap(),
        TcpChannel::connect(tcp, nobody()).await.unwrap(),
    )
    .await;

    let initiator = Endpoint::client().unwrap();
    for address in ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"] {
        let shared = endpoint::service(Arc::clone(&service));
        let (_endpoint, at) = serve(address, shared).await;
        let nobody = EndpointChannel::new(Client::new(&initiator, at));
        let known = nobody.clone().credential(&user).unwrap();
        calls(known, nobody).await;
    }
    assert_eq!(service.0.calls.load(Ordering::SeqCst), 4);
}

/// A request for a greeting, to be answered or passed on.
type Greeting = wallaby::Request<endpoint::One<methods::GreetResult>, XdrCodec>;

#[tokio::test]
async fn a_procedure_is_forwarded_and_its_answer_comes_directly() {
    let (_back, back) = serve(
        "tcp://127.0.0.1:0",
        endpoint::service(Ours::named("the back")),
    )
    .await;
    let front = Ours::named("the front");
    let greet = move |request: Greeting, arguments: methods::GreetArguments| {
        let back = back.clone();
        async move {
            let target = methods::GREET.target(arguments);
            request.forward(back, target).await?;
            Ok(())
        }
    };
    let served = endpoint::service_without(Arc::clone(&front), &[cross_v1::GREET]);
    let served = served.method(&methods::GREET, greet);
    let (_front, at) = serve("tcp://127.0.0.1:0", served).await;

    let initiator = Endpoint::client().unwrap();
    let client = Client::new(&initiator, at);
    let old = cross_v1::Client(EndpointChannel::new(client.clone()));
    let greeting = soon(old.greet(&"Ada".into())).await.unwrap();
    assert_eq!(greeting, "Hello Ada, from the back");
    // The same as a method, whose types the compiler checks.
    let arguments = methods::GreetArguments("Ada".into());
    let mut call = client.traced().call(&methods::GREET, arguments);
    let greeting = soon(call.answer()).await.unwrap();
    assert_eq!(greeting.0, "Hello Ada, from the back");
    assert_eq!(front.0.calls.load(Ordering::SeqCst), 0);
    // What is not delegated is answered here.
    assert!(old.lookup(&"x".into()).await.is_ok());
}

#[tokio::test]
async fn a_procedure_is_multicast() {
    let mut servers = Vec::new();
    for name in ["one", "two", "three"] {
        servers.push(serve("tcp://127.0.0.1:0", endpoint::service(Ours::named(name))).await);
    }
    let initiator = Endpoint::client().unwrap();
    let addresses: Vec<Address> = servers.iter().map(|(_, server)| server.clone()).collect();
    let all = methods::GREET.target(methods::GreetArguments("all".into()));
    let greetings = soon(initiator.caller().multicast(addresses, all).all()).await;
    let greetings: Vec<_> = greetings
        .into_iter()
        .map(|greeting| greeting.unwrap().0)
        .collect();
    let expected =
        ["one", "two", "three"].map(|name| Text::from(format!("Hello all, from {name}")));
    assert_eq!(greetings, expected);
}
