//! How a chain goes on after an answer, an exception or a merge: what is to be sent, without sending it.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use wallaby::codec::{Codec, Postcard, Raw};
use wallaby::intercept::{DelegatedRequest, Intent};
use wallaby::{
    Address, CallId, Code, Continuation, Many, Method, MethodDefinition, RequestId, Status,
};

use crate::chains::Limits;
use crate::exception::Exception;
use crate::stack::{Function, Level, MARK, Merging, Stack};
use crate::state::{Answer, State};
use crate::step::{Hop, Merge, Step};

/// A branch has come to this.
pub(crate) static MERGE: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/merge");

/// A chain that was started here has come to this exception.
pub(crate) static RAISE: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/raise");

/// A function that is registered here.
pub(crate) type Native<Input> = Arc<dyn Fn(State, Input) -> Result<Step, Status> + Send + Sync>;

/// Functions by their names.
pub(crate) type Natives<Input> = HashMap<String, Native<Input>>;

/// Runs functions.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) functions: Natives<Answer>,
    pub(crate) merging: Natives<Vec<Answer>>,
    pub(crate) catching: Natives<Exception>,
    pub(crate) limits: Limits,
}

/// The request for which something is to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) call: CallId,
    pub(crate) request: RequestId,
}

impl Place {
    pub(crate) fn exception(&self, stack: &Stack, status: &Status) -> Exception {
        stack.exception(self.call.sequence, status)
    }
}

impl Engine {
    /// Whether the function that is to run on the answer can run here. This is asked first, so that no service function runs in
    /// vain.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn check(&self, stack: &Stack) -> Result<(), Status> {
        let most = self.limits.hops;
        if stack.hops > most {
            let message =
                format!("a chain of more than {most} hops, the most that this server takes");
            return Err(Status::resource_exhausted(message));
        }
        match stack.levels.last() {
            Some(Level::Run {
                function: Function::Native(name),
                ..
            }) => find(&self.functions, "chaining", name).map(drop),
            Some(Level::Run {
                function: Function::WebAssembly(hash),
                ..
            }) => Err(no_web_assembly(hash)),
            _ => Ok(()),
        }
    }

    /// The answer of a link goes to the function on top, and the result of that one to the next.
    pub(crate) fn go_on(&self, mut stack: Stack, mut answer: Bytes, place: Place) -> Vec<Intent> {
        loop {
            let step = match stack.levels.pop() {
                None => return vec![last_answer(&stack, answer)],
                Some(Level::Catch { .. }) => continue,
                Some(Level::Merge(merging)) => {
                    let sent = self.to_merge(&stack, *merging, answer);
                    return self.sent(stack, sent.map(|intent| vec![intent]), place);
                }
                Some(Level::Run { function, state }) => self.run(function, state, answer),
            };
            match step {
                Ok(Step::End(value)) => answer = value,
                step => return self.follow(stack, step, place),
            }
        }
    }

    /// A function has said how it goes on.
    fn follow(&self, stack: Stack, step: Result<Step, Status>, place: Place) -> Vec<Intent> {
        let sent = step.and_then(|step| match step {
            Step::End(value) => Ok(self.go_on(stack.clone(), value, place)),
            Step::Next(hop) => Ok(vec![self.next(stack.clone(), *hop)?]),
            Step::Split(branches, merge) => self.split(&stack, branches, &merge, place),
        });
        self.sent(stack, sent, place)
    }

    /// What is sent, or what becomes of it that it cannot be.
    fn sent(&self, stack: Stack, sent: Result<Vec<Intent>, Status>, place: Place) -> Vec<Intent> {
        match sent {
            Ok(mut intents) => {
                let last = intents.pop().map(Intent::last);
                intents.extend(last);
                intents
            }
            Err(status) => {
                let exception = place.exception(&stack, &status);
                self.raise(stack, &exception)
            }
        }
    }

    fn run(&self, function: Function, state: State, answer: Bytes) -> Result<Step, Status> {
        match function {
            Function::Pipe(links) => {
                let mut links = links.into_iter();
                let Some(link) = links.next() else {
                    return Ok(Step::End(answer));
                };
                let mut hop = Hop::to_raw(&link.server, &link.definition()?, answer);
                hop.function = Function::Pipe(links.collect());
                Ok(hop.into())
            }
            Function::Native(name) => call(
                find(&self.functions, "chaining", &name)?,
                &name,
                state,
                Answer(answer),
            ),
            Function::WebAssembly(hash) => Err(no_web_assembly(&hash)),
        }
    }

    fn next(&self, mut stack: Stack, hop: Hop) -> Result<Intent, Status> {
        let payload = hop
            .payload
            .map_err(|error| Status::internal(error.to_string()))?;
        stack.push(hop.function, hop.state);
        self.onward(stack, hop.server, &hop.method, payload)
    }

    fn split(
        &self,
        stack: &Stack,
        branches: Vec<Hop>,
        merge: &Merge,
        place: Place,
    ) -> Result<Vec<Intent>, Status> {
        let (count, most) = (branches.len(), self.limits.branches);
        if !(1..=most).contains(&count) {
            let message =
                format!("a split into {count} branches: at least 1 and at most {most} are allowed");
            return Err(Status::resource_exhausted(message));
        }
        let of = u32::try_from(count).unwrap_or(u32::MAX);
        let branches = (1..).zip(branches).map(|(number, hop)| {
            let mut stack = stack.clone();
            stack.branch.push(number);
            stack.levels.push(Level::Merge(Box::new(Merging {
                at: merge.at.clone(),
                function: merge.function.clone(),
                state: merge.state.clone(),
                split: place.request.to_string(),
                number,
                of,
                raised: false,
            })));
            self.next(stack, hop)
        });
        branches.collect()
    }

    fn to_merge(&self, stack: &Stack, merging: Merging, payload: Bytes) -> Result<Intent, Status> {
        let (mut stack, at) = (stack.clone(), merging.at.clone());
        stack.levels.push(Level::Merge(Box::new(merging)));
        self.onward(stack, at, MERGE.definition(), payload)
    }

    /// All branches have ended, each with an answer or an exception, in their order.
    pub(crate) fn merge(
        &self,
        stack: Stack,
        merging: Merging,
        results: Vec<Result<Answer, Exception>>,
        place: Place,
    ) -> Vec<Intent> {
        match results.into_iter().collect() {
            Ok(answers) => {
                let function = find(&self.merging, "merging", &merging.function);
                let step = function
                    .and_then(|function| call(function, &merging.function, merging.state, answers));
                self.follow(stack, step, place)
            }
            Err(exception) => self.raise(stack, &exception),
        }
    }

    /// The function on top was to catch this exception.
    pub(crate) fn catch(
        &self,
        mut stack: Stack,
        exception: Exception,
        place: Place,
    ) -> Vec<Intent> {
        let Some(Level::Catch {
            function, state, ..
        }) = stack.levels.pop()
        else {
            let status = Status::invalid_argument("an exception that nobody was to catch here");
            return self.raise(stack.clone(), &place.exception(&stack, &status));
        };
        let step = match find(&self.catching, "catching", &function) {
            Ok(known) => call(known, &function, state, exception),
            Err(status) => {
                let message = format!(
                    "{}; it was to catch: {}",
                    status.message(),
                    exception.message()
                );
                Err(Status::new(status.code(), message))
            }
        };
        self.follow(stack, step, place)
    }

    /// An exception goes to who has started the innermost chain and catches it; at last to the initiator.
    pub(crate) fn raise(&self, mut stack: Stack, exception: &Exception) -> Vec<Intent> {
        let is_caught = |level: &Level| matches!(level, Level::Catch { .. });
        // If nobody catches it, nor need who merges know: the initiator's call ends.
        while stack.levels.iter().any(is_caught) {
            let raised = Postcard::encode(exception)
                .map_err(|error| Status::internal(error.to_string()))
                .and_then(|payload| match stack.levels.last().cloned() {
                    Some(Level::Catch { at, .. }) => self
                        .onward(stack.clone(), at, RAISE.definition(), payload)
                        .map(Some),
                    Some(Level::Merge(mut merging)) => {
                        merging.raised = true;
                        stack.levels.pop();
                        self.to_merge(&stack, *merging, payload).map(Some)
                    }
                    _ => Ok(None),
                });
            match raised {
                Ok(Some(intent)) => return vec![intent.last()],
                Ok(None) => drop(stack.levels.pop()),
                Err(_) => break,
            }
        }
        vec![exception.to_status().into()]
    }

    /// A handler hands its request on: who answers that is the link, then. What it brings along is a chain inside this one.
    pub(crate) fn hand_on(
        &self,
        mut stack: Stack,
        mut to: DelegatedRequest,
        place: Place,
    ) -> Vec<Intent> {
        let own = to
            .options()
            .and_then(|options| options.continuation.as_ref());
        let own = own.map_or(Ok(None), |own| match Stack::read(own.bytes())? {
            Some(own) => Ok(Some(own)),
            None => Err(Status::failed_precondition(
                "a link of a chain has handed on a continuation that is no chain",
            )),
        });
        let outer = stack.clone();
        let sent = own.and_then(|own| {
            stack
                .levels
                .extend(own.into_iter().flat_map(|own| own.levels));
            self.put(stack, &to.server.clone(), &mut to)?;
            Ok(vec![Intent::from(to)])
        });
        self.sent(outer, sent, place)
    }

    fn onward(
        &self,
        stack: Stack,
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<Intent, Status> {
        let mut to = DelegatedRequest::new(server.clone(), Arc::clone(method), payload);
        self.put(stack, &server, &mut to)?;
        Ok(to.into())
    }

    /// Gives a request the stack of its chain.
    fn put(
        &self,
        mut stack: Stack,
        server: &Address,
        to: &mut DelegatedRequest,
    ) -> Result<(), Status> {
        stack.hops = stack.hops.saturating_add(1);
        stack.path.push(server);
        let bytes = stack
            .to_bytes()
            .map_err(|error| Status::internal(error.to_string()))?;
        self.limits.check_size(bytes.len())?;
        self.limits.check_levels(stack.levels.len())?;
        let continuation = Continuation::new(bytes);
        let continuation =
            continuation.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        to.options_mut().continuation = Some(continuation);
        Ok(())
    }
}

fn last_answer(stack: &Stack, answer: Bytes) -> Intent {
    let marked = || Bytes::from([&MARK[..], &answer].concat());
    let answer = if stack.marked { marked() } else { answer };
    Intent::answer(answer).last()
}

fn find<'a, Input>(
    natives: &'a Natives<Input>,
    kind: &str,
    name: &str,
) -> Result<&'a Native<Input>, Status> {
    natives.get(name).ok_or_else(|| {
        Status::not_found(format!(
            "there is no {kind} function {name:?} at this server"
        ))
    })
}

fn call<Input>(
    native: &Native<Input>,
    name: &str,
    state: State,
    input: Input,
) -> Result<Step, Status> {
    let run = AssertUnwindSafe(|| native(state, input));
    catch_unwind(run).unwrap_or_else(|panic| {
        let why = text_of(&*panic);
        Err(Status::new(
            Code::Panicked,
            format!("function {name:?} has panicked: {why}"),
        ))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic
            .downcast_ref::<String>()
            .map_or("it says not why", String::as_str),
    }
}

fn no_web_assembly(hash: &[u8; 32]) -> Status {
    let hash: String = hash
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Status::unimplemented(format!(
        "function {hash}.. is WebAssembly: this server runs pipes and functions that are registered by name"
    ))
}
