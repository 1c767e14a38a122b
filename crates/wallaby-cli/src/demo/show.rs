//! What the demo found, for people at a terminal.

use super::report::{Answer, Collection, Found};
use crate::time::show_micros;
use console::style;
use std::fmt::Write;
use wallaby_program::output;

/// The documents found for one word, the first `most` of them, with the word highlighted, and what went wrong.
pub(crate) fn answer(answer: &Answer, most: usize) -> String {
    let mut out = String::new();
    let found = answer.documents.len();
    let count = if found == 1 {
        "1 document".to_owned()
    } else {
        format!("{found} documents")
    };
    let time = show_micros(answer.elapsed_us);
    let _ = writeln!(
        out,
        "{} {}",
        style(&answer.word).bold(),
        style(format!("· {count} · {time}")).dim()
    );
    for document in answer.documents.iter().take(most) {
        out += &self::document(document);
    }
    if found > most {
        let _ = writeln!(
            out,
            "  {}",
            style(format!("… and {} more", found - most)).dim()
        );
    }
    for error in &answer.errors {
        let _ = writeln!(out, "  {} {error}", style("error:").red().bold());
    }
    out
}

fn document(found: &Found) -> String {
    let mut snippet = String::new();
    for (piece, highlighted) in found.snippet.pieces() {
        let _ = match highlighted {
            true => write!(snippet, "{}", style(piece).yellow().bold()),
            false => write!(snippet, "{piece}"),
        };
    }
    let place = style(format!("{}:{}", found.path, found.snippet.line)).cyan();
    let times = if found.count == 1 {
        String::new()
    } else {
        format!(" ×{}", found.count)
    };
    let about = style(format!("{times} · {}", found.server)).dim();
    format!("  {place}{about}\n      {snippet}\n")
}

/// What is searched, in a line or two.
pub(crate) fn collection(collection: &Collection) -> String {
    let megabytes = collection.bytes as f64 / 1e6;
    let mut out = format!(
        "{} documents ({megabytes:.1} MB, {} words) of {}\n",
        collection.documents, collection.words, collection.folder
    );
    if let Some(left_out) = collection.skipped.sentence() {
        let _ = writeln!(out, "{}", style(left_out).dim());
    }
    for problem in &collection.skipped.problems {
        let _ = writeln!(out, "{} {problem}", style("unreadable:").yellow());
    }
    let rows = collection.servers.iter().map(|server| {
        let (name, process) = (&server.name, server.process);
        [
            format!("  {name}"),
            server.address.to_string(),
            format!("process {process}"),
        ]
    });
    out.push_str(&output::table(0..0, &[], rows));
    out
}

#[cfg(test)]
mod tests {
    use super::super::snippet::Snippet;
    use super::*;

    #[test]
    fn shows_documents_and_errors() {
        let found = Found {
            path: "docs/a.md".to_owned(),
            server: "documents 2".to_owned(),
            count: 3,
            snippet: Snippet::cut(2, "the hop goes", "hop"),
            ..Found::default()
        };
        let found = vec![found.clone(), found];
        let answered = Answer {
            word: "hop".to_owned(),
            documents: found,
            errors: vec!["documents 1 is gone".to_owned()],
            elapsed_us: 1_500.0,
        };
        let shown = answer(&answered, 1);
        let plain = console::strip_ansi_codes(&shown).into_owned();
        assert_eq!(
            plain,
            "hop · 2 documents · 1.50 ms\n  docs/a.md:2 ×3 · documents 2\n      the hop goes\n  … and 1 more\n  \
             error: documents 1 is gone\n"
        );
    }
}
