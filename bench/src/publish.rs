//! The published results: raw lines and charts beside the page that shows them, all written by one command.
//!
//! Every job of a report is one run of a benchmark. Its rows go into `results/NAME.jsonl`, whose first line says on
//! what machine and by which command they were measured, its chart into `results/NAME.svg`, and its tables into
//! the page, between two comments that name the job. The words around them are written by hand and stay.

use crate::chart::Chart;
use crate::comparison::round;
use crate::harness::Progress;
use crate::row::{self, Row};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fmt, fs, io, thread};

/// What to report.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// The folder with the page and `results`.
    pub docs: PathBuf,
    /// The jobs to run again, by name; none: all of them.
    pub only: Vec<String>,
    /// Rounds of each job.
    pub rounds: u32,
    /// Only writes the page once more, from the results that are there.
    pub page_only: bool,
}

/// A page of measurements.
pub struct Page {
    /// Its file in the folder of pages.
    pub file: &'static str,
    /// How its commands begin.
    pub program: &'static str,
    /// What is measured for it, in order.
    pub jobs: Vec<Job>,
    /// Places filled from all rows at once, a slice for each job, empty if it was not measured: their names, and what stands
    /// there.
    pub summaries: Vec<(&'static str, Summary)>,
    /// What could not be measured here, and why.
    pub skipped: Vec<String>,
}

/// One run of a benchmark, under the name of its files.
pub struct Job {
    /// The name.
    pub name: &'static str,
    /// What its command line has after the page's program, but for the number of rounds.
    pub command: &'static str,
    /// Measures so many rounds.
    pub measure: Box<Measure>,
    /// How its rows are drawn, if they are.
    pub chart: Option<Drawing>,
    /// Its rows in Markdown.
    pub table: fn(&[Row]) -> String,
}

/// Rows as an SVG.
pub enum Drawing {
    /// As a chart of latencies.
    Chart(Chart),
    /// In a way of the page's own.
    Own(fn(&[Row]) -> String),
}

impl Drawing {
    fn svg(&self, rows: &[Row]) -> String {
        match self {
            Self::Chart(chart) => chart.svg(rows),
            Self::Own(draw) => draw(rows),
        }
    }
}

impl fmt::Debug for Drawing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a drawing")
    }
}

impl From<Chart> for Drawing {
    fn from(chart: Chart) -> Self {
        Self::Chart(chart)
    }
}

/// What is to be said of the rows of all jobs.
pub type Summary = fn(&[Vec<Row>]) -> String;

/// Measures so many rounds, and says how far it is.
pub type Measure = dyn Fn(u32, &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Row>>;

impl fmt::Debug for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// Runs the jobs one after the other, keeps what they measured and brings the page up to date. A job that fails leaves
/// its former results as they are; the others are run all the same.
///
/// # Errors
/// The jobs that failed and why, or what can't be read or written.
pub fn publish(
    page: &Page,
    options: &ReportOptions,
    mut progress: impl FnMut(&str, Progress<'_>),
) -> Result<()> {
    let names: Vec<&str> = page.jobs.iter().map(|job| job.name).collect();
    let unknown = |name: &&String| !names.contains(&name.as_str());
    if let Some(name) = options.only.iter().find(unknown) {
        bail!("there is no job {name:?}: choose {}", names.join(", "));
    }
    // Before hours of measuring.
    let file = options.docs.join(page.file);
    let text = fs::read_to_string(&file).with_context(|| cannot("read", &file))?;
    let text = |sections: &[(&str, String)]| fill(&text, sections);
    text(&[])?;
    let results = options.docs.join("results");
    fs::create_dir_all(&results).with_context(|| cannot("create", &results))?;
    let mut failures = Vec::new();
    let wanted = |job: &&Job| {
        !options.page_only
            && (options.only.is_empty() || options.only.iter().any(|only| only == job.name))
    };
    for job in page.jobs.iter().filter(wanted) {
        let run = Run {
            skipped: page.skipped.clone(),
            ..Run::now(
                format!(
                    "{} {} --rounds {}",
                    page.program, job.command, options.rounds
                ),
                &options.docs,
            )
        };
        let rows = (job.measure)(options.rounds, &mut |now| progress(job.name, now));
        let measured = rows.map(|rows| Measured { run, rows });
        if let Err(error) = measured.and_then(|measured| measured.write(&results, job)) {
            failures.push(format!("{}: {error:#}", job.name));
        }
    }
    let sections = sections(page, &results)?;
    fs::write(&file, text(&sections)?).with_context(|| cannot("write", &file))?;
    ensure!(failures.is_empty(), failures.join("; "));
    Ok(())
}

impl Job {
    /// What the page shows of it.
    fn section(&self, measured: &Measured) -> String {
        let (name, run) = (self.name, &measured.run);
        let mut text = format!(
            "`{}` ([raw](results/{name}.jsonl)), {}\n\n",
            run.command,
            run.describe()
        );
        for skipped in &run.skipped {
            // Writing to a string can't fail.
            let _ = writeln!(text, "**Not measured**: {skipped}.\n");
        }
        if self.chart.is_some() {
            let _ = writeln!(text, "![{}](results/{name}.svg)\n", self.command);
        }
        text.push_str(&(self.table)(&measured.rows));
        text
    }
}

/// The rows of a job and how they came about.
#[derive(Debug, PartialEq)]
struct Measured {
    run: Run,
    rows: Vec<Row>,
}

/// How rows were measured: the first line of their file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    command: String,
    date: String,
    commit: String,
    rustc: String,
    kernel: String,
    cpu: String,
    processors: usize,
    /// How much of the processors' time others used just before, 0 to 1: the less, the more the figures are worth.
    busy_before: f64,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct FirstLine {
    run: Run,
}

impl Run {
    /// This machine, at this moment; the commit is that of the tree with these `docs`.
    fn now(command: String, docs: &Path) -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpus = file("/proc/cpuinfo");
        let cpu = cpus.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            command,
            date: said_by("date", docs, &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: said_by(
                "git",
                docs,
                &["describe", "--always", "--dirty=, with changes"],
            ),
            rustc: said_by("rustc", docs, &["--version"]),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: cpu.unwrap_or_else(|| UNKNOWN.into()),
            processors: thread::available_parallelism().map_or(0, usize::from),
            busy_before: busy(GLANCE).unwrap_or_default(),
            skipped: Vec::new(),
        }
    }

    fn describe(&self) -> String {
        format!(
            "measured {} at commit {}; others used {:.0} % of the processors just before",
            self.date,
            self.commit,
            self.busy_before * 100.0
        )
    }

    fn machine(&self) -> String {
        format!(
            "{} processors ({}), Linux {}, {}",
            self.processors, self.cpu, self.kernel, self.rustc
        )
    }
}

/// How much of the processors' time is used over some time in which this program does nothing.
fn busy(over: Duration) -> Option<f64> {
    let (idle_before, all_before) = ticks()?;
    thread::sleep(over);
    let (idle, all) = ticks()?;
    let all = all.saturating_sub(all_before);
    let idle = idle.saturating_sub(idle_before);
    (all > 0).then(|| round(1.0 - idle as f64 / all as f64))
}

/// Ticks since the start of the system, of all processors together: those without work, and all.
fn ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let first = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, waiting for disks, interrupts, soft interrupts, taken by the host; the rest is in them.
    let ticks = first.split_whitespace().take(8).map(str::parse);
    let ticks = ticks.collect::<Result<Vec<u64>, _>>().ok()?;
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

/// The first line that a program run in `folder` prints; what it knows is good to have, not needed.
fn said_by(program: &str, folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let line = text.as_deref().and_then(|text| text.lines().next());
    line.unwrap_or(UNKNOWN).to_owned()
}

impl Measured {
    fn write(&self, results: &Path, job: &Job) -> Result<()> {
        let mut text = serde_json::to_vec(&FirstLine {
            run: self.run.clone(),
        })?;
        text.write_all(b"\n")?;
        row::write(&self.rows, &mut text)?;
        write_file(&results.join(format!("{}.jsonl", job.name)), &text)?;
        match &job.chart {
            Some(draw) => write_file(
                &results.join(format!("{}.svg", job.name)),
                draw.svg(&self.rows).as_bytes(),
            ),
            None => Ok(()),
        }
    }

    /// What a former run left, if there was one.
    fn read(results: &Path, job: &Job) -> Result<Option<Self>> {
        let path = results.join(format!("{}.jsonl", job.name));
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| cannot("read", &path))?,
        };
        let first = text.lines().next().unwrap_or_default();
        let FirstLine { run } = serde_json::from_str(first)
            .with_context(|| format!("{} does not begin with its run", path.display()))?;
        let rows = row::read(text.as_bytes()).with_context(|| cannot("read", &path))?;
        Ok(Some(Self { run, rows }))
    }
}

/// All that the page has between its comments.
fn sections(page: &Page, results: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut sections = Vec::new();
    let mut machines: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for job in &page.jobs {
        let Some(measured) = Measured::read(results, job)? else {
            sections.push((job.name, "Not measured yet.\n".into()));
            rows.push(Vec::new());
            continue;
        };
        sections.push((job.name, job.section(&measured)));
        let machine = measured.run.machine();
        if !machines.contains(&machine) {
            machines.push(machine);
        }
        rows.push(measured.rows);
    }
    sections.push(("machine", format!("{}.\n", machines.join("; "))));
    for (name, summary) in &page.summaries {
        sections.push((name, summary(&rows)));
    }
    Ok(sections)
}

/// Whether a page in this folder has a place for everything that is to stand there.
///
/// # Errors
/// It has not, or something can't be read.
pub fn check(page: &Page, docs: &Path) -> Result<()> {
    let file = docs.join(page.file);
    let text = fs::read_to_string(&file).with_context(|| cannot("read", &file))?;
    fill(&text, &sections(page, &docs.join("results"))?).map(|_| ())
}

/// The page with these sections in place of what it had between their comments.
fn fill(page: &str, sections: &[(&str, String)]) -> Result<String> {
    let mut page = page.to_owned();
    for (name, text) in sections {
        let (begin, end) = (
            format!("<!-- begin {name} -->\n"),
            format!("<!-- end {name} -->"),
        );
        let missing = || {
            anyhow!(
                "the page has no place for {name}: {} ... {end}",
                begin.trim()
            )
        };
        let start = page.find(&begin).with_context(missing)? + begin.len();
        let length = page[start..].find(&end).with_context(missing)?;
        page.replace_range(start..start + length, &format!("\n{text}\n"));
    }
    Ok(page)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| cannot("write", path))
}

fn cannot(what: &str, path: &Path) -> String {
    format!("can't {what} {}", path.display())
}

/// Long enough to notice a neighbour.
const GLANCE: Duration = Duration::from_secs(1);
const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;
    use crate::table;

    fn page() -> Page {
        let job = Job {
            name: "some",
            command: "hops",
            measure: Box::new(|_, _| Ok(Vec::new())),
            chart: Some(Chart::hops().into()),
            table: table::markdown,
        };
        Page {
            file: "page.md",
            program: "wallaby bench",
            jobs: vec![job],
            summaries: Vec::new(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn a_page_keeps_its_words() {
        let page =
            "words\n<!-- begin a -->\nold\n<!-- end a -->\nmore <!-- begin b -->\n<!-- end b -->\n";
        let filled = fill(page, &[("a", "new\n".into()), ("b", "B\n".into())]).unwrap();
        let expected = "words\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\n\
            more <!-- begin b -->\n\nB\n\n<!-- end b -->\n";
        assert_eq!(filled, expected);
        assert_eq!(
            fill(&filled, &[("a", "new\n".into())]).unwrap(),
            expected,
            "a second time changes nothing"
        );
        let error = fill(page, &[("c", String::new())]).unwrap_err().to_string();
        assert!(error.contains("no place for c"), "{error}");
    }

    #[test]
    fn results_come_back_as_they_were() {
        let folder = crate::fleet::Folder::create().unwrap();
        let measured = Measured {
            run: Run {
                command: "wallaby bench hops".into(),
                date: "today".into(),
                commit: UNKNOWN.into(),
                rustc: UNKNOWN.into(),
                kernel: UNKNOWN.into(),
                cpu: UNKNOWN.into(),
                processors: 2,
                busy_before: 0.01,
                skipped: vec!["a peer".into()],
            },
            rows: vec![
                sample("wallaby-dpc", "unix", 1, 8.0),
                sample("wallaby-rpc", "unix", 1, 9.0),
            ],
        };
        let page = page();
        let job = &page.jobs[0];
        assert_eq!(Measured::read(folder.path(), job).unwrap(), None);
        measured.write(folder.path(), job).unwrap();
        assert_eq!(Measured::read(folder.path(), job).unwrap(), Some(measured));
        let section = sections(&page, folder.path()).unwrap().swap_remove(0).1;
        for part in [
            "results/some.svg",
            "| wallaby-dpc |",
            "**Not measured**: a peer.",
        ] {
            assert!(section.contains(part), "{section}");
        }
    }

    #[test]
    fn an_unknown_job_is_named() {
        let options = ReportOptions {
            docs: PathBuf::new(),
            only: vec!["other".into()],
            rounds: 1,
            page_only: false,
        };
        let error = publish(&page(), &options, |_, _| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no job \"other\"") && error.contains("choose some"),
            "{error}"
        );
    }
}
