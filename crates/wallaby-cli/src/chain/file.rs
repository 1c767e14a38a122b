//! The file that describes a chain, and the chain that it is.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use wallaby::codec::{Codec, CodecError, Format};
use wallaby::schema::Schema;
use wallaby::{Address, Caller, Endpoint, MethodDefinition};
use wallaby_chain::{Chain, ChainCode, Hop, LinkTypes, State, Type, start_by};

use super::Which;
use crate::remote::{Asking, Types, raw};

/// What a chain comes to: JSON if its functions are a script, else whatever it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json;

impl Format for Json {
    const NAME: &'static str = "json";
}

impl Codec<Bytes> for Json {
    fn encode(value: &Bytes) -> Result<Bytes, CodecError> {
        Ok(value.clone())
    }

    fn decode(payload: Bytes) -> Result<Bytes, CodecError> {
        Ok(payload)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    first: First,
    functions: Option<PathBuf>,
    then: Option<String>,
    #[serde(default)]
    state: BTreeMap<String, Value>,
    #[serde(default)]
    links: BTreeMap<String, At>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    server: Address,
    method: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    server: Address,
    method: String,
}

/// A chain that can begin.
pub(super) struct Ready {
    pub(super) chain: Chain<Bytes, Json>,
    pub(super) caller: Caller,
    /// The types of all methods that the file names.
    pub(super) methods: HashMap<String, Types>,
    /// How its end is written, if that is known.
    pub(super) end: End,
    pub(super) _endpoint: Endpoint,
}

/// What the end is.
pub(super) enum End {
    Json,
    /// The answer of this method.
    Answer(String),
    Unknown,
}

impl Ready {
    /// Reads the file, and asks its servers for types.
    pub(super) async fn of(which: &Which) -> anyhow::Result<Self> {
        let shown = which.file.display();
        let text = fs::read_to_string(&which.file);
        let text = text.with_context(|| format!("cannot read {shown}"))?;
        let file: File = toml::from_str(&text).with_context(|| format!("{shown} is no chain"))?;
        let servers = file.links.values().map(|link| &link.server);
        let servers: Vec<Address> = servers.chain([&file.first.server]).cloned().collect();
        let endpoint = which.way.endpoint(&servers).await?;
        let mut asked = Asked {
            which,
            endpoint: &endpoint,
            methods: HashMap::new(),
        };
        let first = asked.method(&file.first.server, &file.first.method).await?;
        let arguments = match &file.first.arguments {
            Value::Null => Vec::new(),
            Value::String(text) if first.is_raw => text.clone().into_bytes(),
            given => serde_json::to_vec(given)?,
        };
        let types = &asked.methods[&file.first.method];
        let payload = types
            .payload(arguments)
            .with_context(|| format!("the arguments do not fit {}", file.first.method))?;
        let mut state = State::new();
        for (name, value) in &file.state {
            state = state.with_json(name, value)?;
        }
        for (name, At { server, method }) in &file.links {
            let link = asked.method(server, method).await?;
            state = state.link_raw(name, (server.clone(), &link.definition), &link.types)?;
        }
        let mut hop = Hop::to_raw(file.first.server, &first.definition, payload);
        if let Some(answer) = first.answer() {
            hop = hop.answering(answer);
        }
        let end = match (&file.functions, &file.then) {
            (None, None) => End::Answer(file.first.method.clone()),
            (Some(_), None) => bail!("{shown}: say by 'then' which function is the first"),
            (None, Some(function)) => {
                hop = hop.then(function.as_str(), state);
                End::Unknown
            }
            (Some(functions), Some(function)) => {
                let path = which.file.parent().map(|folder| folder.join(functions));
                let path = path.unwrap_or_else(|| functions.clone());
                let code = fs::read(&path);
                let code = code.with_context(|| format!("cannot read {}", path.display()))?;
                hop = hop.then(ChainCode::new(&code).function(function), state);
                match code.starts_with(b"\0asm") {
                    true => End::Unknown,
                    false => End::Json,
                }
            }
        };
        let methods = asked.methods;
        Ok(Self {
            chain: start_by(hop),
            caller: which.way.caller(&endpoint),
            methods,
            end,
            _endpoint: endpoint,
        })
    }

    /// What the chain has come to, for people.
    pub(super) fn shown(&self, end: &Bytes) -> anyhow::Result<String> {
        match &self.end {
            End::Answer(method) if let Some(types) = self.methods.get(method) => types.answer(end),
            _ => Ok(raw(end)),
        }
    }
}

/// Servers tell what their methods are.
struct Asked<'a> {
    which: &'a Which,
    endpoint: &'a Endpoint,
    methods: HashMap<String, Types>,
}

/// What is known of a method.
struct Told {
    definition: Arc<MethodDefinition>,
    types: LinkTypes,
    is_raw: bool,
}

impl Told {
    fn answer(&self) -> Option<Type> {
        let schema = match self.is_raw {
            true => Schema::default(),
            false => self.types.answer.clone()?,
        };
        let codec = self.definition.codec().to_owned();
        Some(Type { codec, schema })
    }
}

impl Asked<'_> {
    async fn method(&mut self, server: &Address, name: &str) -> anyhow::Result<Told> {
        let way = &self.which.way;
        let client = way.client(self.endpoint, server);
        let asking = Asking::new(server.clone(), way.clone());
        let method = asking.method(&client, name).await?;
        let definition = method.definition();
        let definition = definition.context("the server's description of the method is wrong")?;
        let types = Types::of(&client, &method).await?;
        let is_raw = types.are_raw();
        let signature = method.signature.filter(|_| types.are_of_serde());
        self.methods.insert(name.to_owned(), types);
        let [arguments, answer] = match signature {
            Some(signature) => [signature.arguments, signature.answer],
            None => [None, None],
        };
        Ok(Told {
            definition: Arc::new(definition),
            types: LinkTypes { arguments, answer },
            is_raw,
        })
    }
}
