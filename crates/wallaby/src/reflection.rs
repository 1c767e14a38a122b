//! What an endpoint serves and how much it has to do, for programs that were not built with it: the service `wallaby.Reflection`.
//!
//! Every endpoint serves it unless [`Builder::reflection`](crate::Builder::reflection) says no. Whoever may call the
//! endpoint learns the names of its methods and what their arguments and answers look like, not what they do, and what it has
//! counted. Interceptors of the endpoint are asked about it as about all methods. The program `wallaby` lists and calls methods by
//! it, and shows how much endpoints have to do (`wallaby list`, `wallaby call`, `wallaby top`).
//!
//! ```
//! use wallaby::reflection::{METHODS, MethodDescription};
//! use wallaby::{Address, Client, Endpoint};
//!
//! # async fn example(endpoint: Endpoint, server: Address) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(&endpoint, server);
//! for text in client.call(&METHODS, ("example.Index/".into(),)).collect().await? {
//!     let method = MethodDescription::parse(&text)?;
//!     println!("{} has the codec {} and {:?}", method.name, method.codec, method.signature);
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby_proto::Status;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::Endpoint as Core;

use crate::codec::{Codec, CodecError};
use crate::error::SendError;
use crate::method::{Answers, Many, Method, One, RequestBody};
use crate::metrics::{Meters, Metrics};
use crate::request::Request;
use crate::schema::{Definition, Schema, Shape};
use crate::service::{Reserved, Service};

const NAME: &str = "wallaby.Reflection";

/// The methods of an endpoint whose names begin with the argument, `""` for all: each is told as JSON, for
/// [`MethodDescription::parse`].
pub static METHODS: Method<(String,), Many<String>> = Method::new("wallaby.Reflection/methods");

/// What the names in the types of an endpoint's methods mean, for methods whose names begin with the argument: each answer is a
/// `FileDescriptorSet` of Protocol Buffers. Each set is told once; none of types that [`METHODS`] says all about.
pub static DESCRIPTORS: Method<(String,), Many<Vec<u8>>> =
    Method::new("wallaby.Reflection/descriptors");

/// How much the endpoint has to do, and what it has counted, as JSON for [`LoadReport::parse`]. To be asked costs a request; it
/// takes its turn among the others.
pub static LOAD: Method<(), One<String>> = Method::new("wallaby.Reflection/load");

/// How much an endpoint has to do. Its JSON may get more members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// Its incarnation, new at every start.
    pub node: String,
    /// How many seconds ago it was made.
    pub up: f64,
    /// Handlers that run, that of this question among them.
    pub running: u64,
    /// Requests that wait for a handler.
    pub waiting: u64,
    /// What it has counted since it was made; 0 where it does not count that.
    pub metrics: Metrics,
}

impl LoadReport {
    /// Reads the answer of [`LOAD`].
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, CodecError> {
        serde_json::from_str(text).map_err(|error| CodecError::new("JSON", error.to_string()))
    }

    /// What this endpoint tells, which was made so long ago.
    pub(crate) fn tell(endpoint: &Core, up: Duration, meters: &Meters) -> Result<String, Status> {
        let load = endpoint.load();
        let report = Self {
            node: endpoint.node().to_string(),
            up: up.as_secs_f64(),
            running: load.running as u64,
            waiting: load.waiting as u64,
            metrics: meters.join(endpoint.metrics()),
        };
        let told = serde_json::to_string(&report);
        told.map_err(|error| Status::internal(error.to_string()))
    }

    /// Connections that are open.
    pub fn connections(&self) -> u64 {
        let Metrics {
            connections_opened,
            connections_ended,
            ..
        } = self.metrics;
        connections_opened.saturating_sub(connections_ended)
    }

    /// Calls from there that have not ended.
    pub fn calls(&self) -> u64 {
        let Metrics {
            calls_started,
            calls_completed,
            calls_failed,
            calls_aborted,
            ..
        } = self.metrics;
        let ended = [calls_completed, calls_failed, calls_aborted];
        ended.into_iter().fold(calls_started, u64::saturating_sub)
    }
}

/// What an endpoint tells of a method. Its JSON may get more members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// `package.Service/method`; `*` stands for all methods that are not served by their names.
    pub name: String,
    /// The codec of its payloads.
    pub codec: String,
    /// The fingerprints of arguments and answer, in hexadecimal digits.
    pub fingerprints: [String; 2],
    /// What it takes and gives; `None` where it was registered without types ([`Service::raw`]), or where these are too long for a
    /// message.
    #[serde(default)]
    pub signature: Option<Signature>,
}

/// The types of a method's arguments and of its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Whether there is exactly one answer.
    pub one: bool,
    /// What follows its requests.
    pub follows: Follows,
    /// The tuple of its arguments; `None` where its codec knows no types.
    pub arguments: Option<Schema>,
    /// An answer.
    pub answer: Option<Schema>,
}

/// What follows the requests of a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follows {
    /// Nothing.
    Nothing,
    /// Bytes ([`crate::Body`]).
    Bytes,
    /// Items ([`crate::Streaming`]), which look so.
    #[serde(rename = "items")]
    ItemsOf(Option<Schema>),
}

impl MethodDescription {
    /// Reads an answer of [`METHODS`].
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, CodecError> {
        serde_json::from_str(text).map_err(|error| CodecError::new("JSON", error.to_string()))
    }

    /// What a caller says of the method, to call it with payloads as bytes ([`crate::Client::call_raw`]); `None` if the description
    /// has no such name, codec or fingerprints.
    pub fn definition(&self) -> Option<MethodDefinition> {
        let [arguments, answer] = &self.fingerprints;
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        MethodDefinition::new(&self.name, &self.codec, number(arguments)?, number(answer)?)
    }

    fn new(definition: &MethodDefinition, signature: Option<Signature>) -> Self {
        Self {
            name: definition.name().to_string(),
            codec: definition.codec().to_owned(),
            fingerprints: [definition.arguments(), definition.answer()].map(|it| format!("{it:x}")),
            signature,
        }
    }
}

impl Signature {
    /// It as Rust would have it, behind the method's name: `(String) -> Many<Hit>`. What is not known is `unknown`.
    pub fn text(&self, unknown: &str) -> String {
        let shown = |schema: &Option<Schema>| match schema {
            Some(schema) => schema.root.to_string(),
            None => unknown.to_owned(),
        };
        let mut parts = match self.arguments.as_ref().map(|schema| &schema.root) {
            Some(Shape::Tuple(parts)) => parts.iter().map(Shape::to_string).collect(),
            Some(Shape::Unit) => Vec::new(),
            _ => vec![shown(&self.arguments)],
        };
        match &self.follows {
            Follows::Nothing => {}
            Follows::Bytes => parts.push("Body".to_owned()),
            Follows::ItemsOf(items) => parts.push(format!("Streaming<{}>", shown(items))),
        }
        let answer = match (self.one, shown(&self.answer)) {
            (true, answer) if answer == "()" => String::new(),
            (true, answer) => format!(" -> {answer}"),
            (false, answer) => format!(" -> Many<{answer}>"),
        };
        format!("({}){answer}", parts.join(", "))
    }

    /// The types with names in it, perhaps some of them twice.
    pub fn types(&self) -> impl Iterator<Item = (&String, &Definition)> {
        let items = match &self.follows {
            Follows::ItemsOf(items) => items.as_ref(),
            Follows::Nothing | Follows::Bytes => None,
        };
        let schemas = [self.arguments.as_ref(), items, self.answer.as_ref()];
        schemas
            .into_iter()
            .flatten()
            .flat_map(|schema| &schema.types)
    }
}

/// The types of a method as [`MethodDefinition::with_types`] wants them.
pub(crate) fn types_of<Args, A, C, B>() -> Vec<String>
where
    A: Answers,
    C: Codec<Args> + Codec<A::Item>,
    B: RequestBody,
{
    let signature = signature_of::<Args, A, C, B>();
    let mut types = vec![signature.text("?")];
    for (name, definition) in signature.types() {
        let text = definition.text(name);
        if !types.contains(&text) {
            types.push(text);
        }
    }
    types
}

fn signature_of<Args, A, C, B>() -> Signature
where
    A: Answers,
    C: Codec<Args> + Codec<A::Item>,
    B: RequestBody,
{
    Signature {
        one: A::ONE,
        follows: B::follows(),
        arguments: <C as Codec<Args>>::schema(),
        answer: <C as Codec<A::Item>>::schema(),
    }
}

/// Where the types of a method that is served are known from.
enum Types {
    Rust(fn() -> Signature),
    Given(Box<Signature>),
}

/// What is told of a method that is served. It is made when somebody asks for the first time.
#[derive(Default)]
pub(crate) struct Description {
    signature: Option<Types>,
    descriptors: [Bytes; 3],
    told: OnceLock<String>,
}

impl Description {
    pub(crate) fn of<Args, A, C, B>() -> Self
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
    {
        Self {
            signature: Some(Types::Rust(signature_of::<Args, A, C, B>)),
            descriptors: [
                Bytes::from_static(<C as Codec<Args>>::descriptors()),
                Bytes::from_static(B::descriptors()),
                Bytes::from_static(<C as Codec<A::Item>>::descriptors()),
            ],
            told: OnceLock::new(),
        }
    }

    /// Of types that are known when the program runs.
    pub(crate) fn given(signature: Signature, descriptors: Bytes) -> Self {
        Self {
            signature: Some(Types::Given(Box::new(signature))),
            descriptors: [descriptors, Bytes::new(), Bytes::new()],
            told: OnceLock::new(),
        }
    }
}

/// A method that is served, and what is told of it.
pub(crate) type Described<'a> = (&'a MethodDefinition, &'a Description);

/// What is told of this method.
pub(crate) fn told(method: Described<'_>) -> &String {
    let (definition, description) = method;
    description.told.get_or_init(|| {
        let signature = description.signature.as_ref();
        let signature = signature.map(|types| match types {
            Types::Rust(signature) => signature(),
            Types::Given(signature) => Signature::clone(signature),
        });
        told_of(definition, signature)
    })
}

/// The same without its types, if it is too long for a message with them: rather than all that comes behind it.
pub(crate) fn told_briefly(definition: &MethodDefinition) -> String {
    told_of(definition, None)
}

fn told_of(definition: &MethodDefinition, signature: Option<Signature>) -> String {
    let description = MethodDescription::new(definition, signature);
    serde_json::to_string(&description).unwrap_or_default()
}

/// What the names in the types of these methods mean.
pub(crate) fn descriptors<'a>(methods: impl Iterator<Item = Described<'a>>) -> BTreeSet<&'a Bytes> {
    let sets = methods.flat_map(|(_, description)| &description.descriptors);
    sets.filter(|set| !set.is_empty()).collect()
}

/// The service.
pub(crate) fn service() -> Service {
    Service::new(NAME)
        .reserved(Reserved::new(NAME))
        .method(&METHODS, |request, (prefix,)| tell(request, prefix))
        .method(&DESCRIPTORS, |request, (prefix,)| {
            tell_descriptors(request, prefix)
        })
        .method(&LOAD, |request, ()| tell_load(request))
}

async fn tell_load(request: Request<One<String>>) -> Result<(), Status> {
    let endpoint = &request.handling.endpoint;
    let told =
        endpoint.ask(|core| LoadReport::tell(&core.endpoint, endpoint.up(), &endpoint.meters));
    Ok(request.respond(told?).await?)
}

async fn tell(request: Request<Many<String>>, prefix: String) -> Result<(), Status> {
    let served = (request.handling.endpoint).ask(|core| core.served.clone());
    for method in served {
        if !method.definition.name().starts_with(&prefix) {
            continue;
        }
        let told = told(method.described());
        match request.reply(told.clone()).await {
            Err(SendError::TooLarge { .. }) => {
                request.reply(told_briefly(&method.definition)).await?;
            }
            told => told?,
        }
    }
    Ok(())
}

async fn tell_descriptors(request: Request<Many<Vec<u8>>>, prefix: String) -> Result<(), Status> {
    let served = (request.handling.endpoint).ask(|core| core.served.clone());
    let methods = (served.iter()).filter(|method| method.definition.name().starts_with(&prefix));
    for set in descriptors(methods.map(|method| method.described())) {
        request.reply(set.to_vec()).await?;
    }
    Ok(())
}
