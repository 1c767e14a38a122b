//! What scripts say, and the functions by which they do.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use rhai::{
    Array, Dynamic, EvalAltResult, FuncRegistration, ImmutableString, Map, Module,
    NativeCallContext, Position,
};
use serde::Serialize;
use wallaby::codec::{Codec, Postcard};
use wallaby::schema::{Schema, Shape};
use wallaby_chain::{Link as Wire, LinkTypes, Type};
use wallaby_chain_guest::{self as guest, Error, Function, Saying, State, Value, Written};
use wallaby_values::ValueError;

use crate::engine::Run;
use crate::values::{self, Handle};

type Said<T> = Result<T, Box<EvalAltResult>>;

/// A method of a server, and of which types its arguments and its answer are.
#[derive(Clone)]
pub(crate) struct Link(Arc<(guest::Link, LinkTypes)>);

impl Link {
    pub(crate) fn new(link: guest::Link, types: LinkTypes) -> Self {
        Self(Arc::new((link, types)))
    }

    fn link(&self) -> &guest::Link {
        &self.0.0
    }

    fn of(&self, schema: Option<&Schema>) -> Option<Type> {
        let codec = self.link().codec.clone();
        let schema = match codec.as_str() {
            "raw" => Schema::default(),
            _ => schema?.clone(),
        };
        Some(Type { codec, schema })
    }

    fn answer(&self) -> Option<Type> {
        self.of(self.0.1.answer.as_ref())
    }

    /// The payload of these arguments.
    fn payload(&self, arguments: &Dynamic, run: &Run) -> Result<Bytes, ValueError> {
        if let Some(handle) = arguments.read_lock::<Handle>() {
            run.take(handle.bytes.len(), "arguments")?;
            return Ok(handle.bytes.clone());
        }
        let name = format!("arguments of {}", self.link().method);
        let Some(of) = self.of(self.0.1.arguments.as_ref()) else {
            let why = "nobody has said of which types they are, as `State::link` does";
            return Err(ValueError::new(&name, &why));
        };
        let given = arguments.as_array_ref().ok();
        let arguments = match (of.codec.as_str(), given.as_deref()) {
            ("raw", Some(array)) if let [only] = &array[..] => only.clone(),
            (_, Some(array)) if array.is_empty() && of.schema.root == Shape::Unit => Dynamic::UNIT,
            ("raw", None) | (_, Some(_)) => arguments.clone(),
            (_, None) => Dynamic::from_array(vec![arguments.clone()]),
        };
        Ok(values::to_payload(&arguments, &of, &name, run)?.into())
    }
}

/// A function that a server has by this name.
#[derive(Clone)]
struct Native(ImmutableString);

/// One link, and what runs on its answer.
#[derive(Clone)]
pub(crate) struct Hop(Arc<Leg>);

struct Leg {
    link: Link,
    arguments: Bytes,
    then: Option<(Function, State)>,
}

#[derive(Clone)]
pub(crate) struct Merge(Arc<(String, Function, State)>);

/// How a chain goes on. It is written when it is made: with values in it it could grow, and hold others like it, where nothing
/// counts that.
#[derive(Clone)]
pub(crate) enum Step {
    Next(Hop),
    Split(Vec<Hop>, Merge),
    End(Arc<[u8]>),
}

impl Hop {
    fn written(&self, end: Option<&Type>) -> guest::Hop {
        let Leg {
            link,
            arguments,
            then,
        } = &*self.0;
        let mut hop = guest::Hop::to_raw(link.link(), arguments.to_vec());
        if let Some((function, state)) = then {
            let mut state = state.clone();
            put(&mut state, Type::ANSWER, &link.answer());
            put(&mut state, Type::END, &end);
            hop = hop.then(function.clone(), state);
        }
        hop
    }

    /// About how many bytes it is.
    fn size(&self) -> usize {
        let state = self.0.then.as_ref().map(|(_, state)| state);
        let values = state.into_iter().flat_map(State::values);
        let values = values.map(|(name, value)| name.len() + value.bytes.len());
        self.0.arguments.len() + values.sum::<usize>() + 256
    }

    /// Of which type it is what it comes to as a branch, and that of its functions' end.
    fn result(&self) -> (Option<Type>, Option<Type>) {
        match &self.0.then {
            None => (self.0.link.answer(), None),
            Some((Function::Own(_), _)) => (Some(Type::json()), Some(Type::json())),
            Some(_) => (None, None),
        }
    }
}

impl Step {
    /// As servers read it.
    pub(crate) fn written(&self, run: &Run) -> Result<guest::Step, Error> {
        match self {
            Self::Next(hop) => Ok(hop.written(run.end.as_ref()).into()),
            Self::Split(branches, Merge(merge)) => {
                let (at, function, state) = &**merge;
                let (mut hops, mut results) = (Vec::new(), Vec::new());
                for branch in branches {
                    let (result, end) = branch.result();
                    run.take(branch.size(), "a branch").map_err(wrong)?; // each may be the same one
                    hops.push(branch.written(end.as_ref()));
                    results.push(result);
                }
                let mut state = state.clone();
                put(&mut state, Type::RESULTS, &results);
                put(&mut state, Type::END, &run.end);
                let merge = guest::Merge::at(at, function.clone(), state);
                Ok(guest::Step::split(hops, merge))
            }
            Self::End(end) => Ok(guest::Step::End(end.to_vec())),
        }
    }
}

/// A step, and what is said besides.
pub(crate) fn saying(
    step: guest::Step,
    lines: Vec<String>,
    told: Vec<Written>,
) -> Result<guest::Step, Error> {
    if lines.is_empty() && told.is_empty() {
        return Ok(step);
    }
    let then = postcard::to_allocvec(&step);
    let then = then.map_err(|error| Error::new(Error::INTERNAL, error.to_string()))?;
    let saying = Saying { lines, told, then };
    Ok(guest::Step::Saying(Box::new(saying)))
}

fn wrong(error: impl Display) -> Error {
    Error::new(Error::INVALID_ARGUMENT, error.to_string())
}

/// The state as it travels.
fn written(state: &Map, run: &Run) -> Result<State, Error> {
    let mut written = State::new();
    for (name, value) in state {
        if name.starts_with(' ') {
            let why = "names that begin with a space are not for values of functions";
            return Err(wrong(ValueError::new(name, &why)));
        }
        let (shape, bytes) = if let Some(link) = value.read_lock::<Link>() {
            put(&mut written, &LinkTypes::name_of(name), &link.0.1);
            let bytes = postcard::to_allocvec(link.link()).map_err(wrong)?;
            let types = written.value(&LinkTypes::name_of(name));
            let types = types.map_or(0, |types| types.bytes.len());
            run.take(bytes.len() + types, name).map_err(wrong)?;
            (<Postcard as Codec<Wire>>::fingerprint(), bytes)
        } else if let Some(handle) = value.read_lock::<Handle>() {
            run.take(handle.bytes.len(), name).map_err(wrong)?;
            (handle.shape, handle.bytes.to_vec())
        } else {
            let bytes = values::to_payload(value, &Type::json(), name, run).map_err(wrong)?;
            (Type::JSON, bytes)
        };
        written.insert(name, Value { shape, bytes });
    }
    Ok(written)
}

/// What is for who runs functions.
fn put(state: &mut State, name: &str, what: &impl Serialize) {
    let bytes = serde_json::to_vec(what).unwrap_or_else(|_| b"null".to_vec());
    let shape = Type::JSON;
    state.insert(name, Value { shape, bytes });
}

/// Puts the functions by which scripts speak among what they have.
pub(crate) fn register(module: &mut Module) {
    module
        .set_custom_type::<Link>("Link")
        .set_custom_type::<Handle>("Bytes")
        .set_custom_type::<Native>("Native")
        .set_custom_type::<Step>("Step")
        .set_custom_type::<Merge>("Merge");
    module.set_native_fn(
        "next",
        |cx: NativeCallContext, link: Link, arguments: Dynamic| next(&cx, link, &arguments, None),
    );
    module.set_native_fn(
        "next",
        |cx: NativeCallContext, link: Link, arguments: Dynamic, then: Dynamic, state: Map| {
            let then = function(&cx, &then)?;
            let state = kept(&cx, &state)?;
            next(&cx, link, &arguments, Some((then, state)))
        },
    );
    module.set_native_fn(
        "split",
        |cx: NativeCallContext, branches: Array, merge: Merge| {
            let branches = branches.into_iter().map(|branch| {
                let name = values::name_of(&branch).to_owned();
                match branch.try_cast::<Step>() {
                    Some(Step::Next(hop)) => Ok(hop),
                    _ => Err(fail(
                        &cx,
                        &format_args!("a branch is made by next, not {name}"),
                    )),
                }
            });
            Ok(Step::Split(branches.collect::<Said<_>>()?, merge))
        },
    );
    module.set_native_fn(
        "merge",
        |cx: NativeCallContext, at: Dynamic, then: Dynamic, state: Map| {
            let server = match at.read_lock::<Link>() {
                Some(link) => link.link().server.clone(),
                None => match at.as_immutable_string_ref() {
                    Ok(address) => address.to_string(),
                    Err(name) => {
                        let why = format_args!("a merge is at a link or an address, not {name}");
                        return Err(fail(&cx, &why));
                    }
                },
            };
            let merge = (server, function(&cx, &then)?, kept(&cx, &state)?);
            Ok(Merge(Arc::new(merge)))
        },
    );
    module.set_native_fn(
        "end",
        |cx: NativeCallContext, value: Dynamic| -> Said<Step> {
            let run = run(&cx)?;
            let Some(end) = &run.end else {
                let why = "the end: nobody has said of which type it is to be";
                return Err(failed(&cx, Error::FAILED_PRECONDITION, &why));
            };
            let end = values::to_payload(&value, end, "the end", &run);
            Ok(Step::End(end.map_err(|error| fail(&cx, &error))?.into()))
        },
    );
    module.set_native_fn("native", |name: ImmutableString| -> Said<Native> {
        Ok(Native(name))
    });
    module.set_native_fn(
        "tell",
        |cx: NativeCallContext, value: Dynamic| -> Said<()> {
            let run = run(&cx)?;
            let told = values::to_payload(&value, &Type::json(), "a value that is told", &run);
            run.tell(told.map_err(|error| fail(&cx, &error))?);
            Ok(())
        },
    );
    module.set_getter_fn("server", |link: &mut Link| -> Said<ImmutableString> {
        Ok(link.link().server.as_str().into())
    });
    module.set_getter_fn("method", |link: &mut Link| -> Said<ImmutableString> {
        Ok(link.link().method.as_str().into())
    });
    module.set_getter_fn("len", |bytes: &mut Handle| -> Said<i64> {
        Ok(i64::try_from(bytes.bytes.len()).unwrap_or(i64::MAX))
    });
    module.set_native_fn(
        "sub",
        |cx: NativeCallContext, bytes: &mut Handle, from: i64, length: i64| {
            let place = |from: i64| usize::try_from(from).ok();
            let end = from.checked_add(length).and_then(place);
            let range = place(from).zip(end).filter(|(from, end)| from <= end);
            match range {
                Some((from, end)) if end <= bytes.bytes.len() => {
                    Ok(Handle::new(bytes.bytes.slice(from..end)))
                }
                _ => {
                    let all = bytes.bytes.len();
                    let why = format_args!("there are no {length} bytes from {from} on in {all}");
                    Err(fail(&cx, &why))
                }
            }
        },
    );
    module.set_native_fn("text", |cx: NativeCallContext, bytes: &mut Handle| {
        let most = run(&cx)?.limits.text;
        let all = bytes.bytes.len();
        if all > most {
            let why = format_args!("{all} bytes are too many for text: at most {most} are allowed");
            return Err(fail(&cx, &why));
        }
        match str::from_utf8(&bytes.bytes) {
            Ok(text) => Ok(ImmutableString::from(text)),
            Err(error) => Err(fail(&cx, &format_args!("the bytes are no text: {error}"))),
        }
    });
    FuncRegistration::new("==").set_into_module(module, |one: Handle, other: Handle| {
        one.bytes == other.bytes
    });
}

fn next(
    cx: &NativeCallContext<'_>,
    link: Link,
    arguments: &Dynamic,
    then: Option<(Function, State)>,
) -> Said<Step> {
    let arguments = link.payload(arguments, &*run(cx)?);
    let arguments = arguments.map_err(|error| fail(cx, &error))?;
    Ok(Step::Next(Hop(Arc::new(Leg {
        link,
        arguments,
        then,
    }))))
}

/// A function of the script by its name, or one that servers have.
fn function(cx: &NativeCallContext<'_>, given: &Dynamic) -> Said<Function> {
    if let Some(native) = given.read_lock::<Native>() {
        return Ok(Function::Native(native.0.to_string()));
    }
    match given.as_immutable_string_ref() {
        Ok(name) => Ok(Function::Own(name.to_string())),
        Err(name) => Err(fail(
            cx,
            &format_args!("a function is named by text, not by {name}"),
        )),
    }
}

fn run(cx: &NativeCallContext<'_>) -> Said<Arc<Run>> {
    let run = cx.tag().and_then(|tag| tag.read_lock::<Arc<Run>>());
    match run {
        Some(run) => Ok(Arc::clone(&run)),
        None => Err(fail(cx, &"this is for functions of chains")),
    }
}

/// A state as it is now.
fn kept(cx: &NativeCallContext<'_>, state: &Map) -> Said<State> {
    written(state, &*run(cx)?).map_err(|error| failed(cx, error.code, &error.message))
}

/// An error at this place, which a script may catch.
fn fail(cx: &NativeCallContext<'_>, why: &dyn Display) -> Box<EvalAltResult> {
    failed(cx, Error::INVALID_ARGUMENT, why)
}

fn failed(cx: &NativeCallContext<'_>, code: u8, why: &dyn Display) -> Box<EvalAltResult> {
    let place = cx.call_position();
    let error = Map::from([
        ("code".into(), i64::from(code).into()),
        ("message".into(), format!("{why} ({place})").into()),
    ]);
    Box::new(EvalAltResult::ErrorRuntime(error.into(), Position::NONE))
}
