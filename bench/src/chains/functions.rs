//! The cost of functions that clients bring, at a server, without messages: compiling some of several sizes, and a run of one that is
//! compiled.

use super::Point;
use crate::row::Row;
use anyhow::{Result, anyhow};
use bytes::Bytes;
use wallaby_chain::{Effort, Fault, Runtime, Type};
use wallaby_chain_guest::abi::{Given, Input};
use wallaby_chain_guest::{Answer, State, Value};
use wallaby_chain_script::Scripts;

/// About so many bytes each: the paper's sizes, and 1 KB.
const SIZES: [usize; 4] = [600, 1_000, 5_000, 50_000];

pub(super) fn points() -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for bytes in SIZES {
        let limits = wallaby_chain_script::ScriptLimits::default();
        points.extend(both(
            "script",
            Scripts::new(limits),
            script(bytes).into_bytes(),
        )?);
        #[cfg(feature = "wasm")]
        points.extend(both(
            "wasm",
            wallaby_chain_wasm::WebAssembly::new(Default::default())?,
            module(bytes)?,
        )?);
    }
    Ok(points)
}

/// Compiling this, and running it.
fn both(system: &str, runtime: impl Runtime, code: Vec<u8>) -> Result<[Point; 2]> {
    let input = input("a text about hops")?;
    let compiled = runtime.load(&code)?;
    let row = |bench: &str| Row {
        bench: bench.into(),
        system: system.into(),
        transport: "nothing".into(),
        n: code.len() as u64,
        payload: input.len() as u64,
        ..Row::default()
    };
    let (compile, run) = (row("chains-compile"), row("chains-run"));
    let load = move || Ok(runtime.load(&code).map(drop)?);
    let run_once = move || match compiled.run("run", &input, Effort::Brief) {
        // On a machine that has much to do one may be stopped for longer than a millisecond.
        Ok(_) | Err(Fault::Longer) => Ok(()),
        Err(fault) => Err(anyhow!("{fault:?}")),
    };
    Ok([
        Point {
            row: compile,
            operation: Box::new(load),
            beside: None,
        },
        Point {
            row: run,
            operation: Box::new(run_once),
            beside: None,
        },
    ])
}

/// What a function is given: an answer and a state, and for scripts their types.
fn input(answer: &str) -> Result<Bytes> {
    let mut state = State::new();
    let json = |text: &str| Value {
        shape: Type::JSON,
        bytes: text.as_bytes().to_vec(),
    };
    let text = r#"{"codec":"postcard","schema":{"root":"str"}}"#;
    state.insert(Type::ANSWER, json(text));
    state.insert(Type::END, json(text));
    state.insert("who", json("\"Ada\""));
    let answer = postcard::to_allocvec(answer)?;
    let given = Given::Answer(Answer::new(&answer));
    Ok(postcard::to_allocvec(&Input { state, given })?.into())
}

/// A script whose function `run` takes a few steps and ends the chain; the rest of its bytes are other functions.
fn script(bytes: usize) -> String {
    let mut text =
        "// wallaby: rhai 1\nfn run(state, text) {\n    let sum = text.len();\n".to_owned();
    for step in 0..8 {
        text += &format!("    sum = sum * {} + {step};\n", step % 7);
    }
    text += "    end(`${state.who}: ${sum}`)\n}\n";
    for other in 0.. {
        if text.len() >= bytes {
            break;
        }
        // Of functions there may be so many.
        let steps = format!("    text += \"{other}\";\n").repeat(20);
        text += &format!("fn other{other}(state, text) {{\n{steps}    end(text)\n}}\n");
    }
    text
}

/// A module whose function mixes its input, in as many steps as make it so long, and ends the chain.
#[cfg(feature = "wasm")]
fn module(bytes: usize) -> Result<Vec<u8>> {
    let step = |number: usize| {
        format!(
            "(local.set $sum (i32.xor (i32.mul (local.get $sum) (i32.const {})) (i32.load8_u offset={} (local.get 0))))\n",
            1_000_003 + number,
            number % 64,
        )
    };
    let steps: String = (0..bytes.saturating_sub(130) / 15).map(step).collect();
    module_of(&format!(
        "(local $sum i32) {steps} (i32.store (i32.const 64) (local.get $sum)) (i64.const 0x10_0000_0006)"
    ))
}

/// A module whose function does this.
#[cfg(feature = "wasm")]
pub(super) fn module_of(body: &str) -> Result<Vec<u8>> {
    Ok(wat::parse_str(format!(
        r#"(module (memory (export "memory") 1) (data (i32.const 16) "\00\02\03\02hi")
        (func (export "wallaby_abi_1") (param i32) (result i32) (i32.const 1024))
        (func $run (export "run") (param i32 i32) (result i64) {body}))"#
    ))?)
}
