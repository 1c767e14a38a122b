//! The house rules as ordinary tests: links, paths and numbers of rules lead somewhere, folders are named after
//! their crates, dependencies point down, the protocol core is free of IO, nothing unfinished is left
//! behind, a public type's name means one thing, and the README's program is compiled. Each failure says what to do. `CONTRIBUTING.md`
//! explains the rules.

mod code;
mod project;

use std::collections::{BTreeMap, BTreeSet};

use code::{before_tests, code_only, find};
use project::{
    Crate, beside, cited_rules, files, headings, links, named_paths, pages, read, root,
    rust_fences, sources, test_programs,
};

/// The project's crates, lowest layer first: a crate may depend only on those before it.
const LAYERS: &[&str] = &[
    "wallaby-proto",
    "wallaby-model",
    "wallaby-idl",
    "wallaby-macros",
    "wallaby-build",
    "wallaby",
    "wallaby-link",
    "wallaby-onc",
    "wallaby-tls",
    "wallaby-values",
    "wallaby-chain-guest",
    "wallaby-chain-macros",
    "wallaby-chain",
    "wallaby-chain-wasm",
    "wallaby-chain-script",
    "wallaby-sidecar",
    "wallaby-sim",
    "wallaby-metrics",
    "wallaby-otel",
    "wallaby-etcd",
    "wallaby-fuzz",
    "wallaby-program",
    "wallaby-bench",
    "wallaby-bench-peers",
    "wallaby-chaos",
    "wallaby-cli",
    "wallaby-graph",
    "wallaby-chord",
    "wallaby-library",
    "wallaby-mail",
    "wallaby-raytrace",
    "wallaby-storage",
];

/// The crate that must stay pure, and what it may depend on, development aside.
const CORE: &str = "wallaby-proto";
const CORE_DEPENDENCIES: &[&str] = &["bytes", "crc32c", "serde", "siphasher", "thiserror"];

/// What would bring sockets, threads, a clock, randomness or async into the core's sources.
const IMPURE: &[&str] = &[
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "UnixDatagram",
    "thread::",
    "std::fs",
    "std::env",
    "std::process",
    "Instant::now",
    "SystemTime",
    "RandomState",
    "HashMap::new(", // seeds itself at random; so does the next
    "HashSet::new(",
    "async ",
    ".await",
];

/// What may not be left in any source file.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];

/// Names of types that may be declared several times, and why.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Builder", "sets up what its module is about, as in std"),
    ("Call", "the same under the polling driver"),
    ("Config", "settings of what its module is about"),
    ("Endpoint", "the same under each driver, and without one"),
    ("Event", "what a machine tells, as in mio and quinn"),
    ("RawRequest", "the same under the polling driver"),
    ("Request", "the same under each driver, and on the wire"),
];

/// Published crates whose names count by themselves, and why.
const CRATES_OF_THEIR_OWN: &[(&str, &str)] = &[
    (
        "wallaby-chain-guest",
        "a function in a sandbox calls things as functions outside do",
    ),
    (
        "wallaby-idl",
        "its trees are what others call types, values, methods; generators alone read them",
    ),
];

/// Below this heading the security page says which tests show what.
const ATTACKS: &str = "## Attacks, bounds, tests\n";

/// A file longer than this is two files.
const MOST_LINES: usize = 1200;

/// A page or a comment that points at nothing sends its reader away.
#[test]
fn what_pages_and_comments_point_at_exists() {
    let exists = |path: &str| root().join(path).exists();
    let mut problems = Vec::new();
    for (page, text) in pages() {
        for (number, target) in links(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                page.clone()
            } else {
                beside(page, file)
            };
            if !exists(&file) {
                problems.push(format!(
                    "{page}:{number}: `{target}` leads nowhere: correct or remove it"
                ));
            } else if !anchor.is_empty() && !headings(&read(&file)).iter().any(|h| h == anchor) {
                problems.push(format!(
                    "{page}:{number}: {file} has no heading `#{anchor}`"
                ));
            }
        }
    }
    for (path, text) in sources().iter().chain(pages()) {
        let is_read = |line: &str| path.ends_with(".md") || line.trim_start().starts_with("//");
        let lines = (1..).zip(text.lines()).filter(|(_, line)| is_read(line));
        for (number, line) in lines {
            let missing = named_paths(line).filter(|named| !exists(named));
            problems
                .extend(missing.map(|named| {
                    format!("{path}:{number}: names `{named}`, which does not exist")
                }));
        }
    }
    report(problems);
}

/// Of a list with a gap, readers see other numbers than its source has.
#[test]
fn rules_that_are_cited_by_number_exist() {
    let page = read("docs/protocol.md");
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Rules of a call\n"));
    let lines = section.unwrap_or("").lines();
    let rules = lines.filter_map(|line| line.split_once(". ")?.0.parse().ok());
    let rules: Vec<u32> = rules.collect();
    assert_eq!(rules, Vec::from_iter(1..=rules.len() as u32));
    let mut problems = Vec::new();
    for (path, text) in sources().iter().chain(pages()).chain(&files(".txt")) {
        for (number, line) in (1..).zip(text.lines()) {
            let missing = cited_rules(line).filter(|rule| !rules.contains(rule));
            problems.extend(missing.map(|rule| {
                format!("{path}:{number}: there is no rule {rule} in docs/protocol.md")
            }));
        }
    }
    report(problems);
}

#[test]
fn folders_are_named_after_their_crates() {
    report(Crate::all().into_iter().filter_map(|krate| {
        let own = |name: &str| format!("wallaby-{}", name.replace('/', "-"));
        let expected = match krate.folder.split_once('/') {
            Some(("crates", name)) => name.to_owned(),
            Some(("apps", name)) => own(name),
            _ => own(&krate.folder),
        };
        (krate.manifest.name != expected).then(|| {
            format!(
                "{}/Cargo.toml: the package is called `{}`: call it `{expected}`, \
                 or rename the folder",
                krate.folder, krate.manifest.name
            )
        })
    }));
}

/// Whoever finds a crate, here or in a registry, sees what it is.
#[test]
fn crates_say_what_they_are() {
    let mut problems = Vec::new();
    for Crate { folder, .. } in Crate::all() {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let says = |line: &str| manifest.lines().any(|other| other.starts_with(line));
        let has = |file: &str| root().join(&folder).join(file).exists();
        let mut need = |is_there: bool, what: &str| {
            if !is_there {
                problems.push(format!("{folder}: add {what}"));
            }
        };
        need(says("description = "), "a description to Cargo.toml");
        need(has("README.md"), "a README.md of about ten lines");
        if !says("publish = false") {
            need(says("keywords = "), "keywords, or publish = false");
            need(
                has("LICENSE-MIT"),
                "LICENSE-MIT, a link to that of the root",
            );
            need(has("LICENSE-APACHE"), "LICENSE-APACHE, in the same way");
        }
    }
    report(problems);
}

/// Who uses two crates together, or two modules, would else have to say which of two things a name means.
#[test]
fn public_types_have_names_of_their_own() {
    let is_listed = |list: &[(&str, &str)], name: &str| list.iter().any(|(each, _)| *each == name);
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Crate { folder, manifest } in Crate::all() {
        let published = !read(&format!("{folder}/Cargo.toml")).contains("\npublish = false");
        if !published || is_listed(CRATES_OF_THEIR_OWN, &manifest.name) {
            continue;
        }
        let own = format!("{folder}/src/");
        for (path, text) in sources().iter().filter(|(path, _)| path.starts_with(&own)) {
            for (number, line) in (1..).zip(text.lines()) {
                if let Some(name) = public_type(line) {
                    let places = declared.entry(name.to_owned()).or_default();
                    places.push(format!("{path}:{number}"));
                }
            }
        }
    }
    let several = |name: &str| declared.get(name).is_some_and(|places| places.len() > 1);
    let stale = SHARED_NAMES.iter().filter(|(name, _)| !several(name));
    let stale = stale.map(|(name, _)| format!("SHARED_NAMES: `{name}` is declared once: drop it"));
    let doubled = declared
        .iter()
        .filter(|(name, places)| places.len() > 1 && !is_listed(SHARED_NAMES, name));
    report(stale.chain(doubled.map(|(name, places)| {
        let places = places.join(", ");
        format!("`{name}` is the name of several public types: rename all but one: {places}")
    })));
}

/// The type that a line outside of functions and macros declares to everybody.
fn public_type(line: &str) -> Option<&str> {
    let (kind, rest) = line.strip_prefix("pub ")?.split_once(' ')?;
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    ["struct", "enum", "trait", "type", "union"]
        .contains(&kind)
        .then(|| rest.split(ends).next())?
}

#[test]
fn crates_share_the_workspace_lints() {
    report(
        Crate::all()
            .into_iter()
            .filter(|krate| !krate.manifest.workspace_lints)
            .map(|krate| {
                format!(
                    "{}/Cargo.toml: add `[lints]` with `workspace = true`",
                    krate.folder
                )
            }),
    );
}

#[test]
fn dependencies_point_down() {
    let rank = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let mut problems = Vec::new();
    for Crate { folder, manifest } in Crate::all() {
        let Some(own) = rank(&manifest.name) else {
            problems.push(format!(
                "{folder}: `{}` has no layer: add it to LAYERS in {} above all that it depends on",
                manifest.name,
                file!()
            ));
            continue;
        };
        for dependency in &manifest.dependencies {
            // A crate's tests may ask for its own features, and put its endpoints at emulated links.
            let for_tests = [manifest.name.as_str(), "wallaby-link"];
            if dependency.development && for_tests.contains(&dependency.name.as_str()) {
                continue;
            }
            if rank(&dependency.name).is_some_and(|other| other >= own) {
                problems.push(format!(
                    "{folder}/Cargo.toml: `{}` is not a layer below `{}`: \
                     move what is needed of it down, or the code that needs it up",
                    dependency.name, manifest.name
                ));
            }
        }
    }
    report(problems);
}

#[test]
fn core_depends_on_no_runtime() {
    let core = Crate::all()
        .into_iter()
        .find(|krate| krate.manifest.name == CORE);
    let core = core.expect("the core is a crate of the workspace");
    report(
        core.manifest
            .dependencies
            .iter()
            .filter(|dependency| !dependency.development)
            .filter(|dependency| !CORE_DEPENDENCIES.contains(&dependency.name.as_str()))
            .map(|dependency| {
                format!(
                    "{}/Cargo.toml: the core must not depend on `{}`: do it in `wallaby`, \
                     or, if the crate has no IO, threads, clock, randomness or async in it, \
                     add it to CORE_DEPENDENCIES in {}",
                    core.folder,
                    dependency.name,
                    file!()
                )
            }),
    );
}

#[test]
fn core_is_sans_io() {
    let sources = sources()
        .iter()
        .filter(|(path, _)| path.starts_with("crates/wallaby-proto/src/"))
        .filter(|(path, _)| !path.ends_with("tests.rs") && !path.contains("/tests/"));
    let mut problems = Vec::new();
    for (path, source) in sources {
        for (number, word) in find(before_tests(&code_only(source)), IMPURE) {
            problems.push(format!(
                "{path}:{number}: `{word}` in the protocol core: take the time, the bytes or the \
                 seed as an argument, and do the IO in `wallaby`"
            ));
        }
    }
    report(problems);
}

#[test]
fn nothing_is_unfinished() {
    let mut problems = Vec::new();
    let mentions = |source: &str| UNFINISHED.iter().any(|word| source.contains(word));
    for (path, source) in sources().iter().filter(|(_, source)| mentions(source)) {
        for (number, word) in find(&code_only(source), UNFINISHED) {
            problems.push(format!(
                "{path}:{number}: finish what `{word}..)` stands for, or remove it"
            ));
        }
    }
    report(problems);
}

#[test]
fn files_are_short() {
    // What a compiler wrote has a source to be read in its place.
    let is_written = |source: &str| !source.starts_with("// Generated by Wallaby");
    report(sources().iter().filter_map(|(path, source)| {
        let lines = source.lines().count();
        (lines > MOST_LINES && is_written(source)).then(|| {
            format!(
                "{path}: {lines} lines, more than {MOST_LINES}: split it by concept, \
                 each part one sentence to describe"
            )
        })
    }));
}

/// To link a program takes longer than most tests: a crate's tests are one, `all`, and what is apart has a reason.
#[test]
fn test_programs_say_why_they_are_apart() {
    let mut problems = Vec::new();
    for Crate { folder, .. } in Crate::all() {
        let programs = test_programs(&folder, sources());
        if programs.len() == 1 {
            continue;
        }
        for (path, text) in programs {
            let mut page = text.lines().take_while(|line| line.starts_with("//!"));
            if path.ends_with("/all/main.rs") || page.any(|line| line.contains("Apart from")) {
                continue;
            }
            problems.push(format!(
                "{path}: make it a module of {folder}/tests/all/main.rs, or begin a sentence of its \
                 first comment with \"Apart from other tests\" and say why"
            ));
        }
    }
    report(problems);
}

/// Where a manifest says that sources have no tests, nothing is compiled a second time for them. A test there would never run.
#[test]
fn tests_in_sources_are_run() {
    let mut problems = Vec::new();
    for Crate { folder, .. } in Crate::all() {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        for section in manifest
            .split("\n[")
            .filter(|section| section.contains("\ntest = false"))
        {
            let is_of = |path: &str| match path.strip_prefix(&format!("{folder}/src/")) {
                Some(inside) if section.starts_with("[bin]]") => {
                    inside == "main.rs" || inside.starts_with("bin/")
                }
                Some(inside) => section.starts_with("lib]") && inside != "main.rs",
                None => false,
            };
            let tests = sources()
                .iter()
                .filter(|(path, source)| is_of(path) && source.contains("test]\n"));
            problems.extend(tests.map(|(path, _)| {
                format!("{path}: its tests are not run: {folder}/Cargo.toml says `test = false`")
            }));
        }
    }
    report(problems);
}

/// A promise whose test was renamed or dropped is a promise that nobody keeps.
#[test]
fn tests_that_the_table_of_attacks_names_exist() {
    let page = "docs/security.md";
    let text = read(page);
    let section = text.split_once(ATTACKS).map_or("", |(_, section)| section);
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let tests: Vec<&str> = rows
        .filter_map(|row| row.split('|').nth(3))
        .flat_map(|tests| tests.split('`').skip(1).step_by(2))
        .collect();
    let lines = sources().iter().flat_map(|(_, source)| source.lines());
    let functions: BTreeSet<&str> = lines
        .filter_map(|line| Some(line.split_once("fn ")?.1.split_once('(')?.0))
        .collect();
    let mut problems: Vec<String> = tests
        .iter()
        .filter(|test| !functions.contains(*test))
        .map(|test| {
            format!("{page}: the table of attacks names a test `{test}`, which does not exist")
        })
        .collect();
    if tests.is_empty() {
        problems.push(format!(
            "{page}: there is no table of tests below `{ATTACKS}`"
        ));
    }
    report(problems);
}

#[test]
fn readme_is_compiled() {
    let readme = read("README.md");
    let fences: Vec<&str> = rust_fences(&readme);
    let included = sources().iter().any(|(path, source)| {
        path.starts_with("crates/wallaby/src/") && source.contains("/../README.md\")")
    });
    let mut problems = Vec::new();
    if fences.is_empty() {
        problems.push("README.md: show a complete small program in a ```rust block".to_owned());
    }
    for fence in fences.iter().filter(|fence| fence.contains("ignore")) {
        problems.push(format!(
            "README.md: the block ```{fence} is not compiled: \
             drop `ignore`, or use `no_run` or `text`"
        ));
    }
    if !included {
        problems.push(
            "crates/wallaby/src/lib.rs: compile the README: put \
             #[doc = include_str!(\"../../../README.md\")] on an item that is #[cfg(doctest)]"
                .to_owned(),
        );
    }
    report(problems);
}

/// Who reads an older version than is needed gets errors of the compiler in our code.
#[test]
fn pages_name_the_oldest_rust() {
    let manifest = read("Cargo.toml");
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""));
    let oldest = line.and_then(|line| line.split('"').next()).unwrap_or("");
    let mut problems = Vec::new();
    for (page, text) in pages() {
        for (number, line) in (1..).zip(text.lines()) {
            let named = line
                .split("Rust 1.")
                .skip(1)
                .filter(|rest| rest.contains("or newer"));
            for rest in named.filter(|rest| !format!("1.{rest}").starts_with(oldest)) {
                problems.push(format!(
                    "{page}:{number}: Rust 1.{rest}: Cargo.toml says {oldest}"
                ));
            }
        }
    }
    report(problems);
}

/// A program that nobody compiles does not compile for long.
#[test]
fn guide_is_compiled() {
    let sources = sources();
    let is_included = |page: &str| {
        let words = format!("include_str!(\"../../../{page}\")");
        sources.iter().any(|(_, source)| source.contains(&words))
    };
    let of_guide = |(page, _): &&(String, String)| page.starts_with("docs/guide/");
    let with_code = pages().iter().filter(of_guide);
    let with_code = with_code.filter(|(_, text)| !rust_fences(text).is_empty());
    report(with_code.filter_map(|(page, text)| {
        let ignored = rust_fences(text).iter().any(|fence| fence.contains("ignore"));
        (ignored || !is_included(page)).then(|| {
            format!(
                "{page}: its programs are not compiled: put #[doc = include_str!(\"../../../{page}\")] on `Guide` in \
                 crates/wallaby/src/lib.rs, and use `no_run` or `text` in place of `ignore`"
            )
        })
    }));
}

/// Figures that are taken anew with each change would be wrong on a page before long.
#[test]
fn instructions_that_the_page_names_are_on_record() {
    let (record, page) = (
        read("scripts/instructions.tsv"),
        read("docs/performance.md"),
    );
    let recorded: BTreeSet<&str> = record.split_whitespace().collect();
    let heading = "## Where the distance to the floor comes from";
    let (_, section) = page.split_once(heading).expect("the page has this heading");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    // The call, the floor, and what is on record.
    let figures = rows.flat_map(|row| row.trim_matches('|').split('|').skip(2));
    let figures = figures.map(str::trim).filter(|figure| !figure.is_empty());
    let mut count = 0;
    report(figures.inspect(|_| count += 1).filter_map(|figure| {
        let missing = !recorded.contains(&*figure.replace(',', ""));
        missing.then(|| {
            format!("docs/performance.md: {figure}: scripts/instructions.tsv has no such count")
        })
    }));
    assert!(count > 5, "the table was found");
}

/// Fails with all problems at once, one a line.
fn report(problems: impl IntoIterator<Item = String>) {
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "\n\n{}\n", problems.join("\n"));
}
