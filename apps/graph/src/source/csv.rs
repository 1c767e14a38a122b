//! LDBC's files: lines of fields between `|`, nothing quoted, perhaps compressed.

use anyhow::{Context, anyhow, ensure};
use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::Hash;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// One line.
#[derive(Debug)]
pub struct Record<'a> {
    fields: Vec<&'a str>,
    line: usize,
}

impl Record<'_> {
    /// The number of its line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The field of this number, from 0.
    ///
    /// # Errors
    ///
    /// If there are not so many.
    pub fn text(&self, field: usize) -> anyhow::Result<&str> {
        let text = self.fields.get(field).copied();
        text.with_context(|| format!("{} fields where more belong", self.fields.len()))
    }

    /// The same as a number, an id, or a moment.
    ///
    /// # Errors
    ///
    /// If it is not there or is none.
    pub fn number<T: FromStr>(&self, field: usize) -> anyhow::Result<T> {
        parse(self.text(field)?)
    }

    /// The same as several texts between `;`.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub fn texts(&self, field: usize) -> anyhow::Result<Vec<String>> {
        Ok(split(self.text(field)?).map(str::to_owned).collect())
    }

    /// The same as several numbers between `;`.
    ///
    /// # Errors
    ///
    /// If it is not there or one is none.
    pub fn numbers<T: FromStr>(&self, field: usize) -> anyhow::Result<Vec<T>> {
        split(self.text(field)?).map(parse).collect()
    }

    /// The same as several pairs between `;`, each with a `,` inside.
    ///
    /// # Errors
    ///
    /// If it is not there or one is none.
    pub fn pairs<A: FromStr, B: FromStr>(&self, field: usize) -> anyhow::Result<Vec<(A, B)>> {
        let pair = |text: &str| {
            let (a, b) = text
                .split_once(',')
                .with_context(|| format!("'{text}' is no pair"))?;
            Ok((parse(a)?, parse(b)?))
        };
        split(self.text(field)?).map(pair).collect()
    }
}

/// Hands out a file's records. A first line that does not begin with a number is its header.
///
/// # Errors
///
/// If it cannot be read, or what `each` says of a record: with the file and the line.
pub fn read(
    path: &Path,
    bar: &ProgressBar,
    mut each: impl FnMut(&Record<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let shown = path.display();
    let mut lines = open(path, bar)?;
    let mut line = String::new();
    for number in 1_usize.. {
        line.clear();
        let read = lines.read_line(&mut line);
        if read.with_context(|| format!("{shown}, line {number}: can't be read"))? == 0 {
            break;
        }
        let fields: Vec<&str> = line.trim_end_matches(['\n', '\r']).split('|').collect();
        let is_header = number == 1 && fields[0].parse::<i64>().is_err();
        let is_empty = fields == [""];
        if !is_header && !is_empty {
            let line = number;
            each(&Record { fields, line }).with_context(|| format!("{shown}, line {number}"))?;
        }
    }
    Ok(())
}

/// Two of a file's columns: the first as the key of the second, which may come more than once.
///
/// # Errors
///
/// If it cannot be read.
pub fn lists<K, V>(
    paths: &[PathBuf],
    bar: &ProgressBar,
    value: impl Fn(&Record<'_>) -> anyhow::Result<V>,
) -> anyhow::Result<HashMap<K, Vec<V>>>
where
    K: FromStr + Eq + Hash,
{
    let mut lists: HashMap<K, Vec<V>> = HashMap::new();
    for path in paths {
        read(path, bar, |record| {
            let list = lists.entry(record.number(0)?).or_default();
            list.push(value(record)?);
            Ok(())
        })?;
    }
    Ok(lists)
}

/// Two of a file's columns: the first as the key of the second.
///
/// # Errors
///
/// If it cannot be read, or a key comes more than once.
pub fn pairs<K, V>(paths: &[PathBuf], bar: &ProgressBar) -> anyhow::Result<HashMap<K, V>>
where
    K: FromStr + Eq + Hash,
    V: FromStr,
{
    let mut pairs = HashMap::new();
    for path in paths {
        read(path, bar, |record| {
            let before = pairs.insert(record.number(0)?, record.number(1)?);
            ensure!(before.is_none(), "{} is there already", record.text(0)?);
            Ok(())
        })?;
    }
    Ok(pairs)
}

/// A file's bytes, decompressed; the bar counts those on disk.
///
/// # Errors
///
/// If it cannot be opened.
pub fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<Box<dyn BufRead>> {
    let file = File::open(path).with_context(|| format!("{} can't be opened", path.display()))?;
    let bytes: Box<dyn Read> = match path.extension().is_some_and(|ending| ending == "gz") {
        true => Box::new(MultiGzDecoder::new(bar.wrap_read(file))),
        false => Box::new(bar.wrap_read(file)),
    };
    Ok(Box::new(BufReader::new(bytes)))
}

/// The files of a folder whose name, without `.gz`, is one that is asked for; in order of their names.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn files(folder: &Path, is_asked: impl Fn(&str) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let shown = folder.display();
    for entry in fs::read_dir(folder).with_context(|| format!("{shown} can't be read"))? {
        let path = entry
            .with_context(|| format!("{shown} can't be read"))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_asked(name.strip_suffix(".gz").unwrap_or(&name)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// How many bytes files have.
pub fn size(files: &[PathBuf]) -> u64 {
    let sizes = files.iter().filter_map(|file| fs::metadata(file).ok());
    sizes.map(|file| file.len()).sum()
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').filter(|part| !part.is_empty())
}

fn parse<T: FromStr>(text: &str) -> anyhow::Result<T> {
    text.parse()
        .map_err(|_| anyhow!("'{text}' where a number belongs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_what_they_are() {
        let record = Record {
            fields: "7|en;de|1;2|5,2010;6,2011||x".split('|').collect(),
            line: 1,
        };
        assert_eq!(record.number::<i64>(0).unwrap(), 7);
        assert_eq!(record.texts(1).unwrap(), ["en", "de"]);
        assert_eq!(record.numbers::<i64>(2).unwrap(), [1, 2]);
        assert_eq!(record.pairs::<i64, i32>(3).unwrap(), [(5, 2010), (6, 2011)]);
        assert!(record.numbers::<i64>(4).unwrap().is_empty());
        assert!(record.pairs::<i64, i32>(4).unwrap().is_empty());
        for wrong in [
            record.number::<i64>(5).is_err(),
            record.number::<i64>(4).is_err(),
            record.text(6).is_err(),
            record.pairs::<i64, i32>(2).is_err(),
        ] {
            assert!(wrong);
        }
    }
}
