//! From files to files.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use prost_build::Config;

use crate::error::{CompileError, Diagnostic};
use crate::generate::{self, Externals, Input};

/// Compiles `.proto` files.
#[derive(Default)]
pub struct Compiler {
    includes: Vec<PathBuf>,
    name: Option<String>,
    externals: Externals,
    framework: Option<String>,
    settings: Vec<Setting>,
}

/// What a user changes of prost.
struct Setting(Box<dyn Fn(&mut Config)>);

/// What is generated.
struct Output {
    code: String,
    descriptors: Vec<u8>,
    /// The files that were read.
    read: Vec<PathBuf>,
}

impl Compiler {
    /// A compiler that finds what files import in the folder of the file that is compiled, and what comes with Protocol Buffers, as
    /// `google/protobuf/timestamp.proto`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks for files and imports in this folder, and takes the names of files from there on.
    #[must_use]
    pub fn include(mut self, folder: impl Into<PathBuf>) -> Self {
        self.includes.push(folder.into());
        self
    }

    /// What the files that are written are called, without `.rs`; `protos` if nothing is said.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Takes a package or a message from elsewhere: `.external("common.v1", "::common::v1")`. It was compiled by this crate, too.
    #[must_use]
    pub fn external(mut self, proto: impl Into<String>, rust: impl Into<String>) -> Self {
        self.externals.0.push((proto.into(), rust.into()));
        self
    }

    /// Says where the program has the crate `wallaby`: `.wallaby("::facade::wallaby")`, where it is renamed or comes through another
    /// crate. The path holds in every module, so it begins with `::` or `crate`; `::wallaby` if nothing is said.
    #[must_use]
    pub fn wallaby(mut self, path: impl Into<String>) -> Self {
        self.framework = Some(path.into());
        self
    }

    /// Changes how prost writes messages: `.prost(|config| { config.bytes(["."]); })`. Services, the path of prost and names of types
    /// are set afterwards.
    #[must_use]
    pub fn prost(mut self, set: impl Fn(&mut Config) + 'static) -> Self {
        self.settings.push(Setting(Box::new(set)));
        self
    }

    /// The Rust code of files and of all that they import. It includes a file `protos.bin`, or of the
    /// [name](Self::name) that was set, with what they define for tools: [`Self::build_in`] writes both.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or something is wrong in it.
    pub fn compile(&self, files: &[impl AsRef<Path>]) -> Result<String, CompileError> {
        Ok(self.output(files)?.code)
    }

    /// For a `build.rs`: writes the code to `$OUT_DIR`, as `protos.rs` or by the [name](Self::name) that was set, and lets cargo
    /// know what was read. If something is wrong, it is printed, and the build ends.
    pub fn build(&self, files: impl IntoIterator<Item = impl AsRef<Path>>) {
        let files: Vec<_> = files.into_iter().collect();
        let folder = env::var_os("OUT_DIR").map(PathBuf::from);
        let folder =
            folder.unwrap_or_else(|| fail("there is no OUT_DIR: this is for build scripts"));
        match self.build_in(&files, &folder) {
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
    ///
    /// A file cannot be read or written, or something is wrong in it.
    pub fn build_in(
        &self,
        files: &[impl AsRef<Path>],
        folder: &Path,
    ) -> Result<Vec<PathBuf>, CompileError> {
        let output = self.output(files)?;
        let target = folder.join(self.file_name());
        for (ending, content) in [("rs", output.code.as_bytes()), ("bin", &output.descriptors)] {
            // The name may have dots.
            let mut path = target.clone().into_os_string();
            path.push(format!(".{ending}"));
            fs::write(&path, content).map_err(|error| CompileError::File {
                path: path.into(),
                error,
            })?;
        }
        Ok(output.read)
    }

    fn file_name(&self) -> &str {
        self.name.as_deref().unwrap_or("protos")
    }

    fn output(&self, files: &[impl AsRef<Path>]) -> Result<Output, CompileError> {
        let files: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
        let includes = self.includes_of(&files);
        let mut compiler =
            protox::Compiler::new(&includes).map_err(|error| wrong(&error, &includes))?;
        compiler.include_imports(true).include_source_info(false);
        for file in &files {
            if let Err(error) = fs::File::open(file)
                && !includes.iter().any(|folder| folder.join(file).is_file())
            {
                let path = file.to_path_buf();
                return Err(CompileError::File { path, error });
            }
            compiler
                .open_file(file)
                .map_err(|error| wrong(&error, &includes))?;
        }
        let descriptors = compiler.encode_file_descriptor_set();
        compiler.include_source_info(true);
        let set = compiler.file_descriptor_set();
        let read = compiler.files().filter_map(|file| file.path());
        let read = read.map(Path::to_path_buf).collect();

        let mut config = Config::new();
        for Setting(set) in &self.settings {
            set(&mut config);
        }
        let place = |file: &str| path_of(file, &includes);
        let code = generate::code(Input {
            files: set.file,
            config,
            externals: &self.externals,
            framework: self.framework.as_deref().unwrap_or("::wallaby"),
            descriptors: &format!("{}.bin", self.file_name()),
            place: &place,
        })?;
        Ok(Output {
            code,
            descriptors,
            read,
        })
    }

    /// Where files are looked for: a file that is in none of the folders that were said has its own.
    fn includes_of(&self, files: &[&Path]) -> Vec<PathBuf> {
        let mut includes = self.includes.clone();
        for file in files {
            let is_inside = |folder: &PathBuf| {
                file.starts_with(folder) || (file.is_relative() && folder.join(file).is_file())
            };
            if !includes.iter().any(is_inside) {
                let folder = file
                    .parent()
                    .filter(|folder| !folder.as_os_str().is_empty());
                includes.push(folder.unwrap_or(Path::new(".")).to_path_buf());
            }
        }
        includes
    }
}

/// What protox says, with the path of the file.
fn wrong(error: &protox::Error, includes: &[PathBuf]) -> CompileError {
    let name = error.file().unwrap_or_default();
    // As a debugger has it, it says line and column.
    let text = format!("{error:?}");
    let found = match text.strip_prefix(name) {
        Some(rest) if !name.is_empty() => rest.split_once(": "),
        _ => None,
    };
    let (numbers, message) = match found {
        Some((numbers, message)) => (numbers, message.to_owned()),
        None => ("", error.to_string()),
    };
    CompileError::Proto(vec![Diagnostic {
        place: path_of(name, includes) + numbers,
        message,
    }])
}

/// The path of a file that is called so in imports.
fn path_of(name: &str, includes: &[PathBuf]) -> String {
    let mut paths = includes.iter().map(|folder| folder.join(name));
    let path = paths.find(|path| path.is_file());
    let path = path.unwrap_or_else(|| name.into());
    path.strip_prefix(".")
        .unwrap_or(&path)
        .display()
        .to_string()
}

fn fail(what: &str) -> ! {
    eprintln!("{what}");
    process::exit(1)
}
