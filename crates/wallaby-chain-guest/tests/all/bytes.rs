//! The format, version 1: it does not change. Modules that are built once run as long as servers know it.

use serde::Deserialize;
use wallaby_chain_guest::abi::{EXPORT, Given, Input, Output, VERSION};
use wallaby_chain_guest::{
    Answer, Error, Exception, Function, Hop, Link, Merge, State, Step, Value,
};

fn check<'a, T>(value: &T, bytes: &'a [u8])
where
    T: serde::Serialize + Deserialize<'a> + std::fmt::Debug,
{
    let written = postcard::to_allocvec(value).expect("it can be written");
    assert_eq!(
        written.escape_ascii().to_string(),
        bytes.escape_ascii().to_string()
    );
    let read: T = postcard::from_bytes(bytes).expect("it can be read");
    assert_eq!(format!("{read:?}"), format!("{value:?}"));
}

fn state() -> State {
    let mut state = State::new();
    state.set("b", &7u8).expect("a number");
    state.insert(
        "a",
        Value {
            shape: 300,
            bytes: b"xy".to_vec(),
        },
    );
    state
}

const STATE: &[u8] = b"\x02\x01a\xac\x02\x02xy\x01b\0\x01\x07";

#[test]
fn a_module_says_its_version_by_a_name() {
    assert_eq!((EXPORT, VERSION), ("wallaby_abi_", 1));
}

#[test]
fn what_functions_are_given() {
    let exception = Exception {
        code: 5,
        message: "no".into(),
        chain: "7.1".into(),
        hosts: vec!["mem://a".into()],
    };
    for (given, bytes) in [
        (Given::Answer(Answer::new(b"hop")), &b"\0\x03hop"[..]),
        (
            Given::Results(vec![Answer::new(b"x"), Answer::new(b"")]),
            b"\x01\x02\x01x\0",
        ),
        (
            Given::Exception(exception),
            b"\x02\x05\x02no\x037.1\x01\x07mem://a",
        ),
    ] {
        let state = state();
        check(&Input { state, given }, &[STATE, bytes].concat());
    }
}

#[test]
fn what_functions_say() {
    let link = Link {
        server: "mem://a".into(),
        method: "a.B/c".into(),
        codec: "raw".into(),
        arguments: 1,
        answer: 2,
    };
    let hop = |function| Hop {
        link: link.clone(),
        arguments: b"hop".to_vec(),
        function,
        state: state(),
    };
    let hop_bytes = |function: &[u8]| {
        let link = b"\x07mem://a\x05a.B/c\x03raw\x01\x02\x03hop";
        [&link[..], function, STATE].concat()
    };
    let (own, native) = (Function::Own("f".into()), Function::Native("g".into()));
    let merge = Merge::at("mem://b", "f", State::new());
    let error = Error::new(3, "no".into());
    let end = || Step::End(b"hop".to_vec());
    let saying = end().log("at").and_then(|step| step.tell(&7u8));
    let said: [(Output, Vec<u8>); 6] = [
        (
            Ok(hop(Function::None).into()),
            [b"\0\0", &hop_bytes(b"\0")[..]].concat(),
        ),
        (
            Ok(hop(own).into()),
            [b"\0\0", &hop_bytes(b"\x01\x01f")[..]].concat(),
        ),
        (
            Ok(Step::split([hop(native)], merge)),
            [
                b"\0\x01\x01",
                &hop_bytes(b"\x02\x01g")[..],
                b"\x07mem://b\x01\x01f\0",
            ]
            .concat(),
        ),
        (Ok(end()), b"\0\x02\x03hop".to_vec()),
        (
            saying,
            b"\0\x03\x01\x02at\x01\x01\x07\x05\x02\x03hop".to_vec(),
        ),
        (Err(error), b"\x01\x03\x02no".to_vec()),
    ];
    for (output, bytes) in said {
        check(&output, &bytes);
    }
}
