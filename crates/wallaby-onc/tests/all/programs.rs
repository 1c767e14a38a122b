//! Generated clients and servers, over a channel that is no more than the messages' bytes.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_onc::auth::{AUTH_SYS, AuthError, AuthSys, OpaqueAuth};
use wallaby_onc::message::{CallBody, Denial, MessageBody, Reply, RpcMessage};
use wallaby_onc::xdr::Text;
use wallaby_onc::{
    AcceptError, Channel, Credential, Principal, Procedure, Programs, Reason, Refusal, RpcError,
    service,
};

#[allow(dead_code, unreachable_pub, clippy::module_inception, clippy::use_self)]
mod everything {
    include!("../generated/everything.rs");
}

use everything::everything::{everything_v1, everything_v3};
use everything::{ByNumber, Chain, Holder, Label, Labels, Link, Result_, Scalars};

/// A server in the same process.
#[derive(Clone)]
struct Direct {
    programs: Arc<Programs>,
    credential: OpaqueAuth,
}

impl Channel for Direct {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let call = RpcMessage {
            xid: 7,
            body: MessageBody::Call(CallBody {
                procedure,
                credential: self.credential.clone(),
                verifier: OpaqueAuth::none(),
                arguments,
            }),
        };
        let answer = self.programs.answer(call.encode()?, None).await;
        match RpcMessage::decode(answer.expect("a call is answered")) {
            Ok(RpcMessage {
                xid: 7,
                body: MessageBody::Reply(reply),
            }) => Ok(reply.results()?),
            other => panic!("expected a reply to call 7, found {other:?}"),
        }
    }
}

struct First;

impl everything_v1::Server for First {
    async fn add(&self, _: &Principal, argument1: i32, argument2: i32) -> Result<i32, Refusal> {
        argument1
            .checked_add(argument2)
            .ok_or(AcceptError::SystemError.into())
    }

    async fn greet(&self, caller: &Principal, name: Text) -> Result<Text, Refusal> {
        match &caller.identity {
            Credential::Sys(caller) => Ok(format!("{name}, from {}", caller.machine_name).into()),
            _ => Err(AuthError::TooWeak.into()),
        }
    }

    async fn find(
        &self,
        _: &Principal,
        within: Holder,
        prefix: Vec<Label>,
    ) -> Result<Option<Labels>, Refusal> {
        let names = within.nodes.into_iter().map(|node| node.name);
        let found: Vec<Label> = names.filter(|name| prefix.contains(name)).collect();
        Ok((!found.is_empty()).then_some(Labels(found)))
    }

    async fn forget(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn tell(&self, _: &Principal, chain: Chain) -> Result<Result_, Refusal> {
        let ok = chain.iter().map(|link| link.number).sum();
        Ok(Result_ { ok })
    }
}

struct Third;

impl everything_v3::Server for Third {
    async fn null_of_its_own(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn add(&self, _: &Principal, _: Scalars) -> Result<ByNumber, Refusal> {
        // Not to be written: 0 has a case of its own.
        Ok(ByNumber::Default(0, Text::default()))
    }
}

/// Why a call has no answer, whoever says so.
#[derive(Debug)]
struct Error(Reason);

impl From<RpcError> for Error {
    fn from(error: RpcError) -> Self {
        Self(error.reason)
    }
}

impl From<Reason> for Error {
    fn from(reason: Reason) -> Self {
        Self(reason)
    }
}

fn server() -> Direct {
    let programs = Programs::new()
        .with(everything_v1::Service(First))
        .with(everything_v3::Service(Third));
    Direct {
        programs: Arc::new(programs),
        credential: OpaqueAuth::none(),
    }
}

fn refusal<T: std::fmt::Debug, E: Into<Error> + std::fmt::Debug>(answer: Result<T, E>) -> Refusal {
    match answer.map_err(Into::into) {
        Err(Error(Reason::Refused(refusal))) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[tokio::test]
async fn arguments_and_results_come_through() {
    let client = everything_v1::Client(server());
    assert_eq!(client.add(2, -5).await.unwrap(), -3);
    client.forget().await.unwrap();
    let chain = Chain(vec![Link { number: 1 }, Link { number: 41 }]);
    assert_eq!(client.tell(&chain).await.unwrap(), Result_ { ok: 42 });
}

#[tokio::test]
async fn servers_know_who_calls() {
    let mut direct = server();
    let anonymous = everything_v1::Client(direct.clone());
    let too_weak = Refusal::Denied(Denial::Auth(AuthError::TooWeak));
    assert_eq!(refusal(anonymous.greet(&"Ada".into()).await), too_weak);

    let caller = AuthSys {
        machine_name: "here".into(),
        ..AuthSys::default()
    };
    direct.credential = caller.credential().unwrap();
    let known = everything_v1::Client(direct.clone());
    assert_eq!(known.greet(&"Ada".into()).await.unwrap(), "Ada, from here");

    direct.credential = OpaqueAuth {
        flavor: AUTH_SYS,
        body: Bytes::from_static(b"bad"),
    };
    let malformed = everything_v1::Client(direct);
    let bad = Refusal::Denied(Denial::Auth(AuthError::BadCredential));
    assert_eq!(refusal(malformed.add(1, 1).await), bad);
}

#[tokio::test]
async fn every_refusal_reaches_the_client() {
    let direct = server();
    let first = everything_v1::Client(direct.clone());
    let refused = |error| Refusal::Accept(error);
    assert_eq!(
        refusal(first.add(i32::MAX, 1).await),
        refused(AcceptError::SystemError)
    );
    let procedure = |program, version, number| Procedure {
        program,
        version,
        number,
    };
    let (program, other) = (everything_v1::PROGRAM, everything_v1::PROGRAM + 1);
    for (procedure, arguments, error) in [
        (procedure(other, 1, 0), "", AcceptError::ProgramUnavailable),
        (
            procedure(program, 2, 0),
            "",
            AcceptError::ProgramMismatch { low: 1, high: 3 },
        ),
        (
            procedure(program, 1, 6),
            "",
            AcceptError::ProcedureUnavailable,
        ),
        (
            procedure(program, 1, 1),
            "too few",
            AcceptError::GarbageArguments,
        ),
        (
            procedure(program, 1, 1),
            "or too much.",
            AcceptError::GarbageArguments,
        ),
    ] {
        let answer = direct
            .call(procedure, Bytes::from_static(arguments.as_bytes()))
            .await;
        assert_eq!(refusal(answer), refused(error), "{procedure:?}");
    }
    // Procedure 0 is there though the file does not have it.
    let null = direct.call(procedure(program, 1, 0), Bytes::new()).await;
    assert!(null.unwrap().is_empty());
    everything_v3::Client(direct)
        .null_of_its_own()
        .await
        .unwrap();
}

#[tokio::test]
async fn an_answer_that_has_no_bytes_is_the_servers_failure() {
    let results = service::results(|writer| {
        use wallaby_onc::xdr::Xdr;
        ByNumber::Default(0, Text::default()).encode(writer)
    });
    assert_eq!(results, Err(AcceptError::SystemError.into()));
}

#[tokio::test]
async fn what_the_interface_has_no_bytes_for_is_not_sent() {
    let client = everything_v1::Client(server());
    let holder = Holder {
        nodes: Vec::new(),
        links: Chain(Vec::new()),
        one: None,
        point: everything::HolderPoint {
            x: 1,
            part: everything::HolderPointPart::Default(5),
        },
    };
    let found = client.find(&holder, &[Label("here".into())]).await;
    assert_eq!(found.unwrap(), None);
    let too_long = [Label("much too long".into())];
    let error = client.find(&holder, &too_long).await.unwrap_err();
    assert!(matches!(error.reason, Reason::Arguments(_)), "{error}");
}

#[tokio::test]
async fn only_calls_are_answered() {
    let programs = server().programs;
    let reply = RpcMessage {
        xid: 1,
        body: MessageBody::Reply(Reply::accepted(Ok(Bytes::new()))),
    };
    assert_eq!(programs.answer(reply.encode().unwrap(), None).await, None);
    assert_eq!(programs.answer(Bytes::from_static(b"?"), None).await, None);
    let of_the_future = Bytes::from_static(b"\0\0\0\x09\0\0\0\0\0\0\0\x03");
    let answer = programs
        .answer(of_the_future, None)
        .await
        .expect("a call is answered");
    let denied = RpcMessage {
        xid: 9,
        body: MessageBody::Reply(Reply::Denied(Denial::other_version())),
    };
    assert_eq!(RpcMessage::decode(answer), Ok(denied));
}
