//! Compiles the text of a module for servers, by the cargo that compiles the crate around it.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "wasm32-unknown-unknown";

/// What such modules need besides their own text. `std` is what they know as such.
const AROUND: &str = "#![no_std]
extern crate alloc;
extern crate alloc as std;
wallaby_chain_guest::alone!();
mod prelude {
    pub use alloc::{borrow::ToOwned, boxed::Box, format, string::{String, ToString}, vec, vec::Vec};
}
mod glue {
    #![allow(warnings)]
    use crate::prelude::*;
";

/// Small before all: a module travels with its chain.
const PROFILE: &str = "[profile.release]
opt-level = \"z\"
lto = true
codegen-units = 1
panic = \"abort\"
strip = true
";

/// Settings of the compilation around this one that are not meant for it.
const NOT_MEANT: &[&str] = &[
    "CARGO_BUILD_TARGET",
    "CARGO_INCREMENTAL",
    "CARGO_MAKEFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "MAKEFLAGS",
    "MFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
];

/// The file of the module, an absolute path; none if nothing says where what is compiled goes.
///
/// # Errors
///
/// Why there is none, for people.
pub(crate) fn module(text: &str) -> Result<Option<String>, String> {
    let Some(folder) = folder() else {
        return Ok(None);
    };
    check_target()?;
    let mut hasher = DefaultHasher::new();
    (text, AROUND, PROFILE).hash(&mut hasher);
    let name = format!("glue_{:016x}", hasher.finish());
    let file = folder.join(format!("{name}.wasm"));
    compile(text, &name, &folder, &file)?;
    let file = file.into_os_string().into_string();
    let file = file.map_err(|file| format!("{} is not UTF-8", file.display()))?;
    Ok(Some(file))
}

/// Where modules are compiled: beside what cargo has compiled for the crate around this one.
fn folder() -> Option<PathBuf> {
    let arguments = env::args().flat_map(|argument| match argument.strip_prefix('@') {
        // So many that they are in a file, one a line.
        Some(file) => {
            let text = fs::read_to_string(file).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        }
        None => vec![argument],
    });
    let arguments: Vec<String> = arguments.collect();
    let place = arguments
        .iter()
        .position(|argument| argument == "--out-dir");
    let out = match place {
        Some(place) => arguments.get(place + 1)?,
        None => arguments
            .iter()
            .find_map(|argument| argument.strip_prefix("--out-dir="))?,
    };
    let out = Path::new(out);
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    let target = out.ancestors().find(is_target).unwrap_or(out);
    Some(env::current_dir().ok()?.join(target).join("wallaby-glue"))
}

/// How a module depends on what it is written with: as released together with this crate.
fn guest() -> String {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wallaby-chain-guest");
    match beside.join("Cargo.toml").exists() {
        true => format!("{{ path = {:?} }}", beside.display().to_string()),
        false => format!("{:?}", concat!("=", env!("CARGO_PKG_VERSION"))),
    }
}

fn check_target() -> Result<(), String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = ["--print", "target-libdir", "--target", TARGET];
    let answer = run(Command::new(&rustc).args(asked), "rustc")?;
    let library = String::from_utf8_lossy(&answer.stdout);
    match Path::new(library.trim()).exists() {
        true => Ok(()),
        false => Err(format!(
            "to compile these functions for servers, the target {TARGET} is needed: `rustup target add {TARGET}`"
        )),
    }
}

fn compile(text: &str, name: &str, folder: &Path, file: &Path) -> Result<(), String> {
    let (own, guest) = (folder.join(name), guest());
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [lib]\npath = \"lib.rs\"\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\nwallaby-chain-guest = {guest}\n\
         serde = {{ version = \"1\", default-features = false, features = [\"alloc\", \"derive\"] }}\n\n\
         [workspace]\n\n{PROFILE}"
    );
    let failed = |error| format!("cannot compile functions in {}: {error}", own.display());
    fs::create_dir_all(&own).map_err(failed)?;
    // The same may be compiled twice at once, for a library and for its tests.
    let lock = fs::File::create(own.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    write(&own.join("Cargo.toml"), &manifest).map_err(failed)?;
    write(&own.join("lib.rs"), &format!("{AROUND}{text}\n}}\n")).map_err(failed)?;
    if let Some(versions) = versions() {
        fs::copy(versions, own.join("Cargo.lock")).map_err(failed)?;
    }
    let output = cargo(&own, folder)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "these functions cannot be compiled for servers:\n{said}"
        ));
    }
    let built = folder
        .join(TARGET)
        .join("release")
        .join(format!("{name}.wasm"));
    // A compiler that is told of the file may read it at any time.
    let half = own.join("half.wasm");
    fs::copy(&built, &half).map_err(failed)?;
    date(&half).map_err(failed)?;
    fs::rename(&half, file).map_err(failed)
}

/// Makes a file as old as the crate around the functions. Cargo compiles a crate again that reads a file which is newer than the
/// start of its last compilation, and this one is made after that.
fn date(file: &Path) -> io::Result<()> {
    let Some(folder) = env::var_os("CARGO_MANIFEST_DIR") else {
        return Ok(());
    };
    let manifest = Path::new(&folder).join("Cargo.toml");
    let time = fs::metadata(manifest)?.modified()?;
    fs::OpenOptions::new()
        .write(true)
        .open(file)?
        .set_modified(time)
}

/// What is the same stays untouched, so that it is not compiled again.
fn write(file: &Path, text: &str) -> io::Result<()> {
    match fs::read_to_string(file) {
        Ok(known) if known == text => Ok(()),
        _ => fs::write(file, text),
    }
}

/// The versions that the crate around the functions is compiled with. The module's are the same.
fn versions() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    let locks = folder.ancestors().map(|folder| folder.join("Cargo.lock"));
    locks.into_iter().find(|lock| lock.exists())
}

/// All that is needed has been downloaded for the crate around it.
fn cargo(own: &Path, folder: &Path) -> Result<Output, String> {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args([
        "build",
        "--quiet",
        "--offline",
        "--release",
        "--target",
        TARGET,
    ]);
    command.arg("--manifest-path").arg(own.join("Cargo.toml"));
    command.arg("--target-dir").arg(folder).current_dir(own);
    // Flags that settings have for other targets hold for none here, and neither cargo waits for the other.
    command
        .env("CARGO_ENCODED_RUSTFLAGS", "")
        .env("CARGO_BUILD_BUILD_DIR", folder);
    for name in NOT_MEANT {
        command.env_remove(name);
    }
    run(&mut command, "cargo")
}

fn run(command: &mut Command, name: &str) -> Result<Output, String> {
    command
        .output()
        .map_err(|error| format!("{name} cannot be started: {error}"))
}
