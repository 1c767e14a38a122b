//! Generates and compiles what peers have in place of a proc macro, as far as their tools are installed. A peer whose
//! tools are missing is left out of the program, which then says so.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for peer in ["capnp", "thrift"] {
        println!("cargo:rustc-check-cfg=cfg(have_{peer})");
    }
    for peer in ["tonic", "tarpc", "capnp-rpc", "async-nats"] {
        // A path that changes with what is installed can't be named; this runs whenever anything of the crate changes.
        let name = peer.replace('-', "_");
        println!("cargo:rustc-env=VERSION_{name}={}", locked_version(peer)?);
    }
    tonic();
    capnp()?;
    thrift(&out);
    Ok(())
}

/// The version of a dependency, out of the lock file.
fn locked_version(name: &str) -> Result<String> {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = fs::read_to_string("Cargo.lock")?;
    let entry = format!("name = \"{name}\"\nversion = \"");
    let version = lock
        .split_once(&entry)
        .and_then(|(_, rest)| rest.split('"').next());
    Ok(version.unwrap_or("of unknown version").to_owned())
}

/// A service without a .proto file, which would need protoc.
fn tonic() {
    println!("cargo:rerun-if-changed=build.rs");
    let pass = tonic_build::manual::Method::builder()
        .name("pass")
        .route_name("Pass")
        .input_type("crate::on_tonic::Message")
        .output_type("crate::on_tonic::Message")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = tonic_build::manual::Service::builder()
        .name("Relay")
        .package("bench")
        .method(pass)
        .build();
    tonic_build::manual::Builder::new().compile(&[service]);
}

fn capnp() -> Result<()> {
    needs("src/relay.capnp", "/usr/bin/capnp");
    if !runs("capnp", "--version") {
        return Ok(());
    }
    let mut compiler = capnpc::CompilerCommand::new();
    compiler.src_prefix("src").file("src/relay.capnp");
    compiler.run().map_err(std::io::Error::other)?;
    println!("cargo:rustc-cfg=have_capnp");
    Ok(())
}

fn thrift(out: &Path) {
    needs("src/relay.thrift", "/usr/bin/thrift");
    needs("src/thrift.cpp", "/usr/include/thrift");
    let Some(library) = library("thrift") else {
        return;
    };
    // Thrift's headers include Boost's.
    let boost = compiles("#include <boost/numeric/conversion/cast.hpp>", out);
    let generated = out.join("gen-cpp");
    let mut compiler = Command::new("thrift");
    compiler
        .args(["--gen", "cpp", "-o"])
        .arg(out)
        .arg("src/relay.thrift");
    if !boost || !compiler.status().is_ok_and(|status| status.success()) {
        return;
    }
    cc::Build::new()
        .cpp(true)
        .includes(&library.include_paths)
        .include(&generated)
        .files(["src/thrift.cpp".into(), generated.join("Relay.cpp")])
        .extra_warnings(false)
        .compile("relay_thrift");
    found("thrift", &library);
}

/// A library that is installed with its headers. What it is linked by is printed only by [`found`], behind the code that
/// uses it.
fn library(name: &str) -> Option<pkg_config::Library> {
    pkg_config::Config::new()
        .cargo_metadata(false)
        .probe(name)
        .ok()
}

fn found(peer: &str, library: &pkg_config::Library) {
    for path in &library.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for name in &library.libs {
        println!("cargo:rustc-link-lib={name}");
    }
    println!("cargo:rustc-cfg=have_{peer}");
    println!("cargo:rustc-env=VERSION_{peer}={}", library.version);
}

/// Whether there are the headers that a line of C++ includes.
fn compiles(line: &str, out: &Path) -> bool {
    let file = out.join("probe.cpp");
    let built = |file| {
        cc::Build::new()
            .cpp(true)
            .file(file)
            .try_compile("probe")
            .is_ok()
    };
    fs::write(&file, line).is_ok() && built(&file)
}

/// Runs this script again when one of its inputs changes, or a tool is installed or removed.
fn needs(source: &str, tool: &str) {
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed={tool}");
}

fn runs(program: &str, argument: &str) -> bool {
    let output = Command::new(program).arg(argument).output();
    output.is_ok_and(|output| output.status.success())
}
