//! The files of a folder as documents: which ones, how much of them, and which server holds which.

use super::snippet::visible;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Larger files are data rather than something to read.
const LARGEST_FILE: u64 = 1 << 20;
/// A demo on one machine; whoever has more to search wants a program of their own.
const MOST_FILES: usize = 20_000;
const MOST_BYTES: u64 = 64 << 20;
const DEEPEST: usize = 64;
/// Files and folders that are looked at, so that a walk through a whole machine ends.
const MOST_ENTRIES: usize = 200_000;
/// How many unreadable files are named; all are counted.
const MOST_PROBLEMS: usize = 5;
/// A NUL byte among the first bytes says "not text", as it does for grep and git.
const PROBE: usize = 8 << 10;
/// What comments and headings begin and end with in most languages.
const DECORATION: &[char] = &[
    '#', '/', '*', '!', '<', '>', '-', '=', ';', '%', '|', ' ', '\t', '\u{feff}',
];
/// Folders whose contents somebody's tools have made.
const GENERATED: [&str; 3] = ["target", "node_modules", "__pycache__"];

/// A text file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    /// Relative to the folder, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Document {
    /// The first line that says something, as a heading would.
    pub(crate) fn title(&self) -> String {
        let mut lines = self
            .text
            .lines()
            .take(50)
            .map(|line| line.trim_matches(DECORATION));
        let line = lines.find(|line| line.contains(char::is_alphanumeric));
        visible(
            &line
                .unwrap_or_default()
                .chars()
                .take(80)
                .collect::<String>(),
        )
    }
}

/// What was left out, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) binary: u64,
    pub(crate) too_large: u64,
    pub(crate) unreadable: u64,
    /// The folder holds more than the demo takes.
    pub(crate) stopped: bool,
    /// The first few of the unreadable, with the reason.
    pub(crate) problems: Vec<String>,
}

impl Skipped {
    fn unreadable(&mut self, path: &str, error: &io::Error) {
        self.unreadable += 1;
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(format!("{}: {error}", visible(path)));
        }
    }

    /// One line for people; nothing if nothing was left out.
    pub(crate) fn sentence(&self) -> Option<String> {
        let counts = [
            (self.binary, "not text"),
            (self.too_large, "over 1 MiB"),
            (self.unreadable, "unreadable"),
        ];
        let mut parts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if self.stopped {
            parts.push("what is beyond 20,000 files or 64 MiB".to_owned());
        }
        (!parts.is_empty()).then(|| format!("left out: {}", parts.join(", ")))
    }
}

impl AddAssign<&Self> for Skipped {
    fn add_assign(&mut self, other: &Self) {
        self.binary += other.binary;
        self.too_large += other.too_large;
        self.unreadable += other.unreadable;
        self.stopped |= other.stopped;
        let room = MOST_PROBLEMS.saturating_sub(self.problems.len());
        self.problems
            .extend(other.problems.iter().take(room).cloned());
    }
}

/// One server's part of all documents: the `number`th of `of`, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    number: u32,
    of: u32,
}

impl Shard {
    /// All documents.
    pub(crate) const WHOLE: Self = Self { number: 1, of: 1 };

    pub(crate) fn new(number: u32, of: u32) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Decided by the path alone, so that servers that list the folder at different times never hold a document twice.
    fn holds(self, path: &str) -> bool {
        hash(path) % u64::from(self.of) == u64::from(self.number - 1)
    }

    /// What belongs to no document is reported by the first server alone.
    fn is_first(self) -> bool {
        self.number == 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a shard such as 2/4 (the second of four)");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let parse = |part: &str| part.trim().parse().map_err(|_| wrong());
        Self::new(parse(number)?, parse(of)?).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// FNV-1a with a final mix: the same in every process and version.
fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The folder to search when none is given: the repository that the current folder is in.
pub(crate) fn default_folder() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder can't be determined")?;
    let repository = here
        .ancestors()
        .find(|folder| folder.join("crates/wallaby-cli/Cargo.toml").is_file());
    match repository {
        Some(folder) => Ok(folder.to_owned()),
        None => bail!("which folder of text files shall be searched? Name it: --docs DIR"),
    }
}

/// An error if a folder can't be read at all.
pub(crate) fn check(folder: &Path) -> anyhow::Result<()> {
    fs::read_dir(folder)
        .map(drop)
        .with_context(|| format!("the folder {} can't be read", folder.display()))
}

/// A shard of a folder's documents, and what was left out of it.
pub(crate) fn read(folder: &Path, shard: Shard) -> anyhow::Result<(Vec<Document>, Skipped)> {
    let (files, mut skipped) = list(folder, shard)?;
    let mut documents = Vec::new();
    let mut bytes = 0;
    for entry in files {
        if bytes >= MOST_BYTES / u64::from(shard.of) {
            skipped.stopped = true;
            break;
        }
        if let Some(document) = load(entry, &mut skipped) {
            bytes += document.text.len() as u64;
            documents.push(document);
        }
    }
    Ok((documents, skipped))
}

/// A file to read: where it is, and the path it is known by.
struct Entry {
    file: PathBuf,
    path: String,
}

/// The shard's files, in the same order in every process. No crate for it, which `make demo` would have to compile: the limits, the
/// order and what could not be read are most of this, and ours anyhow. Hidden ones and links are passed over: a link's target is
/// listed under its own name.
fn list(folder: &Path, shard: Shard) -> anyhow::Result<(Vec<Entry>, Skipped)> {
    check(folder)?;
    let mut skipped = Skipped::default();
    let mut files = Vec::new();
    let mut seen = 0;
    let mut to_do = vec![Place {
        path: folder.to_owned(),
        is_folder: true,
        depth: 0,
    }];
    while let Some(place) = to_do.pop() {
        if !place.is_folder {
            let path = place
                .path
                .strip_prefix(folder)
                .unwrap_or(&place.path)
                .to_string_lossy()
                .into_owned();
            files.push(Entry {
                file: place.path,
                path,
            });
            if files.len() == MOST_FILES {
                skipped.stopped = !to_do.is_empty();
                break;
            }
            continue;
        }
        match place.children() {
            Ok(children) if place.depth < DEEPEST && seen + children.len() <= MOST_ENTRIES => {
                seen += children.len();
                to_do.extend(children.into_iter().rev());
            }
            Ok(_) => skipped.stopped = true,
            Err(error) if shard.is_first() => {
                skipped.unreadable(&place.path.to_string_lossy(), &error)
            }
            Err(_) => {}
        }
    }
    files.retain(|entry| shard.holds(&entry.path));
    Ok((files, skipped))
}

/// A file or folder on the way through the tree.
struct Place {
    path: PathBuf,
    is_folder: bool,
    depth: usize,
}

impl Place {
    /// What is in this folder and worth a look, sorted.
    fn children(&self) -> io::Result<Vec<Self>> {
        let mut children = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // What goes away while we look is not missed.
            let Ok((name, kind)) =
                entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?)))
            else {
                continue;
            };
            let hidden = name.as_encoded_bytes().starts_with(b".");
            let generated = kind.is_dir() && GENERATED.iter().any(|folder| name == *folder);
            if !hidden && !generated && (kind.is_dir() || kind.is_file()) {
                children.push(Self {
                    path: self.path.join(name),
                    is_folder: kind.is_dir(),
                    depth: self.depth + 1,
                });
            }
        }
        children.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(children)
    }
}

fn load(entry: Entry, skipped: &mut Skipped) -> Option<Document> {
    let bytes = match read_file(&entry.file) {
        Ok(bytes) => bytes,
        Err(error) => {
            skipped.unreadable(&entry.path, &error);
            return None;
        }
    };
    if bytes.len() as u64 > LARGEST_FILE {
        skipped.too_large += 1;
        return None;
    }
    if bytes[..bytes.len().min(PROBE)].contains(&0) {
        skipped.binary += 1;
        return None;
    }
    let text = String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    Some(Document {
        path: visible(&entry.path),
        text,
    })
}

/// At most one byte more than the limit, whatever length the file claims to have.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A folder, for as long as its test runs.
    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn write(&self, path: &str, bytes: &[u8]) {
            let path = self.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    fn paths(folder: &Scratch, shard: Shard) -> Vec<String> {
        let (documents, _) = read(folder.path(), shard).unwrap();
        documents
            .into_iter()
            .map(|document| document.path)
            .collect()
    }

    #[test]
    fn takes_text_and_leaves_the_rest() {
        let folder = Scratch::new();
        folder.write("a.md", b"# Title\ntext");
        folder.write("sub/deep/b.rs", "fn größe() {}".as_bytes());
        folder.write("latin.txt", b"gr\xfc\xdfe");
        folder.write("image.png", b"\x89PNG\0\0");
        folder.write("huge.txt", &vec![b'x'; (1 << 20) + 1]);
        folder.write("target/debug/c.rs", b"generated");
        folder.write(".git/config", b"hidden");
        std::os::unix::fs::symlink("..", folder.path().join("loop")).unwrap();
        assert_eq!(
            paths(&folder, Shard::WHOLE),
            ["a.md", "latin.txt", "sub/deep/b.rs"]
        );
        let (_, skipped) = read(folder.path(), Shard::WHOLE).unwrap();
        assert_eq!(
            (skipped.binary, skipped.too_large, skipped.unreadable),
            (1, 1, 0)
        );
        assert_eq!(
            skipped.sentence().unwrap(),
            "left out: 1 not text, 1 over 1 MiB"
        );
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_not_fatal() {
        let folder = Scratch::new();
        folder.write("a.md", b"text");
        let mut skipped = Skipped::default();
        let gone = Entry {
            file: folder.path().join("gone.md"),
            path: "gone.md".to_owned(),
        };
        assert_eq!(load(gone, &mut skipped), None);
        assert_eq!(skipped.unreadable, 1);
        assert!(
            skipped.problems[0].starts_with("gone.md: No such file"),
            "{skipped:?}"
        );
        assert_eq!(skipped.sentence().unwrap(), "left out: 1 unreadable");
    }

    #[test]
    fn names_need_not_be_unicode() {
        use std::os::unix::ffi::OsStrExt;
        let folder = Scratch::new();
        fs::write(
            folder
                .path()
                .join(std::ffi::OsStr::from_bytes(b"odd\xff\x1b.txt")),
            b"text",
        )
        .unwrap();
        assert_eq!(paths(&folder, Shard::WHOLE), ["odd\u{fffd} .txt"]);
    }

    #[test]
    fn shards_are_a_partition() {
        let folder = Scratch::new();
        for number in 0..40 {
            folder.write(&format!("{number}.txt"), b"text");
        }
        let mut all: Vec<String> = (1..=4)
            .flat_map(|number| paths(&folder, Shard::new(number, 4).unwrap()))
            .collect();
        all.sort();
        assert_eq!(all, paths(&folder, Shard::WHOLE));
        assert_eq!(all.len(), 40);
    }

    #[test]
    fn empty_and_missing_folders() {
        let folder = Scratch::new();
        assert!(paths(&folder, Shard::WHOLE).is_empty());
        let missing = read(&folder.path().join("nothing"), Shard::WHOLE).unwrap_err();
        assert!(
            format!("{missing:#}").contains("nothing can't be read"),
            "{missing:#}"
        );
    }

    #[test]
    fn shards_are_written_as_fractions() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
        for wrong in ["", "2", "0/4", "5/4", "1/0", "-1/2", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn titles_are_the_first_words() {
        let title = |text: &str| {
            Document {
                path: String::new(),
                text: text.to_owned(),
            }
            .title()
        };
        assert_eq!(title("\n# The *first* hop #\nmore"), "The *first* hop");
        assert_eq!(title("//! `What` runs it.\n"), "`What` runs it.");
        assert_eq!(title("\n--\n"), "");
    }
}
