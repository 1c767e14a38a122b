//! Scripts that clients bring: they are compiled, and run on a text and on several.

use std::sync::LazyLock;

use bytes::Bytes;
use wallaby::Code;
use wallaby_chain::{Effort, Fault, Runtime, Type};
use wallaby_chain_guest::abi::{Given, Input, Output};
use wallaby_chain_guest::{Answer, State, Value};
use wallaby_chain_script::{ScriptLimits, Scripts};

static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    Scripts::new(ScriptLimits {
        brief: 500,
        operations: 2_000,
        stack: 4 << 20,
        ..ScriptLimits::default()
    })
});

/// What a function says can be read, and nothing panics.
pub(crate) fn run(bytes: &[u8]) {
    let text = [b"// wallaby: rhai 1\n", bytes].concat();
    let module = match SCRIPTS.load(&text) {
        Ok(module) => module,
        Err(status) => return assert_ne!(status.code(), Code::Panicked, "{status}"),
    };
    let (answer, answers) = (Answer::new(b"\x06a text"), [Answer::new(b"\x01a"); 2]);
    let given = [Given::Answer(answer), Given::Results(answers.to_vec())];
    for (function, given) in ["run", "join"].into_iter().zip(given) {
        if module.check(function).is_err() {
            continue;
        }
        let input = Input {
            state: state(),
            given,
        };
        let input: Bytes = postcard::to_allocvec(&input).expect("it is plain").into();
        for effort in [Effort::Brief, Effort::Full] {
            match module.run(function, &input, effort) {
                Ok(output) => {
                    let said = postcard::from_bytes::<Output>(&output);
                    assert!(said.is_ok(), "it cannot be read");
                }
                Err(Fault::Longer) => assert_eq!(effort, Effort::Brief),
                Err(Fault::Status(status)) => assert_ne!(status.code(), Code::Panicked, "{status}"),
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

fn state() -> State {
    let of = r#"{"codec":"postcard","schema":{"root":"str"}}"#;
    let values = [
        (Type::ANSWER, of),
        (Type::RESULTS, &format!("[{of},{of}]")),
        (Type::END, of),
        ("n", "7"),
        ("m", r#"{"a":[1,2.5,"x",null]}"#),
    ];
    let mut state = State::new();
    for (name, json) in values {
        let (shape, bytes) = (Type::JSON, json.as_bytes().to_vec());
        state.insert(name, Value { shape, bytes });
    }
    state
}
