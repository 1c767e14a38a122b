//! What was found, for people: tables in Markdown, for the pages that show them, and counts whose columns are the same below each
//! title, which a crate for tables would set for each title anew.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{churn, detect, hostile, loss};

/// Violations that are shown; the others are counted.
const MOST_SHOWN: usize = 12;

/// Timers that are later than this are told.
const MUCH_LATE_MS: f64 = 500.0;

/// A summary of a run.
pub(crate) fn churn(report: &churn::Report) -> String {
    let churn::Report {
        seed,
        transport,
        network,
        seconds,
        rounds,
        calls,
        faults,
        findings,
        ..
    } = report;
    let mut text = format!(
        "{calls} calls over {transport}, {network}, {seconds:.0} s, {rounds} rounds, seed {seed}\n\n"
    );
    let faults = faults
        .iter()
        .map(|(fault, count)| (fault.words().to_owned(), *count));
    section("faults", faults, &mut text);
    if let Some(why) = &report.links_not_cut {
        let _ = writeln!(text, "  links were NOT cut: {why}");
    }
    section("datagrams", report.datagrams.clone(), &mut text);
    section("calls", findings.outcomes.clone(), &mut text);
    let totals = [
        ("answers delivered", findings.answers),
        ("requests executed", findings.executed),
        ("calls while nothing was wrong", findings.calm_calls),
    ];
    section(
        "in all",
        totals.map(|(name, n)| (name.to_owned(), n)),
        &mut text,
    );
    busy(report.late_ms, &mut text);
    if !findings.detection_ms.is_empty() {
        text.push_str(
            "\nfailures with one possible reason: how many, and after how long at most\n",
        );
        for (fault, (count, worst)) in &findings.detection_ms {
            let _ = writeln!(text, "  {:<30} {count:>9} {worst:>9.0} ms", fault.words());
        }
    }
    text
}

fn section(title: &str, rows: impl IntoIterator<Item = (String, u64)>, text: &mut String) {
    let rows: BTreeMap<String, u64> = rows.into_iter().collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}");
    for (name, count) in rows {
        let _ = writeln!(text, "  {name:<42} {count:>9}");
    }
}

/// Detection times as a table.
pub(crate) fn detect(report: &detect::Report) -> String {
    let mut text = format!(
        "detection over {}, {}, ping period {} ms, timeout {} ms, seed {}\n\n",
        report.transport, report.network, report.period_ms, report.timeout_ms, report.seed
    );
    text.push_str(
        "| the server was | hop | asked | times | limit ms | p50 ms | p99 ms | max ms | over |\n",
    );
    text.push_str("|---|---:|---|---:|---:|---:|---:|---:|---:|\n");
    for row in &report.rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
            row.kind.words(),
            row.hop,
            if row.early { "not yet" } else { "yes" },
            row.times,
            row.limit_ms,
            row.p50_ms,
            row.p99_ms,
            row.max_ms,
            row.over
        );
    }
    if let Some(why) = &report.links_not_cut {
        let _ = writeln!(text, "\nlinks were NOT cut: {why}");
    }
    text
}

/// Calls over a lossy network as a table.
pub(crate) fn loss(report: &loss::Report) -> String {
    let mut text = format!(
        "calls over UDP, {} of 1000 datagrams each dropped, doubled, overtaken, damaged, each way; \
         {} calls at a time, seed {}\n\n",
        report.loss_per_mille, report.workers, report.seed
    );
    text.push_str("| hops | calls | failed | calls/s | p50 ms | p99 ms | max ms |\n");
    text.push_str("|---:|---:|---:|---:|---:|---:|---:|\n");
    for row in &report.rows {
        let measured = &row.measured;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.1} | {:.1} | {:.0} |",
            row.hops,
            measured.calls,
            measured.failed,
            measured.calls as f64 / measured.seconds,
            measured.p50_us as f64 / 1e3,
            measured.p99_us as f64 / 1e3,
            measured.max_us as f64 / 1e3,
        );
    }
    text.push('\n');
    section("datagrams", report.datagrams.clone(), &mut text);
    text
}

/// Phases among hostile peers, beside the one without.
pub(crate) fn hostile(report: &hostile::Report) -> String {
    let mut text = format!(
        "{} honest calls over {}, {:.0} s, seed {}\n\n",
        report.calls, report.transport, report.seconds, report.seed
    );
    text.push_str(
        "|  | calls | not complete | small: p50 ms | p99 ms | large: p50 ms | p99 ms | peak MiB | honest cores | hostile cores |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for phase in &report.phases {
        let outcomes = &phase.findings.outcomes;
        let calls: u64 = outcomes.values().sum();
        let complete = outcomes.get("complete").copied().unwrap_or_default();
        let peak = phase.peak_mib.values().max().copied().unwrap_or_default();
        let (small, large) = (phase.small, phase.large);
        let _ = writeln!(
            text,
            "| {} | {calls} | {} | {:.2} | {:.1} | {:.2} | {:.1} | {peak} | {:.2} | {:.2} |",
            phase.name,
            calls - complete,
            small.p50_ms,
            small.p99_ms,
            large.p50_ms,
            large.p99_ms,
            phase.honest_cores,
            phase.hostile_cores,
        );
    }
    let mut done: BTreeMap<String, u64> = BTreeMap::new();
    for phase in &report.phases {
        for (what, count) in phase.done.iter().chain(&phase.baits) {
            *done.entry(what.clone()).or_default() += count;
        }
    }
    text.push('\n');
    section("what hostile peers did, and counted", done, &mut text);
    busy(report.late_ms, &mut text);
    text
}

/// What hostile peers can do.
pub(crate) fn attacks() -> String {
    let mut text = String::new();
    for attack in hostile::ATTACKS {
        let _ = writeln!(text, "{:<22} {}", attack.name, attack.about);
    }
    for (name, about) in hostile::server_attacks() {
        let _ = writeln!(text, "{name:<22} the server: {about}");
    }
    text
}

fn busy(late_ms: f64, text: &mut String) {
    if late_ms > MUCH_LATE_MS {
        let _ = writeln!(
            text,
            "\nTHE MACHINE WAS TOO BUSY: a timer was {late_ms:.0} ms late; repeat the run before believing a violation"
        );
    }
}

/// What must never be, and how to see it again.
pub(crate) fn violations(violations: &[String], command: &str, text: &mut String) {
    if violations.is_empty() {
        text.push_str("\nno violation\n");
        return;
    }
    let _ = writeln!(text, "\n{} VIOLATIONS; again: {command}", violations.len());
    for words in violations.iter().take(MOST_SHOWN) {
        let _ = writeln!(text, "  {words}");
    }
    if violations.len() > MOST_SHOWN {
        let _ = writeln!(text, "  and {} more", violations.len() - MOST_SHOWN);
    }
}
