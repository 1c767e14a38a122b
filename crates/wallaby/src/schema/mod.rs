//! What values of a type look like, so that programs which do not have the type can make and read them.
//!
//! [`Codec::schema`](crate::codec::Codec::schema) gives the schema of a type, and `wallaby.Reflection` those of an endpoint's
//! methods ([`crate::reflection`]). It is found by asking serde, as fingerprints are. What a type's `Deserialize` did not let
//! be seen is [`Shape::Unknown`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

mod walk;

pub(crate) use self::walk::of;

/// What values of a type look like: its shape, and the types with names that the shape refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The type itself.
    pub root: Shape,
    /// Structs and enums by their names, those that recur in themselves among them. Two types of one name are told apart by a
    /// number, as in `Page` and `Page#2`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, Definition>,
}

/// What values at one place look like, in the words of serde. As text it looks like Rust.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Shape {
    /// It could not be seen.
    #[default]
    Unknown,
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
    F32,
    F64,
    Char,
    Str,
    /// Bytes in one piece. A `Vec<u8>` is none, but a sequence of numbers.
    Bytes,
    Unit,
    Option(Box<Self>),
    Seq(Box<Self>),
    /// Keys and values.
    Map(Box<Self>, Box<Self>),
    Tuple(Vec<Self>),
    /// One of [`Schema::types`].
    Named(String),
}

/// A type with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Definition {
    /// A struct.
    Struct(Content),
    /// An enum: its variants, in order.
    Enum(Vec<Variant>),
}

/// A variant of an enum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub content: Content,
}

/// What a struct or a variant holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// It could not be seen.
    #[default]
    Unknown,
    /// Nothing.
    Unit,
    /// One thing, which stands for it.
    Newtype(Shape),
    /// Several things without names.
    Tuple(Vec<Shape>),
    /// Things with names, in the order in which they are written.
    Fields(Vec<Field>),
}

/// A field of a struct or of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub shape: Shape,
}

impl Definition {
    /// The type of this name as Rust would have it, in one line.
    pub fn text(&self, name: &str) -> String {
        match self {
            Self::Struct(content) => format!("struct {name}{content}"),
            Self::Enum(variants) => {
                let variants = variants.iter();
                let variants =
                    variants.map(|variant| format!("{}{}", variant.name, variant.content));
                let variants: Vec<String> = variants.collect();
                format!("enum {name} {{ {} }}", variants.join(", "))
            }
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str(" ?"),
            Self::Unit => Ok(()),
            Self::Newtype(shape) => write!(f, "({shape})"),
            Self::Tuple(shapes) => {
                let shapes: Vec<String> = shapes.iter().map(Shape::to_string).collect();
                write!(f, "({})", shapes.join(", "))
            }
            Self::Fields(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|field| format!("{}: {}", field.name, field.shape));
                write!(f, " {{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "?",
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I128 => "i128",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U128 => "u128",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Char => "char",
            Self::Str => "String",
            Self::Bytes => "Bytes",
            Self::Unit => "()",
            Self::Named(name) => name,
            Self::Option(some) => return write!(f, "Option<{some}>"),
            Self::Seq(element) => return write!(f, "Vec<{element}>"),
            Self::Map(key, value) => return write!(f, "Map<{key}, {value}>"),
            Self::Tuple(parts) => return tuple(f, parts),
        })
    }
}

fn tuple(f: &mut fmt::Formatter<'_>, parts: &[Shape]) -> fmt::Result {
    match parts {
        // Arrays look so to serde.
        [first, rest @ ..] if rest.len() > 2 && rest.iter().all(|part| part == first) => {
            write!(f, "[{first}; {}]", parts.len())
        }
        [one] => write!(f, "({one},)"),
        parts => {
            f.write_str("(")?;
            for (index, part) in parts.iter().enumerate() {
                let comma = if index > 0 { ", " } else { "" };
                write!(f, "{comma}{part}")?;
            }
            f.write_str(")")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_look_like_rust() {
        let word = || Shape::Str;
        let map = Shape::Map(Box::new(word()), Box::new(Shape::Named("Doc".into())));
        let shape = Shape::Tuple(vec![
            Shape::Option(Box::new(Shape::Seq(Box::new(map)))),
            Shape::Tuple(vec![Shape::U8; 4]),
            Shape::Tuple(vec![]),
            Shape::Unknown,
        ]);
        assert_eq!(
            shape.to_string(),
            "(Option<Vec<Map<String, Doc>>>, [u8; 4], (), ?)"
        );
    }

    #[test]
    fn a_schema_survives_as_json() {
        let types = [(
            "List".to_owned(),
            Definition::Enum(vec![Variant {
                name: "Cons".into(),
                content: Content::Tuple(vec![Shape::U32, Shape::Named("List".into())]),
            }]),
        )];
        let schema = Schema {
            root: Shape::Named("List".into()),
            types: types.into(),
        };
        let text = serde_json::to_string(&schema).expect("it is plain");
        assert_eq!(
            text,
            r#"{"root":{"named":"List"},"types":{"List":{"enum":[{"name":"Cons","content":{"tuple":["u32",{"named":"List"}]}}]}}}"#
        );
        assert_eq!(serde_json::from_str::<Schema>(&text).expect("ours"), schema);
    }
}
