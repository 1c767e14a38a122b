//! Functions that say how a chain goes on, and what they are given.

use std::time::Duration;

use wallaby::{Address, Code};
use wallaby_chain::{Chains, Hop, State, Step, start};

use crate::world::{Net, at, hosts, status, texts, words};

/// Goes on to `shout`, some times, with all that it has heard.
fn collecting() -> Chains {
    Chains::new().function("collect", |mut state, answer| {
        let (left, next): (u32, Address) = (state.get("left")?, state.get("next")?);
        let mut heard: Vec<String> = state.get("heard")?;
        heard.push(answer.read()?);
        if left == 0 {
            return Step::end(&heard);
        }
        let last = heard.last().cloned().unwrap_or_default();
        state.set("left", &(left - 1))?;
        state.set("heard", &heard)?;
        Ok(Hop::to(next, &words::SHOUT, (last,))
            .then("collect", state)
            .into())
    })
}

#[tokio::test]
async fn state_travels_from_function_to_function() {
    for net in [Net::Tcp, Net::Unix] {
        let (a, b) = (net.serve(collecting()).await, net.serve(collecting()).await);
        let client = net.client().await;
        let begin = |left: u32| {
            let state = State::new()
                .with("left", &left)?
                .with("next", &at(&b))?
                .with("heard", &Vec::<String>::new())?;
            let first = Hop::to(at(&a), &words::SHOUT, ("hop".to_owned(),));
            Ok::<_, wallaby::Status>(start::<Vec<String>>(first.then("collect", state)))
        };
        for (left, expected) in [(0, vec!["hop!"]), (2, vec!["hop!", "hop!!", "hop!!!"])] {
            let chain = begin(left).expect("it can be written");
            let answer = chain.call(client.caller()).expect("it is small").await;
            assert_eq!(answer.expect("an answer"), expected, "over {net:?}");
        }
    }
}

/// The trace tells the time of a chaining function apart from that of the service before it.
#[tokio::test]
async fn a_trace_tells_functions_from_services() {
    let net = Net::Tcp;
    let slow = Chains::new().function("slow", |_, answer| {
        std::thread::sleep(Duration::from_millis(20)); // what is measured
        Step::end(&answer.read::<String>()?)
    });
    let (server, client) = (net.serve(slow).await, net.client().await);
    let first = Hop::to(at(&server), &words::SHOUT, ("hop".to_owned(),));
    let chain = start::<String>(first.then("slow", State::new()));
    let mut call = chain.call(client.caller().traced()).expect("it is small");
    call.answer().await.expect("an answer");
    let trace = call.trace();
    let hop = &trace.hops[0];
    let (ran, part) = (hop.timing.expect("it is traced").ran, &hop.parts[0]);
    assert_eq!((hop.parts.len(), &*part.name), (1, "chaining function"));
    assert!(
        Duration::from_millis(20) <= part.took && part.took <= ran,
        "{trace}"
    );
}

/// What a chain of functions comes to may go down a pipe.
#[tokio::test]
async fn a_pipe_may_follow_functions() {
    let net = Net::Tcp;
    let twice = Chains::new().function("twice", |_, answer| {
        let text: String = answer.read()?;
        Step::end(&format!("{text}{text}"))
    });
    let (a, b) = (net.serve(twice).await, net.serve(Chains::new()).await);
    let client = net.client().await;
    let first = Hop::to(at(&a), &words::SHOUT, ("hop".to_owned(),)).then("twice", State::new());
    let chain = start::<String>(first)
        .then(at(&b), &words::SHOUT)
        .then(at(&a), &words::LENGTH);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok(9), "hop!hop!!");
}

/// A function that finds something else than it was made for says so.
#[tokio::test]
async fn a_value_of_another_type_is_an_exception() {
    let net = Net::Tcp;
    let reads = || {
        Chains::new()
            .function("state", |state, _| Step::end(&state.get::<u32>("value")?))
            .function("answer", |_, answer| Step::end(&answer.read::<u32>()?))
    };
    let (a, client) = (net.serve(reads()).await, net.client().await);
    let ask = |function: &str, state: State| {
        let first = Hop::to(at(&a), &words::SHOUT, ("hop".to_owned(),));
        let chain = start::<u32>(first.then(function, state));
        chain.call(client.caller()).expect("it is small")
    };
    let other = State::new().with("value", &"3".to_owned()).expect("text");
    for (function, state, code, text) in [
        (
            "state",
            other,
            Code::InvalidArgument,
            "value \"value\" is no u32",
        ),
        (
            "state",
            State::new(),
            Code::NotFound,
            "the state has no value \"value\", only []",
        ),
        (
            "answer",
            State::new(),
            Code::InvalidArgument,
            "the answer is no u32: postcard: 4 bytes after the value",
        ),
    ] {
        let status = status(ask(function, state).await);
        assert_eq!(status.code(), code);
        assert!(status.message().starts_with(text), "{status}");
        assert_eq!(hosts(&status), texts([&at(&a)]));
    }
    let right = State::new().with("value", &3u32).expect("a number");
    assert_eq!(ask("state", right).await, Ok(3));
}
