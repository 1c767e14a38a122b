//! The front end for `.x` files, the interface language of ONC RPC (RFC 4506 and RFC 5531).
//!
//! A file goes through the *preprocessor* and the *lexer*, the *parser* makes definitions of the words, the *checker* a
//! [`Model`] of the definitions, and the *emitter* Rust code of the model. The code needs the crate `wallaby-onc` to
//! run. In a `build.rs`:
//!
//! ```no_run
//! wallaby_idl::onc::Compiler::new().build("interfaces/rquota.x");
//! ```
//!
//! and in the program `include!(concat!(env!("OUT_DIR"), "/rquota.rs"));` in a module of its own.
//!
//! Everything that rpcgen takes is taken. Lines that begin with `%` are meant for C and left out, but for constants
//! that they define and the interface uses.

mod check;
mod emit;
mod expression;
mod lexer;
mod lists;
mod macros;
pub mod model;
mod naming;
mod parser;
mod preprocessor;
mod source;
mod syntax;
mod token;

pub use model::Model;
pub use source::Diagnostic;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use preprocessor::Settings;
use source::{Problem, Sources};

/// What stands for the headers of C libraries.
const PRELUDE: &str = include_str!("onc/prelude.x");

/// Compiles interface files.
#[derive(Debug, Clone, Default)]
pub struct Compiler {
    settings: Settings,
    externals: BTreeMap<String, String>,
    with_methods: bool,
}

/// Why a file was not compiled.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompileError {
    /// Something is wrong in the file, or in one that it includes.
    Interface(Vec<Diagnostic>),
    /// A file cannot be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// What was given as an external type is no path of a Rust type.
    External {
        /// The name in the interface.
        name: String,
        /// What was given.
        path: String,
    },
}

impl fmt::Display for CompileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(diagnostics) => {
                for (at, diagnostic) in diagnostics.iter().enumerate() {
                    let gap = if at > 0 { "\n" } else { "" };
                    write!(formatter, "{gap}{diagnostic}")?;
                }
                Ok(())
            }
            Self::File { path, error } => write!(formatter, "{}: {error}", path.display()),
            Self::External { name, path } => write!(
                formatter,
                "expected the path of a Rust type for `{name}`, found `{path}`"
            ),
        }
    }
}

impl Error for CompileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File { error, .. } => Some(error),
            Self::Interface(_) | Self::External { .. } => None,
        }
    }
}

impl Compiler {
    /// A compiler that looks for includes beside the file that includes, and knows no types but those of the language
    /// and a few of C's headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks for includes in this folder, too.
    #[must_use]
    pub fn include(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.include_folders.push(folder.into());
        self
    }

    /// Defines a constant for the preprocessor, as `#define NAME VALUE` does.
    #[must_use]
    pub fn define(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.defines.push((name.into(), value.into()));
        self
    }

    /// Takes a type that the file uses and does not define to be this one in Rust, which implements
    /// `wallaby_onc::xdr::Xdr`, `Clone`, `Debug` and `PartialEq`.
    #[must_use]
    pub fn external(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.externals.insert(name.into(), path.into());
        self
    }

    /// Makes of every procedure a method of Wallaby, too, in a module `methods` of each version, so that it can be called
    /// from many servers at once, and delegated. The code needs the feature `wallaby` of `wallaby-onc` then.
    #[must_use]
    pub fn methods(mut self) -> Self {
        self.with_methods = true;
        self
    }

    /// What a file means.
    ///
    /// # Errors
    /// The file cannot be read, or something is wrong in it.
    pub fn model(&self, path: impl AsRef<Path>) -> Result<Model, CompileError> {
        let path = path.as_ref();
        self.model_of(path, read(path)?, &mut Sources::default())
    }

    /// The Rust code of a file.
    ///
    /// # Errors
    /// The file cannot be read, or something is wrong in it.
    pub fn compile(&self, path: impl AsRef<Path>) -> Result<String, CompileError> {
        let path = path.as_ref();
        self.compile_text(path, read(path)?)
    }

    /// The Rust code of a file with this text; its path is for includes and errors.
    ///
    /// # Errors
    /// Something is wrong in the text.
    pub fn compile_text(
        &self,
        path: impl AsRef<Path>,
        text: impl Into<String>,
    ) -> Result<String, CompileError> {
        let path = path.as_ref();
        self.code(path, text.into(), &mut Sources::default())
    }

    /// For a `build.rs`: writes the code to `$OUT_DIR`, under the name of the file with `.rs`, and lets cargo know what
    /// was read. If something is wrong, it is printed, and the build ends.
    pub fn build(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let folder = env::var_os("OUT_DIR").map(PathBuf::from);
        let folder =
            folder.unwrap_or_else(|| fail("there is no OUT_DIR: this is for build scripts"));
        match self.build_in(path, &folder) {
            Ok(read) => {
                for path in read {
                    println!("cargo::rerun-if-changed={}", path.display());
                }
            }
            Err(error) => fail(&error.to_string()),
        }
    }

    /// Writes the code to this folder; the files that were read.
    ///
    /// # Errors
    /// A file cannot be read or written, or something is wrong in it.
    pub fn build_in(&self, path: &Path, folder: &Path) -> Result<Vec<PathBuf>, CompileError> {
        let mut sources = Sources::default();
        let code = self.code(path, read(path)?, &mut sources)?;
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let target = folder.join(name).with_extension("rs");
        fs::write(&target, code).map_err(|error| CompileError::File {
            path: target,
            error,
        })?;
        Ok(sources.paths().cloned().collect())
    }

    fn code(
        &self,
        path: &Path,
        text: String,
        sources: &mut Sources,
    ) -> Result<String, CompileError> {
        let model = self.model_of(path, text, sources)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        emit::emit(&model, &name.to_string_lossy(), self.with_methods).map_err(|error| {
            CompileError::File {
                path: path.to_path_buf(),
                error: io::Error::other(error),
            }
        })
    }

    fn model_of(
        &self,
        path: &Path,
        text: String,
        sources: &mut Sources,
    ) -> Result<Model, CompileError> {
        for (name, path) in &self.externals {
            if syn::parse_str::<syn::TypePath>(path).is_err() {
                return Err(CompileError::External {
                    name: name.clone(),
                    path: path.clone(),
                });
            }
        }
        let file = sources.add(path.to_path_buf(), text);
        self.checked(file, sources).map_err(|problems| {
            let diagnostics = problems.iter().map(|problem| sources.diagnostic(problem));
            CompileError::Interface(diagnostics.collect())
        })
    }

    fn checked(&self, file: usize, sources: &mut Sources) -> Result<Model, Vec<Problem>> {
        let one = |problem| vec![problem];
        let read = preprocessor::preprocess(sources, file, &self.settings).map_err(one)?;
        let mut items = parser::parse(&read.tokens, &read.comments, sources).map_err(one)?;
        self.add_prelude(&read, &mut items).map_err(one)?;
        let mut model = check::check(&items, &read.passed, &self.externals, sources)?;
        lists::find(&mut model);
        Ok(model)
    }

    /// Adds what the file uses of the prelude.
    fn add_prelude(
        &self,
        read: &preprocessor::Preprocessed,
        items: &mut Vec<syntax::Item>,
    ) -> Result<(), Problem> {
        let mut sources = Sources::default();
        let file = sources.add("prelude.x".into(), PRELUDE.to_owned());
        let prelude = preprocessor::preprocess(&mut sources, file, &Settings::default())?;
        let known = parser::parse(&prelude.tokens, &prelude.comments, &sources)?;
        let is_wanted = |item: &syntax::Item| {
            let name = item.name.text.as_str();
            let is_used = read.tokens.iter().any(|token| token.name() == Some(name));
            let is_defined = items.iter().any(|own| own.name.text == name);
            let is_elsewhere = self.externals.contains_key(name) || read.passed.contains_key(name);
            is_used && !is_defined && !is_elsewhere
        };
        let mut wanted: Vec<syntax::Item> = known.into_iter().filter(is_wanted).collect();
        wanted.append(items);
        *items = wanted;
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, CompileError> {
    let text = fs::read(path).map_err(|error| CompileError::File {
        path: path.to_path_buf(),
        error,
    })?;
    Ok(decoded(&text))
}

/// Old files have comments in old encodings.
fn decoded(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    process::exit(1)
}
