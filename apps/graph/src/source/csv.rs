//! LDBC's files: lines of fields between `|`, nothing quoted, perhaps compressed.

use anyhow::Context;
use csv::{ReaderBuilder, StringRecord};
use flate2::read::MultiGzDecoder;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Hands out a file's records, each with the number of its line. A first line that does not begin with a number is its
/// header.
pub fn read(
    path: &Path,
    mut each: impl FnMut(&StringRecord, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut reader = ReaderBuilder::new()
        .delimiter(b'|')
        .quoting(false)
        .flexible(true)
        .has_headers(false)
        .from_reader(open(path)?);
    let mut record = StringRecord::new();
    loop {
        let line = reader.position().line();
        let place = |line| format!("{}, line {line}", path.display());
        let read = reader.read_record(&mut record);
        let read = read.with_context(|| format!("{}: can't be read", place(line)));
        if !read? {
            return Ok(());
        }
        let line = record.position().map_or(line, csv::Position::line);
        let is_header = line == 1 && record[0].parse::<i64>().is_err();
        if !is_header {
            each(&record, line).with_context(|| place(line))?;
        }
    }
}

/// A file's bytes, decompressed.
pub fn open(path: &Path) -> anyhow::Result<BufReader<Box<dyn Read>>> {
    let file = File::open(path).with_context(|| format!("{} can't be opened", path.display()))?;
    let is_compressed = path.extension().is_some_and(|ending| ending == "gz");
    Ok(BufReader::new(match is_compressed {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    }))
}

/// The files of a folder, in order of their names, each with its name without `.gz`.
pub fn files(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let read = || -> std::io::Result<Vec<(String, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            files.push((name.trim_end_matches(".gz").to_owned(), path));
        }
        files.sort();
        Ok(files)
    };
    read().with_context(|| format!("{} can't be read", folder.display()))
}
