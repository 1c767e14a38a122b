//! What scripts may try, and how that ends: by an exception that says where, and the server goes on.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use wallaby::{Code, Endpoint};
use wallaby_chain::{ChainCode, CodeLimits, Effort, Fault, Runtime, State, hosts};
use wallaby_chain_guest as guest;
use wallaby_chain_script::{ScriptLimits, Scripts};

use crate::world::{ask, at, client, script, serve, serve_within};

const WELL: &str = "fn run(state, text) { end(\"hi\") }";

async fn is_well(client: &Endpoint, server: &Endpoint) {
    let well = ask(client, server, &script(WELL), State::new()).await;
    assert_eq!(well, Ok("hi".into()));
}

/// Asks for `run` of each; whether its link runs before.
async fn check(cases: &[(&str, ChainCode, bool, Code, &str)]) {
    let limits = ScriptLimits {
        time: Duration::from_secs(30), // steps end it, on a slow machine, too
        operations: 100_000,
        ..ScriptLimits::default()
    };
    let ((server, written), client) = (serve(limits).await, client().await);
    for (name, code, runs, expected, message) in cases {
        let before = written.0.load(Ordering::SeqCst);
        let answer = ask(&client, &server, code, State::new()).await;
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

fn body(body: &str) -> ChainCode {
    script(&format!("fn run(state, text) {{ {body} }}"))
}

#[tokio::test]
async fn what_a_script_uses_up_is_limited() {
    let exhausted = Code::ResourceExhausted;
    let steps = "function \"run\" of the script takes more than 100000 steps";
    let large = "makes a value that is too large: at most 65536 bytes of text and 1024 elements";
    let calls = "has more than 8 functions inside each other";
    let runs = |name, text: &str, message| (name, body(text), true, exhausted, message);
    check(&[
        runs("endless loop", "loop { }", steps),
        runs("endless while", "let n = 0; while true { n += 1; }", steps),
        runs("endless for", "for i in 0..9223372036854775807 { }", steps),
        runs("string bomb", "let s = \"x\"; loop { s += s; }", large),
        runs("string by a product", "let s = \"x\"; s.pad(1073741824, 'y'); end(s)", large),
        runs("array bomb", "let a = [1]; loop { a += a; }", large),
        runs("array by growing", "let a = []; loop { a.push([1]); }", large),
        runs("array padded", "let a = []; a.pad(1073741824, 0); end(a)", large),
        runs("deep array", "let a = []; loop { a = [a]; }", large),
        runs("map bomb", "let m = #{}; let i = 0; loop { m[i.to_string()] = i; i += 1; }", large),
        runs("texts in a map", "let m = #{}; let s = \"x\"; s.pad(60000, 'y'); let i = 0; loop { m[i.to_string()] = s + i; i += 1; }", large),
        runs("texts in an array", "let a = []; a.pad(1000, 0); let s = \"x\"; s.pad(60000, 'y'); for i in 0..1000 { a[i] = s + i; }", large),
        runs("texts in a map of a map", "let m = #{ m: #{} }; let s = \"x\"; s.pad(60000, 'y'); let i = 0; loop { m.m[i.to_string()] = s + i; i += 1; }", large),
        runs("deep map", "let m = #{}; loop { m = #{ m: m }; }", large),
        runs("characters", "let s = \"xxxxxxxx\"; for i in 0..12 { s += s; } let all = s.split(\"\"); end(1)", large),
        runs("many lines", "loop { print(\"0123456789012345678901234567890123456789\".to_upper()); }", steps),
        runs(
            "long lines",
            "let s = \"xxxxxxxx\"; for i in 0..12 { s += s; } for i in 0..100 { print(s); } end(\"x\")",
            "logs and tells more than 1048576",
        ),
        runs("recursion", "run(state, text)", calls),
        runs("caught recursion", "try { run(state, text) } catch { run(state, text) }", calls),
        (
            "recursion in a circle",
            script("fn run(a, b) { other(a, b) } fn other(a, b) { run(a, b) }"),
            true,
            exhausted,
            calls,
        ),
        (
            "functions as values",
            script("fn again(x) { run(x, x) } fn run(a, b) { [1].map(again) }"),
            true,
            Code::InvalidArgument,
            "map",
        ),
        runs("text padded by texts", "let s = \"a\"; s.pad(65536, 'a'); s.replace(\"a\", s)", large),
        runs("array padded beyond numbers", "let b = []; b.pad(1023, 0); let a = []; a.pad(18014398509481984, b);", large),
        runs("steps in arrays", "let a = []; a.pad(1000, 0); let b = []; b.pad(1000, end(\"x\")); let c = []; c.pad(1000, b); end(c)", large),
        runs("names of maps", "let s = \"k\"; s.pad(65000, 'k'); let m = #{}; let i = 0; loop { m[s + i] = 0; i += 1; }", large),
        runs("maps and arrays in each other", "let a = []; loop { a = [#{ m: a }]; let b = a; }", large),
        runs(
            "many variables",
            &(0..40).map(|n| format!("let v{n} = {n}; ")).collect::<String>(),
            "has more than 16 variables",
        ),
    ])
    .await;
}

#[tokio::test]
async fn what_a_script_is_made_of_is_limited() {
    let (exhausted, invalid) = (Code::ResourceExhausted, Code::InvalidArgument);
    let made = |name, code: ChainCode, message| (name, code, false, exhausted, message);
    let deep = "the script cannot be compiled: Expression exceeds maximum complexity";
    let many = |text: &str| text.repeat(20_000);
    check(&[
        made(
            "deep parentheses",
            body(&format!("{}1{}", many("("), many(")"))),
            deep,
        ),
        made(
            "deep arrays",
            body(&format!("{}1{}", many("["), many("]"))),
            deep,
        ),
        made(
            "deep blocks",
            body(&format!("{}1{}", many("{"), many("}"))),
            deep,
        ),
        made("deep negation", body(&format!("{}1", many("!"))), deep),
        made("deep signs", body(&format!("{}1", many("- "))), deep),
        made("a long sum", body(&format!("1{}", many("+1"))), deep),
        made("a long chain", body(&format!("state{}", many(".a"))), deep),
        made(
            "a long chain of calls",
            body(&format!("state{}", ".a()".repeat(10_000))),
            deep,
        ),
        made("a long index", body(&format!("state{}", many("[0]"))), deep),
        made(
            "long alternatives",
            body(&format!("if true {{}}{}", "else if true {} ".repeat(4000))),
            deep,
        ),
        made(
            "long disjunction",
            body(&format!("true{}", "||true".repeat(9000))),
            deep,
        ),
        made(
            "deep texts",
            body(&format!("{}1{}", "`${".repeat(9000), "}`".repeat(9000))),
            deep,
        ),
        made(
            "deep functions",
            body(&format!("{}1{}", "f(".repeat(9000), ")".repeat(9000))),
            deep,
        ),
        made(
            "arguments",
            body(&format!("f({})", "state,".repeat(9))),
            "9 arguments, at most 8 are allowed (line 2",
        ),
        made(
            "arguments of methods",
            body(&format!("let x = state.f({});", "1,".repeat(9))),
            "9 arguments, at most 8",
        ),
        made(
            "a large array",
            body(&format!("let a = [{}];", "1,".repeat(2000))),
            "the script cannot be compiled: Size of array",
        ),
        made(
            "much text",
            script(&format!("{WELL} // {}", "x".repeat(70_000))),
            "bytes: at most 65536 are allowed",
        ),
        made(
            "many functions",
            script(
                &(0..300)
                    .map(|n| format!("fn f{n}() {{}}\n"))
                    .collect::<String>(),
            ),
            "the script cannot be compiled: Number of functions",
        ),
        (
            "no script",
            ChainCode::new("fn run(state, text) {}"),
            false,
            invalid,
            "the first line of one is `// wallaby: rhai 1`",
        ),
        (
            "no text",
            ChainCode::new(b"// wallaby: rhai 1\n\xff"),
            false,
            invalid,
            "the code is no text",
        ),
        (
            "a newer version",
            ChainCode::new("// wallaby: rhai 2\nfn run(state, text) {}"),
            false,
            Code::Unimplemented,
            "a script in \"rhai 2\": this server knows \"rhai 1\"",
        ),
        (
            "wrong syntax",
            body("let ;"),
            false,
            invalid,
            "the script cannot be compiled: Expecting name of a variable (line 2",
        ),
        (
            "no function",
            script("fn other(state, text) {}"),
            false,
            Code::NotFound,
            "the script has no function \"run\"",
        ),
        (
            "another kind of function",
            script("fn run(state) {}"),
            false,
            invalid,
            "these have two parameters",
        ),
        (
            "what is not there",
            body("end(txt)"),
            false,
            invalid,
            "Undefined variable: txt",
        ),
        (
            "eval",
            body("eval(\"1\")"),
            false,
            invalid,
            "'eval' is disabled",
        ),
        (
            "pointers",
            body("let f = Fn(\"run\"); f.call(1)"),
            false,
            invalid,
            "'Fn' is disabled",
        ),
        (
            "curried pointers",
            script("fn g(x) { 1 } fn run(a, b) { let f = g; loop { f = f.curry(f); } }"),
            false,
            invalid,
            "the script cannot be compiled",
        ),
        (
            "what has no name",
            body("this.a = 1; run.call(state)"),
            false,
            invalid,
            "'this' is disabled",
        ),
        (
            "a closure",
            body("let a = []; let f = || a.push(a); f.call()"),
            false,
            invalid,
            "the script cannot be compiled",
        ),
        (
            "other modules",
            script(&format!("import \"x\" as y; {WELL}")),
            false,
            invalid,
            "the script cannot be compiled",
        ),
    ])
    .await;
}

/// What takes long, but few steps.
#[tokio::test]
async fn time_is_limited() {
    let limits = ScriptLimits {
        time: Duration::from_millis(100),
        operations: u64::MAX,
        ..ScriptLimits::default()
    };
    let ((server, _), client) = (serve(limits).await, client().await);
    let searching =
        body("let s = \"x\"; for i in 0..15 { s += s; } loop { s.contains(s + \"y\"); }");
    let said = ask(&client, &server, &searching, State::new()).await;
    let status = said.expect_err("it never ends").status().cloned();
    let status = status.expect("a status");
    assert!(
        status.message().contains("runs for longer than 100ms"),
        "{status}"
    );
    is_well(&client, &server).await;
}

#[tokio::test]
async fn a_long_function_ends() {
    let limits = ScriptLimits {
        time: Duration::from_secs(30),
        ..ScriptLimits::default()
    };
    let ((server, _), client) = (serve(limits).await, client().await);
    let long = body("let n = 0; for i in 0..100000 { n += i; } end(n.to_string())");
    let answer = ask(&client, &server, &long, State::new()).await;
    assert_eq!(answer, Ok("4999950000".into()));
}

/// Nothing of one run is there in the next, and top-level statements run before each.
#[tokio::test]
async fn each_run_is_the_first_one() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let counting = script(
        "const N = 40 + 2; fn run(state, text) { global::N.to_string(); end(global::N.to_string()) }",
    );
    for _ in 0..50 {
        let answer = ask(&client, &server, &counting, State::new()).await;
        assert_eq!(answer, Ok("42".into()));
    }
}

fn input(answer: &str) -> Bytes {
    let answer = postcard::to_allocvec(&answer).expect("text");
    let (state, given) = (
        guest::State::new(),
        guest::abi::Given::Answer(guest::Answer::new(&answer)),
    );
    let input = postcard::to_allocvec(&guest::abi::Input { state, given });
    input.expect("an input").into()
}

/// The deepest that a script can be: expressions in each other, in functions in each other.
fn deepest(scripts: &Scripts) -> String {
    let nested = |depth: usize| {
        let (inside, outside) = ("(-".repeat(depth), ")".repeat(depth));
        format!(
            "// wallaby: rhai 1\nfn run(state, n) {{ if true {{ for i in 0..1 {{ return {inside}run(state, [[n]]){outside}; }} }} }}"
        )
    };
    let mut depths = (1..40).rev().map(nested);
    let compiles = |text: &String| scripts.load(text.as_bytes()).is_ok();
    depths.find(compiles).expect("some depth is allowed")
}

/// Who answers requests has a stack of its own, and may have used up some of it.
#[test]
fn a_brief_run_takes_little_stack() {
    const STACK: usize = 512 << 10;
    let deep_value =
        "// wallaby: rhai 1\nfn run(state, n) { let a = []; loop { a = [a]; let b = a; } }";
    let scripts = Scripts::new(ScriptLimits::default());
    for text in [deepest(&scripts).as_str(), deep_value] {
        let module = scripts.load(text.as_bytes()).expect("it compiles");
        let run = move || module.run("run", &input("x"), Effort::Brief);
        let thread = thread::Builder::new().stack_size(STACK).spawn(run);
        let ended = thread
            .expect("a thread")
            .join()
            .expect("its stack is enough");
        assert_eq!(ended, Err(Fault::Longer));
    }
}

/// Many different scripts: a server keeps as many as its limits say, and goes on.
async fn flood(scripts: usize) {
    let limits = CodeLimits {
        kept: scripts / 10,
        ..Default::default()
    };
    let (server, _) = serve_within(limits, ScriptLimits::default()).await;
    let client = client().await;
    for other in 0..scripts {
        let code = body(&format!("end(\"{other}\")"));
        let answer = ask(&client, &server, &code, State::new()).await;
        assert_eq!(answer, Ok(other.to_string()));
    }
    is_well(&client, &server).await;
}

#[tokio::test]
async fn many_scripts_are_compiled_and_forgotten() {
    flood(100).await;
}

#[tokio::test]
#[ignore = "without optimisation it takes a minute: scripts/soak.sh functions"]
async fn very_many_scripts_are_compiled_and_forgotten() {
    flood(10_000).await;
}
