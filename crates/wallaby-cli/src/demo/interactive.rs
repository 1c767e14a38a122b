//! `wallaby demo --interactive`: type a word, get the documents and the tree.

use super::query::Searcher;
use super::search::queries;
use super::{show, tree};
use crate::output::width;
use console::style;
use std::io::BufRead;
use tokio::sync::mpsc;
use wallaby_program::output::text;

/// Answers the words on standard input, line by line, until it ends.
pub(crate) async fn run(searcher: &Searcher) -> anyhow::Result<()> {
    text(format!(
        "{}\n",
        style("Type a word and press Enter; Ctrl-D ends.").dim()
    ))?;
    let mut lines = lines();
    loop {
        text("> ")?;
        let Some(line) = lines.recv().await else {
            return text("\n");
        };
        if line.trim().is_empty() {
            continue;
        }
        match queries(&[line]) {
            Ok(words) => {
                for word in words {
                    answer(searcher, &word).await?;
                }
            }
            Err(error) => text(format!("{error}\n"))?,
        }
    }
}

async fn answer(searcher: &Searcher, word: &str) -> anyhow::Result<()> {
    let outcome = searcher.by_delegation(word, true).await;
    text(show::answer(&searcher.answer(word, &outcome), usize::MAX))?;
    text(format!(
        "\n{}{}\n\n",
        tree::draw(&outcome.timeline, width()),
        style(tree::legend()).dim()
    ))
}

/// Reads in a thread of its own, which may stay blocked when the program ends.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            let Ok(line) = line else { break };
            if sender
                .blocking_send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                break;
            }
        }
    });
    receiver
}
