//! What the compiler for `.x` files says about wrong ones. `WALLABY_BLESS=1` records it anew.

#![cfg(feature = "onc")]

use std::path::Path;
use std::{env, fs};

use wallaby_idl::onc::{CompileError, Compiler};

/// `tests/onc/NAME.x` has the errors that are recorded in `NAME.txt`.
fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onc");
    let file = format!("{name}.x");
    let text = fs::read_to_string(folder.join(&file)).expect("the file is there");
    let error = match Compiler::new().include(&folder).compile_text(&file, text) {
        Err(CompileError::Interface(diagnostics)) => CompileError::Interface(diagnostics),
        other => panic!("{file}: expected errors in the file, found {other:?}"),
    };
    let found = format!("{error}\n");
    let recorded = folder.join(format!("{name}.txt"));
    if env::var_os("WALLABY_BLESS").is_some() {
        fs::write(&recorded, &found).expect("the folder of records can be written");
    }
    assert_eq!(
        found,
        fs::read_to_string(&recorded).unwrap_or_default(),
        "{file}"
    );
}

#[test]
fn names_that_mean_nothing_or_too_much() {
    check("names");
}

#[test]
fn numbers_that_do_not_fit() {
    check("numbers");
}

#[test]
fn types_that_cannot_be() {
    check("types");
    check("sizes");
}

#[test]
fn programs_that_cannot_be_told_apart() {
    check("programs");
}

/// The first error of this text.
fn check_text(text: &str, expected: &str) {
    let error = match Compiler::new().compile_text("a.x", text) {
        Err(error) => error.to_string(),
        Ok(code) => panic!("expected an error in {text:?}, found {code}"),
    };
    let first = error.lines().next().unwrap_or_default();
    assert_eq!(first, format!("a.x:{expected}"), "{text:?}");
}

#[test]
fn words_out_of_place() {
    check_text(
        "int x;",
        "1:1: error: expected `const`, `enum`, `struct`, `union`, `typedef` or `program`, found `int`",
    );
    check_text("struct a { int x }", "1:18: error: expected `;`, found `}`");
    check_text(
        "struct a {\n\tint x;\n",
        "3:1: error: expected a type, found the end of the file",
    );
    check_text(
        "enum a { X Y };",
        "1:12: error: expected `,` or `}`, found `Y`",
    );
    check_text(
        "struct int { int x; };",
        "1:8: error: expected a name, found the keyword `int`",
    );
    check_text(
        "struct a { string x; };",
        "1:20: error: expected `<`: a string has a length, found `;`",
    );
    check_text(
        "struct a { string x[3]; };",
        "1:20: error: expected `<`: the length of a string varies",
    );
    check_text(
        "struct a { opaque x; };",
        "1:20: error: expected `[` or `<`: opaque data has a length, found `;`",
    );
    check_text(
        "struct a { void; };",
        "1:12: error: expected a field: `void` stands in unions and procedures only",
    );
    check_text(
        "struct a { int *x<>; };",
        "1:18: error: an array of optional values needs a name for them: use `typedef` first",
    );
    check_text(
        "struct a { string *x; };",
        "1:12: error: expected a type that can be optional: give this one a name with `typedef` first",
    );
    check_text(
        "union a switch (int x) { };",
        "1:26: error: expected `case`, found `}`",
    );
    check_text(
        "union a (int x) { case 1: void; };",
        "1:9: error: expected `switch`, found `(`",
    );
    check_text(
        "program A { } = 1;",
        "1:13: error: expected `version`, found `}`",
    );
    check_text(
        "program A { version B { int C(int, void) = 1; } = 1; } = 1;",
        "1:40: error: `void` cannot stand among other arguments",
    );
    check_text(
        "const A = \"text",
        "1:11: error: expected another `\"` on this line",
    );
    check_text(
        "const A = 'ab';",
        "1:11: error: expected one character between `'` and `'`",
    );
    check_text(
        "const A = 0x;",
        "1:11: error: expected a number, found `0x`",
    );
    check_text(
        "const A = 09;",
        "1:11: error: expected a number, found `09`",
    );
    check_text("const A = @;", "1:11: error: `@` means nothing here");
    check_text(
        "const A = 1; /* no end",
        "1:14: error: expected `*/` somewhere after this",
    );
    check_text(
        "const \u{e4} = 1;",
        "1:7: error: `\u{e4}` means nothing here",
    );
}

#[test]
fn wrong_lines_for_the_preprocessor() {
    check_text(
        "#if 1\nconst A = 1;",
        "1:1: error: expected `#endif` somewhere after this",
    );
    check_text("#endif", "1:1: error: `#endif` without an `#if` before it");
    check_text("#else", "1:1: error: `#else` without an `#if` before it");
    check_text(
        "#if 1\n#else\n#else\n#endif",
        "3:1: error: `#else` without an `#if` before it",
    );
    check_text(
        "#if 1 +\n#endif",
        "1:1: error: expected a number or the name of a constant, found the end of the file",
    );
    check_text(
        "#define F(x, 1) x",
        "1:1: error: expected names between `(` and `)` after `F`",
    );
    check_text(
        "#define F(x) x\nconst A = F(1, 2);",
        "2:11: error: expected 1 arguments of `F`, found 2",
    );
    check_text(
        "#define F(x) x\nconst A = F(1;\n",
        "2:11: error: expected `)` after the arguments of `F`",
    );
    check_text(
        "#define A 1 /* no end\n",
        "1:1: error: expected `*/` somewhere after this",
    );
    check_text(
        "#include \"missing.h\"",
        "1:1: error: cannot find `missing.h` in `.`",
    );
    check_text(
        "#include <missing.h>",
        "1:1: error: cannot find `missing.h`: no folder for includes was given",
    );
    check_text("#error too old", "1:1: error: #error too old");
    check_text(
        "#nonsense",
        "1:1: error: the preprocessor knows no `#nonsense`",
    );
}

#[test]
fn what_is_too_much_is_refused() {
    let nested = |open: &str, close: &str| {
        format!(
            "const A = {}1{};",
            open.repeat(10_000),
            close.repeat(10_000)
        )
    };
    check_text(
        &nested("(", ")"),
        "1:76: error: the expression is nested too deeply",
    );
    check_text(
        &nested("-", ""),
        "1:76: error: the expression is nested too deeply",
    );
    let long = format!("const A = 1{};", "+1".repeat(10_000));
    check_text(&long, "1:2012: error: the expression is too long");
    // Each name stands for ten of the next.
    let mut bomb = String::new();
    for level in 0..20 {
        let next = format!(" A{}", level + 1).repeat(10);
        bomb.push_str(&format!("#define A{level}{next}\n"));
    }
    bomb.push_str("const B = A0;");
    check_text(
        &bomb,
        "21:11: error: the definition of this name is too long",
    );
    // The same with nothing in the end; and constants of constants.
    let mut bomb = bomb.replace("const B = A0;", "#define A20\nconst A0 B = 1;");
    check_text(
        &bomb,
        "22:7: error: the definition of this name is too long",
    );
    bomb.clear();
    for level in 0..60 {
        bomb.push_str(&format!("const A{level} = A{0} | A{0};\n", level + 1));
    }
    bomb.push_str("const A60 = 1;");
    let compiled = Compiler::new().compile_text("a.x", bomb);
    assert!(compiled.expect("it compiles").contains("A0: u32 = 1;"));
    let names: String = (0..10_000)
        .map(|level| format!("#define A{level} A{}\n", level + 1))
        .collect();
    check_text(
        &(names + "const B = A0;"),
        "10001:11: error: the definition of this name is too long",
    );
    let types = format!(
        "struct a {{ {} int x; {} }};",
        "struct {".repeat(100),
        "} x;".repeat(100)
    );
    let error = Compiler::new().compile_text("a.x", types).unwrap_err();
    assert!(
        error.to_string().contains("types are nested too deeply"),
        "{error}"
    );
}

#[test]
fn symbols_and_types_from_elsewhere() {
    let text = "#ifdef WIDE\ntypedef hyper number;\n#else\ntypedef int number;\n#endif\nstruct a { number x[LENGTH]; id y; };";
    let compiler = Compiler::new()
        .define("WIDE", "")
        .define("LENGTH", "0x10")
        .external("id", "crate::ids::Id");
    let code = compiler.compile_text("a.x", text).expect("it compiles");
    for part in [
        "pub type Number = i64;",
        "pub x: [Number; 16],",
        "pub y: crate::ids::Id,",
    ] {
        assert!(code.contains(part), "expected {part} in {code}");
    }
    let wrong = Compiler::new()
        .external("id", "no path")
        .compile_text("a.x", text);
    assert_eq!(
        wrong.unwrap_err().to_string(),
        "expected the path of a Rust type for `id`, found `no path`"
    );
}

#[test]
fn build_scripts_get_a_file_and_what_it_depends_on() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = target.join("clock.x");
    fs::write(target.join("times.x"), "typedef unsigned hyper time;").expect("it can be written");
    fs::write(&source, "#include \"times.x\"\nstruct clock { time now; };")
        .expect("it can be written");
    let read = Compiler::new()
        .build_in(&source, target)
        .expect("it compiles");
    assert_eq!(read, [source, target.join("times.x")]);
    let code = fs::read_to_string(target.join("clock.rs")).expect("it is written");
    assert!(code.contains("pub struct Clock"), "{code}");
}

/// Files from everywhere: a mark at the beginning, lines that end as DOS ends them, old encodings, lines joined, names
/// that are the same in Rust.
#[test]
fn what_others_wrote_is_taken() {
    let folder = env::temp_dir().join(format!("wallaby-idl-others-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    fs::write(folder.join("old.x"), b"/* caf\xe9 */\r\n#define N 3").expect("it can be written");
    let text = "\u{feff}#include \"old.x\"\r\n#if N == \\\r\n 3 /* two\r\n lines */\r\ntypedef hyper int wide \\\r\n[N];\r\n#endif\r\n\
        struct point { int x; int X; };\r\nstruct Point { struct { quadruple wide<>; } *x; };\r\nstruct Point_x { int y; };\r\n\
        typedef enum { A } *few;";
    let file = folder.join("file.x");
    fs::write(&file, text).expect("it can be written");
    let code = Compiler::new().compile(&file).expect("it compiles");
    for part in [
        "pub struct Wide(pub [i64; 3]);",
        "pub x_: i32,",
        "pub struct Point_ {",
        "pub x: Option<PointX_>,",
        "pub wide: Vec<Quadruple>,",
        "pub struct Few(pub Option<FewFew>);",
    ] {
        assert!(code.contains(part), "expected {part} in {code}");
    }
    fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn whatever_the_text_is_it_is_compiled_or_refused() {
    const TEXT: &str = "#define N 3\n#if N > 2 && defined(N)\n%#define M N\nconst A = M + 0x1f; /* what */\n#endif\n\
        enum e { X = 1, Y };\nstruct s { e one; string two<A>; opaque three[2]; s *next; struct { int x; } in; };\n\
        union u switch (e which) { case X: s there; case Y: void; default: hyper other<>; };\ntypedef u us<7>;\n\
        program P { version V { us F(s, int a) = 1; void G(void) = 2; } = 1; } = 9;\n";
    let parts: Vec<&str> = TEXT
        .split_inclusive(|letter: char| !letter.is_alphanumeric())
        .collect();
    let strange = [
        "{", "}", "<", ">", "*", "/*", "*/", "\"", "'", "\n#", "\n%", "\\\n", "\u{e4}", "-", "999",
        "struct ",
    ];
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut text: Vec<&str> = parts.clone();
        for _ in 0..=random.usize(..4) {
            let at = random.usize(..text.len());
            match random.usize(..4) {
                0 if text.len() > 1 => drop(text.remove(at)),
                1 => text.insert(at, strange[random.usize(..strange.len())]),
                2 => text[at] = parts[random.usize(..parts.len())],
                _ => text.truncate(at + 1),
            }
        }
        let text = text.concat();
        let compiled =
            std::panic::catch_unwind(
                || match Compiler::new().compile_text("a.x", text.as_str()) {
                    Ok(code) => assert!(code.contains("wallaby_onc")),
                    Err(CompileError::Interface(errors)) => assert!(!errors.is_empty()),
                    Err(error) => panic!("{error}"),
                },
            );
        assert!(compiled.is_ok(), "seed {seed}: {text}");
    }
}

/// Files that include each other twice, or one that never ends, are an error and no endless work.
#[test]
fn included_files_are_limited_together() {
    let folder = env::temp_dir().join(format!("wallaby-idl-includes-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    let twice = "#include \"twice.h\"\n".repeat(2) + &" ".repeat(100_000);
    fs::write(folder.join("twice.h"), twice).expect("it can be written");
    fs::write(folder.join("long.h"), " ".repeat((16 << 20) + 1)).expect("it can be written");
    for (name, expected) in [
        ("twice.h", "nested too deeply"),
        (
            "long.h",
            "all included files together have more than 16 MiB",
        ),
    ] {
        let file = folder.join("file.x");
        fs::write(&file, format!("#include \"{name}\"\n")).expect("it can be written");
        let error = Compiler::new().compile(&file).expect_err("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
    fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn the_same_typedef_again_is_harmless_and_another_one_is_not() {
    let text = "const SIZE = 8; typedef opaque handle<SIZE>; typedef opaque handle<8>; typedef int n; typedef int n;";
    let code = Compiler::new().compile_text("a.x", text);
    let code = code.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(code.matches("pub struct Handle").count(), 1, "{code}");
    assert_eq!(code.matches("pub type N ").count(), 1, "{code}");
    let there = "the type `n` is there already, in line 1: expected another name";
    check_text(
        "typedef int n; typedef hyper n;",
        &format!("1:30: error: {there}"),
    );
    check_text(
        "struct n { int a; }; typedef int n;",
        &format!("1:34: error: {there}"),
    );
}

#[test]
fn credentials_of_the_headers_are_known_unless_the_file_has_its_own() {
    let union = "union u switch (unsigned int f) { case AUTH_SYS: authsys_parms p; case RPCSEC_GSS: void; };";
    let code = Compiler::new().compile_text("a.x", union);
    let code = code.unwrap_or_else(|error| panic!("{error}"));
    assert!(code.contains("pub struct AuthsysParms"), "{code}");
    assert!(code.contains("6_u32 =>"), "{code}");
    let own = format!("const RPCSEC_GSS = 7; {union}");
    let code = Compiler::new().compile_text("a.x", own);
    assert!(code.is_ok_and(|code| code.contains("7_u32 =>")));
}

/// The code is as lints want it, whatever names and comments are like.
#[test]
fn lints_have_nothing_to_say() {
    let text = "\
/* A list:
 * - one;
 *   and more
 * 1. two
 * + three\twith a tab
 * ====== */
enum fs_error { FS_OK, FS_IO, FS_NONE };
union flagged switch (bool b) { case TRUE: int x; default: int y; };
union many switch (int n) { case 1: case 2: case 3: int y; default: void; };
program P { version V { int NEW(int) = 1; int ALL(int, int, int, int, int, int) = 2; } = 1; } = 9;
";
    let code = Compiler::new().compile_text("a.x", text);
    let code = code.unwrap_or_else(|error| panic!("{error}"));
    for line in [
        "/// \\- one;\n/// and more\n/// 1\\. two\n/// \\+ three with a tab\n/// \\======\n",
        "#[allow(clippy::enum_variant_names)]\n#[repr(i32)]\npub enum FsError",
        "[true].contains(other)",
        "#[allow(clippy::new_ret_no_self, clippy::wrong_self_convention)]\n            fn new(",
        "#[allow(\n                clippy::too_many_arguments,",
        "[1_i32, 2_i32, 3_i32].contains(other)",
    ] {
        assert!(code.contains(line), "{line:?} is missing: {code}");
    }
}
