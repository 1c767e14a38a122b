//! What went wrong, in a sentence that names the server.

use crate::time::show;
use wallaby::{CallError, Failure};

/// What is wrong with a call.
pub(crate) fn of_call(error: &CallError) -> String {
    match (error.failure(), error.status()) {
        (Some(Failure::Deadline { after, .. }), _) => format!("no complete answer within {}", show(*after)),
        (_, Some(status)) => status.message().to_owned(),
        _ => error.to_string(),
    }
}

/// What is wrong with a call to one server.
pub(crate) fn at(error: &CallError, server: &str) -> String {
    let sentence = of_call(error);
    if sentence.contains(server) { sentence } else { format!("{server}: {sentence}") }
}
