//! What the compiler makes of interface files: the code is as recorded, and values of every type in it are read and
//! written as the file says. `WALLABY_BLESS=1` records the code anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bytes::Bytes;
use proptest::prelude::*;
use wallaby_idl::onc::Compiler;
use wallaby_onc::xdr::{self, DecodeError, EncodeError, Malformed, Xdr, XdrLimits};

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod everything {
    include!("../generated/everything.rs");
}
#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod cross {
    include!("../generated/cross.rs");
}
#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod mount {
    include!("../generated/mount.rs");
}
#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod nfs2 {
    include!("../generated/nfs2.rs");
}

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod odd {
    include!("../generated/odd.rs");
}

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod plain {
    include!("../generated/plain.rs");
}
#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod tricky {
    include!("../generated/tricky.rs");
}

/// Reads a value and writes it again.
type Pass = fn(Bytes) -> Result<Bytes, DecodeError>;

fn pass<T: Xdr + PartialEq + std::fmt::Debug>(bytes: Bytes) -> Result<Bytes, DecodeError> {
    let value: T = xdr::decode(bytes, XdrLimits::default())?;
    Ok(xdr::encode(&value).expect("what was read can be written"))
}

macro_rules! types {
    ($module:ident: $($name:ident)*) => {
        [$((stringify!($name), pass::<$module::$name> as Pass)),*].into()
    };
}

/// The types of a file, by their names in Rust.
fn types(file: &str) -> BTreeMap<&'static str, Pass> {
    match file {
        "everything" => types!(everything:
            ByColor ByNumber ByTruth Chain Color Empty Holder HolderPoint HolderPointPart HolderPointPartState Key Label
            Labels Lengths Link MaybeLengths Narrow Netobj Node Quadruple Result_ SameColor Scalars Serial Tree
        ),
        "cross" => types!(cross: Block Found Pair People Person PersonList),
        "mount" => types!(mount:
            Dirpath Exportnode Exports Fhandle Fhstatus Groupnode Groups Mountbody Mountlist Name
        ),
        "odd" => {
            types!(odd: All Binary Block Blocks ByTruth EverythingOdd Expression Few Fixed Forest Grid Inner Kind MaybeFixed MaybeWord Number NumberAgain Outer UnsignedChoice Word Yang Yin)
        }
        "plain" => types!(plain:
            All Answer Block Chosen Item Numbers Pair Several State States Title Token Tree Truth
        ),
        "tricky" => types!(tricky:
            ByLetter ByUnsigned ByWord C_ S_ T Thing Thing_ Thing__ Wide Word
        ),
        _ => types!(nfs2: Attrstat Diropargs Fattr Filename Ftype NfsFh Nfsstat Nfstime Writeargs),
    }
}

const FILES: [&str; 7] = [
    "cross",
    "everything",
    "mount",
    "nfs2",
    "odd",
    "plain",
    "tricky",
];

fn interface(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/interfaces/{file}.x"))
}

#[test]
fn code_is_as_recorded() {
    for file in FILES {
        let recorded =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/generated/{file}.rs"));
        is_recorded(&Compiler::new(), &interface(file), &recorded);
    }
}

#[test]
fn rpcbind_the_example_and_methods_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rpcbind = folder.join("interfaces/rpcbind.x");
    is_recorded(&Compiler::new(), &rpcbind, &rpcbind.with_extension("rs"));
    let example = folder.join("examples/quota/quota.x");
    is_recorded(&Compiler::new(), &example, &example.with_extension("rs"));
    let methods = folder.join("tests/generated/cross_methods.rs");
    is_recorded(&Compiler::new().methods(), &interface("cross"), &methods);
}

fn is_recorded(compiler: &Compiler, file: &Path, recorded: &Path) {
    let code = match compiler.compile(file) {
        Ok(code) => code,
        Err(error) => panic!("{error}"),
    };
    if env::var_os("WALLABY_BLESS").is_some() {
        fs::write(recorded, &code).expect("the folder of recorded code can be written");
    }
    let found = fs::read_to_string(recorded).unwrap_or_default();
    assert!(
        found == code,
        "{}: the code is another one: look at it with WALLABY_BLESS=1",
        recorded.display()
    );
}

#[test]
fn all_types_are_tried() {
    for file in FILES {
        let model = Compiler::new().model(interface(file)).expect("it compiles");
        let mut names: Vec<&str> = model
            .types
            .iter()
            .map(|known| known.rust.as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, types(file).into_keys().collect::<Vec<_>>(), "{file}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn values_of_every_type_come_through_as_they_are(seed in any::<u64>()) {
        for file in FILES {
            let model = Compiler::new().model(interface(file)).unwrap();
            let passes = types(file);
            for (at, known) in model.types.iter().enumerate() {
                let bytes = crate::author::bytes(&model, at, seed);
                let passed = passes[known.rust.as_str()](bytes.clone());
                prop_assert_eq!(passed.as_ref(), Ok(&bytes), "{} of {}.x", known.name, file);
            }
        }
    }

    #[test]
    fn damaged_values_are_read_or_refused(seed in any::<u64>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for file in FILES {
            let model = Compiler::new().model(interface(file)).unwrap();
            let passes = types(file);
            for (type_at, known) in model.types.iter().enumerate() {
                let mut bytes = crate::author::bytes(&model, type_at, seed).to_vec();
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                let _ = passes[known.rust.as_str()](bytes.into());
            }
        }
    }
}

fn bytes(hex: &str) -> Bytes {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// The value has these bytes, which C code of rpcgen made of the same value, and is read from them.
fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: T, hex: &str) {
    assert_eq!(xdr::encode(&value), Ok(bytes(hex)));
    assert_eq!(
        xdr::decode::<T>(bytes(hex), XdrLimits::default()),
        Ok(value)
    );
}

const HANDLE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn handle() -> nfs2::NfsFh {
    let data = std::array::from_fn(|at| at as u8);
    nfs2::NfsFh { data }
}

#[test]
fn structs_have_the_bytes_of_rpcgen() {
    let arguments = |name: &str| nfs2::Diropargs {
        dir: handle(),
        name: nfs2::Filename(name.into()),
    };
    check(
        arguments("a.txt"),
        &format!("{HANDLE}00000005612e747874000000"),
    );
    check(arguments(""), &format!("{HANDLE}00000000"));
    let write = nfs2::Writeargs {
        file: handle(),
        beginoffset: 1,
        offset: 4_294_967_280,
        totalcount: 5,
        data: Bytes::from_static(b"\xff\0hi!"),
    };
    let hex = "00000001fffffff00000000500000005ff00686921000000";
    check(write, &format!("{HANDLE}{hex}"));
}

#[test]
fn unions_have_the_bytes_of_rpcgen() {
    let never = || nfs2::Nfstime {
        seconds: 0,
        useconds: 0,
    };
    let folder = nfs2::Fattr {
        r#type: nfs2::Ftype::Nfdir,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 4096,
        blocksize: 0,
        rdev: 0,
        blocks: 0,
        fsid: 0,
        fileid: 0,
        atime: nfs2::Nfstime {
            seconds: 1_700_000_000,
            useconds: 999_999,
        },
        mtime: never(),
        ctime: never(),
    };
    let hex = "0000000000000002000001ed00000002000000000000000000001000000000000000000000000000\
               00000000000000006553f100000f423f00000000000000000000000000000000";
    check(nfs2::Attrstat::NfsOk(folder), hex);
    check(
        nfs2::Attrstat::Default(nfs2::Nfsstat::NfserrStale),
        "00000046",
    );
}

#[test]
fn lists_have_the_bytes_of_rpcgen() {
    use mount::{Dirpath, Exportnode, Exports, Groupnode, Groups, Name};
    let groups = |names: &[&str]| {
        let node = |name: &&str| Groupnode {
            gr_name: Name((*name).into()),
        };
        Groups(names.iter().map(node).collect())
    };
    let export = |dir: &str, names| Exportnode {
        ex_dir: Dirpath(dir.into()),
        ex_groups: groups(names),
    };
    let exports = Exports(vec![export("/srv/data", &["grp", "b"]), export("/x", &[])]);
    let hex = "00000001000000092f7372762f6461746100000000000001000000036772700000000001000000016200000000000000\
               00000001000000022f7800000000000000000000";
    check(exports, hex);
    check(Exports(Vec::new()), "00000000");
}

#[test]
fn constants_have_the_values_of_the_file() {
    use everything as x;
    assert_eq!(
        (x::IN_HEADER, x::LONGEST, x::OCTAL, x::SAME, x::SUM),
        (1, 16, 15, 16, 22)
    );
    assert_eq!(
        (x::NEGATIVE, x::LARGE, x::WORDS),
        (-1, u64::MAX, "as they are")
    );
    assert_eq!(x::Color::AMBER, x::Color::Yellow);
    assert_eq!((x::Color::Green as i32, x::Color::Black as i32), (6, -1));
    assert_eq!(
        (
            x::everything::PROGRAM,
            x::everything::everything_v3::VERSION
        ),
        (0x2000_0001, 3)
    );
}

#[test]
fn limits_of_the_file_hold() {
    let too_long = xdr::encode(&everything::Label("123456789".into()));
    assert_eq!(too_long, Err(EncodeError::TooLong { limit: 8, found: 9 }));
    let claimed = bytes("00000009313233343536373839000000");
    let error = xdr::decode::<everything::Label>(claimed, XdrLimits::default()).unwrap_err();
    assert_eq!(error.problem, Malformed::TooLong { limit: 8, found: 9 });
}

#[test]
fn unknown_numbers_are_refused_by_name() {
    let error =
        xdr::decode::<everything::Color>(bytes("00000004"), XdrLimits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "at byte 0: expected one of the values of `color`, found 4"
    );
    let error =
        xdr::decode::<everything::Narrow>(bytes("00000008"), XdrLimits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "at byte 0: expected one of the values of `narrow`, found 8"
    );
}

#[test]
fn a_default_arm_is_not_written_as_another_one() {
    let wrong = everything::ByNumber::Default(0, "text".into());
    let union = "by_number";
    assert_eq!(
        xdr::encode(&wrong),
        Err(EncodeError::NotDefault { union, found: 0 })
    );
    check(
        everything::ByNumber::Default(5, "text".into()),
        "000000050000000474657874",
    );
    check(everything::ByNumber::Case0, "00000000");
    check(
        everything::ByNumber::CaseMinus3(*b"abc"),
        "fffffffd61626300",
    );
    check(
        everything::ByColor::Green(everything::Label("x".into())),
        "000000060000000178000000",
    );
    check(
        everything::ByColor::Default(everything::Color::Black),
        "ffffffff",
    );
}

#[test]
fn trees_are_no_deeper_than_values_may_be() {
    // 0, then a left child, and so on.
    let deep = "0000000000000001".repeat(200);
    let error = xdr::decode::<everything::Tree>(bytes(&deep), XdrLimits::default()).unwrap_err();
    assert_eq!(error.problem, Malformed::TooDeep { limit: 128 });
    let long = "0000000100000007".repeat(200) + "00000000";
    let chain = xdr::decode::<everything::Chain>(bytes(&long), XdrLimits::default()).unwrap();
    assert_eq!(chain.0, vec![everything::Link { number: 7 }; 200]);
}
