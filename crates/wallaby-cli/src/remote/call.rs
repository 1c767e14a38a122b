//! `wallaby call`: calls a method of which only the server knows the types.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use wallaby::reflection::{Follows, MethodDescription, Signature};
use wallaby::schema::{Schema, Shape};
use wallaby::{CallError, Client, Outcome, RawCall};
use wallaby_program::output;

use super::list::signature;
#[cfg(feature = "proto")]
use super::messages::Messages;
use super::{Asking, block_on, decode, encode};
use crate::output::{Exit, plain};

/// The codecs whose payloads it can make and read.
#[cfg(feature = "proto")]
const KNOWN: &str = "'postcard' with types, 'protobuf', and 'raw'";
#[cfg(not(feature = "proto"))]
const KNOWN: &str = "'postcard' with types, and 'raw' ('protobuf' with its feature 'proto')";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby call tcp://127.0.0.1:4000 example.Index/find '[\"hop\", 10]'
  wallaby call tcp://127.0.0.1:4000 example.Index/put '{\"path\": \"a.md\", \"size\": 7}'     its one argument is a struct
  wallaby call tcp://127.0.0.1:4000 example.Index/find @arguments.json --deadline 2s --traced

Values in JSON: structs are objects (a field that is an Option may be missing), tuples and lists arrays, maps objects or
arrays of pairs, None is null, variants \"Name\" or {\"Name\": ..}, u128 and i128 strings of digits, bytes base64 or an array of
numbers (a Vec<u8> is a list of numbers), NaN and infinities the strings \"NaN\", \"inf\", \"-inf\". Messages of a method with codec
protobuf are in the JSON of Protocol Buffers. Of a method with codec raw the argument is taken as it is, and answers are printed
as text, or as base64 after 'base64:'.
Answers go to standard output, a line each; statuses and the trace to standard error.

Exit status: 0 if the call is complete without statuses, 1 if nothing was called, 2 if the command line is wrong, 3 if
statuses were among the answers, 4 if the call has failed.")]
pub(crate) struct Call {
    #[command(flatten)]
    asking: Asking,
    /// package.Service/method, as 'wallaby list' says it
    method: String,
    /// The arguments, a JSON array; or one argument alone that is no array. '-' is standard input, @FILE a file
    arguments: Option<String>,
    /// Say all in JSON on standard output: a line for each answer and status, and one for the end
    #[arg(long)]
    json: bool,
    /// Draw the tree of hops at the end
    #[arg(long)]
    traced: bool,
}

impl Call {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let client = self.asking.client().await?;
            let method = self.asking.method(&client, &self.method).await?;
            let definition = method.definition();
            let definition =
                definition.context("the server's description of the method is wrong")?;
            let types = Types::of(&client, &method).await?;
            let payload = types.payload(self.arguments()?).with_context(|| {
                format!("the arguments do not fit {}", plain(&signature(&method)))
            })?;
            let client = if self.traced { client.traced() } else { client };
            let call = client.call_raw(&Arc::new(definition), payload);
            self.follow(call, &types).await
        })
    }

    /// The text of the arguments.
    fn arguments(&self) -> anyhow::Result<Vec<u8>> {
        match self.arguments.as_deref() {
            None => Ok(Vec::new()),
            Some("-") => {
                let mut text = Vec::new();
                std::io::stdin().read_to_end(&mut text)?;
                Ok(text)
            }
            Some(text) => match text.strip_prefix('@') {
                Some(file) => std::fs::read(file).with_context(|| format!("cannot read {file}")),
                None => Ok(text.as_bytes().to_vec()),
            },
        }
    }

    /// Says what comes, and how it ends.
    async fn follow(&self, mut call: RawCall, types: &Types<'_>) -> anyhow::Result<()> {
        let mut unreadable = false;
        while let Some(answer) = call.next().await {
            let shown = answer.map(|answer| types.answer(&answer.payload));
            match shown {
                Ok(Ok(answer)) if self.json && types.are_raw() => {
                    output::line(format_args!("{{\"answer\":{}}}", json!(answer)))?;
                }
                Ok(Ok(answer)) if self.json => {
                    output::line(format_args!("{{\"answer\":{}}}", plain(&answer)))?;
                }
                Ok(Ok(answer)) => output::line(plain(&answer))?,
                Ok(Err(error)) => {
                    unreadable = true;
                    self.complain("unreadable", &error, &json!({ "message": error }))?;
                }
                Err(error) => {
                    let kind = match error {
                        CallError::Failed(_) => "failed",
                        _ => "status",
                    };
                    self.complain(kind, &error.to_string(), &in_json(&error))?;
                }
            }
        }
        let outcome = call.outcome();
        let statuses = match &outcome {
            Some(Outcome::Complete { statuses }) => Some(*statuses),
            _ => None,
        };
        if self.json {
            let mut end = json!({ "complete": statuses.is_some(), "statuses": statuses });
            if self.traced {
                end["trace"] = json!(call.trace().to_string());
            }
            output::line(end)?;
        } else if self.traced {
            let trace = call.trace().to_string();
            trace.lines().for_each(|line| eprintln!("{}", plain(line)));
        }
        match statuses {
            None => Err(Exit(4).into()),
            Some(0) if !unreadable => Ok(()),
            Some(_) => Err(Exit(3).into()),
        }
    }

    fn complain(&self, kind: &str, text: &str, value: &Value) -> anyhow::Result<()> {
        if self.json {
            return output::line(json!({ kind: value }));
        }
        eprintln!("{kind}: {}", plain(text));
        Ok(())
    }
}

fn in_json(error: &CallError) -> Value {
    let message = match error {
        CallError::Status(status) => status.message().to_owned(),
        error => error.to_string(),
    };
    json!({
        "code": error.code().to_string(),
        "message": message,
        "server": error.server().map(ToString::to_string),
        "method": error.status().and_then(|status| status.method()),
        "request": error.request().map(|request| request.to_string()),
    })
}

/// The types of a method's arguments and of its answer, by its codec.
enum Types<'a> {
    Raw,
    Postcard {
        arguments: &'a Schema,
        answer: &'a Schema,
    },
    #[cfg(feature = "proto")]
    Protobuf(Messages),
}

impl<'a> Types<'a> {
    #[cfg_attr(
        not(feature = "proto"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "only messages are asked for"
        )
    )]
    async fn of(client: &Client, method: &'a MethodDescription) -> anyhow::Result<Self> {
        let name = &method.name;
        let signature = method.signature.as_ref();
        if let Some(Signature { follows, .. }) = signature
            && *follows != Follows::Nothing
        {
            bail!("bytes or items follow the requests of {name}, which this program cannot send");
        }
        let arguments = signature.and_then(|signature| signature.arguments.as_ref());
        let answer = signature.and_then(|signature| signature.answer.as_ref());
        match (&*method.codec, arguments, answer) {
            ("raw", ..) => Ok(Self::Raw),
            ("postcard", Some(arguments), Some(answer)) => Ok(Self::Postcard { arguments, answer }),
            #[cfg(feature = "proto")]
            ("protobuf", ..) => Ok(Self::Protobuf(Messages::ask(client, method).await?)),
            (codec, ..) => {
                let codec = plain(codec);
                bail!("{name} has the codec {codec:?} or no types: this program knows {KNOWN}")
            }
        }
    }

    fn are_raw(&self) -> bool {
        matches!(self, Self::Raw)
    }

    fn payload(&self, text: Vec<u8>) -> anyhow::Result<Bytes> {
        let schema = match self {
            Self::Raw => return Ok(text.into()),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => return messages.payload(&text),
            Self::Postcard { arguments, .. } => arguments,
        };
        let given = match text.iter().all(u8::is_ascii_whitespace) {
            true => json!([]),
            false => serde_json::from_slice(&text).context("this is no JSON")?,
        };
        let arguments = match (&schema.root, given) {
            // One argument need not be in an array.
            (Shape::Tuple(parts), given) if parts.len() == 1 && !given.is_array() => json!([given]),
            (Shape::Unit, Value::Array(none)) if none.is_empty() => Value::Null,
            (_, given) => given,
        };
        let payload = encode::encode(schema, &arguments, "arguments");
        Ok(payload.map_err(anyhow::Error::msg)?.into())
    }

    fn answer(&self, payload: &Bytes) -> Result<String, String> {
        match self {
            Self::Postcard { answer, .. } => decode::decode(answer, payload),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => messages.answer(payload),
            Self::Raw => Ok(match std::str::from_utf8(payload) {
                Ok(text) => text.to_owned(),
                Err(_) => format!("base64:{}", BASE64_STANDARD.encode(payload)),
            }),
        }
    }
}
