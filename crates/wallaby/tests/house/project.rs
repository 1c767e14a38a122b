//! Reads what the rules are about: the project's folders, manifests, sources and pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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
pub(crate) fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<String> = list("")
        .into_iter()
        .filter(|name| root().join(name).is_dir())
        .collect();
    while let Some(folder) = folders.pop() {
        for name in list(&folder) {
            let path = format!("{folder}/{name}");
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") {
                let text = read(&path);
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The paths that the section `## Map` of `ARCHITECTURE.md` names in backticks.
pub(crate) struct Map {
    pub(crate) paths: BTreeSet<String>,
}

impl Map {
    pub(crate) fn read() -> Self {
        let page = read("ARCHITECTURE.md");
        let map = Self {
            paths: Self::paths(&page),
        };
        assert!(
            !map.paths.is_empty(),
            "ARCHITECTURE.md: write a section `## Map` that names paths in backticks"
        );
        map
    }

    fn paths(page: &str) -> BTreeSet<String> {
        let section = page
            .lines()
            .skip_while(|line| line.trim_end() != "## Map")
            .skip(1);
        let section =
            section.take_while(|line| !line.starts_with("## ") && !line.starts_with("# "));
        section
            .flat_map(|line| line.split('`').skip(1).step_by(2))
            .filter(|word| Self::is_path(word))
            .map(|word| word.trim_end_matches('/').to_owned())
            .collect()
    }

    /// Paths are told from other words in backticks (`Request`, `reply/respond`, `tcp://host:1`) by
    /// how they start or end.
    fn is_path(word: &str) -> bool {
        let plain = word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        let top = word.split('/').next().unwrap_or(word);
        let tops = [
            "crates",
            "bench",
            "bench-peers",
            "chaos",
            "docs",
            "scripts",
            "apps",
            "fuzz",
            ".ci",
        ];
        let known = tops.contains(&top);
        let file = [".rs", ".md", ".toml", ".sh"]
            .iter()
            .any(|ending| word.ends_with(ending));
        plain && (known || file)
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }
}

/// A module right below a crate's `src`.
pub(crate) struct Module {
    pub(crate) path: String,
}

impl Module {
    /// A module with a folder may be named by the folder or by its file.
    pub(crate) fn spellings(&self) -> Vec<String> {
        let stem = self.path.trim_end_matches(".rs");
        vec![
            stem.to_owned(),
            format!("{stem}.rs"),
            format!("{stem}/mod.rs"),
        ]
    }
}

/// The modules right below a `src` folder; the crate's root and its tests need no place in a map.
pub(crate) fn modules(src: &str) -> Vec<Module> {
    let mut stems = BTreeMap::new();
    for name in list(src) {
        let is_folder = root().join(src).join(&name).is_dir();
        let stem = name.trim_end_matches(".rs").to_owned();
        if (is_folder || name.ends_with(".rs"))
            && !["lib", "main", "tests", "bin"].contains(&stem.as_str())
        {
            stems.insert(stem, format!("{src}/{name}"));
        }
    }
    stems.into_values().map(|path| Module { path }).collect()
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
    fn reads_the_map_and_nothing_else() {
        let page = "`crates/before`\n## Map\n- `crates/a/`: `Request`, `tcp://x:1`, `reply/respond`, `README.md`\n\
                    | `bench/src/lib.rs` | `package.Service/method` |\n### More\n`docs/x.md`\n## After\n`crates/after`";
        let paths: Vec<String> = Map::paths(page).into_iter().collect();
        assert_eq!(
            paths,
            ["README.md", "bench/src/lib.rs", "crates/a", "docs/x.md"]
        );
    }

    #[test]
    fn reads_the_fences_of_a_page() {
        let page =
            "```rust\nfn main() {}\n```\n```sh\nmake\n```\n```rust,ignore\n```\n```rustic\n```";
        assert_eq!(rust_fences(page), ["rust", "rust,ignore"]);
    }
}
