//! How far a job is: a bar where somebody watches, plain lines elsewhere. Always on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Steps of plain lines, in percent: enough to see that it goes on, few enough for a log.
const STEP: u64 = 25;

/// A job that counts.
pub(crate) struct Progress {
    what: &'static str,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { last: Option<u64> },
}

impl Progress {
    /// `what` is being done, such as "reading documents".
    pub(crate) fn new(what: &'static str) -> Self {
        let shown = match std::io::stderr().is_terminal() {
            true => Shown::Bar(ProgressBar::new(0).with_style(style()).with_message(what)),
            false => Shown::Lines { last: None },
        };
        Self { what, shown }
    }

    /// `done` of `total`.
    pub(crate) fn set(&mut self, done: u64, total: u64) {
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Shown::Lines { last } => {
                let step = (done * 100).checked_div(total).unwrap_or(100) / STEP;
                if last.is_none_or(|last| step > last) {
                    *last = Some(step);
                    eprintln!("{}: {done} of {total}", self.what);
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:20} {bar:40.green/dim} {human_pos} of {human_len}")
        .map(|style| style.progress_chars("━━╌"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
