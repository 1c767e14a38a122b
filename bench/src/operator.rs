//! Operations by Wallaby: the calls that a pattern asks for, and their answers.

use crate::meter::{at_interface, interface};
use crate::on_wallaby::{PASS, SPREAD};
use crate::pattern::{Form, Pattern};
use crate::plan::{Phase, Plan, check, is_line};
use crate::workload::take_one;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use wallaby::codec::Raw;
use wallaby::{Address, Call, Caller, Client, Endpoint, One};

/// Carries out operations.
pub(crate) struct Operator {
    servers: Vec<Client>,
    caller: Caller,
    pub(crate) plan: Plan,
    pub(crate) operation: u64,
}

impl Operator {
    pub(crate) fn new(endpoint: &Endpoint, servers: Vec<Address>, payload: usize) -> Self {
        let client = |address| Client::new(endpoint, address);
        Self {
            servers: servers.into_iter().map(client).collect(),
            caller: endpoint.caller(),
            plan: Plan::new(payload),
            operation: 0,
        }
    }

    /// The operation that was planned.
    pub(crate) async fn operate(&self, pattern: Pattern) -> Result<()> {
        let phase = self.plan.phases().first().context("nothing was planned")?;
        match (pattern.form(), &phase.to[..]) {
            (Form::Calls, _) => self.call_each(phase).await,
            (Form::Multihop, [server]) if is_line(phase.payload()) => {
                self.pass(*server, Bytes::copy_from_slice(phase.payload()))
                    .await
            }
            (Form::Multihop, _) => self.spread(phase).await,
        }
    }

    /// The planned call over and over, so many at a time; how long each took.
    pub(crate) async fn keep_under_way(
        &self,
        calls: usize,
        operations: u64,
    ) -> Result<Vec<Duration>> {
        let phase = self.plan.phases().first().context("nothing was planned")?;
        let client = self.server(*phase.to.first().context("nobody to call")?);
        let message = Bytes::copy_from_slice(phase.payload());
        let left = Arc::new(AtomicU64::new(operations));
        let tasks = (0..calls).map(|_| {
            let (client, message, left) = (client.clone(), message.clone(), Arc::clone(&left));
            tokio::spawn(call_while_left(client, message, left))
        });
        let tasks: Vec<JoinHandle<Result<Vec<Duration>>>> = tasks.collect();
        let mut taken = Vec::with_capacity(usize::try_from(operations)?);
        for task in tasks {
            taken.append(&mut task.await??);
        }
        Ok(taken)
    }

    async fn pass(&self, server: u8, message: Bytes) -> Result<()> {
        let call = async { self.server(server).call(&PASS, (message.clone(),)).await };
        let answer = interface(call).await?;
        check(&answer, &message)
    }

    /// One call with all the phase's messages as initial requests.
    async fn spread(&self, phase: &Phase) -> Result<()> {
        let mut call = at_interface(|| self.caller.begin());
        for (place, server) in phase.to.iter().enumerate() {
            let message = Bytes::copy_from_slice(phase.payload_to(place));
            let method = match is_line(&message) {
                true => PASS.definition(),
                false => SPREAD.definition(),
            };
            let server = self.server(*server).server();
            let server = server.context("a client without a server")?.clone();
            interface(call.send(server, method, message)).await?;
        }
        at_interface(|| call.close());
        let mut count = 0;
        while let Some(answer) = interface(call.next()).await {
            check(&answer?.payload, phase.payload())?;
            count += 1;
        }
        at_interface(|| drop(call));
        let expected = phase.from.len();
        ensure!(
            count == expected,
            "{count} answers came instead of {expected}"
        );
        Ok(())
    }

    /// A call for each request of the tree, made as soon as the answer above it is there.
    async fn call_each(&self, phase: &Phase) -> Result<()> {
        let mut calls = Calls {
            operator: self,
            message: Bytes::copy_from_slice(phase.payload()),
            inner: Vec::new(),
            leaves: VecDeque::new(),
        };
        for root in self.plan.tree().roots() {
            calls.make(root);
        }
        poll_fn(|context| calls.go_on(context)).await?;
        // Nothing waits for these but the end, so in which order they come does not matter.
        while let Some(leaf) = calls.leaves.pop_front() {
            check(&interface(leaf).await?, &calls.message)?;
        }
        Ok(())
    }

    fn server(&self, server: u8) -> &Client {
        &self.servers[usize::from(server)]
    }
}

/// The answer of a call under way.
type Answer = <Call<One<Bytes>, Raw> as IntoFuture>::IntoFuture;

/// Calls under way.
struct Calls<'operator> {
    operator: &'operator Operator,
    message: Bytes,
    /// Those whose answers others need, with their places in the tree.
    inner: Vec<(usize, Answer)>,
    leaves: VecDeque<Answer>,
}

impl Calls<'_> {
    fn make(&mut self, request: usize) {
        let plan = &self.operator.plan;
        let client = self.operator.server(plan.route()[request]);
        // It is under way as soon as it is made.
        let call = || client.call(&PASS, (self.message.clone(),)).into_future();
        let answer = at_interface(call);
        if plan.tree().nodes()[request].children.is_empty() {
            self.leaves.push_back(answer);
        } else {
            self.inner.push((request, answer));
        }
    }

    /// Makes all calls that can be made; ready when no further one is to come.
    fn go_on(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<()>> {
        let mut at = 0;
        while let Some((_, answer)) = self.inner.get_mut(at) {
            let Poll::Ready(answer) = at_interface(|| Pin::new(answer).poll(context)) else {
                at += 1;
                continue;
            };
            check(&answer?, &self.message)?;
            let (request, _) = self.inner.swap_remove(at);
            for &child in &self.operator.plan.tree().nodes()[request].children {
                self.make(child);
            }
        }
        match self.inner.is_empty() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

async fn call_while_left(
    client: Client,
    message: Bytes,
    left: Arc<AtomicU64>,
) -> Result<Vec<Duration>> {
    let mut taken = Vec::new();
    while take_one(&left) {
        let start = Instant::now();
        let call = async { client.call(&PASS, (message.clone(),)).await };
        check(&interface(call).await?, &message)?;
        taken.push(start.elapsed());
    }
    Ok(taken)
}
