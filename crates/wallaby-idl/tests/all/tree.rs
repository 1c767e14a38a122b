//! The tree as a front end without Rust source fills it: its names and types are its own.

use proc_macro2::Span;
use quote::format_ident;
use wallaby_idl::tree::{
    Answer, Argument, Attributes, Flaw, Interface, Method, Name, Place, Stream, Type,
};

/// What a program with one procedure of an ONC RPC interface would become.
fn program() -> Interface {
    Interface {
        package: Some("nfs".into()),
        name: Name {
            wire: "NFS_PROGRAM".into(),
            rust: format_ident!("Nfs"),
        },
        visibility: syn::parse_quote!(pub),
        attributes: Attributes::documented(&[" Version 3."]),
        codec: Some(kind("::codecs::Xdr")),
        framework: None,
        methods: vec![getattr()],
    }
}

fn getattr() -> Method {
    Method {
        name: Name {
            wire: "NFSPROC3_GETATTR".into(),
            rust: format_ident!("getattr"),
        },
        attributes: Attributes::default(),
        arguments: vec![Argument {
            name: format_ident!("arg1"),
            kind: kind("GETATTR3args"),
        }],
        stream: None,
        answer: Answer::one(kind("GETATTR3res")),
    }
}

fn kind(text: &str) -> Type {
    Type::parse(text).expect("a type")
}

#[test]
fn names_on_the_wire_are_the_front_ends() {
    let interface = program();
    assert_eq!(interface.flaws(), []);
    let code = prettyplease::unparse(
        &syn::parse2(wallaby_idl::emit(&interface)).expect("the code is Rust"),
    );
    for part in [
        "pub trait Nfs:",
        "pub mod nfs {",
        "\"nfs.NFS_PROGRAM\"",
        "\"nfs.NFS_PROGRAM/NFSPROC3_GETATTR\"",
        "pub fn getattr(\n            &self,\n            arg1: GETATTR3args,",
        "::wallaby::Call<::wallaby::One<GETATTR3res>, ::codecs::Xdr>",
    ] {
        assert!(code.contains(part), "expected {part} in\n{code}");
    }
}

#[test]
fn answers_can_be_many() {
    let mut interface = program();
    interface.methods[0].answer = Answer::many(kind("entry3"));
    let code = wallaby_idl::emit(&interface).to_string();
    assert!(code.contains(":: wallaby :: Many < entry3 >"), "{code}");
}

#[test]
fn streams_need_no_spelling() {
    let mut interface = program();
    let streams = [
        (
            Some(kind("entry3")),
            ":: wallaby :: Streaming < entry3 , :: codecs :: Xdr >",
        ),
        (None, ":: wallaby :: Body"),
    ];
    for (item, expected) in streams {
        interface.methods[0].stream = Some(Stream {
            name: format_ident!("entries"),
            item,
            spelled: None,
        });
        assert_eq!(interface.flaws(), []);
        let code = wallaby_idl::emit(&interface).to_string();
        assert!(code.contains(&format!("entries : {expected}")), "{code}");
    }
    interface.methods[0].arguments[0].name = format_ident!("entries");
    let flaws = interface.flaws();
    assert_eq!(flaws.len(), 1, "{flaws:?}");
    assert_eq!(flaws[0].place, Place::Argument(0, 1));
}

#[test]
fn flaws_tell_their_place() {
    let mut interface = program();
    interface.package = Some("wallaby.nfs".into());
    interface.name.rust = syn::Ident::new("nfs", Span::call_site());
    interface.methods[0].arguments = vec![interface.methods[0].arguments[0].clone(); 2];
    interface.methods.push(getattr());
    let places: Vec<Place> = interface
        .flaws()
        .into_iter()
        .map(|Flaw { place, .. }| place)
        .collect();
    assert_eq!(
        places,
        [
            Place::Package,
            Place::Name,
            Place::Argument(0, 1),
            Place::Method(1)
        ]
    );
}
