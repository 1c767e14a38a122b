//! What scripts of clients cost a server: compiling some of several sizes, a call of one that is compiled, and the worst that one can
//! do to its stack and its memory. Of 51 rounds it says the least and the median.
//!
//! ```text
//! cargo run -p wallaby-chain-script --profile counted --example script_cost
//! ```

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wallaby_chain::{Effort, Fault, Module, Runtime, Type};
use wallaby_chain_guest::abi::{Given, Input};
use wallaby_chain_guest::{Answer, State, Value};
use wallaby_chain_script::{ScriptLimits, Scripts};

const ROUNDS: usize = 51;
const CALLS: u32 = 1_000;

type Failure = Box<dyn std::error::Error>;

/// A script of about so many bytes, whose function `run` takes about so many steps of it.
fn script(bytes: usize, steps: usize) -> String {
    let mut text =
        "// wallaby: rhai 1\nfn run(state, text) {\n    let sum = text.len();\n".to_owned();
    for step in 0..steps {
        text += &format!("    sum = sum * {} + {step};\n", step % 7);
    }
    text += "    end(`${state.who}: ${sum}`)\n}\n";
    let mut other = 0;
    while text.len() < bytes {
        text += &format!(
            "fn other{other}(state, text) {{ next(state.ads, [text, {other}], \"run\", state) }}\n"
        );
        other += 1;
    }
    text
}

fn input(answer: &str) -> Result<Bytes, Failure> {
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

/// The least, which other work on the machine disturbs least, and the median.
fn told(mut times: Vec<Duration>) -> String {
    times.sort();
    match times.get(times.len() / 2) {
        Some(median) => format!("{:.1?} to {median:.1?}", times[0]),
        None => "-".into(),
    }
}

/// A line of what Linux knows of this process, in KiB.
fn status(name: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The smallest stack, in KiB, on which this can be done: tried in processes of their own, as too small a one ends them.
fn smallest_stack(which: &str) -> Result<usize, Failure> {
    let (mut too_small, mut enough) = (8, 64 << 10);
    while enough - too_small > 8 {
        let middle = (too_small + enough) / 2;
        let mut process = std::process::Command::new(std::env::current_exe()?);
        process.args(["stack", which, &middle.to_string()]);
        process.stderr(std::process::Stdio::null());
        match process.status()?.success() {
            true => enough = middle,
            false => too_small = middle,
        }
    }
    Ok(enough)
}

/// Scripts that do their worst.
fn worst(which: &str) -> (String, Effort) {
    let header = "// wallaby: rhai 1\n";
    // As deep as it may be.
    let nested = || {
        let scripts = Scripts::new(ScriptLimits::default());
        let nested = |depth: usize| {
            let (open, close) = ("(-".repeat(depth), ")".repeat(depth));
            format!(
                "{header}fn run(state, n) {{ if true {{ for i in 0..1 {{ return {open}run(state, [[n]]){close}; }} }} }}"
            )
        };
        let mut all = (1..40).rev().map(nested);
        all.find(|text| scripts.load(text.as_bytes()).is_ok())
            .unwrap_or_default()
    };
    match which {
        "calls" => (nested(), Effort::Full),
        "brief calls" => (nested(), Effort::Brief),
        "pointers" => (
            format!(
                "{header}fn run(state, n) {{ if true {{ for i in 0..1 {{ if true {{ again(n); }} }} }} }} fn again(n) {{ run(n, n) }}"
            ),
            Effort::Full,
        ),
        "values" => (
            format!("{header}fn run(state, n) {{ let a = []; loop {{ a = [a]; let b = a; }} }}"),
            Effort::Full,
        ),
        "brief values" => (
            format!("{header}fn run(state, n) {{ let a = []; loop {{ a = [a]; let b = a; }} }}"),
            Effort::Brief,
        ),
        _ => {
            // Each variable holds as much as it may, and so does each argument while the next ones are made.
            let fill =
                "let s = \"0123456789abcdef\"; for i in 0..12 { s += s; } s.truncate(65000);";
            let lets: String = (0..8)
                .map(|n| format!("let v{n} = #{{ t: s + \"{n}\", a: a, m: m }};"))
                .collect();
            let big = |n: usize| format!("#{{ t: s + \"{n}\", a: a, m: m }}");
            let arguments: String = (0..7).map(|n| big(n) + ", ").collect();
            let call = format!("f({arguments} f({arguments} f({arguments} run(state, n))))");
            (
                format!(
                    "{header}fn run(state, n) {{ {fill} let a = []; a.pad(1000, 1); let m = #{{}}; for i in 0..500 {{ m[`key number ${{i}} that is not short`] = i; }} {lets} {call} }} fn f(a, b, c, d, e, f, g, h) {{ 1 }}"
                ),
                Effort::Full,
            )
        }
    }
}

fn run_worst(which: &str) -> Result<String, Failure> {
    let (text, effort) = worst(which);
    let scripts = Scripts::new(ScriptLimits {
        time: Duration::from_secs(60),
        ..ScriptLimits::default()
    });
    let module = scripts
        .load(text.as_bytes())
        .map_err(|status| status.to_string())?;
    let ended = module.run("run", &input("x")?, effort);
    Ok(match ended {
        Ok(_) => "it ends".into(),
        Err(fault) => format!("{fault:?}"),
    })
}

fn load(scripts: &Scripts, text: &str) -> Result<std::sync::Arc<dyn Module>, Failure> {
    Ok(scripts
        .load(text.as_bytes())
        .map_err(|status| status.to_string())?)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["stack", which, size] => {
            let (which, size) = ((*which).to_owned(), size.parse::<usize>()? << 10);
            let work = move || {
                let (text, effort) = worst(&which);
                // All of it is on this thread.
                let limits = ScriptLimits {
                    stack: size,
                    ..ScriptLimits::default()
                };
                let scripts = Scripts::new(limits);
                let Ok(module) = scripts.load(text.as_bytes()) else {
                    return;
                };
                if let Ok(input) = input("x") {
                    let _ended = module.run("run", &input, effort);
                }
            };
            thread::Builder::new()
                .stack_size(size)
                .spawn(work)?
                .join()
                .map_err(|_| "it has panicked")?;
            return Ok(());
        }
        ["memory", which] => {
            let before = status("VmRSS");
            let ended = run_worst(which)?;
            println!(
                "{} KiB more at most: {ended}",
                status("VmHWM").saturating_sub(before)
            );
            return Ok(());
        }
        _ => {}
    }
    let scripts = Scripts::new(ScriptLimits {
        source: 128 << 10,
        ..ScriptLimits::default()
    });
    let input = input("a text about hops")?;
    println!("{:>12}  {:22}  a call", "script", "compiled in");
    for (bytes, steps) in [(600, 4), (1 << 10, 8), (5 << 10, 8), (50 << 10, 8)] {
        let text = script(bytes, steps);
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            load(&scripts, &text)?;
            times.push(begun.elapsed());
        }
        let module = load(&scripts, &text)?;
        let mut calls = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for _ in 0..CALLS {
                // On a machine that has much to do one may be stopped for longer than a millisecond.
                if let Err(Fault::Status(status)) = module.run("run", &input, Effort::Brief) {
                    return Err(status.to_string().into());
                }
            }
            calls.push(begun.elapsed() / CALLS);
        }
        let (compiled, call) = (told(times), told(calls));
        println!("{:6} bytes  {compiled:22}  {call}", text.len());
    }
    let module = load(&scripts, &script(600, 4))?;
    let mut fulls = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        module
            .run("run", &input, Effort::Full)
            .map_err(|fault| format!("{fault:?}"))?;
        fulls.push(begun.elapsed());
    }
    println!("on a thread of its own: {}", told(fulls));
    let before = status("VmRSS");
    let many: Vec<_> = (0..1000)
        .map(|n| load(&scripts, &format!("{}// {n}", script(5 << 10, 8))))
        .collect::<Result<_, _>>()?;
    println!(
        "1000 scripts of 5 KiB: {} KiB, said to be {} KiB",
        status("VmRSS").saturating_sub(before),
        many.iter().map(|module| module.size()).sum::<usize>() >> 10
    );
    for which in ["calls", "pointers", "values", "brief calls", "brief values"] {
        println!("stack of the worst {which}: {} KiB", smallest_stack(which)?);
    }
    let mut process = std::process::Command::new(std::env::current_exe()?);
    print!("memory of the worst: ");
    process.args(["memory", "all"]).status()?;
    Ok(())
}
