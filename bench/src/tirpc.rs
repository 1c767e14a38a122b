//! ONC RPC by libtirpc, Linux' own implementation of SunRPC: the neighbour that FlexRPC is compared with.
//!
//! Nothing here depends on it until it is measured: then a few lines of C are compiled against the headers that are
//! installed, and loaded. What is missing for that is said, with what to install.

mod library;

use anyhow::{Context, Result, bail};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::fleet::{Control, ServerConfig, Transport};
use crate::harness::Traffic;

pub use library::{Handle, Library};

/// The version of libtirpc that is installed, with its headers.
pub fn version() -> Option<String> {
    let output = Command::new("pkg-config")
        .args(["--modversion", "libtirpc"])
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| format!("libtirpc {}", version.trim()))
}

/// Compiles what [`serve`] and clients load, into the folder of a run.
///
/// # Errors
/// What is missing, and how it is installed.
pub fn prepare(folder: &Path) -> Result<()> {
    let (source, library) = (folder.join("adapter.c"), folder.join(LIBRARY));
    if library.exists() {
        return Ok(());
    }
    std::fs::write(&source, include_str!("tirpc/adapter.c"))?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    let output = compiler.args(flags()).output().context(NEEDS)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("nothing");
        bail!("{NEEDS}; the compiler said: {first}");
    }
    Ok(())
}

/// The library that [`prepare`] has left in the folder of a run.
///
/// # Errors
/// It is not there, or can't be loaded.
pub fn library(folder: &Path) -> Result<Library> {
    let path = folder.join(LIBRARY);
    // One that was loaded from there before is found by its name, even if the file is gone.
    fs::metadata(&path).with_context(|| format!("there is no {}", path.display()))?;
    Library::load(&path)
}

/// What libtirpc is compiled and linked with.
fn flags() -> Vec<String> {
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "libtirpc"])
        .output();
    let told = output.ok().filter(|output| output.status.success());
    let told = told.and_then(|output| String::from_utf8(output.stdout).ok());
    let told = told.unwrap_or_else(|| "-I/usr/include/tirpc -ltirpc".into());
    told.split_whitespace().map(str::to_owned).collect()
}

/// Runs a server, one loop (`svc_run`), until its client has gone. `buffer` is for a message, 0 libtirpc's own choice.
///
/// # Errors
/// There is no library, or what the server met with.
pub fn serve(config: &ServerConfig, buffer: u32) -> Result<()> {
    let library = library(&config.folder)?;
    let anywhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let (address, socket) = match config.transport {
        Transport::Udp => {
            let socket = UdpSocket::bind(anywhere)?;
            (socket.local_addr()?, socket.into_raw_fd())
        }
        Transport::Tcp => {
            let listener = TcpListener::bind(anywhere)?;
            (listener.local_addr()?, listener.into_raw_fd())
        }
        other => bail!("libtirpc is not measured over {other}"),
    };
    let transport = config.transport;
    thread::spawn(move || {
        library.serve(socket, transport, buffer);
        eprintln!("a server of libtirpc ended");
        std::process::exit(1);
    });
    let mut control = Control;
    control.exchange_addresses(&address.to_string())?;
    control.attend(Traffic::default)
}

const LIBRARY: &str = "libtirpc-adapter.so";
const NEEDS: &str = "libtirpc is needed with its headers, and a C compiler (Debian: libtirpc-dev, gcc, pkg-config; \
    'scripts/setup.sh test' installs them)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::folder;

    #[test]
    fn what_is_not_there_is_an_error_that_says_so() {
        let folder = folder().unwrap();
        let error = library(folder.path()).unwrap_err().to_string();
        assert!(error.contains(LIBRARY), "{error}");
    }

    #[test]
    fn a_library_that_is_compiled_can_be_loaded() {
        let folder = folder().unwrap();
        if let Err(missing) = prepare(folder.path()) {
            eprintln!("SKIPPED: {missing:#}");
            return;
        }
        library(folder.path()).unwrap();
    }
}
