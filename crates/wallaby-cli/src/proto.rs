//! `wallaby proto`: files of Protocol Buffers become Rust.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use wallaby_build::Compiler;

use crate::output::Reported;

#[derive(Debug, Subcommand)]
pub(crate) enum Proto {
    /// Compile .proto files to Rust: messages, and services as traits under #[wallaby::service]
    Gen(Gen),
}

impl Proto {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Gen(generate) => generate.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby proto gen proto/library.proto --out src                            writes src/protos.rs and src/protos.bin
  wallaby proto gen library.proto shop.proto -I proto --out src --name api   finds both in proto, writes src/api.rs
  wallaby proto gen proto/shop.proto --out src --external common.v1=::common::v1

The program says 'mod protos;'. It needs the crate wallaby with the feature 'protobuf', and prost-types where files use types
of google.protobuf other than Empty and the wrappers of single values. protos.rs includes protos.bin, by which tools know the
messages. A build script does the same by the crate wallaby-build.
Exit status: 0 if all was written, 1 if something is wrong in a file, 2 if the command line is wrong.")]
pub(crate) struct Gen {
    /// The files; what they import is compiled, too
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The folder that the code goes to, which is made if it is missing
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// What the files with the code are called, without .rs
    #[arg(long, default_value = "protos")]
    name: String,
    /// Look for files and imports in this folder
    #[arg(short = 'I', long = "include", value_name = "FOLDER")]
    includes: Vec<PathBuf>,
    /// Take a package or a message from elsewhere, which was compiled in the same way
    #[arg(long = "external", value_name = "NAME=PATH", value_parser = external)]
    externals: Vec<(String, String)>,
}

/// `NAME=PATH`.
fn external(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) => Ok((name.to_owned(), path.to_owned())),
        None => Err("expected NAME=PATH, as in common.v1=::common::v1".to_owned()),
    }
}

impl Gen {
    fn run(self) -> anyhow::Result<()> {
        let mut compiler = Compiler::new().name(self.name);
        for folder in self.includes {
            compiler = compiler.include(folder);
        }
        for (name, path) in self.externals {
            compiler = compiler.external(name, path);
        }
        let out = &self.out;
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        match compiler.build_in(&self.files, out) {
            Ok(_) => Ok(()),
            // Shown as a compiler's errors are, without our program's own words before them.
            Err(error) => Err(Reported(error.to_string()).into()),
        }
    }
}
