//! A picture while it grows: in the terminal, and in its file.

use crate::picture::Picture;
use crate::render::Watch;
use anyhow::Context;
use console::Term;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shows a picture that grows to whoever watches.
#[derive(Debug)]
pub struct Preview {
    /// How many paths there will be.
    paths: u64,
    exposure: f64,
    /// Whether pixels are drawn, or only how far it is.
    drawn: Drawn,
    file: PathBuf,
    begun: Instant,
    shown: Instant,
    written: Instant,
    /// Lines of the terminal that the last view took.
    lines: usize,
    /// Without a terminal: how many tenths were told.
    tenths: u64,
}

/// What of a picture is drawn in the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// Nothing, as there is no terminal: a line now and then says how far it is.
    Lines,
    /// How far it is.
    Progress,
    /// That, and the picture.
    Picture,
}

/// The terminal is drawn no more often than this.
const SHOW: Duration = Duration::from_millis(400);
/// The file is written no more often than this.
const WRITE: Duration = Duration::from_secs(3);

impl Preview {
    /// Of a picture of so many paths, that will be in this file. Without a terminal it is told in lines.
    pub fn new(paths: u64, exposure: f64, file: &Path, drawn: Drawn) -> Self {
        let now = Instant::now();
        let drawn = match Term::stderr().is_term() {
            true => drawn,
            false => Drawn::Lines,
        };
        Self {
            paths,
            exposure,
            drawn,
            file: file.to_owned(),
            begun: now,
            shown: now,
            written: now,
            lines: 0,
            tenths: 0,
        }
    }

    /// Takes the view away.
    pub fn end(&mut self) {
        if self.lines > 0 {
            // If the terminal is gone, so is the view.
            let _ = Term::stderr().clear_last_lines(self.lines);
            self.lines = 0;
        }
    }

    /// That the first light has come, and later how far it is, each tenth, but not more often than anybody would read.
    fn tell(&mut self, picture: &Picture) {
        const TELL: Duration = Duration::from_secs(5);
        let (paths, file) = (picture.paths(), self.file.display());
        let tenths = 10 * paths / self.paths.max(1);
        if self.tenths == 0 {
            eprintln!("{file}: first light");
            self.tenths = tenths.max(1);
        } else if tenths > self.tenths && self.shown.elapsed() > TELL {
            eprintln!("{file}: {} %", 100 * paths / self.paths.max(1));
            self.tenths = tenths;
            self.shown = Instant::now();
        }
    }

    fn show(&mut self, picture: &Picture) {
        let term = Term::stderr();
        let (rows, columns) = term.size();
        let share = picture.paths() as f64 / self.paths.max(1) as f64;
        let elapsed = self.begun.elapsed().as_secs_f64();
        let left = elapsed / share.max(1e-9) - elapsed;
        let mut view = match self.drawn {
            Drawn::Picture => half_blocks(picture, self.exposure, columns.into(), rows.into()),
            Drawn::Progress | Drawn::Lines => String::new(),
        };
        let done = (share * 30.0) as usize;
        let bar = "━".repeat(done.min(30)) + &"╌".repeat(30usize.saturating_sub(done));
        let _ = writeln!(view, "{bar} {:3.0} %, {left:.0} s to go", share * 100.0);
        self.end();
        self.lines = view.lines().count();
        // If the terminal is gone, nobody misses the view.
        let _ = term.write_str(&view);
    }
}

impl Watch for Preview {
    fn grown(&mut self, picture: &Picture) {
        match self.drawn {
            Drawn::Lines => self.tell(picture),
            Drawn::Progress | Drawn::Picture if self.shown.elapsed() > SHOW => {
                self.show(picture);
                self.shown = Instant::now();
            }
            Drawn::Progress | Drawn::Picture => {}
        }
        if self.written.elapsed() > WRITE {
            // The final picture will say what is wrong, if something is.
            let _ = write(&self.file, picture, self.exposure);
            self.written = Instant::now();
        }
    }
}

impl Drop for Preview {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes a picture as PNG. Whoever reads the file at the same time sees the one before or this one.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(file: &Path, picture: &Picture, exposure: f64) -> anyhow::Result<()> {
    let bytes = picture
        .png(exposure)
        .context("the picture is too large for a PNG file")?;
    let part = unfinished(file);
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    if written.is_err() {
        // Perhaps it was not even made.
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(|| format!("{} can't be written", file.display()))
}

/// Whether a file can be written, before hours are spent on what is to be in it.
pub fn check_writable(file: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    anyhow::ensure!(!file.is_dir(), "{shown} can't be written: it is a folder");
    let part = unfinished(file);
    let made = std::fs::write(&part, []).and_then(|()| std::fs::remove_file(&part));
    made.with_context(|| format!("{shown} can't be written"))
}

/// Where a file is until it is whole.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    file.with_file_name(name)
}

/// The picture in characters whose upper half is one pixel and whose lower half another.
fn half_blocks(picture: &Picture, exposure: f64, columns: usize, rows: usize) -> String {
    const RESET: &str = "\u{1b}[0m";
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let room = (
        columns.clamp(8, 100) as f64,
        (2 * rows.clamp(6, 40) - 6) as f64,
    );
    let scale = (room.0 / width.max(1) as f64)
        .min(room.1 / height.max(1) as f64)
        .min(1.0);
    let (across, down) = (
        (width as f64 * scale) as usize,
        (height as f64 * scale) as usize,
    );
    let colours = picture.colours(exposure);
    let colour = |x: usize, y: usize| {
        let (x, y) = (x * width / across.max(1), y * height / down.max(1));
        let at = 3 * (y.min(height - 1) * width + x.min(width - 1));
        match colours.get(at..at + 3) {
            Some([r, g, b]) => (*r, *g, *b),
            _ => (0, 0, 0),
        }
    };
    let mut view = String::new();
    for y in (0..down.max(2) - 1).step_by(2) {
        for x in 0..across.max(1) {
            let ((r, g, b), (s, h, c)) = (colour(x, y), colour(x, y + 1));
            let _ = write!(view, "\u{1b}[38;2;{r};{g};{b};48;2;{s};{h};{c}m▀");
        }
        view.push_str(RESET);
        view.push('\n');
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Amount, Contribution};
    use glam::DVec3;

    #[test]
    fn two_pixels_are_one_character() {
        let mut picture = Picture::new(4, 4);
        let red = Amount::of(DVec3::new(100.0, 0.0, 0.0));
        assert!(picture.add(Contribution {
            pixel: 1,
            amount: red
        }));
        picture.count(16);
        let view = half_blocks(&picture, 1.0, 80, 24);
        assert_eq!(view.lines().count(), 2);
        assert_eq!(view.matches('▀').count(), 8);
        assert_eq!(
            view.matches("38;2;255;0;0;48;2;0;0;0").count(),
            1,
            "{view:?}"
        );
    }
}
