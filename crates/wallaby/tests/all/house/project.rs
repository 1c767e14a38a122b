//! Reads what the rules are about: the project's folders, manifests, sources and pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the project, by its path from the root.
pub(crate) fn read(path: &str) -> String {
    match fs::read_to_string(root().join(path)) {
        Ok(text) => text,
        Err(error) => panic!("{path}: {error}: the house rules need this file"),
    }
}

/// The names in a folder, in order, hidden ones and build output left out.
fn list(folder: &str) -> Vec<String> {
    let entries =
        fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let names = entries.map(|entry| entry.expect("a folder entry can be read").file_name());
    let names: BTreeSet<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let is_output = |name: &str| name == "target" && !folder.contains("src");
    names
        .into_iter()
        .filter(|name| !name.starts_with('.') && !is_output(name))
        .collect()
}

/// Every Rust source of the project as (path from the root, text).
pub(crate) fn sources() -> &'static [(String, String)] {
    static SOURCES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| files(".rs"));
    &SOURCES
}

/// The programs among these sources that cargo makes of a crate's tests.
pub(crate) fn test_programs<'a>(
    folder: &str,
    sources: &'a [(String, String)],
) -> Vec<&'a (String, String)> {
    let tests = format!("{folder}/tests/");
    let is_program = |path: &str| {
        let inside = path.strip_prefix(&tests);
        inside.is_some_and(|path| match path.split_once('/') {
            Some((_, rest)) => rest == "main.rs",
            None => true,
        })
    };
    let programs = sources.iter().filter(|(path, _)| is_program(path));
    programs.collect()
}

/// Every page of the project, in the same way.
pub(crate) fn pages() -> &'static [(String, String)] {
    static PAGES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| files(".md"));
    &PAGES
}

/// Every file with this ending, in the same way.
pub(crate) fn files(ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for name in list(&folder) {
            let path = Path::new(&folder).join(name).display().to_string();
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.ends_with(ending) {
                let text = read(&path);
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The lines of a page outside of its code blocks, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Where a page's links lead within the project, with their lines.
pub(crate) fn links(page: &str) -> Vec<(usize, &str)> {
    let targets = |line| str::split(line, "](").skip(1);
    prose(page)
        .flat_map(|(number, line)| targets(line).map(move |rest| (number, rest)))
        .filter_map(|(number, rest)| Some((number, rest.split(')').next()?)))
        .filter(|(_, target)| !target.contains("://"))
        .collect()
}

/// A page's headings, as links name them.
pub(crate) fn headings(page: &str) -> Vec<String> {
    let titles = prose(page).filter(|(_, line)| line.starts_with('#'));
    let anchor = |title: &str| -> String {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        title
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    titles.map(|(_, title)| anchor(title)).collect()
}

/// The path that a link in `page` to `file` means, from the root.
pub(crate) fn beside(page: &str, file: &str) -> String {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    folder.join(file).display().to_string()
}

/// Files, and folders of sources, that a line names by their whole path.
pub(crate) fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let tops = ["crates/", "bench/", "docs/", "scripts/", "apps/", "fuzz/"];
    let endings = [".rs", ".md", ".toml", ".sh", ".tsv"];
    line.split(move |c| !is_part(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(move |word| tops.iter().any(|top| word.starts_with(top)))
        .filter(move |word| word.contains("/src/") || endings.iter().any(|end| word.ends_with(end)))
}

/// The rules of a call that a line cites by number, as in "rule 4c" or "rules 14 to 18, 20 and 24".
pub(crate) fn cited_rules(line: &str) -> impl Iterator<Item = u32> {
    let is_digit = |c: char| c.is_ascii_digit();
    let kinds = ["rule ", "rules ", "Rule ", "Rules "];
    let lists = kinds.map(|kind| line.split(kind).skip(1));
    let goes_on = move |word: &&str| word.starts_with(is_digit) || ["to", "and"].contains(word);
    let words = lists.into_iter().flatten();
    words
        .flat_map(move |list| list.split(' ').take_while(goes_on))
        .filter_map(move |word| word.split(|c| !is_digit(c)).next()?.parse().ok())
}

/// A crate of the workspace: `crates/NAME`, `apps/NAME`, or a folder at the root such as `bench`.
pub(crate) struct Crate {
    pub(crate) folder: String,
    pub(crate) manifest: Manifest,
}

impl Crate {
    pub(crate) fn all() -> Vec<Self> {
        let inside = |folder: &'static str| {
            let names = list(folder).into_iter();
            names.map(move |name| format!("{folder}/{name}"))
        };
        let nested = inside("crates").chain(inside("apps"));
        let folders = list("").into_iter().chain(nested);
        let folders = folders.filter(|folder| root().join(folder).join("Cargo.toml").is_file());
        folders
            .map(|folder| {
                let manifest = Manifest::parse(&read(&format!("{folder}/Cargo.toml")));
                Self { folder, manifest }
            })
            .collect()
    }
}

/// What the rules need of a `Cargo.toml`, read line by line: the project's manifests have a key a
/// line, and so the rules need no TOML parser.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) workspace_lints: bool,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) development: bool,
}

impl Manifest {
    fn parse(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(header) = line
                .strip_prefix('[')
                .and_then(|rest| rest.split(']').next())
            {
                section = header.to_owned();
                manifest.enter(&section);
            } else if let Some((key, value)) =
                line.split_once('=').filter(|_| !line.starts_with('#'))
            {
                manifest.set(&section, key.trim(), value.trim());
            }
        }
        manifest
    }

    /// A table of its own for one dependency: `[dependencies.tokio]`.
    fn enter(&mut self, section: &str) {
        if let Some((table, name)) = section.rsplit_once('.')
            && let Some(development) = is_dependency_table(table)
        {
            self.dependencies.push(Dependency {
                name: name.to_owned(),
                development,
            });
        }
    }

    fn set(&mut self, section: &str, key: &str, value: &str) {
        match (section, key) {
            ("package", "name") => self.name = value.split('"').nth(1).unwrap_or(value).to_owned(),
            ("lints", "workspace") => self.workspace_lints = value.starts_with("true"),
            _ => {
                if let Some(development) = is_dependency_table(section) {
                    let name = package_of(value)
                        .or_else(|| key.split('.').next())
                        .unwrap_or(key);
                    self.dependencies.push(Dependency {
                        name: name.to_owned(),
                        development,
                    });
                }
            }
        }
    }
}

/// Whether a section lists dependencies, and if so, whether they are for development only.
fn is_dependency_table(section: &str) -> Option<bool> {
    match section.rsplit('.').next() {
        Some("dependencies" | "build-dependencies") => Some(false),
        Some("dev-dependencies") => Some(true),
        _ => None,
    }
}

/// The true name of a renamed dependency: `{ package = "name" }`.
fn package_of(value: &str) -> Option<&str> {
    let after = value
        .split_once("package")?
        .1
        .trim_start()
        .strip_prefix('=')?;
    after.split('"').nth(1)
}

/// The info strings of a page's code blocks that rustdoc takes for Rust.
pub(crate) fn rust_fences(page: &str) -> Vec<&str> {
    let fences = page.lines().filter_map(|line| line.strip_prefix("```"));
    fences
        .filter(|info| *info == "rust" || info.starts_with("rust,"))
        .collect()
}

mod tests {
    use super::*;

    #[test]
    fn reads_manifests() {
        let manifest = Manifest::parse(
            "[package]\nname = \"a\" # b\nversion = \"1\"\n[lints]\nworkspace = true\n[dependencies]\n# b = \"1\"\nc = \"1\"\n\
             d.workspace = true\ne = { package = \"f\", version = \"1\" }\n[target.'cfg(unix)'.dependencies]\ng = \"1\"\n\
             [dependencies.h]\nversion = \"1\"\n[dev-dependencies]\ni = { path = \"../i\" }\n[[bin]]\nname = \"j\"",
        );
        let names = |development| {
            let all = manifest
                .dependencies
                .iter()
                .filter(move |dependency| dependency.development == development);
            all.map(|dependency| dependency.name.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(manifest.name, "a");
        assert!(manifest.workspace_lints);
        assert_eq!(names(false), ["c", "d", "f", "g", "h"]);
        assert_eq!(names(true), ["i"]);
    }

    #[test]
    fn reads_links_headings_and_paths() {
        let page = "# A `page`, 2\n[a](b.md#c) and [d](#a-page-2), [e](https://f)\n```\n[g](h)\n# i\n```\n";
        assert_eq!(links(page), [(2, "b.md#c"), (2, "#a-page-2")]);
        assert_eq!(headings(page), ["a-page-2"]);
        assert_eq!(beside("docs/a.md", "../b.md"), "docs/../b.md");
        let line = "`docs/a.md`. /x/docs/b.md docs/c bench/src/lib.rs, crates/d/src/e, f.md";
        let named: Vec<&str> = named_paths(line).collect();
        assert_eq!(named, ["docs/a.md", "bench/src/lib.rs", "crates/d/src/e"]);
        let line = "5 (rule 4c). Rules 14 to 18, 20 and 24: of 6, [rule 9](x), a rule of 7";
        let mut cited: Vec<u32> = cited_rules(line).collect();
        cited.sort_unstable();
        assert_eq!(cited, [4, 9, 14, 18, 20, 24]);
    }

    #[test]
    fn reads_the_fences_of_a_page() {
        let page =
            "```rust\nfn main() {}\n```\n```sh\nmake\n```\n```rust,ignore\n```\n```rustic\n```";
        assert_eq!(rust_fences(page), ["rust", "rust,ignore"]);
    }
}
