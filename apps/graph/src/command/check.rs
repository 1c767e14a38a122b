//! `wallaby-graph check`: are the results of queries those that are expected, in both forms?

use super::Servers;
use super::load::load;
use crate::client::Client;
use crate::insert::insert;
use crate::query::{Form, Query};
use crate::source::references::References;
use crate::source::{Source, csv, updates};
use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::task::JoinSet;
use wallaby_program::output::line;

/// All inserts that there are.
const ALL: usize = usize::MAX;

/// What is checked.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files with a line for each query: {"query":"IS5","params":{"messageId":1},"result":[[...],...]}
    #[arg(value_name = "FILE.jsonl[.gz]", required = true)]
    files: Vec<PathBuf>,
    /// The folder of LDBC's files
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// First apply so many inserts of the data set's update streams, or all
    #[arg(long, value_name = "K|all", default_value = "0", value_parser = parse_updates)]
    updates: usize,
    #[command(flatten)]
    servers: Servers,
}

/// A line of a file.
#[derive(Debug)]
struct Line {
    place: String,
    text: String,
    query: Query,
    /// Of IS7 only what does not depend on texts and moments: IS7S.
    is_structure: bool,
    expected: Value,
}

#[derive(Deserialize)]
struct Expected {
    query: String,
    params: BTreeMap<String, i64>,
    result: Value,
}

impl Check {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut lines = Vec::new();
        for file in &self.files {
            read(file, &mut lines)?;
        }
        let scratch = TempDir::with_prefix("wallaby-graph-")?;
        let (store, references) = load(&Source::find(&self.data)?, scratch.path())?;
        eprintln!("{}", store.describe());
        let processes = self.servers.start(scratch.path()).await?;
        let client = processes.running().client().await?;
        if self.updates > 0 {
            apply(self.updates, &self.data, references, &client).await?;
        }
        let checked = lines.len();
        let mismatches = check(lines, &client).await;
        processes.end().await;
        for mismatch in &mismatches {
            line(mismatch)?;
        }
        let wrong = mismatches.len();
        line(format_args!("{checked} checked, {wrong} mismatches"))?;
        Ok(match mismatches.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

async fn apply(
    asked: usize,
    data: &Path,
    mut references: References,
    client: &Client,
) -> anyhow::Result<()> {
    let updates = updates::read(data)?;
    let most = asked.min(updates.len());
    if asked != ALL && asked > most {
        // Perhaps a stream was cut.
        eprintln!("note: the update streams have {most} inserts, not {asked}");
    }
    for (number, update) in (1..).zip(updates.into_iter().take(most)) {
        let known = references.see_later(&update.insert);
        known.with_context(|| update.place)?;
        let inserted = insert(client, update.insert).await;
        inserted.with_context(|| format!("update {number} of {most}"))?;
    }
    eprintln!("{most} updates");
    Ok(())
}

/// What is not as expected, in the order of the lines: a sentence for each.
async fn check(lines: Vec<Line>, client: &Client) -> Vec<String> {
    /// How many lines are checked at the same time.
    const WORKERS: usize = 16;
    let lines: Arc<[Line]> = lines.into();
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (lines, client) = (Arc::clone(&lines), client.clone());
        workers.spawn(async move {
            let mut mismatches = Vec::new();
            for (number, line) in lines.iter().enumerate().skip(worker).step_by(WORKERS) {
                let mismatch = line.check(&client).await;
                mismatches.extend(mismatch.map(|mismatch| (number, mismatch)));
            }
            mismatches
        });
    }
    let mut mismatches = workers.join_all().await.concat();
    mismatches.sort();
    mismatches
        .into_iter()
        .map(|(_, mismatch)| mismatch)
        .collect()
}

impl Line {
    /// What is wrong with its result.
    async fn check(&self, client: &Client) -> Option<String> {
        for form in Form::BOTH {
            let found = match self.query.ask(form, client).await {
                Ok(outcome) => self.result(outcome.rows),
                Err(error) => format!("failure: {error}").into(),
            };
            if found != self.expected {
                let Self {
                    place,
                    text,
                    expected,
                    ..
                } = self;
                let wrong = format!("{place}: {text} by {form} found {found}, expected {expected}");
                return Some(wrong);
            }
        }
        None
    }

    fn result(&self, mut rows: Vec<Vec<Value>>) -> Value {
        if self.is_structure {
            // Without text and moment, and so in another order.
            rows.iter_mut().for_each(|row| drop(row.drain(1..3)));
            rows.sort_by_key(|row| row.first().and_then(Value::as_i64));
        }
        rows.into_iter().map(Value::from).collect()
    }
}

fn read(file: &Path, lines: &mut Vec<Line>) -> anyhow::Result<()> {
    let shown = file.display();
    for (number, text) in (1..).zip(csv::open(file)?.lines()) {
        let text = text.with_context(|| format!("{shown} can't be read"))?;
        if text.trim().is_empty() {
            continue;
        }
        let place = format!("{shown}, line {number}");
        lines.push(parse(&text, place.clone()).context(place)?);
    }
    Ok(())
}

fn parse(text: &str, place: String) -> anyhow::Result<Line> {
    let expected: Expected = serde_json::from_str(text)?;
    let (name, is_structure) = match expected.query.as_str() {
        "IS7S" => ("IS7", true),
        name => (name, false),
    };
    let Some(query) = Query::new(name, 0) else {
        bail!("expected a query IS1 to IS7, or IS7S, found '{name}'");
    };
    let (_, about, _) = query.parts();
    let parameter = format!("{about}Id");
    let id = expected.params.get(&parameter).copied();
    let query = id.and_then(|id| Query::new(name, id));
    let query = query.with_context(|| format!("{name} lacks its parameter '{parameter}'"))?;
    Ok(Line {
        place,
        text: format!("{name} {}", serde_json::to_string(&expected.params)?),
        query,
        is_structure,
        expected: expected.result,
    })
}

fn parse_updates(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(ALL),
        _ => text
            .parse()
            .map_err(|_| format!("'{text}' is neither a number nor 'all'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MessageId, PersonId};
    use serde_json::json;

    #[test]
    fn lines_are_queries_with_results() {
        let line = r#"{"query":"IS2","params":{"personId":7},"result":[[1]]}"#;
        let line = parse(line, "a".to_owned()).unwrap();
        assert_eq!(
            (line.query, line.expected),
            (Query::Is2(PersonId(7)), json!([[1]]))
        );
        for wrong in [
            "{}",
            r#"{"query":"IS9","params":{"personId":7},"result":[]}"#,
            r#"{"query":"IS2","params":{"messageId":7},"result":[]}"#,
            r#"{"query":"IS2","params":{},"result":[]}"#,
        ] {
            assert!(parse(wrong, String::new()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn of_structure_only_texts_and_moments_are_left_out() {
        let line = r#"{"query":"IS7S","params":{"messageId":7},"result":[]}"#;
        let line = parse(line, String::new()).unwrap();
        assert_eq!(line.query, Query::Is7(MessageId(7)));
        let rows = vec![
            vec![
                json!(9),
                json!("b"),
                json!(0),
                json!(1),
                json!("x"),
                json!("y"),
                json!(true),
            ],
            vec![
                json!(8),
                json!("a"),
                json!(0),
                json!(2),
                json!("x"),
                json!("y"),
                json!(false),
            ],
        ];
        let expected = json!([[8, 2, "x", "y", false], [9, 1, "x", "y", true]]);
        assert_eq!(line.result(rows), expected);
    }
}
