//! Functions beside the client that brings them, as the attribute `glue` makes modules of them.

use wallaby_chain::{ChainCode, Hop, Link, Repository, State, glue, pipe, start};
use wallaby_chain_wasm::WasmLimits;

use crate::world::{at, client, serve, text};

#[glue]
#[allow(unreachable_pub, reason = "all of it is in this program")]
mod words {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};
    use wallaby_chain_guest::{Answer, Error, Exception, Hop, Link, Merge, Read, State, Step};

    /// What the chain comes to: a type that the client has, too.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub struct Counted {
        pub words: BTreeMap<String, u32>,
        pub printed: String,
    }

    /// A text has been written: each of its words is printed on its own.
    pub fn print_each(state: State, text: Answer<'_>) -> Result<Step, Error> {
        let (print, text): (Link, String) = (state.get("print")?, text.read()?);
        let hops: Result<Vec<Hop>, Error> = text
            .split(' ')
            .map(|word| Hop::to(&print, &(word.to_string(),)))
            .collect();
        Ok(Step::split(hops?, Merge::at(&print.server, "count", state)))
    }

    pub fn count(_: State, printed: Vec<Answer<'_>>) -> Result<Step, Error> {
        let mut words = BTreeMap::new();
        let mut all = vec![];
        for answer in printed {
            let word: String = answer.read()?;
            *words.entry(first(&word).to_owned()).or_insert(0) += 1;
            all.push(word);
        }
        let printed = all.join("; ");
        Step::end(&Counted { words, printed })
    }

    /// What it runs on, its signature says.
    pub fn lengths(_: State, Read(text): Read<String>) -> Result<Step, Error> {
        let lengths = text.split(' ').map(|word| word.len() as u64);
        Step::end(&lengths.collect::<Vec<u64>>())
    }

    /// The same of a type of its own.
    pub fn how_many(_: State, Read(lengths): Read<Vec<u64>>) -> Result<Step, Error> {
        Step::end(&(lengths.len() as u64))
    }

    pub fn rescue(_: State, exception: Exception) -> Result<Step, Error> {
        Step::end(&format!("not printed: {}", exception.message))
    }

    fn first(word: &str) -> &str {
        word.split(',').next().unwrap_or_default()
    }
}

#[tokio::test]
async fn functions_run_where_they_are_not_known() {
    let ((a, _), (b, _)) = (
        serve(WasmLimits::default()).await,
        serve(WasmLimits::default()).await,
    );
    let client = client().await;
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    let kept = repository.keep(words::MODULE).expect("there is room");
    // With the chain, and from the client's repository.
    let from_there: ChainCode = kept.at(at(&client));
    for function in [
        words::functions::print_each(),
        from_there.function("print_each"),
    ] {
        let state = State::new().with("print", &Link::to(at(&b), &text::PRINT));
        let first = Hop::to(at(&a), &text::WRITE, ("a text".into(),));
        let chain = start::<words::Counted>(first.then(function, state.expect("small")));
        let counted = chain.call(client.caller()).expect("it is small").await;
        let counted = counted.expect("an answer");
        let words: Vec<_> = counted
            .words
            .iter()
            .map(|(word, times)| (word.as_str(), *times))
            .collect();
        assert_eq!(words, [("a", 2), ("about", 1), ("text", 2)]);
        assert_eq!(
            counted.printed,
            "a, printed; text, printed; about, printed; a, printed; text, printed"
        );
    }
}

/// The compiler checks that each gets what it reads.
#[tokio::test]
async fn what_they_read_is_checked() {
    let ((server, _), client) = (serve(WasmLimits::default()).await, client().await);
    let write = || pipe(at(&server), &text::WRITE, ("hops".into(),));
    let lengths = || write().apply::<Vec<u64>>(words::functions::lengths(), State::new());
    let told = lengths().call(client.caller()).expect("it is small").await;
    assert_eq!(told, Ok(vec![1, 4, 5, 4]));
    let chain = lengths().apply::<u64>(words::functions::how_many(), State::new());
    let told = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(told, Ok(4));
    // Where nobody checks it.
    let first = Hop::to(at(&server), &text::WRITE, ("hops".into(),));
    let first = first.then(words::functions::lengths(), State::new());
    let told = start::<Vec<u64>>(first).call(client.caller());
    assert_eq!(told.expect("it is small").await, Ok(vec![1, 4, 5, 4]));
}

#[tokio::test]
async fn they_catch() {
    let ((server, _), client) = (serve(WasmLimits::default()).await, client().await);
    let chain = start::<String>(Hop::to(at(&server), &text::PRINT, ("secrets".into(),)));
    let chain = chain.catch(at(&server), words::functions::rescue(), State::new());
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("not printed: it is secret".into()));
}

/// Without a server they are ordinary functions.
#[test]
fn they_can_be_tested_as_functions() {
    use wallaby_chain_guest::{Exception, State, Step};
    let exception = Exception {
        code: 5,
        message: "no paper".into(),
        chain: "1".into(),
        hosts: Vec::new(),
    };
    let step = words::rescue(State::default(), exception).expect("a step");
    let Step::End(value) = step else {
        panic!("{step:?}")
    };
    let text: String = postcard::from_bytes(&value).expect("a text");
    assert_eq!(text, "not printed: no paper");
}

/// A module is to travel with its chain.
#[test]
fn a_module_is_small() {
    let bytes = words::MODULE.len();
    assert!((1_000..40_000).contains(&bytes), "{bytes} bytes");
    println!("{bytes} bytes");
}
