//! A run of the demo as one page that needs nothing else.

use super::comparison::{self, Comparison};
use super::report::{Answer, Collection, Found, Report, Traces};
use super::waterfall;
use crate::time::show_micros;
use std::fmt::Write;
use std::time::Duration;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let link = Duration::from_secs_f64(report.link_us / 1e6);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Wallaby: one call of two hops</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    out += "<h1>One call of two hops</h1>\n";
    out += &introduction(&report.collection, link);
    if let Some(comparison) = &report.comparison {
        out += &cards(comparison);
    }
    if let Some(traces) = &report.traces {
        out += &waterfalls(traces);
    }
    if let Some(comparison) = &report.comparison {
        out += &table(comparison, link);
    }
    out += &answers(&report.answers);
    out += &cluster(&report.collection);
    out += "</body>\n</html>\n";
    out
}

/// Text as it may stand in a page, in quotes too.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn introduction(collection: &Collection, link: Duration) -> String {
    let delay = match link.is_zero() {
        true => String::new(),
        false => format!(
            " Every message is {} on its way.",
            show_micros(link.as_secs_f64() * 1e6)
        ),
    };
    format!(
        "<p class=\"quiet\">The client asks the index server for a word. With Wallaby the index server hands the \
         request on to the servers that hold the documents, and they answer the client directly; with plain RPC the \
         client gets a list and asks each of them itself. {} documents with {} words on {} servers.{delay}</p>\n",
        collection.documents,
        collection.words,
        collection.servers.len().saturating_sub(1),
    )
}

fn cards(comparison: &Comparison) -> String {
    let Comparison { dpc, rpc, .. } = comparison;
    let card = |figure: String, text: String| {
        format!("<div class=\"card\"><b>{figure}</b><span>{text}</span></div>\n")
    };
    let latency = comparison::ratio(dpc.p50_us / rpc.p50_us);
    let mut out = "<div class=\"cards\">\n".to_owned();
    out += &card(
        format!("{latency} ×"),
        format!(
            "the latency of plain RPC: {} instead of {}",
            show_micros(dpc.p50_us),
            show_micros(rpc.p50_us)
        ),
    );
    let messages = |number: f64| format!("{number:.1}").trim_end_matches(".0").to_owned();
    out += &card(
        format!("{} sent", messages(dpc.client_messages_sent)),
        format!(
            "messages a query by the client instead of {}",
            messages(rpc.client_messages_sent)
        ),
    );
    out += &card(
        format!("{} in all", messages(dpc.messages)),
        format!(
            "messages a query between all processes instead of {}",
            messages(rpc.messages)
        ),
    );
    out += "</div>\n";
    out
}

fn waterfalls(traces: &Traces) -> String {
    let scale = traces.dpc.elapsed_us.max(traces.rpc.elapsed_us);
    let figure = |title: &str, timeline: &super::timeline::Timeline| {
        let time = show_micros(timeline.elapsed_us);
        let picture = waterfall::draw(timeline, scale);
        format!(
            "<figure><figcaption>{title} <span>· {time}</span></figcaption>\n{picture}</figure>\n"
        )
    };
    let mut out = format!(
        "<h2>One query for “{}”, hop by hop</h2>\n",
        escape(&traces.word)
    );
    out += "<div class=\"legend\">\
            <span><i class=\"line\" style=\"border-color:var(--go)\"></i>request on its way</span>\
            <span><i style=\"background:var(--queue)\"></i>queued</span>\
            <span><i style=\"background:var(--run)\"></i>running</span>\
            <span><i class=\"line dashed\" style=\"border-color:var(--come)\"></i>answer on its way</span>\
            </div>\n";
    out += &figure("Wallaby: one call of two hops", &traces.dpc);
    out += &figure(
        "Plain RPC: a call, then one more for each document",
        &traces.rpc,
    );
    out
}

fn table(comparison: &Comparison, link: Duration) -> String {
    let mut out = format!(
        "<h2>What a query costs</h2>\n<figure><table>\n<tr><th></th><th>{}</th><th>{}</th><th>ratio</th></tr>\n",
        comparison::DPC,
        comparison::RPC
    );
    for line in comparison.lines() {
        let part = if line.ratio.is_finite() {
            line.ratio.min(1.0) * 100.0
        } else {
            0.0
        };
        let worse = if line.ratio > 1.0 { " worse" } else { "" };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"ratio\"><span class=\"bar{worse}\" \
             style=\"--part:{part:.0}%\"><i></i>{}</span></td></tr>",
            line.what,
            line.dpc,
            line.rpc,
            comparison::ratio(line.ratio)
        );
    }
    let _ = writeln!(
        out,
        "</table></figure>\n<p class=\"quiet small\">{}</p>",
        escape(&comparison.note(link))
    );
    out
}

fn answers(answers: &[Answer]) -> String {
    let mut out = "<h2>What was found</h2>\n".to_owned();
    for answer in answers {
        let count = answer.documents.len();
        let _ = writeln!(
            out,
            "<h3>{} <span class=\"quiet small\">· {count} found</span></h3>",
            escape(&answer.word)
        );
        out += "<ul class=\"found\">\n";
        for found in &answer.documents {
            out += &document(found);
        }
        for error in &answer.errors {
            let _ = writeln!(out, "<li class=\"error\">{}</li>", escape(error));
        }
        out += "</ul>\n";
    }
    out
}

fn document(found: &Found) -> String {
    let mut snippet = String::new();
    for (piece, highlighted) in found.snippet.pieces() {
        let piece = escape(piece);
        snippet += &if highlighted {
            format!("<mark>{piece}</mark>")
        } else {
            piece
        };
    }
    format!(
        "<li title=\"{}\"><code>{}:{}</code> <span class=\"quiet small\">×{} · {}</span><br>{snippet}</li>\n",
        escape(&found.title),
        escape(&found.path),
        found.snippet.line,
        found.count,
        escape(&found.server)
    )
}

fn cluster(collection: &Collection) -> String {
    let mut out = "<h2>The cluster</h2>\n<figure><table>\n<tr><th>server</th><th>address</th><th>process</th></tr>\n"
        .to_owned();
    for server in &collection.servers {
        let (name, address) = (escape(&server.name), escape(&server.address));
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td><code>{address}</code></td><td>{}</td></tr>",
            server.process
        );
    }
    let left_out = collection.skipped.sentence().unwrap_or_default();
    let folder = escape(&collection.folder);
    let _ = writeln!(
        out,
        "</table></figure>\n<p class=\"quiet small\">Documents of {folder}. {left_out}</p>"
    );
    out
}

#[cfg(test)]
mod tests {
    use super::super::snippet::Snippet;
    use super::super::{comparison, report::ServerInfo, timeline};
    use super::*;

    fn report() -> Report {
        let found = Found {
            path: "a&b.md".to_owned(),
            title: "The \"first\" hop".to_owned(),
            server: "documents 1".to_owned(),
            count: 2,
            snippet: Snippet::cut(1, "a <hop> here", "hop"),
        };
        let server = |name: &str| ServerInfo {
            name: name.to_owned(),
            ..ServerInfo::default()
        };
        Report {
            collection: Collection {
                servers: vec![server("index"), server("documents 1")],
                ..Collection::default()
            },
            link_us: 1_000.0,
            answers: vec![Answer {
                word: "hop".to_owned(),
                documents: vec![found],
                ..Answer::default()
            }],
            comparison: Some(comparison::example()),
            traces: Some(Traces {
                word: "hop".to_owned(),
                dpc: timeline::example(),
                rpc: timeline::example(),
            }),
        }
    }

    #[test]
    fn the_page_needs_nothing_else_and_is_escaped() {
        let page = page(&report());
        assert!(page.contains("a &lt;<mark>hop</mark>&gt; here"));
        assert!(page.contains("<code>a&amp;b.md:1</code>"));
        assert!(page.contains("The &quot;first&quot; hop"));
        for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for tag in ["figure", "table", "svg", "ul", "li", "tr", "div"] {
            assert_eq!(
                page.matches(&format!("</{tag}>")).count(),
                opened(&page, tag),
                "{tag}"
            );
        }
    }

    fn opened(page: &str, tag: &str) -> usize {
        page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count()
    }

    #[test]
    fn an_empty_run_has_a_page_too() {
        assert!(page(&Report::default()).contains("What was found"));
    }
}
