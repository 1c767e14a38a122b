//! `wallaby onc gen`: an interface file becomes Rust.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use wallaby_idl::onc::Compiler;

use crate::output::Reported;

#[derive(Debug, Args)]
pub(crate) struct Gen {
    /// The interface file
    file: PathBuf,
    /// Where the Rust code goes; without it, to standard output
    #[arg(long, value_name = "FILE.rs")]
    out: Option<PathBuf>,
    /// Look for includes in this folder, too
    #[arg(short = 'I', long = "include", value_name = "FOLDER")]
    includes: Vec<PathBuf>,
    /// Define a constant for the preprocessor; without a value it is 1
    #[arg(short = 'D', long = "define", value_name = "NAME[=VALUE]")]
    defines: Vec<String>,
    /// Take a type that the file does not define from elsewhere
    #[arg(long = "type", value_name = "NAME=PATH", value_parser = external)]
    types: Vec<(String, String)>,
    /// Make methods of Wallaby of the procedures, too; needs wallaby-onc's feature 'wallaby'
    #[arg(long)]
    methods: bool,
}

/// `NAME=PATH`.
fn external(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) => Ok((name.to_owned(), path.to_owned())),
        None => Err("expected NAME=PATH, as in netobj=crate::Netobj".to_owned()),
    }
}

impl Gen {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let mut compiler = Compiler::new();
        for folder in self.includes {
            compiler = compiler.include(folder);
        }
        for define in &self.defines {
            let (name, value) = define.split_once('=').unwrap_or((define, "1"));
            compiler = compiler.define(name, value);
        }
        if self.methods {
            compiler = compiler.methods();
        }
        for (name, path) in self.types {
            compiler = compiler.external(name, path);
        }
        let code = match compiler.compile(&self.file) {
            Ok(code) => code,
            // Shown as a compiler's errors are, without our program's own words before them.
            Err(error) => return Err(Reported(error.to_string()).into()),
        };
        match self.out {
            Some(out) => {
                fs::write(&out, code).with_context(|| format!("cannot write {}", out.display()))
            }
            None => Ok(std::io::stdout().write_all(code.as_bytes())?),
        }
    }
}
