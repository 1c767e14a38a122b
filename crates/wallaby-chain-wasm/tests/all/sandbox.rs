//! What code may try, and how that ends: by an exception that says where, and the server goes on.

use std::sync::atomic::Ordering;

use wallaby::{Code, Endpoint};
use wallaby_chain::{ChainCode, State, hosts};
use wallaby_chain_wasm::WasmLimits;

use crate::world::{ask, at, client, serve, serve_within};

/// What a good function yields, at 16: the end, with the text `hi`.
const END: &str = r#"(data (i32.const 16) "\00\02\03\02hi")"#;

/// Yields these bytes.
const YIELD: &str = "(i64.const 0x10_0000_0006)";

/// The place for what a function is given.
const ROOM: &str = r#"(func (export "wallaby_abi_1") (param i32) (result i32) (i32.const 1024))"#;

/// A module of one function, `run`.
fn module(body: &str) -> String {
    whole(&format!(
        r#"(memory (export "memory") 1) {ROOM} {END}
        (func $run (export "run") (param i32 i32) (result i64) {body})"#
    ))
}

fn whole(parts: &str) -> String {
    format!("(module {parts})")
}

fn code(text: &str) -> ChainCode {
    ChainCode::new(wat::parse_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

async fn is_well(client: &Endpoint, server: &Endpoint) {
    let well = ask(client, server, &code(&module(YIELD)), "run", State::new()).await;
    assert_eq!(well, Ok("hi".into()));
}

/// Asks for `run` of each; whether its link runs before.
async fn check(limits: WasmLimits, cases: &[(&str, ChainCode, bool, Code, &str)]) {
    let ((server, written), client) = (serve(limits).await, client().await);
    for (name, code, runs, expected, message) in cases {
        let before = written.0.load(Ordering::SeqCst);
        let answer = ask(&client, &server, code, "run", State::new()).await;
        let status = match answer {
            Err(error) => error
                .status()
                .unwrap_or_else(|| panic!("{name}: {error}"))
                .clone(),
            Ok(answer) => panic!("{name}: {answer}"),
        };
        assert_eq!(status.code(), *expected, "{name}: {status}");
        assert!(status.message().contains(message), "{name}: {status}");
        assert_eq!(hosts(&status), [at(&server).to_string()], "{name}");
        let ran = written.0.load(Ordering::SeqCst) > before;
        assert_eq!(ran, *runs, "{name}: whether its link ran");
        is_well(&client, &server).await;
    }
}

#[tokio::test]
async fn what_a_function_uses_up_is_limited() {
    let run = |body: &str| code(&module(body));
    let exhausted = Code::ResourceExhausted;
    let memory = "asks for more than 16777216 bytes of memory";
    check(
        WasmLimits::default(),
        &[
            (
                "endless loop",
                run("(loop (br 0)) (unreachable)"),
                true,
                exhausted,
                "function \"run\" of the code runs for more than 100000000 instructions",
            ),
            (
                "endless start",
                code(&whole(&format!(
                    r#"(memory (export "memory") 1) {ROOM} (func $start (loop (br 0))) (start $start)
                    (func (export "run") (param i32 i32) (result i64) {YIELD})"#
                ))),
                true,
                exhausted,
                "runs for more than 100000000 instructions",
            ),
            (
                "bytes without end",
                run("(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br 0)) (unreachable)"),
                true,
                exhausted,
                "runs for more than 100000000 instructions",
            ),
            (
                "memory bomb",
                run("(loop (drop (memory.grow (i32.const 1))) (br 0)) (unreachable)"),
                true,
                exhausted,
                memory,
            ),
            (
                "memory at once",
                run("(drop (memory.grow (i32.const 60000))) (unreachable)"),
                true,
                exhausted,
                memory,
            ),
            (
                "much memory from the beginning",
                code(&whole(&format!(
                    r#"(memory (export "memory") 1000) {ROOM}
                    (func (export "run") (param i32 i32) (result i64) {YIELD})"#
                ))),
                false,
                exhausted,
                "the code needs more than is allowed",
            ),
            (
                "a large table",
                code(&whole(&format!(
                    r#"(memory (export "memory") 1) (table 1000000 funcref) {ROOM}
                    (func (export "run") (param i32 i32) (result i64) {YIELD})"#
                ))),
                false,
                exhausted,
                "the code needs more than is allowed",
            ),
            (
                "deep recursion",
                run("(call $run (local.get 0) (local.get 1))"),
                true,
                exhausted,
                "uses more than 262144 bytes of stack",
            ),
            (
                "giant output",
                run("(drop (memory.grow (i32.const 63))) (i64.const 0x200000)"),
                true,
                exhausted,
                "yields 2097152 bytes: at most 1048576 are allowed",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_a_module_says_is_not_believed() {
    let run = |body: &str| code(&module(body));
    let invalid = Code::InvalidArgument;
    let with = |parts: &str| {
        code(&whole(&format!(
            r#"{parts} (func (export "run") (param i32 i32) (result i64) {YIELD})"#
        )))
    };
    let memory = r#"(memory (export "memory") 1)"#;
    check(
        WasmLimits::default(),
        &[
            (
                "an answer that is no memory",
                run("(i64.const 0xffff_fff0_0000_0010)"),
                true,
                invalid,
                "where it says its answer is, is no memory",
            ),
            (
                "an answer beyond the end",
                run("(i64.const 0xffff_0000_0002)"),
                true,
                invalid,
                "where it says its answer is, is no memory",
            ),
            (
                "room that is no memory",
                with(&format!(
                    r#"{memory} (func (export "wallaby_abi_1") (param i32) (result i32) (i32.const -16))"#
                )),
                true,
                invalid,
                "where it wants to be given something is no memory",
            ),
            ("nothing", run("(i64.const 0)"), true, invalid, "cannot be read"),
            (
                "more than an answer",
                run("(i64.const 0x10_0000_0007)"),
                true,
                invalid,
                "cannot be read",
            ),
            (
                "a trap",
                run("(unreachable)"),
                true,
                Code::Panicked,
                "function \"run\" of the code has ended itself: wasm trap: wasm `unreachable` instruction executed",
            ),
            (
                "a forbidden import",
                with(&format!(
                    r#"(import "wasi_snapshot_preview1" "proc_exit" (func (param i32))) {memory} {ROOM}"#
                )),
                false,
                invalid,
                "it imports \"proc_exit\" of \"wasi_snapshot_preview1\", but there is nothing to import",
            ),
            (
                "malformed",
                ChainCode::new(&b"\0asm\x01\0\0\0\x01\xff"[..]),
                false,
                invalid,
                "the code is no module that can run here",
            ),
            (
                "no WebAssembly at all",
                ChainCode::new(&b"(module)"[..]),
                false,
                invalid,
                "the code is no module that can run here",
            ),
            (
                "no function",
                code(&whole(&format!("{memory} {ROOM}"))),
                false,
                Code::NotFound,
                "the code exports no function \"run\"",
            ),
            (
                "another kind of function",
                code(&whole(&format!(r#"{memory} {ROOM} (func (export "run") (param i32))"#))),
                false,
                invalid,
                "\"run\" of the code is no chaining function",
            ),
            ("no memory", with(ROOM), false, invalid, "exports no memory"),
            ("no version", with(memory), false, invalid, "does not say by which rules it is called"),
            (
                "a version of another kind",
                with(&format!(r#"{memory} (global (export "wallaby_abi_1") i32 (i32.const 1))"#)),
                false,
                invalid,
                "does not say by which rules it is called",
            ),
            (
                "a newer version",
                with(&format!(
                    r#"{memory} (func (export "wallaby_abi_2") (param i32) (result i32) (i32.const 0))"#
                )),
                false,
                Code::Unimplemented,
                "code of version 2: this server knows version 1",
            ),
        ],
    )
    .await;
}

/// A function that has run before leaves nothing behind.
#[tokio::test]
async fn each_call_has_an_instance_of_its_own() {
    let ((server, _), client) = (serve(WasmLimits::default()).await, client().await);
    // It counts in a global and in memory, and traps if it has counted before.
    let counting = code(&whole(&format!(
        r#"(memory (export "memory") 1) {ROOM} {END} (global $runs (mut i32) (i32.const 0))
        (func (export "run") (param i32 i32) (result i64)
            (if (i32.or (global.get $runs) (i32.load (i32.const 40000))) (then (unreachable)))
            (global.set $runs (i32.const 1))
            (i32.store (i32.const 40000) (i32.const 1))
            {YIELD})"#
    )));
    for _ in 0..200 {
        let answer = ask(&client, &server, &counting, "run", State::new()).await;
        assert_eq!(answer, Ok("hi".into()));
    }
}

/// Slower than briefly, and it comes to its end.
#[tokio::test]
async fn a_long_function_ends() {
    let ((server, _), client) = (serve(WasmLimits::default()).await, client().await);
    let long = code(&module(&format!(
        "(loop (local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get 0) (i32.const 1000000)))) {YIELD}"
    )));
    let answer = ask(&client, &server, &long, "run", State::new()).await;
    assert_eq!(answer, Ok("hi".into()));
}

/// One that finds no place is refused; a server goes on as soon as there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_many_functions_run_at_the_same_time_and_no_more() {
    let limits = WasmLimits {
        at_once: 1,
        ..WasmLimits::default()
    };
    let ((server, _), client) = (serve(limits).await, client().await);
    let endless = code(&module("(loop (br 0)) (unreachable)"));
    let other = code(&module(YIELD));
    let refused = async {
        loop {
            let answer = ask(&client, &server, &other, "run", State::new()).await;
            if let Err(error) = answer {
                return error.status().expect("an exception").clone();
            }
        }
    };
    // Each of them runs for a while, on a thread of its own.
    let busy = async {
        loop {
            let _ended = ask(&client, &server, &endless, "run", State::new()).await;
        }
    };
    let refused = tokio::select! {
        refused = refused => refused,
        () = busy => unreachable!("it has no end"),
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let text = "this server runs at most 1 functions at once";
    assert!(refused.message().starts_with(text), "{refused}");
    assert_eq!(hosts(&refused), [at(&server).to_string()]);
    while ask(&client, &server, &other, "run", State::new()).await != Ok("hi".into()) {}
}

/// Many different functions: a server keeps as many as its limits say, and goes on.
async fn flood(functions: u16) {
    let limits = wallaby_chain::CodeLimits {
        kept: usize::from(functions) / 10,
        ..Default::default()
    };
    let (server, _) = serve_within(limits, WasmLimits::default()).await;
    let client = client().await;
    let body = "(drop (i64.const 0x1234567890)) (i64.const 0x10_0000_0006)";
    let mut bytes = wat::parse_str(module(body)).expect("a module");
    let number = [0x90, 0xf1, 0xd9, 0xa2, 0xa3, 0x02];
    let at = bytes.windows(6).position(|window| window == number);
    let at = at.expect("the number is there");
    for other in 0..functions {
        // Another number of as many bytes.
        bytes[at] = 0x80 | (other & 0x7f) as u8;
        bytes[at + 1] = 0x80 | (other >> 7) as u8;
        let code = ChainCode::new(bytes.clone());
        let answer = ask(&client, &server, &code, "run", State::new()).await;
        assert_eq!(answer, Ok("hi".into()));
    }
    is_well(&client, &server).await;
}

#[tokio::test]
async fn many_functions_are_compiled_and_forgotten() {
    flood(50).await;
}

#[tokio::test]
#[ignore = "without optimisation it takes minutes: scripts/soak.sh functions"]
async fn very_many_functions_are_compiled_and_forgotten() {
    flood(10_000).await;
}
