//! Functions are tested as any other, and run as a server runs them.

use wallaby_chain_guest::abi::{Given, Input, Output};
use wallaby_chain_guest::{Answer, Error, Exception, State, Step, run};

fn chaining(state: State, answer: Answer<'_>) -> Result<Step, Error> {
    Step::end(&(state.get::<String>("who")?, answer.read::<u32>()?))
}

fn merging(_: State, results: Vec<Answer<'_>>) -> Result<Step, Error> {
    let numbers: Result<Vec<u32>, Error> = results.iter().map(Answer::read).collect();
    Step::end(&numbers?.iter().sum::<u32>())
}

fn catching(_: State, exception: Exception) -> Result<Step, Error> {
    Err(exception.into())
}

wallaby_chain_guest::export!(chaining, merging, catching);

fn ada() -> State {
    State::new().with("who", &"Ada").expect("text")
}

fn input(state: State, given: Given<'_>) -> Vec<u8> {
    postcard::to_allocvec(&Input { state, given }).expect("it can be written")
}

fn output(bytes: &[u8]) -> Output {
    postcard::from_bytes(bytes).expect("it can be read")
}

#[test]
fn each_gets_what_it_is_for() {
    let answer = || Given::Answer(Answer::new(b"\x07"));
    let results = || Given::Results(vec![Answer::new(b"\x07"), Answer::new(b"\x08")]);
    let exception = || {
        Given::Exception(Exception {
            code: 7,
            message: "no".into(),
            chain: "1".into(),
            hosts: Vec::new(),
        })
    };
    let said = output(&run(chaining, &input(ada(), answer())));
    assert_eq!(said, Step::end(&("Ada", 7u32)));
    let said = output(&run(merging, &input(ada(), results())));
    assert_eq!(said, Step::end(&15u32));
    let said = output(&run(catching, &input(ada(), exception())));
    assert_eq!(said, Err(Error::new(7, "no".into())));
    for bytes in [
        run(chaining, &input(ada(), results())),
        run(merging, &input(ada(), exception())),
        run(catching, &input(ada(), answer())),
    ] {
        let said = output(&bytes).expect_err("it is for something else");
        assert!(
            said.message
                .starts_with("the function is for something else")
        );
    }
    let said = output(&run(chaining, b"\xff")).expect_err("it is no input");
    assert_eq!(said.message, "the function's input cannot be read");
}

#[test]
fn a_value_that_is_not_there_or_of_another_type_is_an_error() {
    let (missing, other) = (ada().get::<String>("size"), ada().get::<u8>("who"));
    let not_found = Error::new(Error::NOT_FOUND, "the state has no value size".into());
    assert_eq!(missing, Err(not_found));
    let another = Error::new(
        Error::INVALID_ARGUMENT,
        "value who is of another type".into(),
    );
    assert_eq!(other, Err(another));
    assert!(Answer::new(b"\x07\x07").read::<u8>().is_err());
}

#[test]
fn a_value_takes_the_place_of_the_one_before() {
    let state = ada()
        .with("who", &"Bob")
        .and_then(|state| state.with("a", &1u8));
    let state = state.expect("small");
    assert_eq!(state.get::<String>("who"), Ok("Bob".into()));
    let names: Vec<&str> = state.values().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "who"]);
}
