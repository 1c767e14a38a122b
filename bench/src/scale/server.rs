//! The server: it echoes, or keeps calls live by answering each when so many others have come after it.

use super::pauses::Pauses;
use super::rig::builder;
use crate::fleet::{Control, ServerConfig};
use crate::on_wallaby::{runtime, traffic};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use tokio::sync::oneshot;
use wallaby::codec::Raw;
use wallaby::{Code, Endpoint, Method, One, Request, Service, Status};

/// The name by which the server's process knows what it is.
pub(crate) const STACK: &str = "wallaby-scale";

/// Answers with the message.
pub(super) static ECHO: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Scale/echo");
/// Says in its first 8 bytes how many of its kind may wait: the oldest of more are answered with what they sent.
pub(super) static HOLD: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Scale/hold");
/// Says how long the longest pause was, in nanoseconds.
pub(super) static PAUSES: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Scale/pauses");

/// Runs a server until its client has gone.
pub(crate) fn serve(config: &ServerConfig) -> Result<()> {
    let runtime = runtime()?;
    let state = Arc::new(Mutex::new(State {
        held: VecDeque::new(),
        pauses: Pauses::new()?,
    }));
    let server = builder(config)?.serve(service(&state));
    let endpoint = runtime.block_on(server.bind())?;
    // As in other benchmarks: instructions are read on a thread of their own.
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("bench-control".into())
        .spawn(move || {
            let _ = ended.send(attend(&endpoint));
        })?;
    runtime.block_on(end)?
}

fn attend(endpoint: &Endpoint) -> Result<()> {
    let mut control = Control;
    let address = endpoint.address().context("the server does not listen")?;
    control.exchange_addresses(&address.to_string())?;
    control.attend(|| traffic(endpoint))
}

struct State {
    /// Who waits, the oldest first.
    held: VecDeque<oneshot::Sender<()>>,
    pauses: Pauses,
}

type Shared = Arc<Mutex<State>>;

fn service(state: &Shared) -> Service {
    let (echoing, holding, pausing) = (Arc::clone(state), Arc::clone(state), Arc::clone(state));
    Service::new("bench.Scale")
        .method(&ECHO, move |request, (message,)| {
            echo(request, message, Arc::clone(&echoing))
        })
        .method(&HOLD, move |request, (message,)| {
            hold(request, message, Arc::clone(&holding))
        })
        .method(&PAUSES, move |request, (_message,)| {
            pauses(request, Arc::clone(&pausing))
        })
}

fn locked(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn step(state: &mut State) -> Result<(), Status> {
    let noted = state.pauses.step();
    noted.map_err(|error| Status::new(Code::Internal, error.to_string()))
}

async fn echo(
    request: Request<One<Bytes>, Raw>,
    message: Bytes,
    state: Shared,
) -> Result<(), Status> {
    step(&mut locked(&state))?;
    Ok(request.respond(message).await?)
}

async fn hold(
    request: Request<One<Bytes>, Raw>,
    message: Bytes,
    state: Shared,
) -> Result<(), Status> {
    let most = message.first_chunk().map(|most| u64::from_le_bytes(*most));
    let most = most.ok_or_else(|| Status::new(Code::InvalidArgument, "8 bytes say how many"))?;
    let waits = {
        let mut state = locked(&state);
        step(&mut state)?;
        let (release, waits) = oneshot::channel();
        state.held.push_back(release);
        while state.held.len() as u64 > most {
            // Whoever has given up waiting needs no word.
            let _ = state.held.pop_front().map(|oldest| oldest.send(()));
        }
        waits
    };
    let _ = waits.await; // nobody is left behind
    Ok(request.respond(message).await?)
}

async fn pauses(request: Request<One<Bytes>, Raw>, state: Shared) -> Result<(), Status> {
    let longest = locked(&state).pauses.longest();
    let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
    let answer = Bytes::copy_from_slice(&longest.to_le_bytes());
    Ok(request.respond(answer).await?)
}
