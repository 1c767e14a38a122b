//! The page `flexrpc.md`: what is measured for it, and what was promised.

use super::target::targets;
use super::{FlexrpcOptions, drawing, flexrpc, missing, table};
use crate::harness::Progress;
use crate::publish::{Drawing, Job, Page, ReportOptions, publish};
use crate::row::Row;
use anyhow::Result;
use std::fmt::Write;

/// Runs the jobs of `flexrpc.md` and brings the page up to date; see [`publish()`].
///
/// # Errors
/// The jobs that failed and why, or what can't be read or written.
pub fn report(options: &ReportOptions, progress: impl FnMut(&str, Progress<'_>)) -> Result<()> {
    let skipped = if options.page_only {
        Vec::new()
    } else {
        missing()
    };
    publish(&page(skipped), options, progress)
}

/// The page, and what can't be measured for it.
pub fn page(skipped: Vec<String>) -> Page {
    Page {
        file: "flexrpc.md",
        program: "wallaby bench",
        jobs: vec![
            job("flexrpc-pinned", "flexrpc --pin 0", Some(0)),
            job("flexrpc-free", "flexrpc", None),
        ],
        summaries: vec![("targets", target_table)],
        skipped,
    }
}

fn job(name: &'static str, command: &'static str, pin: Option<u32>) -> Job {
    Job {
        name,
        command,
        measure: Box::new(move |rounds, progress| {
            let options = FlexrpcOptions {
                pin,
                rounds,
                ..FlexrpcOptions::default()
            };
            Ok(flexrpc(&options, progress)?.rows)
        }),
        chart: Some(Drawing::Own(drawing::svg)),
        table: table::markdown,
    }
}

fn target_table(jobs: &[Vec<Row>]) -> String {
    let mut text = "| target | where | measured | |\n|---|---|---:|---|\n".to_owned();
    for target in jobs.iter().flat_map(|rows| targets(rows)) {
        let met = if target.is_met() { "met" } else { "**missed**" };
        let (what, condition, measured) = (&target.what, &target.condition, target.measured);
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {what} | {condition} | {measured:.2} | {met} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish;
    use std::path::Path;

    #[test]
    fn the_page_in_the_tree_has_a_place_for_everything() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        publish::check(&page(Vec::new()), &docs).unwrap();
    }
}
