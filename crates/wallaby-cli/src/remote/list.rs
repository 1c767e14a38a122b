//! `wallaby list`: what an endpoint serves, in Rust's words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use wallaby::Client;
use wallaby::reflection::{MethodDescription, Signature};
use wallaby_program::output;

#[cfg(feature = "proto")]
use super::messages;
use super::{Asking, block_on, is_own};
use crate::output::{json_line, plain};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby list tcp://127.0.0.1:4000
  wallaby list tcp://127.0.0.1:4000 example.Index/
  wallaby list tcp://127.0.0.1:4000 wallaby.            Wallaby's own methods, which are not listed else
  wallaby list tcp://127.0.0.1:4000 --json | jq -r '.[].name'

'?' is what the server could not find out about a type of its own.
Exit status: 0 if there was an answer, 1 if not, 2 if the command line is wrong.")]
pub(crate) struct List {
    #[command(flatten)]
    asking: Asking,
    /// Only methods whose names begin so
    #[arg(default_value = "")]
    prefix: String,
    /// Say it in JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let client = self.asking.client().await?;
            let mut methods = self.asking.methods(&client, &self.prefix).await?;
            if !is_own(&self.prefix) {
                methods.retain(|method| !is_own(&method.name));
            }
            if self.json {
                return json_line(&json!(methods));
            }
            if methods.is_empty() && !self.prefix.is_empty() {
                bail!("no method here begins with {}", plain(&self.prefix));
            }
            let more = all_messages(&client, &self.prefix, &methods).await;
            output::text(text(&methods, &more))
        })
    }
}

/// What is to be said of a service, besides its types, by its name: the messages of its methods. None if the server does not tell.
#[cfg(feature = "proto")]
async fn all_messages(
    client: &Client,
    prefix: &str,
    methods: &[MethodDescription],
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let with_messages = |method: &&MethodDescription| method.codec == "protobuf";
    let methods: Vec<_> = methods.iter().filter(with_messages).collect();
    if methods.is_empty() {
        return all;
    }
    match messages::files(client, prefix, methods.len()).await {
        Ok(files) => {
            for method in methods {
                let texts = all.entry(service(&method.name).0.to_owned()).or_default();
                messages::texts(&files, method, texts);
            }
        }
        Err(error) => eprintln!(
            "note: messages are not shown: {}",
            plain(&format!("{error:#}"))
        ),
    }
    all
}

#[cfg(not(feature = "proto"))]
async fn all_messages(
    _: &Client,
    _: &str,
    _: &[MethodDescription],
) -> BTreeMap<String, BTreeMap<String, String>> {
    BTreeMap::new()
}

/// The services, each with its methods and their types.
fn text(
    methods: &[MethodDescription],
    more: &BTreeMap<String, BTreeMap<String, String>>,
) -> String {
    let mut services: BTreeMap<&str, Vec<&MethodDescription>> = BTreeMap::new();
    for method in methods {
        services
            .entry(service(&method.name).0)
            .or_default()
            .push(method);
    }
    let mut out = String::new();
    for (name, methods) in services {
        let blank = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{blank}{}", plain(name));
        let (mut types, mut told) = (Vec::new(), BTreeSet::new());
        for method in methods {
            let _ = writeln!(out, "  {}", plain(&signature(method)));
            for (type_name, definition) in method.signature.iter().flat_map(Signature::types) {
                let text = definition.text(type_name);
                if told.insert(text.clone()) {
                    types.push(text);
                }
            }
        }
        for text in types {
            let _ = writeln!(out, "  {}", plain(&text));
        }
        for text in more.get(name).into_iter().flat_map(BTreeMap::values) {
            let _ = writeln!(out, "  {}", plain(text));
        }
    }
    out
}

/// The service and the method's own name.
fn service(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// A method as Rust would have it.
pub(super) fn signature(method: &MethodDescription) -> String {
    let name = service(&method.name).1;
    let codec = match method.codec.as_str() {
        "" | "postcard" => String::new(),
        codec => format!("  (codec {codec})"),
    };
    let unknown = match method.codec.as_str() {
        "raw" => "bytes",
        _ => "?",
    };
    match &method.signature {
        Some(signature) => format!("{name}{}{codec}", signature.text(unknown)),
        None => format!("{name}(?) -> ?{codec}"),
    }
}
