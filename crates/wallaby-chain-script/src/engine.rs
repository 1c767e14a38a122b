//! Rhai, as far as scripts have it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rhai::packages::{
    ArithmeticPackage, BasicIteratorPackage, BasicMathPackage, BasicStringPackage, LogicPackage,
    Package,
};
use rhai::{
    AST, ASTNode, CallFnOptions, Dynamic, Engine, EvalAltResult, Expr, Map, Module,
    OptimizationLevel, ParseErrorType, Position, Scope, Shared, Stmt, def_package,
};
use wallaby::Status;
use wallaby_chain::{Effort, Limit, Type};
use wallaby_chain_guest::abi::{Given, Input, Output};
use wallaby_chain_guest::{Error, Written};
use wallaby_values::ValueError;

use crate::limits::ScriptLimits;
use crate::plain;
use crate::said::{self, Step};
use crate::values;

/// What a function may not be longer that runs where answers are sent.
const BRIEF: Duration = Duration::from_millis(1);

/// The clock is looked at after so many steps: a step may take as long as it takes to look for something in the longest text.
const TICK: u64 = 16;

/// Functions of a script.
const FUNCTIONS: usize = 256;

/// Bytes of what a function logs and tells; servers allow less.
const MOST_SAID: usize = 1 << 20;

/// Bytes of an error's text.
const MOST_TEXT: usize = 1024;

/// What scripts do not have: code that is made when it runs, functions with values in them, which could hold themselves or grow
/// without end, values that no variable names, since it is by these that sizes are checked, and other modules.
const FORBIDDEN: [&str; 7] = [
    "eval",
    "Fn",
    "curry",
    "is_shared",
    "this",
    "import",
    "export",
];

def_package! {
    Packages(module):
        ArithmeticPackage,
        BasicIteratorPackage,
        BasicMathPackage,
        BasicStringPackage,
        LogicPackage
    {
        plain::register(module);
        said::register(module);
    }
}

/// How a run ends, if it yields nothing.
pub(crate) enum Ended {
    /// It has used up more than it may: what, as the predicate of a sentence, too.
    Limit(Limit, String),
    Status(Status),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// What scripts are compiled with and run by.
pub(crate) struct Library {
    pub(crate) limits: Arc<ScriptLimits>,
    functions: Shared<Module>,
}

/// What a function that runs has said, and what it may.
pub(crate) struct Run {
    pub(crate) limits: Arc<ScriptLimits>,
    /// Of which type the chain's end is.
    pub(crate) end: Option<Type>,
    spoken: Mutex<Spoken>,
    /// Bytes that it may still write.
    output: AtomicUsize,
    /// It has said more than it may.
    is_over: AtomicBool,
}

#[derive(Default)]
struct Spoken {
    lines: Vec<String>,
    told: Vec<Written>,
    bytes: usize,
}

impl Run {
    /// So many bytes more of its output, of what is called so.
    pub(crate) fn take(&self, bytes: usize, name: &str) -> Result<(), ValueError> {
        let take = |left: usize| left.checked_sub(bytes);
        let left = self
            .output
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        left.map(drop).map_err(|_| {
            self.is_over.store(true, Ordering::Relaxed);
            ValueError::new(name, &"it is too much")
        })
    }

    fn spoken(&self) -> MutexGuard<'_, Spoken> {
        self.spoken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, line: &str) {
        if let Some(mut spoken) = self.say(line.len()) {
            spoken.lines.push(line.to_owned());
        }
    }

    pub(crate) fn tell(&self, value: Vec<u8>) {
        if let Some(mut spoken) = self.say(value.len()) {
            spoken.told.push(Written(value));
        }
    }

    /// Room for so many bytes, if there is.
    fn say(&self, bytes: usize) -> Option<MutexGuard<'_, Spoken>> {
        let mut spoken = self.spoken();
        spoken.bytes = spoken.bytes.saturating_add(bytes).saturating_add(16);
        let fits = spoken.bytes <= MOST_SAID;
        self.is_over.fetch_or(!fits, Ordering::Relaxed);
        fits.then_some(spoken)
    }
}

impl Library {
    pub(crate) fn new(limits: ScriptLimits) -> Self {
        Self {
            limits: Arc::new(limits),
            functions: Packages::new().as_shared_module(),
        }
    }

    fn engine(&self) -> Engine {
        let limits = &self.limits;
        let mut engine = Engine::new_raw();
        engine
            .register_global_module(Shared::clone(&self.functions))
            .set_max_expr_depths(limits.depth, limits.depth)
            .set_max_call_levels(limits.calls)
            .set_max_variables(limits.variables)
            .set_max_string_size(limits.text)
            .set_max_array_size(limits.elements)
            .set_max_map_size(limits.elements)
            .set_max_functions(FUNCTIONS)
            .set_max_modules(0)
            .set_strict_variables(true)
            .set_fail_on_invalid_map_property(true)
            .set_optimization_level(OptimizationLevel::None);
        engine
    }

    /// # Errors
    ///
    /// What is wrong with it, and where.
    pub(crate) fn compile(&self, text: &str) -> Result<AST, Status> {
        let mut engine = self.engine();
        // What a closure captures, it shares, and so could hold itself.
        engine.set_allow_anonymous_fn(false);
        for word in FORBIDDEN {
            engine.disable_symbol(word);
        }
        let ast = engine.compile(text).map_err(|error| {
            let message = format!("the script cannot be compiled: {error}");
            match error.err_type() {
                ParseErrorType::ExprTooDeep
                | ParseErrorType::LiteralTooLarge(..)
                | ParseErrorType::TooManyFunctions => Limit::Code.exceeded(message),
                _ => Status::invalid_argument(message),
            }
        })?;
        let most = self.limits.arguments;
        let mut many = None;
        ast.walk(&mut |path| {
            let arguments = match path.last() {
                Some(ASTNode::Expr(Expr::FnCall(call, _) | Expr::MethodCall(call, _))) => {
                    call.args.len()
                }
                Some(ASTNode::Stmt(Stmt::FnCall(call, _))) => call.args.len(),
                _ => 0,
            };
            if arguments > most {
                many = path.last().map(|node| (arguments, node.position()));
            }
            many.is_none()
        });
        match many {
            None => Ok(ast),
            Some((count, position)) => {
                let message = format!(
                    "the script cannot be compiled: {count} arguments, at most {most} are allowed ({position})"
                );
                Err(Limit::Code.exceeded(message))
            }
        }
    }

    /// An engine for one run.
    fn running(&self, run: &Arc<Run>, effort: Effort, begun: Instant) -> Engine {
        let limits = &self.limits;
        let mut engine = self.engine();
        let (operations, time) = match effort {
            Effort::Brief => {
                // Its stack is somebody else's.
                engine
                    .set_max_call_levels(limits.calls.min(3))
                    .set_max_array_size(limits.elements.min(256))
                    .set_max_map_size(limits.elements.min(256));
                (limits.brief.min(limits.operations), BRIEF.min(limits.time))
            }
            Effort::Full => (limits.operations, limits.time),
        };
        engine.set_max_operations(operations);
        engine.on_progress(move |steps| {
            let is_over = steps % TICK == 0 && begun.elapsed() > time;
            is_over.then_some(Dynamic::UNIT)
        });
        // An assignment to a part of a value is not checked, so the whole is, before it is used again; and names in maps are not.
        let most = limits.text;
        #[expect(deprecated, reason = "it is not, its words say: it may change")]
        engine.on_var(move |name, _, cx| {
            if let Some(value) = cx.scope().get(name) {
                cx.engine().ensure_data_size_within_limits(value)?;
                if plain::names_of(value, 0).is_none_or(|names| names > most) {
                    let what = "Names in map".to_owned();
                    return Err(EvalAltResult::ErrorDataTooLarge(what, Position::NONE).into());
                }
            }
            Ok(None)
        });
        let speaking = Arc::clone(run);
        engine.on_print(move |line| speaking.log(line));
        let speaking = Arc::clone(run);
        engine.on_debug(move |line, _, _| speaking.log(line));
        engine.set_default_tag(Dynamic::from(Arc::clone(run)));
        engine
    }

    /// Runs a function on its input.
    pub(crate) fn run(
        &self,
        ast: &AST,
        function: &str,
        input: &Bytes,
        effort: Effort,
    ) -> Result<Vec<u8>, Ended> {
        let Input { state, given } = postcard::from_bytes(input)
            .map_err(|error| Status::internal(format!("a function's input: {error}")))?;
        let wrong = |error: ValueError| {
            Status::invalid_argument(format!("function {function:?} of the script: {error}"))
        };
        let begun = Instant::now();
        let shared = values::state(&state, &self.limits).map_err(wrong)?;
        let given = match given {
            Given::Answer(answer) => {
                let of: Option<Type> = values::told(&state, Type::ANSWER);
                self.answer(input, answer.bytes(), of.as_ref())
                    .map_err(wrong)?
            }
            Given::Results(answers) => {
                let of: Vec<Option<Type>> = values::told(&state, Type::RESULTS).unwrap_or_default();
                let of = of.into_iter().chain(std::iter::repeat(None));
                let answers = answers.iter().zip(of);
                let answers = answers
                    .map(|(answer, of)| self.answer(input, answer.bytes(), of.as_ref()))
                    .collect::<Result<_, _>>();
                Dynamic::from_array(answers.map_err(wrong)?)
            }
            Given::Exception(exception) => {
                let hosts = exception.hosts.into_iter().map(Dynamic::from);
                Dynamic::from_map(Map::from([
                    ("code".into(), i64::from(exception.code).into()),
                    ("message".into(), exception.message.into()),
                    ("chain".into(), exception.chain.into()),
                    ("hosts".into(), Dynamic::from_array(hosts.collect())),
                ]))
            }
            _ => return Err(Status::unimplemented("a script cannot be given that").into()),
        };
        let run = Arc::new(Run {
            limits: Arc::clone(&self.limits),
            end: values::told(&state, Type::END),
            spoken: Mutex::default(),
            output: AtomicUsize::new(self.limits.output),
            is_over: AtomicBool::new(false),
        });
        let engine = self.running(&run, effort, begun);
        let (scope, arguments) = (&mut Scope::new(), [Dynamic::from_map(shared), given]);
        let called: Result<Dynamic, _> = engine.call_fn_with_options(
            CallFnOptions::new(),
            scope,
            ast,
            function,
            arguments.to_vec(),
        );
        let output: Output = match called {
            Ok(said) => {
                let spoken = std::mem::take(&mut *run.spoken());
                let step = match said.try_cast::<Step>() {
                    Some(step) => step.written(&run),
                    None => Err(Error::new(
                        Error::INVALID_ARGUMENT,
                        format!(
                            "function {function:?} of the script does not say how it goes on: by next, split or end"
                        ),
                    )),
                };
                step.and_then(|step| said::saying(step, spoken.lines, spoken.told))
            }
            Err(error) => Err(self.thrown(function, *error)?),
        };
        if run.is_over.load(Ordering::Relaxed) {
            let most = self.limits.output;
            let what =
                format!("says more than {most} bytes, or logs and tells more than {MOST_SAID}");
            return Err(Ended::Limit(Limit::Output, what));
        }
        let output = postcard::to_allocvec(&output);
        Ok(output.map_err(|error| Status::internal(error.to_string()))?)
    }

    /// An answer that lies in the input.
    fn answer(
        &self,
        input: &Bytes,
        answer: &[u8],
        of: Option<&Type>,
    ) -> Result<Dynamic, ValueError> {
        values::from_payload(input.slice_ref(answer), of, &self.limits)
    }

    /// What a function has thrown, or the limit that it has come to.
    fn thrown(&self, function: &str, error: EvalAltResult) -> Result<Error, Ended> {
        let limits = &self.limits;
        let mut error = error;
        while let EvalAltResult::ErrorInFunctionCall(_, _, inner, _) = error {
            error = *inner;
        }
        let (limit, what) = match error {
            EvalAltResult::ErrorTooManyOperations(_) => {
                let what = format!("takes more than {} steps", limits.operations);
                (Limit::Instructions, what)
            }
            EvalAltResult::ErrorTerminated(..) => {
                let what = format!("runs for longer than {:?}", limits.time);
                (Limit::Time, what)
            }
            EvalAltResult::ErrorStackOverflow(_) => {
                let what = format!("has more than {} functions inside each other", limits.calls);
                (Limit::Stack, what)
            }
            EvalAltResult::ErrorTooManyVariables(_) => {
                let what = format!("has more than {} variables", limits.variables);
                (Limit::Stack, what)
            }
            EvalAltResult::ErrorDataTooLarge(_, position) => {
                let what = format!(
                    "makes a value that is too large: at most {} bytes of text and {} elements are allowed ({position})",
                    limits.text, limits.elements
                );
                (Limit::Memory, what)
            }
            EvalAltResult::ErrorRuntime(thrown, position) => {
                return Ok(status_of(thrown, position));
            }
            error => {
                let message = format!(
                    "function {function:?} of the script: {}",
                    short(&error.to_string())
                );
                return Ok(Error::new(Error::INVALID_ARGUMENT, message));
            }
        };
        Err(Ended::Limit(limit, what))
    }
}

/// What `throw` has thrown: a text, or a map with a message and a code.
fn status_of(thrown: Dynamic, position: Position) -> Error {
    if let Ok(map) = thrown.as_map_ref()
        && let Some(message) = map.get("message")
    {
        let code = map.get("code").and_then(|code| code.as_int().ok());
        let code = code.and_then(|code| u8::try_from(code).ok());
        let code = code.unwrap_or(Error::INVALID_ARGUMENT);
        return Error::new(code, short(&message.to_string()));
    }
    let why = short(&thrown.to_string());
    Error::new(Error::INVALID_ARGUMENT, format!("{why} ({position})"))
}

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(MOST_TEXT)].to_owned()
}
