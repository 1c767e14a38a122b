//! What servers write down as they do it, so that it outlives them: a line for every step of a request.
//!
//! A line is in the system's hands when the write returns; SIGKILL does not take it back.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::moment;

/// A file that is only added to. Every incarnation of a server writes to the same one.
#[derive(Debug)]
pub(crate) struct Journal(File);

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A handler was entered.
    Begun,
    /// An answer was about to be given.
    Answering(u16),
    /// The handler is about to return without an error.
    Ended,
}

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) event: Event,
    pub(crate) id: u64,
    pub(crate) at: u64,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.with_context(|| format!("can't open the journal {}", path.display()))?;
        Ok(Self(file))
    }

    /// Writes a line. A journal that can't be written makes all that follows worthless: the process ends.
    pub(crate) fn write(&self, event: Event, id: u64) {
        let at = moment::now();
        let line = match event {
            Event::Begun => format!("begun {id} {at}\n"),
            Event::Answering(index) => format!("answer {id} {at} {index}\n"),
            Event::Ended => format!("ended {id} {at}\n"),
        };
        self.write_line(&line);
    }

    pub(crate) fn write_line(&self, line: &str) {
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            eprintln!("error: can't write to the journal: {error}");
            std::process::exit(2);
        }
    }
}

/// Reads all entries and empties the journal. Nobody may be writing.
pub(crate) fn take(path: &Path) -> Result<Vec<Entry>> {
    take_lines(path)?.iter().map(|line| parse(line)).collect()
}

/// Reads all lines of a file that only grows, and empties it.
pub(crate) fn take_lines(path: &Path) -> Result<Vec<String>> {
    let read = || format!("can't read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(read)?;
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(0)).with_context(read)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn parse(line: &str) -> Result<Entry> {
    let wrong = || format!("{line:?} is no line of a journal");
    let mut words = line.split(' ');
    let word = words.next().unwrap_or_default();
    let mut number = || -> Result<u64> {
        let number = words.next().and_then(|word| word.parse().ok());
        number.with_context(wrong)
    };
    let (id, at) = (number()?, number()?);
    let event = match word {
        "begun" => Event::Begun,
        "answer" => Event::Answering(u16::try_from(number()?)?),
        "ended" => Event::Ended,
        _ => bail!(wrong()),
    };
    Ok(Entry { event, id, at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_once() {
        let path = std::env::temp_dir().join(format!("wallaby-journal-{}", std::process::id()));
        let journal = Journal::open(&path).unwrap();
        let events = [Event::Begun, Event::Answering(7), Event::Ended];
        events.iter().for_each(|event| journal.write(*event, 42));
        let read = take(&path).unwrap();
        let read: Vec<_> = read.iter().map(|entry| (entry.event, entry.id)).collect();
        assert_eq!(read, events.map(|event| (event, 42)));
        journal.write(Event::Begun, 43);
        assert_eq!(take(&path).unwrap().len(), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "begun", "begun x 1", "answer 1 2", "slept 1 2"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
