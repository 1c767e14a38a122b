//! Shelves of books whose programs are of two versions. They are in `src/bin`, what they have in common is `src/program.rs`.

/// The programs of the guide's page about types that change compile and run: the service of one of them comes from a file here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/changing-types.md")]
struct Guide;
