//! `wallaby chain step`: a chain from here, one link at a time.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::Command;

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use wallaby_chain::{Chains, State, Stop, Walk};
use wallaby_chain_script::{ScriptLimits, Scripts};

use super::Which;
use super::file::{Json, Ready};
use super::run::show;
use crate::output::{Exit, plain};
use crate::remote::{Types, raw};

pub(super) async fn step(which: &Which) -> anyhow::Result<()> {
    let ready = Ready::of(which).await?;
    let runtime = Scripts::new(ScriptLimits::default());
    #[cfg(feature = "wasm")]
    let runtime = {
        use wallaby_chain_wasm::{WasmLimits, WebAssembly};
        (WebAssembly::new(WasmLimits::default())?, runtime)
    };
    let home = Chains::new().code(runtime, |_| true).at_home();
    let walk = ready.chain.clone().walk(ready.caller.clone(), &home)?;
    let mut stepping = Stepping {
        ready,
        walk,
        called: None,
        asks: io::stdin().is_terminal(),
    };
    stepping.walk().await
}

struct Stepping {
    ready: Ready,
    walk: Walk<Bytes, Json>,
    /// The method that was called last.
    called: Option<String>,
    asks: bool,
}

/// What somebody wants.
enum Wish {
    Next,
    Edit,
    End,
}

impl Stepping {
    async fn walk(&mut self) -> anyhow::Result<()> {
        while self.stop()? {
            let Some(events) = self.walk.step().await else {
                return Ok(());
            };
            match events {
                Ok(events) => {
                    for event in events {
                        show(&self.ready, event)?;
                    }
                }
                Err(error) => {
                    eprintln!("failed: {}", plain(&error.to_string()));
                    // What comes next may be tried again, or sent elsewhere.
                    if !self.asks || self.walk.stop().is_none() {
                        return Err(Exit(4).into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Shows what comes next, and asks what is to be done; whether it goes on.
    fn stop(&mut self) -> anyhow::Result<bool> {
        loop {
            let Some(stop) = self.walk.stop() else {
                return Ok(true);
            };
            let (what, shown) = look(&self.ready, self.called.as_deref(), &stop);
            eprintln!("{what}");
            for (name, value) in &shown {
                eprintln!("  {}: {}", plain(name), plain(&value.to_string()));
            }
            let wish = match self.asks {
                true => self.ask()?,
                false => Wish::Next,
            };
            match wish {
                Wish::End => return Ok(false),
                Wish::Edit => {
                    if let Err(error) = self.edit(shown) {
                        eprintln!("it stays as it is: {}", plain(&format!("{error:#}")));
                    }
                }
                Wish::Next => {
                    if let Some(Stop::Link { method, .. }) = self.walk.stop() {
                        self.called = Some(method.name().to_string());
                    }
                    return Ok(true);
                }
            }
        }
    }

    fn ask(&mut self) -> anyhow::Result<Wish> {
        loop {
            eprint!("n next, e edit, c go on, q end: ");
            io::stderr().flush()?;
            let mut line = String::new();
            if io::stdin().read_line(&mut line)? == 0 {
                return Ok(Wish::End);
            }
            match line.trim() {
                "" | "n" => return Ok(Wish::Next),
                "e" => return Ok(Wish::Edit),
                "q" => return Ok(Wish::End),
                "c" => {
                    self.asks = false;
                    return Ok(Wish::Next);
                }
                _ => {}
            }
        }
    }

    /// Has somebody change what comes next.
    fn edit(&mut self, shown: Map<String, Value>) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&shown)?;
        let edited: Map<String, Value> =
            serde_json::from_str(&in_editor(&text)?).context("this is no JSON")?;
        let (ready, called) = (&self.ready, self.called.as_deref());
        let Some(stop) = self.walk.stop() else {
            return Ok(());
        };
        if let Some(name) = edited.keys().find(|name| !shown.contains_key(*name)) {
            bail!("there is no {name:?}");
        }
        let changed = edited
            .into_iter()
            .filter(|(name, value)| shown.get(name) != Some(value));
        match stop {
            Stop::Link {
                server,
                method,
                arguments,
                ..
            } => {
                for (name, value) in changed {
                    match name.as_str() {
                        "server" => *server = serde_json::from_value(value)?,
                        _ => {
                            let types = types(ready, Some(&method.name()[..]))?;
                            *arguments = types.payload(serde_json::to_vec(&value)?)?;
                        }
                    }
                }
            }
            Stop::Function { state, answer, .. } => {
                for (name, value) in changed {
                    match name.as_str() {
                        "answer" => *answer = types(ready, called)?.of_answer(&value)?,
                        _ => *state = edited_state(state, value)?,
                    }
                }
            }
            _ => bail!("an exception cannot be changed"),
        }
        Ok(())
    }
}

fn types<'a>(ready: &'a Ready, method: Option<&str>) -> anyhow::Result<&'a Types> {
    let types = method.and_then(|method| ready.methods.get(method));
    types.context("its types are not known: the file names no such method")
}

/// What comes next: in words, and its parts in JSON.
fn look(ready: &Ready, called: Option<&str>, stop: &Stop<'_>) -> (String, Map<String, Value>) {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
    let what = match stop {
        Stop::Link {
            chain,
            server,
            method,
            arguments,
            ..
        } => {
            put("server", json!(server));
            let types = types(ready, Some(&method.name()[..]));
            let known = types.and_then(|types| types.arguments(arguments));
            put("arguments", in_json(known, arguments));
            format!("{} calls {}", plain(chain), plain(method.name()))
        }
        Stop::Function {
            chain,
            name,
            state,
            answer,
            ..
        } => {
            let names = state.names().map(|name| {
                let value = state.get::<Value>(name);
                (
                    name.to_owned(),
                    value.unwrap_or_else(|_| json!("(not JSON)")),
                )
            });
            put("state", Value::Object(names.collect()));
            let known = types(ready, called).and_then(|types| types.answer(answer));
            put("answer", in_json(known, answer));
            format!("{} runs {}", plain(chain), plain(name))
        }
        Stop::Exception(exception) => {
            put("message", json!(exception.message()));
            "ends by an exception".to_owned()
        }
        _ => "goes on".to_owned(),
    };
    (what, shown)
}

fn in_json(known: anyhow::Result<String>, bytes: &Bytes) -> Value {
    let known = known
        .ok()
        .map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
    known.unwrap_or_else(|| Value::String(raw(bytes)))
}

/// The state with the values that differ.
fn edited_state(state: &State, edited: Value) -> anyhow::Result<State> {
    let Value::Object(edited) = edited else {
        bail!("state: expected an object");
    };
    let mut new = state.clone();
    for (name, value) in edited {
        if state.get::<Value>(&name).is_ok_and(|old| old == value) {
            continue;
        }
        if state.names().any(|known| known == name) && state.get::<Value>(&name).is_err() {
            if value != json!("(not JSON)") {
                bail!("state.{name} is not JSON, and stays as it is");
            }
            continue;
        }
        new = new.with_json(&name, &value)?;
    }
    Ok(new)
}

/// What somebody has made of a text.
fn in_editor(text: &str) -> anyhow::Result<String> {
    let mut file = tempfile::Builder::new().suffix(".json").tempfile()?;
    file.write_all(text.as_bytes())?;
    let editor = env::var("VISUAL").or_else(|_| env::var("EDITOR"));
    let editor = editor.unwrap_or_else(|_| "vi".into());
    // It may have options.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{editor} \"$1\"")).arg("sh");
    let status = shell.arg(file.path()).status();
    let status = status.with_context(|| format!("cannot run {editor}"))?;
    if !status.success() {
        bail!("{editor}: {status}");
    }
    Ok(std::fs::read_to_string(file.path())?)
}
