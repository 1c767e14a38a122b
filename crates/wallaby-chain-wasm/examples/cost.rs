//! What code of clients costs a server: compiling functions of several sizes, and a call of one that is compiled. Of 51 rounds it
//! says the least and the median.
//!
//! ```text
//! cargo run -p wallaby-chain-wasm --profile counted --example cost
//! ```

use std::time::{Duration, Instant};

use wallaby_chain::{Effort, Runtime};
use wallaby_chain_guest::abi::{Given, Input};
use wallaby_chain_guest::{Answer, State};
use wallaby_chain_wasm::{Limits, WebAssembly};

const ROUNDS: usize = 51;
const CALLS: u32 = 10_000;

/// A module whose function mixes its input in so many ways, and yields the end of a chain.
fn module(steps: usize) -> Result<Vec<u8>, wat::Error> {
    let step = |number: usize| {
        format!(
            "(local.set $sum (i32.xor (i32.mul (local.get $sum) (i32.const {})) (i32.load8_u offset={} (local.get 0))))\n",
            1_000_003 + number,
            number % 64,
        )
    };
    let steps: String = (0..steps).map(step).collect();
    wat::parse_str(format!(
        r#"(module (memory (export "memory") 1) (data (i32.const 16) "\00\02\03\02hi")
        (func (export "wallaby_abi_1") (param i32) (result i32) (i32.const 1024))
        (func (export "run") (param i32 i32) (result i64) (local $sum i32) {steps}
            (i32.store (i32.const 64) (local.get $sum)) (i64.const 0x10_0000_0006)))"#
    ))
}

/// The least, which other work on the machine disturbs least, and the median.
fn told(mut times: Vec<Duration>) -> String {
    times.sort();
    match times.get(times.len() / 2) {
        Some(median) => format!("{:.1?} to {median:.1?}", times[0]),
        None => "-".into(),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = WebAssembly::new(Limits::default())?;
    let mut state = State::new();
    state.set("who", &"Ada").map_err(|error| error.message)?;
    let given = Given::Answer(Answer::new(&[7; 100]));
    let input = postcard::to_allocvec(&Input { state, given })?.into();
    println!("{:>12}  {:22}  a call", "module", "compiled in");
    let glue = include_bytes!("../tests/all/glue-1.wasm").to_vec();
    for (module, runs) in [
        (module(5)?, true),
        (module(62)?, true),
        (module(340)?, true),
        (module(3500)?, true),
        (glue, false),
    ] {
        let mut times = Vec::new();
        let mut compiled = None;
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            compiled = Some(runtime.load(&module)?);
            times.push(begun.elapsed());
        }
        let compiled = compiled.ok_or("there are rounds")?;
        let mut calls = Vec::new();
        for _ in 0..if runs { ROUNDS } else { 0 } {
            let begun = Instant::now();
            for _ in 0..CALLS {
                compiled
                    .run("run", &input, Effort::Brief)
                    .map_err(|fault| format!("{fault:?}"))?;
            }
            calls.push(begun.elapsed() / CALLS);
        }
        let (compiled, call) = (told(times), told(calls));
        println!("{:6} bytes  {compiled:22}  {call}", module.len());
    }
    Ok(())
}
