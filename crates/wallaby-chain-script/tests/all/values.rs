//! What links and states hold, and what scripts make of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby_chain::{Hop, State, start, start_by};
use wallaby_chain_script::ScriptLimits;

use crate::world::{Item, Kind, ask, at, client, echo, evolving, script, serve, shop, text};

fn item() -> Item {
    let inside = Item {
        name: "a\"b".into(),
        price: None,
        kinds: vec![Kind::Pair(i64::MIN, u64::MAX)],
        stock: BTreeMap::new(),
        by_number: BTreeMap::new(),
        large: 7,
        huge: 0,
        letter: 'x',
        float: f32::NEG_INFINITY,
        bytes: vec![],
        pair: (0, ()),
        inside: vec![],
    };
    Item {
        name: "ß".into(),
        price: Some(2.0),
        kinds: vec![
            Kind::Plain,
            Kind::Sized {
                width: 1,
                height: u32::MAX,
            },
            Kind::Tagged("t".into()),
        ],
        stock: [("here".into(), 3), ("there".into(), 0)].into(),
        by_number: [(7, true)].into(),
        large: u64::MAX,
        huge: i128::MIN,
        letter: 'ß',
        float: 0.1,
        bytes: (0..=255).collect(),
        pair: (9, ()),
        inside: vec![inside],
    }
}

/// It becomes what a script has, and the same again.
#[tokio::test]
async fn values_go_through_scripts_as_they_are() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let code =
        script("fn pass(state, item) { print(item.inside[0].name); next(state.put, [item]) }");
    let state = State::new().link("put", at(&server), &shop::PUT);
    let first = Hop::to(at(&server), &shop::PUT, (item(),));
    let chain = start::<Item>(first.then(code.function("pass"), state.expect("a link")));
    let put = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(put, Ok(item()));

    // By another codec, and its end is what the script says.
    let code = script(
        "fn pass(state, item) { next(state.put, item, \"end_it\", #{}) } fn end_it(state, item) { end(item) }",
    );
    let state = State::new().link("put", at(&server), &evolving::PUT);
    let first = Hop::to(at(&server), &evolving::PUT, (item(),));
    let chain = start::<Item>(first.then(code.function("pass"), state.expect("a link")));
    let put = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(put, Ok(item()));

    // No number is like it, but it is the same again.
    let mut odd = item();
    odd.price = Some(f64::NAN);
    let code = script("fn pass(state, item) { next(state.put, [item]) }");
    let state = State::new().link("put", at(&server), &shop::PUT);
    let first = Hop::to(at(&server), &shop::PUT, (odd,));
    let chain = start::<Item>(first.then(code.function("pass"), state.expect("a link")));
    let put = chain.call(client.caller()).expect("it is small").await;
    let put = put.expect("an item");
    assert!(put.price.is_some_and(f64::is_nan), "{put:?}");
}

#[tokio::test]
async fn bytes_are_handed_on_unchanged_however_many() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let count = 1_000_000u32;
    let code = script(
        "fn pass(state, bytes) { if bytes.len != 1000000 { throw bytes.len } next(state.measure, [bytes]) }",
    );
    let state = State::new().link("measure", at(&server), &text::MEASURE);
    let first = Hop::to(at(&server), &text::LONG, (count,));
    let chain = start::<u64>(first.then(code.function("pass"), state.expect("a link")));
    let measured = chain.call(client.caller()).expect("it is small").await;
    let sum: u64 = (0..count).map(|byte| u64::from(byte as u8)).sum();
    assert_eq!(measured, Ok(sum << 32 | u64::from(count)));

    let code = script(
        "fn pass(state, bytes) { next(state.echo, [bytes.sub(2, 3)], \"again\", state) } fn again(state, bytes) { end(bytes) }",
    );
    let state = State::new().link("echo", at(&server), &echo::ECHO);
    let first = Hop::to(at(&server), &echo::ECHO, (Bytes::from_static(b"0123456"),));
    let first = first.then(code.function("pass"), state.expect("a link"));
    let chain = start_by::<Bytes, Raw>(first);
    let echoed = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(echoed, Ok(Bytes::from_static(b"234")));
}

#[tokio::test]
async fn states_hold_what_clients_and_scripts_put_there() {
    let ((server, _), client) = (serve(ScriptLimits::default()).await, client().await);
    let code = script(
        r#"
        fn run(state, text) {
            state.list = [state.number + 1, 2.5, "x", (), true, #{ deep: [state.words] }];
            next(state.press, [text], "then", state)
        }
        fn then(state, text) {
            end(`${state.list} ${state.number} ${state.item.name} ${state.item.stock.here} ${state.any.len}`)
        }
        "#,
    );
    let state = State::new()
        .link("press", at(&server), &text::PRINT)
        .and_then(|state| state.with("number", &7u32))
        .and_then(|state| state.with("words", &vec!["a".to_owned()]))
        .and_then(|state| state.with("any", &(1u8, 2u8)))
        .and_then(|state| state.with_json("item", &item()));
    let said = ask(&client, &server, &code, state.expect("a state")).await;
    let expected = r#"[8, 2.5, "x", (), true, #{"deep": [["a"]]}] 7 ß 3 2"#;
    assert_eq!(said, Ok(expected.into()));
    let error = State::new()
        .with(" own", &1u8)
        .expect_err("it is not the user's");
    assert_eq!(error.code(), wallaby::Code::InvalidArgument);
}

/// Native functions read what scripts have put into the state.
#[test]
fn json_is_read_as_what_is_wanted() {
    let mut item = item();
    item.inside[0].float = 1.5; // JSON has no infinity
    let state = State::new()
        .with_json("item", &item)
        .expect("it can be written");
    assert_eq!(state.get::<Item>("item"), Ok(item));
    let error = state.get::<u32>("item").expect_err("it is none");
    assert_eq!(error.code(), wallaby::Code::InvalidArgument);
}
