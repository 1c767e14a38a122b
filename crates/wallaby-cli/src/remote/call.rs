//! `wallaby call`: calls a method of which only the server knows the types.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use wallaby::codec::Raw;
use wallaby::reflection::{Follows, MethodDescription};
use wallaby::{Body, CallError, Many, Outcome, Target};
use wallaby_program::output;

use super::list::signature;
use super::types::Types;
use super::{Asking, block_on, following};
use crate::output::{Exit, json_line, plain};

/// A call whose answers are bytes.
type Answers = wallaby::Call<Many<Bytes>, Raw>;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby call tcp://127.0.0.1:4000 example.Index/find '[\"hop\", 10]'
  wallaby call tcp://127.0.0.1:4000 example.Index/put '{\"path\": \"a.md\", \"size\": 7}'     its one argument is a struct
  wallaby call tcp://127.0.0.1:4000 example.Index/find @arguments.json --deadline 2s --traced
  wallaby call tcp://127.0.0.1:4000 example.Index/load --following items.json       items: JSON values, one behind the other

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
    /// What follows the request, if anything does: bytes, or items as JSON values, one behind the other. '-' is standard input
    #[arg(long, value_name = "FILE")]
    following: Option<String>,
    /// Say all in JSON on standard output: a line for each answer and status, and one for the end
    #[arg(long)]
    json: bool,
    /// Draw the tree of hops at the end
    #[arg(long)]
    traced: bool,
    /// Go on if a part of the call is lost: a status says what
    #[arg(long)]
    tolerant: bool,
}

impl Call {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_input = |name: &Option<String>| name.as_deref() == Some("-");
        if is_input(&self.arguments) && is_input(&self.following) {
            bail!("the arguments and what follows them cannot both be standard input");
        }
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
            let mut target = Target::<Many<Bytes>, Raw>::raw(Arc::new(definition), payload);
            if let Some(body) = self.body(&method, &types)? {
                target = target.with_body(body);
            }
            let client = if self.traced { client.traced() } else { client };
            let client = if self.tolerant {
                client.tolerant()
            } else {
                client
            };
            self.follow(client.call_target(target), &types).await
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

    /// What follows the request, as its method says.
    fn body(&self, method: &MethodDescription, types: &Types) -> anyhow::Result<Option<Body>> {
        let signature = method.signature.as_ref();
        let follows = signature.map_or(&Follows::Nothing, |signature| &signature.follows);
        let what = match (follows, &self.following) {
            (Follows::Nothing, None) => return Ok(None),
            (Follows::Nothing, Some(_)) => bail!("nothing follows the requests of {}", method.name),
            (Follows::Bytes, _) => "bytes",
            (Follows::ItemsOf(_), _) => "items",
        };
        let name = self.following.as_deref();
        let name = name.with_context(|| {
            format!(
                "{what} follow the requests of {}: say --following FILE",
                method.name
            )
        })?;
        let reader = following::open(name)?;
        Ok(Some(match follows {
            Follows::ItemsOf(_) => following::items(reader, types.items()?),
            Follows::Bytes | Follows::Nothing => following::bytes(reader),
        }))
    }

    /// Says what comes, and how it ends.
    async fn follow(&self, mut call: Answers, types: &Types) -> anyhow::Result<()> {
        let mut unreadable = false;
        while let Some(answer) = call.next().await {
            let shown =
                answer.map(|answer| types.answer(&answer).map_err(|error| error.to_string()));
            match shown {
                Ok(Ok(answer)) if self.json && types.are_raw() => {
                    json_line(&json!({ "answer": answer }))?;
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
            json_line(&end)?;
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
            return json_line(&json!({ kind: value }));
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
