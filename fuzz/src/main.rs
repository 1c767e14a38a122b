//! Repeats inputs without an engine: `wallaby-fuzz TARGET PATH...`, where a path is a file or a folder of files. With `--seeds FOLDER`
//! in place of paths it writes the inputs that are made of the golden vectors there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use wallaby_fuzz::TARGETS;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(target) = TARGETS.iter().find(|target| *name == *target.name) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!(
            "usage: wallaby-fuzz TARGET (PATH... | --seeds FOLDER); targets: {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == "--seeds").is_some() {
        let folder = PathBuf::from(arguments.next().unwrap_or_default());
        let seeds = wallaby_fuzz::seeds(target.name);
        let written = seeds.and_then(|seeds| {
            fs::create_dir_all(&folder)?;
            let mut seeds = seeds.into_iter();
            seeds.try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes))
        });
        if let Err(error) = written {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
        return ExitCode::SUCCESS;
    }
    for path in arguments.map(PathBuf::from) {
        let repeated = files(&path).and_then(|files| {
            files.iter().try_for_each(|file| {
                println!("{}", file.display());
                fs::read(file).map(|bytes| (target.run)(&bytes))
            })
        });
        if let Err(error) = repeated {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path)?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
