//! What functions as WebAssembly are given and say, in their format.

use std::sync::Arc;

use wallaby::{Address, Code, MethodDefinition, Status};
use wallaby_chain_guest::abi::{self, Input, Output};
use wallaby_chain_guest::{self as guest, Answer};

use crate::code::Hash;
use crate::engine::Given;
use crate::exception::Exception;
use crate::stack::Runs;
use crate::state::State;
use crate::step::{Hop, Merge, Step};

/// The bytes that a function is given.
pub(crate) fn input(state: State, given: Given) -> Result<Vec<u8>, Status> {
    let (answer, results);
    let given = match given {
        Given::Answer(bytes) => {
            answer = bytes;
            abi::Given::Answer(Answer::new(&answer))
        }
        Given::Results(answers) => {
            results = answers;
            let results = results.iter().map(|answer| Answer::new(answer.bytes()));
            abi::Given::Results(results.collect())
        }
        Given::Exception(exception) => abi::Given::Exception(told(&exception)),
    };
    let state = state.values;
    let input = postcard::to_allocvec(&Input { state, given });
    input.map_err(|error| Status::internal(error.to_string()))
}

fn told(exception: &Exception) -> guest::Exception {
    guest::Exception {
        code: exception.code() as u8,
        message: exception.message().to_owned(),
        chain: exception.chain().to_owned(),
        hosts: exception
            .path()
            .hosts()
            .iter()
            .map(Address::to_string)
            .collect(),
    }
}

/// What a function of this code has said.
pub(crate) fn step(output: &[u8], code: Hash) -> Result<Step, Status> {
    let Ok((said, [])) = postcard::take_from_bytes::<Output>(output) else {
        return Err(unreadable(code));
    };
    match said.map_err(|error| Status::new(Code::from_number(error.code), error.message))? {
        guest::Step::Saying(saying) => {
            let Ok((then, [])) = postcard::take_from_bytes::<guest::Step>(&saying.then) else {
                return Err(unreadable(code));
            };
            let (lines, then) = (saying.lines, Box::new(plain(then, code)?));
            let told = saying
                .told
                .into_iter()
                .map(|value| value.0.into())
                .collect();
            Ok(Step::Saying { lines, told, then })
        }
        step => plain(step, code),
    }
}

/// A step that says nothing besides.
fn plain(step: guest::Step, code: Hash) -> Result<Step, Status> {
    match step {
        guest::Step::Next(next) => Ok(hop(*next, code)?.into()),
        guest::Step::Split(branches, merge) => {
            let branches = branches.into_iter().map(|branch| hop(branch, code));
            let guest::Merge {
                at,
                function,
                state,
            } = *merge;
            let merge = Merge {
                at: address(&at)?,
                function: runs(function, code)?,
                state: State { values: state },
                code: None,
                typed: false, // it has been told by the function
            };
            Ok(Step::split(branches.collect::<Result<Vec<_>, _>>()?, merge))
        }
        guest::Step::End(value) => Ok(Step::End(value.into())),
        _ => Err(unreadable(code)),
    }
}

fn unreadable(code: Hash) -> Status {
    Status::invalid_argument(format!("what code {code} says cannot be read"))
}

fn hop(said: guest::Hop, code: Hash) -> Result<Hop, Status> {
    let guest::Link {
        server,
        method,
        codec,
        arguments,
        answer,
    } = said.link;
    let definition = MethodDefinition::new(&method, &codec, arguments, answer);
    let illegal = || Status::invalid_argument(format!("{method:?} is no name of a method"));
    let definition = Arc::new(definition.ok_or_else(illegal)?);
    let mut hop = Hop::to_raw(address(&server)?, &definition, said.arguments);
    hop.function = runs(said.function, code)?;
    hop.state = State { values: said.state };
    Ok(hop)
}

fn runs(function: guest::Function, code: Hash) -> Result<Runs, Status> {
    match function {
        guest::Function::None => Ok(Runs::Pipe(Vec::new())),
        guest::Function::Own(function) => Ok(Runs::Code { code, function }),
        guest::Function::Native(name) => Ok(Runs::Native(name)),
        _ => Err(Status::unimplemented(
            "a function of a kind that this server does not know",
        )),
    }
}

fn address(text: &str) -> Result<Address, Status> {
    text.parse()
        .map_err(|error: wallaby::AddressError| Status::invalid_argument(error.to_string()))
}
