//! `wallaby list`: what an endpoint serves, in Rust's words.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::Args;
use serde_json::json;
use wallaby::reflection::{Follows, MethodDescription, Signature};
use wallaby::schema::{Content, Definition, Schema, Shape};
use wallaby_program::output;

use super::{Asking, block_on, is_own};
use crate::output::plain;

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
            match self.json {
                true => output::line(json!(methods)),
                false => output::text(text(&methods)),
            }
        })
    }
}

/// The services, each with its methods and their types.
fn text(methods: &[MethodDescription]) -> String {
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
        let mut types = Vec::new();
        for method in methods {
            let _ = writeln!(out, "  {}", plain(&signature(method)));
            for schema in schemas(method) {
                for definition in &schema.types {
                    if !types.contains(&definition) {
                        types.push(definition);
                    }
                }
            }
        }
        for (name, definition) in types {
            let _ = writeln!(out, "  {}", plain(&declaration(name, definition)));
        }
    }
    out
}

/// The service and the method's own name.
fn service(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

fn schemas(method: &MethodDescription) -> impl Iterator<Item = &Schema> {
    let signature = method.signature.as_ref();
    let items = signature.and_then(|signature| match &signature.follows {
        Follows::ItemsOf(items) => items.as_ref(),
        _ => None,
    });
    let arguments = signature.and_then(|signature| signature.arguments.as_ref());
    let answer = signature.and_then(|signature| signature.answer.as_ref());
    arguments.into_iter().chain(items).chain(answer)
}

/// A method as Rust would have it.
pub(super) fn signature(method: &MethodDescription) -> String {
    let name = service(&method.name).1;
    let codec = match method.codec.as_str() {
        "" | "postcard" => String::new(),
        codec => format!("  (codec {codec})"),
    };
    let Some(Signature {
        one,
        follows,
        arguments,
        answer,
    }) = &method.signature
    else {
        return format!("{name}(?) -> ?{codec}");
    };
    let shown = |schema: &Option<Schema>| match schema {
        Some(schema) => schema.root.to_string(),
        None if method.codec == "raw" => "bytes".to_owned(),
        None => "?".to_owned(),
    };
    let mut parts = match arguments.as_ref().map(|schema| &schema.root) {
        Some(Shape::Tuple(parts)) => parts.iter().map(Shape::to_string).collect(),
        Some(Shape::Unit) => Vec::new(),
        _ => vec![shown(arguments)],
    };
    match follows {
        Follows::Nothing => {}
        Follows::Bytes => parts.push("Body".to_owned()),
        Follows::ItemsOf(items) => parts.push(format!("Streaming<{}>", shown(items))),
    }
    let answer = match (one, shown(answer)) {
        (true, answer) if answer == "()" => String::new(),
        (true, answer) => format!(" -> {answer}"),
        (false, answer) => format!(" -> Many<{answer}>"),
    };
    format!("{name}({}){answer}{codec}", parts.join(", "))
}

fn declaration(name: &str, definition: &Definition) -> String {
    match definition {
        Definition::Struct(content) => format!("struct {name}{}", contents(content)),
        Definition::Enum(variants) => {
            let variants = variants.iter();
            let variants =
                variants.map(|variant| variant.name.clone() + &contents(&variant.content));
            let variants: Vec<String> = variants.collect();
            format!("enum {name} {{ {} }}", variants.join(", "))
        }
    }
}

fn contents(content: &Content) -> String {
    match content {
        Content::Unknown => " ?".to_owned(),
        Content::Unit => String::new(),
        Content::Newtype(shape) => format!("({shape})"),
        Content::Tuple(shapes) => {
            let shapes: Vec<String> = shapes.iter().map(Shape::to_string).collect();
            format!("({})", shapes.join(", "))
        }
        Content::Fields(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|field| format!("{}: {}", field.name, field.shape));
            format!(" {{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}
