//! Golden files: compared by default, rewritten where `WALLABY_BLESS=1` is set, reviewed as a diff.

use std::path::PathBuf;

/// The file `tests/FOLDER/NAME.txt` of this crate.
pub(crate) fn path(folder: &str, name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests"))
        .join(folder)
        .join(name)
        .with_extension("txt")
}

/// Whether golden files are to be rewritten.
pub(crate) fn is_blessing() -> bool {
    std::env::var_os("WALLABY_BLESS").is_some_and(|value| value == "1")
}

/// Compares `actual` with the golden file, or writes it there.
pub(crate) fn check(folder: &str, name: &str, actual: &str) {
    let path = path(folder, name);
    if is_blessing() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, actual).expect("the golden file can be written");
        return;
    }
    let expected = read(folder, name);
    if let Some((number, (expected, actual))) = expected
        .lines()
        .zip(actual.lines())
        .enumerate()
        .find(|(_, (expected, actual))| expected != actual)
    {
        panic!(
            "{}:{}:\n  expected {expected}\n  but got  {actual}\n{HINT}",
            path.display(),
            number + 1
        );
    }
    assert!(
        expected == actual,
        "{}: one of the two goes on after line {}\n{HINT}",
        path.display(),
        lines(&expected)
    );
}

/// The text of a golden file.
pub(crate) fn read(folder: &str, name: &str) -> String {
    let path = path(folder, name);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}\n{HINT}", path.display()))
}

/// Checks that no golden file is left over from a case that is gone.
pub(crate) fn check_folder(folder: &str, names: &[&str]) {
    let path = path(folder, "x");
    for entry in std::fs::read_dir(path.parent().expect("a folder")).expect("the folder exists") {
        let file = entry.expect("an entry").path();
        let stem = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name");
        assert!(names.contains(&stem), "{}: no test uses it", file.display());
    }
}

fn lines(text: &str) -> usize {
    text.lines().count()
}

const HINT: &str = "if this is meant, rewrite it by WALLABY_BLESS=1 cargo test -p wallaby-proto, and review the diff";
