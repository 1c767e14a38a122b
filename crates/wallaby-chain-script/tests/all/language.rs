//! What scripts may say.

use wallaby::Endpoint;
use wallaby_chain::{ChainCode, ChainEvent, Hop, Repository, Run, State, start};
use wallaby_chain_script::ScriptLimits;

use crate::world::{ask, at, client, script, serve, text};

fn links(server: &Endpoint) -> State {
    let links = State::new()
        .link("press", at(server), &text::PRINT)
        .and_then(|links| links.link("keep", at(server), &text::KEEP))
        .and_then(|links| links.link("nothing", at(server), &text::NOTHING));
    links.expect("links")
}

#[tokio::test]
async fn a_script_splits_merges_and_ends() {
    let ((a, _), (b, _)) = (
        serve(ScriptLimits::default()).await,
        serve(ScriptLimits::default()).await,
    );
    let client = client().await;
    let code = script(
        r#"
        fn run(state, text) {
            let branches = [
                next(state.press, [text]),
                next(state.keep, text, "twice", state),
                next(state.nothing, []),
            ];
            split(branches, merge(state.keep, "join", #{ sign: "+" }))
        }
        fn twice(state, text) { end([text, text]) }
        fn join(state, results) { end(`${results[0]} ${state.sign} ${results[1][0]} ${results[2] == ()}`) }
        "#,
    );
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    let kept = ChainCode::kept(code.hash(), at(&client)).typed();
    let text = "// wallaby: rhai 1\nfn run(state, text) { end(text) }";
    repository.keep(text).expect("there is room");
    let expected = "a text about hops, printed + a text about hops, kept true";
    for _ in 0..2 {
        let said = ask(&client, &a, &code, links(&b)).await;
        assert_eq!(said, Ok(expected.into()));
    }
    // It is known there by now, so nobody asks who has it.
    let said = ask(&client, &a, &kept, links(&b)).await;
    assert_eq!(said, Ok(expected.into()));
    let fetched = ChainCode::new(text).at(at(&client));
    let said = ask(&client, &a, &fetched, State::new()).await;
    assert_eq!(said, Ok("a text about hops".into()));
}

#[tokio::test]
async fn a_script_catches_and_throws() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let code = script(
        r#"
        fn rescue(state, exception) {
            if state.again { throw exception }
            end(`${exception.code}: ${exception.message}, ${exception.hosts.len()} host`)
        }
        "#,
    );
    for again in [false, true] {
        let chain = start::<String>(Hop::to(at(&server), &text::PRINT, ("secrets".into(),)));
        let state = State::new().with("again", &again).expect("a state");
        let chain = chain.catch(at(&server), code.function("rescue"), state);
        let said = chain.call(client.caller()).expect("it is small").await;
        match again {
            false => assert_eq!(said, Ok("7: it is secret, 1 host".into())),
            true => {
                let status = said.expect_err("it is thrown again").status().cloned();
                let status = status.expect("a status");
                assert_eq!(status.code(), wallaby::Code::PermissionDenied, "{status}");
                assert!(status.message().starts_with("it is secret"), "{status}");
            }
        }
    }
}

#[tokio::test]
async fn a_script_logs_tells_and_goes_on_by_functions_of_servers() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let code = script(
        r#"
        fn run(state, text) {
            print("got " + text.len() + " letters");
            debug(#{ a: 1 });
            tell([text.len(), "so far"]);
            next(state.keep, [text], native("shout"), #{})
        }
        "#,
    );
    let first = Hop::to(at(&server), &text::WRITE, ("hops".into(),));
    let chain = start::<String>(first.then(code.function("run"), links(&server)));
    let run = Run::new().lines().told();
    let mut running = chain.run(client.caller(), run).expect("it is small");
    let (mut lines, mut told, mut end) = (vec![], vec![], None);
    while let Some(event) = running.next().await {
        match event.expect("it goes on") {
            ChainEvent::Line(line) => lines.push(line.text),
            ChainEvent::Told(value) => {
                told.push(value.value.json::<(u32, String)>().expect("JSON"))
            }
            ChainEvent::End(value) => end = Some(value),
            _ => {}
        }
    }
    assert_eq!(lines, ["got 17 letters", r#"#{"a": 1}"#]);
    assert_eq!(told, [(17, "so far".to_owned())]);
    assert_eq!(end.as_deref(), Some("A TEXT ABOUT HOPS, KEPT"));
}

/// What is wrong is said with its place.
#[tokio::test]
async fn errors_say_where_they_are() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    for (body, message) in [
        (
            "state.missing",
            "function \"run\" of the script: Property not found: missing (line 2",
        ),
        (
            "1 + \"x\".foo()",
            "function \"run\" of the script: Function not found: foo",
        ),
        (
            "42",
            "function \"run\" of the script does not say how it goes on",
        ),
        ("throw \"no luck\"", "no luck (line 2, position 23)"),
        ("throw #{ code: 5, message: \"no luck\" }", "no luck"),
        (
            "next(state.press, [7])",
            "arguments of test.Text/print[0]: expected a string, got 7 (line 2",
        ),
        (
            "next(state.press, [])",
            "arguments of test.Text/print: expected an array of 1, got one of 0",
        ),
        (
            "next(\"print\", [])",
            "function \"run\" of the script: Function not found: next",
        ),
        ("end(state.press)", "the end: a value of type Link"),
        ("end(7)", "the end: expected a string, got 7"),
        (
            "split([1], merge(\"tcp://a:1\", \"f\", state))",
            "a branch is made by next, not i64",
        ),
        (
            "state[\" x\"] = 1; next(state.press, text, \"f\", state)",
            " x: names that begin with a space",
        ),
        (
            "try { next(state.press, [7]) } catch (error) { throw error.message + \"!\" }",
            "arguments of test.Text/print[0]: expected a string, got 7",
        ),
    ] {
        let code = script(&format!("fn run(state, text) {{ {body} }}"));
        let said = ask(&client, &server, &code, links(&server)).await;
        let status = said.expect_err(body).status().cloned().expect(body);
        assert!(status.message().starts_with(message), "{body}: {status}");
        let expected = match body.contains("code: 5") {
            true => wallaby::Code::NotFound,
            false => wallaby::Code::InvalidArgument,
        };
        assert_eq!(status.code(), expected, "{body}: {status}");
    }
}

/// Each branch may be the same one, and travels all the same.
#[tokio::test]
async fn branches_are_limited_by_what_they_are_together() {
    let limits = ScriptLimits {
        output: 1 << 20,
        ..ScriptLimits::default()
    };
    let ((server, _), client) = (serve(limits).await, client().await);
    let code = script(
        r#"
        fn run(state, text) {
            let s = "x";
            s.pad(60000, 'y');
            let branches = [];
            branches.pad(60, next(state.press, [s]));
            split(branches, merge(state.press, "join", #{}))
        }
        fn join(state, results) { end("never") }
        "#,
    );
    let said = ask(&client, &server, &code, links(&server)).await;
    let status = said.expect_err("it is too much").status().cloned();
    let status = status.expect("a status");
    assert!(status.message().contains("says more than"), "{status}");
}
