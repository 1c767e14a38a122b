//! Values as C code of rpcgen reads and writes them, beside ours: the same bytes.
//!
//! Needs rpcgen, a C compiler and libtirpc; where one of them is missing, the test says so and does nothing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use wallaby_idl::onc::Compiler;
use wallaby_idl::onc::model::{Form, Model, Type};

/// Reads values from standard input (the type's number, how many bytes, the bytes) and writes each as it encodes it.
const PASS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "interface.h"
struct known { xdrproc_t codec; size_t size; };
static struct known known[] = { TYPES };
static char in[1 << 20], out[1 << 20];
int main(void) {
    unsigned head[2];
    while (fread(head, 4, 2, stdin) == 2) {
        unsigned length = 0;
        XDR reader, writer;
        void *value = calloc(1, known[head[0]].size + 1);
        if (head[1] > sizeof in || fread(in, 1, head[1], stdin) != head[1]) return 2;
        xdrmem_create(&reader, in, head[1], XDR_DECODE);
        xdrmem_create(&writer, out, sizeof out, XDR_ENCODE);
        if (known[head[0]].codec(&reader, value) && xdr_getpos(&reader) == head[1]
            && known[head[0]].codec(&writer, value))
            length = xdr_getpos(&writer);
        fwrite(&length, 4, 1, stdout);
        fwrite(out, 1, length, stdout);
    }
    return 0;
}
"#;

/// Whether a C compiler is there and content. It has to be, unless libtirpc is missing.
fn compiles(compiler: &mut Command, file: &str) -> bool {
    let Ok(output) = compiler.output() else {
        return false;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let is_missing = said.contains("rpc/rpc.h: No such file") || said.contains("find -ltirpc");
    assert!(
        output.status.success() || is_missing,
        "the C code for {file}.x is not C: {said}"
    );
    output.status.success()
}

/// The C program for a file. `None`: something is missing here.
fn c_program(file: &str, model: &Model) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rpcgen-{file}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/interfaces/{file}.x"));
    fs::copy(source, folder.join("interface.x")).expect("the file can be copied");
    let mut types = String::new();
    for known in &model.types {
        let name = &known.name;
        write!(types, "{{ (xdrproc_t) xdr_{name}, sizeof({name}) }}, ").expect("a string grows");
    }
    fs::write(folder.join("pass.c"), PASS.replace("TYPES", &types)).expect("it can be written");
    for (option, out) in [("-h", "interface.h"), ("-c", "interface.c")] {
        let mut rpcgen = Command::new("rpcgen");
        // In the new style, which has procedures of several arguments.
        let rpcgen = rpcgen.current_dir(&folder).args(["-N", option, "-o", out]);
        let output = rpcgen.arg("interface.x").output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "rpcgen does not take {file}.x: {said}"
        );
    }
    let mut compiler = Command::new("cc");
    let compiler = compiler.current_dir(&folder);
    let compiler = compiler.args([
        "-w",
        "-I/usr/include/tirpc",
        "pass.c",
        "interface.c",
        "-ltirpc",
        "-o",
        "pass",
    ]);
    compiles(compiler, file).then(|| folder.join("pass"))
}

/// A random value of a type. In C, an element of a list also has the pointer to the next one: here there is none.
fn value(model: &Model, at: usize, seed: u64) -> Vec<u8> {
    let mut forms = model.types.iter().flat_map(|known| known.shape.forms());
    let is_element = forms.any(|form| *form == Form::List(Type::Defined(at)));
    let mut bytes = crate::author::bytes(model, at, seed).to_vec();
    if is_element {
        bytes.extend([0; 4]);
    }
    bytes
}

#[test]
fn c_code_of_rpcgen_writes_the_same_bytes() {
    const SEEDS: u64 = 100;
    for file in ["plain", "mount", "nfs2", "odd", "tricky"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/interfaces/{file}.x"));
        let model = Compiler::new().model(path).expect("it compiles");
        let Some(program) = c_program(file, &model) else {
            // Past the harness, which keeps the words of tests that pass to itself.
            let why = "rpcgen, cc or libtirpc is missing";
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {file}.x is not compared: {why}"
            );
            continue;
        };
        let all: Vec<(usize, u64)> = (0..model.types.len())
            .flat_map(|at| (0..SEEDS).map(move |seed| (at, seed)))
            .collect();
        let mut input = Vec::new();
        for &(at, seed) in &all {
            let bytes = value(&model, at, seed);
            for number in [at as u32, bytes.len() as u32] {
                input.extend(number.to_ne_bytes());
            }
            input.extend(&bytes);
        }
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("what was compiled runs");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        // What it answers has to be read meanwhile, or both would wait for each other.
        let writer = thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().expect("it ends");
        writer
            .join()
            .expect("the writer does not panic")
            .expect("all is read");
        assert!(output.status.success(), "{file}: {}", output.status);
        let mut rest = &output.stdout[..];
        for (at, seed) in all {
            let (length, tail) = rest.split_first_chunk().expect("each value is answered");
            let (found, tail) = tail.split_at(u32::from_ne_bytes(*length) as usize);
            let name = &model.types[at].name;
            assert_eq!(
                found,
                value(&model, at, seed),
                "{name} of {file}.x, seed {seed}"
            );
            rest = tail;
        }
        assert!(rest.is_empty());
    }
}
