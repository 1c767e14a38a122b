//! `wallaby health`: whether an endpoint takes work.

use std::time::Duration;

use clap::Args;
use wallaby::{CallError, Code, Health as State, health};
use wallaby_program::output;

use super::{Asking, block_on};
use crate::output::Exit;

/// A watch has so much time.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby health tcp://127.0.0.1:4000
  wallaby health tcp://127.0.0.1:4000 example.Index --deadline 1s
  wallaby health tcp://127.0.0.1:4000 --watch           a line at once, and one for each change

Exit status: 0 if it serves, 1 if nobody could be asked, 2 if the command line is wrong, 3 if it does not serve, 4 if it
has no such service. With --watch it is that of the last line when the server shuts down, else 1.")]
pub(crate) struct Health {
    #[command(flatten)]
    asking: Asking,
    /// A service (package.Service), or another name that the server has a state for; without it, the server as a whole
    #[arg(default_value = "")]
    service: String,
    /// Say each change, for as long as the server runs
    #[arg(long)]
    watch: bool,
}

impl Health {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let client = self.asking.client().await?;
            let service = (self.service.clone(),);
            if !self.watch {
                let state = client.call(&health::CHECK, service).await;
                let state = state.or_else(refused)?;
                output::line(state)?;
                return exit(state);
            }
            let client = client.deadline(LONG);
            let mut states = client.call(&health::WATCH, service);
            let mut last = State::Unknown;
            while let Some(state) = states.next().await {
                last = state.or_else(refused)?;
                output::line(last)?;
            }
            exit(last)
        })
    }
}

/// The state that an error tells of, if any.
fn refused(error: CallError) -> Result<State, CallError> {
    match (&error, error.code()) {
        (CallError::Status(_), Code::NotFound) => Ok(State::Unknown),
        // It shuts down.
        (CallError::Status(_), Code::Unavailable) => Ok(State::NotServing),
        _ => Err(error),
    }
}

fn exit(state: State) -> anyhow::Result<()> {
    match state {
        State::Serving => Ok(()),
        State::NotServing => Err(Exit(3).into()),
        State::Unknown => Err(Exit(4).into()),
    }
}
