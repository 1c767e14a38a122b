//! Our side: the same procedures, and the same calls.

use bytes::Bytes;
use wallaby_onc::auth::{AuthError, AuthSys};
use wallaby_onc::client::ClientOptions;
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
    include!("../../generated/cross.rs");
}

use interface::cross::{cross_v1, cross_v2};
use interface::{Block, Found, Pair, People, Person, PersonList};

pub(crate) use interface::cross::PROGRAM;

struct Ours;

impl cross_v1::Server for Ours {
    async fn greet(&self, _: &Principal, name: Text) -> Result<Text, Refusal> {
        Ok(format!("Hello {name}").into())
    }

    async fn older(&self, _: &Principal, people: People) -> Result<People, Refusal> {
        let older = people.0.into_iter().map(|mut each| {
            each.one.age += 1;
            each
        });
        Ok(People(older.collect()))
    }

    async fn reverse(&self, _: &Principal, block: Block) -> Result<Block, Refusal> {
        let bytes: Vec<u8> = block.bytes.iter().rev().copied().collect();
        Ok(Block {
            bytes: bytes.into(),
        })
    }

    async fn lookup(&self, _: &Principal, name: Text) -> Result<Found, Refusal> {
        Ok(match name == "Ada" {
            true => Found::Case0(Person {
                name: "Ada".into(),
                age: 36,
            }),
            false => Found::Default(2),
        })
    }

    async fn who(&self, caller: &Principal) -> Result<u32, Refusal> {
        match &caller.identity {
            Credential::Sys(user) => Ok(user.uid),
            _ => Err(AuthError::TooWeak.into()),
        }
    }
}

impl cross_v2::Server for Ours {
    async fn add(&self, _: &Principal, numbers: Pair) -> Result<i32, Refusal> {
        Ok(numbers.a.wrapping_add(numbers.b))
    }
}

/// Our server, listening nowhere yet.
pub(crate) fn server() -> Server {
    let programs = Programs::new()
        .with(cross_v1::Service(Ours))
        .with(cross_v2::Service(Ours));
    Server::new(programs, server::ServerOptions::default())
}

/// What the client in C says when everything is as it should be.
pub(crate) fn expected(network: &str, by_port: bool) -> String {
    let size = if network == "udp" { 8000 } else { 300_000 };
    let uid = AuthSys::of_this_process().expect("there is a user").uid;
    let mut text = format!(
        "Hello Ada\nAda is 37\nCharles is 80\n{size} of {size} bytes\n0 Ada\n2\nuser {uid}\n42\n\
         RPC: Procedure unavailable\nRPC: Server can't decode arguments\n"
    );
    if by_port {
        text += "RPC: Program/version mismatch 1 2\nRPC: Program unavailable\n";
    }
    text
}

/// Who calls: this process.
pub(crate) fn options() -> ClientOptions {
    let user = AuthSys::of_this_process().expect("there is a user");
    ClientOptions::default().credential(user.credential().expect("it is short enough"))
}

/// Calls everything that the client in C does.
pub(crate) async fn calls(channel: impl Channel + Clone, size: usize) {
    let one = cross_v1::Client(channel.clone());
    let two = cross_v2::Client(channel.clone());
    assert_eq!(
        one.greet(&"Ada".into()).await.expect("an answer"),
        "Hello Ada"
    );
    let person = |name: &str, age| PersonList {
        one: Person {
            name: name.into(),
            age,
        },
    };
    let people = People(vec![person("Ada", 36), person("Charles", 79)]);
    let older = one.older(&people).await.expect("an answer");
    assert_eq!(older.0, [person("Ada", 37), person("Charles", 80)]);
    let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
    let block = Block {
        bytes: bytes.clone().into(),
    };
    let reversed = one.reverse(&block).await.expect("an answer").bytes;
    assert!(reversed.iter().rev().eq(&bytes));
    let ada = one.lookup(&"Ada".into()).await.expect("an answer");
    assert_eq!(ada, Found::Case0(person("Ada", 36).one));
    let nobody = one.lookup(&"nobody".into()).await.expect("an answer");
    assert_eq!(nobody, Found::Default(2));
    let user = AuthSys::of_this_process().expect("there is a user");
    assert_eq!(one.who().await.expect("an answer"), user.uid);
    assert_eq!(two.add(&Pair { a: 40, b: 2 }).await.expect("an answer"), 42);

    let procedure = |program, version, number| Procedure {
        program,
        version,
        number,
    };
    for (procedure, error) in [
        (procedure(PROGRAM, 1, 99), AcceptError::ProcedureUnavailable),
        (
            procedure(PROGRAM, 1, cross_v1::OLDER),
            AcceptError::GarbageArguments,
        ),
        (
            procedure(PROGRAM, 7, 1),
            AcceptError::ProgramMismatch { low: 1, high: 2 },
        ),
        (
            procedure(PROGRAM + 1, 1, 1),
            AcceptError::ProgramUnavailable,
        ),
    ] {
        match channel
            .call(procedure, Bytes::from_static(b"\0\0\0\x07"))
            .await
        {
            Err(Reason::Refused(refusal)) => assert_eq!(refusal, error.into(), "{procedure}"),
            other => panic!("{procedure}: expected a refusal, found {other:?}"),
        }
    }
}
