//! The messages of ONC RPC, pinned by bytes. The first ones are from a capture of real programs: rpcbind, libtirpc,
//! libnfs and nfs-ganesha.

use bytes::Bytes;
use proptest::prelude::*;
use wallaby_onc::auth::{AUTH_SYS, AuthError, AuthSys, Credential, OpaqueAuth};
use wallaby_onc::message::{
    AcceptError, BadMessage, CallBody, Denial, MessageBody, Procedure, Refusal, Reply, RpcMessage,
};
use wallaby_onc::xdr::{self, EncodeError, XdrLimits};

fn bytes(hex: &str) -> Bytes {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex is ASCII");
        u8::from_str_radix(pair, 16).expect("two hex digits")
    };
    digits.chunks(2).map(byte).collect()
}

/// The message has these bytes, and they are read as the message.
fn check(message: &RpcMessage, hex: &str) {
    assert_eq!(message.encode(), Ok(bytes(hex)));
    assert_eq!(RpcMessage::decode(bytes(hex)).as_ref(), Ok(message));
}

fn reply(xid: u32, reply: Reply) -> RpcMessage {
    RpcMessage {
        xid,
        body: MessageBody::Reply(reply),
    }
}

#[test]
fn a_call_without_credential() {
    // What rpcinfo asks rpcbind, to learn where mount version 3 is: GETADDR.
    let arguments = "000186a5 00000003 00000003 74637000 0000000f 3132372e302e302e312e302e31313100 \
                     00000008 6c69627469727063";
    let call = RpcMessage {
        xid: 0x1b0f_5ef3,
        body: MessageBody::Call(CallBody {
            procedure: Procedure {
                program: 100_000,
                version: 4,
                number: 3,
            },
            credential: OpaqueAuth::none(),
            verifier: OpaqueAuth::none(),
            arguments: bytes(arguments),
        }),
    };
    let header =
        "1b0f5ef3 00000000 00000002 000186a0 00000004 00000003 00000000 00000000 00000000 00000000";
    check(&call, &format!("{header} {arguments}"));
}

#[test]
fn a_call_in_the_name_of_a_user() {
    // What showmount asks a mount daemon: EXPORT.
    let caller = AuthSys {
        stamp: 0x6b00_91c2,
        machine_name: "vm".into(),
        gids: vec![0],
        ..AuthSys::default()
    };
    let call = RpcMessage {
        xid: 0x1b0f_5c35,
        body: MessageBody::Call(CallBody {
            procedure: Procedure {
                program: 100_005,
                version: 3,
                number: 5,
            },
            credential: caller.credential().expect("the name is short"),
            verifier: OpaqueAuth::none(),
            arguments: Bytes::new(),
        }),
    };
    check(
        &call,
        "1b0f5c35 00000000 00000002 000186a5 00000003 00000005 \
         00000001 0000001c 6b0091c2 00000002 766d0000 00000000 00000000 00000001 00000000 \
         00000000 00000000",
    );
    let MessageBody::Call(call) = call.body else {
        unreachable!()
    };
    assert_eq!(
        Credential::from_opaque(call.credential),
        Ok(Credential::Sys(caller))
    );
}

#[test]
fn a_reply_with_results() {
    // Where the mount daemon is, says rpcbind.
    let results = "0000000f 3132372e302e302e312e38362e333400";
    check(
        &reply(0x1b0f_5ef3, Reply::accepted(Ok(bytes(results)))),
        &format!("1b0f5ef3 00000001 00000000 00000000 00000000 00000000 {results}"),
    );
}

#[test]
fn every_reason_why_an_accepted_call_has_no_results() {
    let accepted = "00000007 00000001 00000000 00000000 00000000";
    for (error, hex) in [
        (AcceptError::ProgramUnavailable, "00000001"),
        (
            AcceptError::ProgramMismatch { low: 2, high: 4 },
            "00000002 00000002 00000004",
        ),
        (AcceptError::ProcedureUnavailable, "00000003"),
        (AcceptError::GarbageArguments, "00000004"),
        (AcceptError::SystemError, "00000005"),
    ] {
        let refused = reply(7, Reply::accepted(Err(error)));
        check(&refused, &format!("{accepted} {hex}"));
        assert_eq!(
            Reply::accepted(Err(error)).results(),
            Err(Refusal::Accept(error))
        );
    }
    // A server that proves itself does so with errors too.
    let verifier = OpaqueAuth {
        flavor: 6,
        body: Bytes::from_static(b"mac"),
    };
    let outcome = Err(AcceptError::SystemError);
    check(
        &reply(7, Reply::Accepted { verifier, outcome }),
        "00000007 00000001 00000000 00000006 00000003 6d616300 00000005",
    );
}

#[test]
fn every_reason_why_a_call_is_denied() {
    check(
        &reply(7, Reply::Denied(Denial::other_version())),
        "00000007 00000001 00000001 00000000 00000002 00000002",
    );
    let known = [
        AuthError::BadCredential,
        AuthError::RejectedCredential,
        AuthError::BadVerifier,
        AuthError::RejectedVerifier,
        AuthError::TooWeak,
        AuthError::InvalidResponse,
        AuthError::Failed,
    ];
    for (number, error) in (1..).zip(known) {
        let denied = reply(7, Reply::Denied(Denial::Auth(error)));
        check(
            &denied,
            &format!("00000007 00000001 00000001 00000001 {number:08x}"),
        );
    }
    for number in 8..=14 {
        let denied = reply(7, Reply::Denied(Denial::Auth(AuthError::Flavor(number))));
        check(
            &denied,
            &format!("00000007 00000001 00000001 00000001 {number:08x}"),
        );
    }
    let denial = Denial::Auth(AuthError::TooWeak);
    assert_eq!(
        Reply::Denied(denial).results(),
        Err(Refusal::Denied(denial))
    );
}

#[test]
fn a_call_in_another_version_of_the_protocol_can_be_denied() {
    // Nothing after the version is looked at: another version may look otherwise there.
    let found = RpcMessage::decode(bytes("0000002a 00000000 00000003"));
    assert_eq!(
        found,
        Err(BadMessage::OtherVersion {
            xid: 42,
            version: 3
        })
    );
}

#[test]
fn errors_say_which_part_is_wrong() {
    for (hex, message) in [
        (
            "00000001 00000002",
            "at byte 4: expected one of the values of `msg_type`, found 2",
        ),
        (
            "00000001 00000001 00000002",
            "at byte 8: expected one of the values of `reply_stat`, found 2",
        ),
        (
            "00000001 00000001 00000000 00000000 00000000 00000006",
            "at byte 20: expected one of the values of `accept_stat`, found 6",
        ),
        (
            "00000001 00000001 00000001 00000002",
            "at byte 12: expected one of the values of `reject_stat`, found 2",
        ),
        (
            "00000001 00000001 00000000 00000000 00000191",
            "at byte 16: expected at most 400 elements, found a length of 401",
        ),
        (
            "00000001 00000001 00000000 00000000 00000000 00000001 00000000",
            "at byte 24: expected the end, found 4 more bytes",
        ),
        ("000000", "at byte 0: expected 4 more bytes, found 3"),
    ] {
        let error = RpcMessage::decode(bytes(hex)).expect_err("the bytes are wrong");
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_malformed_credential_is_told_from_one_that_is_not_known() {
    let other = OpaqueAuth {
        flavor: 6,
        body: Bytes::from_static(b"gss"),
    };
    assert_eq!(
        Credential::from_opaque(OpaqueAuth::none()),
        Ok(Credential::Anonymous)
    );
    assert_eq!(
        Credential::from_opaque(other.clone()),
        Ok(Credential::Other(other))
    );
    let sys = |body| {
        Credential::from_opaque(OpaqueAuth {
            flavor: AUTH_SYS,
            body,
        })
    };
    assert_eq!(
        sys(Bytes::from_static(b"\0\0\0")),
        Err(AuthError::BadCredential)
    );
    // One group more than there may be.
    let groups = format!(
        "00000001 00000000 00000000 00000000 00000011 {}",
        "00000001".repeat(17)
    );
    assert_eq!(sys(bytes(&groups)), Err(AuthError::BadCredential));
}

#[test]
fn credentials_that_nobody_would_read_are_not_sent() {
    let caller = AuthSys {
        gids: vec![0; 17],
        ..AuthSys::default()
    };
    let too_long = EncodeError::TooLong {
        limit: 16,
        found: 17,
    };
    assert_eq!(caller.credential(), Err(too_long));
    let caller = AuthSys {
        machine_name: "m".repeat(256).into(),
        ..AuthSys::default()
    };
    assert!(caller.credential().is_err());
    let longest = AuthSys {
        machine_name: "m".repeat(255).into(),
        gids: vec![u32::MAX; 16],
        ..AuthSys::default()
    };
    let credential = longest.credential().expect("it is within the limits");
    assert!(credential.body.len() <= 400, "the limits fit each other");
    let verifier = OpaqueAuth {
        flavor: 6,
        body: vec![0; 401].into(),
    };
    let outcome = Ok(Bytes::new());
    assert!(
        reply(1, Reply::Accepted { verifier, outcome })
            .encode()
            .is_err()
    );
}

fn auth() -> impl Strategy<Value = OpaqueAuth> {
    let body = proptest::collection::vec(any::<u8>(), 0..=400).prop_map(Bytes::from);
    (any::<u32>(), body).prop_map(|(flavor, body)| OpaqueAuth { flavor, body })
}

fn payload() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<[u8; 4]>(), 0..50).prop_map(|units| units.concat().into())
}

fn message() -> impl Strategy<Value = RpcMessage> {
    let call = (any::<(u32, u32, u32)>(), auth(), auth(), payload()).prop_map(
        |((program, version, number), credential, verifier, arguments)| {
            MessageBody::Call(CallBody {
                procedure: Procedure {
                    program,
                    version,
                    number,
                },
                credential,
                verifier,
                arguments,
            })
        },
    );
    let accepted = (auth(), payload()).prop_map(|(verifier, results)| Reply::Accepted {
        verifier,
        outcome: Ok(results),
    });
    let refused =
        (auth(), any::<(u32, u32)>()).prop_map(|(verifier, (low, high))| Reply::Accepted {
            verifier,
            outcome: Err(AcceptError::ProgramMismatch { low, high }),
        });
    let denied =
        any::<u32>().prop_map(|number| Reply::Denied(Denial::Auth(AuthError::from_number(number))));
    let reply = prop_oneof![accepted, refused, denied].prop_map(MessageBody::Reply);
    (any::<u32>(), prop_oneof![call, reply]).prop_map(|(xid, body)| RpcMessage { xid, body })
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written(message in message()) {
        let bytes = message.encode().unwrap();
        prop_assert_eq!(RpcMessage::decode(bytes), Ok(message));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = RpcMessage::decode(bytes.clone().into());
        let _ = xdr::decode::<AuthSys>(bytes.into(), XdrLimits::default());
    }

    #[test]
    fn damaged_messages_are_read_or_refused(message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = message.encode().unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = RpcMessage::decode(bytes.into());
    }
}
