//! From a value to a payload, by a schema.
//!
//! In postcard structs are their fields in order and variants numbers, in MessagePack both have names.

use std::cell::RefCell;
use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeTuple, SerializeTupleVariant, Serializer,
};
use wallaby::schema::{Content, Definition, Field, Schema, Shape, Variant};

use crate::{DEPTH, SerdeFormat, Value, ValueError};

/// A payload of this value, which is called `name`.
///
/// What is missing may be an `Option`, and only that. An integer of 8 or 16 bytes may be text of its digits; a list of `u8`, and
/// bytes, either of both, base64 or a list.
///
/// # Errors
///
/// Where it does not fit, and why.
pub fn write(
    format: SerdeFormat,
    schema: &Schema,
    value: &Value,
    name: &str,
) -> Result<Vec<u8>, ValueError> {
    let wrong = RefCell::new(None);
    let given = Given {
        schema,
        named: format == SerdeFormat::MessagePack,
        wrong: &wrong,
        place: &Place(None, Step::Field(name)),
        depth: 0,
        shape: &schema.root,
        value,
    };
    let payload = match format {
        SerdeFormat::Postcard => postcard::to_allocvec(&given).map_err(|error| error.to_string()),
        SerdeFormat::MessagePack => rmp_serde::to_vec(&given).map_err(|error| error.to_string()),
    };
    payload.map_err(|error| ValueError(wrong.take().unwrap_or(error)))
}

/// Where a value is, in the way that it is written in Rust.
struct Place<'a>(Option<&'a Self>, Step<'a>);

enum Step<'a> {
    Field(&'a str),
    Index(usize),
    /// The key itself, or the value that it has.
    Key(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(parent, step) = self;
        if let Some(parent) = parent {
            write!(f, "{parent}")?;
        }
        match step {
            Step::Field(name) if parent.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key:?}]"),
        }
    }
}

/// A value that is to have this shape.
#[derive(Clone, Copy)]
struct Given<'a> {
    schema: &'a Schema,
    /// Fields and variants have names.
    named: bool,
    /// The error, kept here since formats may drop the words of errors.
    wrong: &'a RefCell<Option<String>>,
    place: &'a Place<'a>,
    depth: usize,
    shape: &'a Shape,
    value: &'a Value,
}

impl<'a> Given<'a> {
    fn wrong<E: Error>(&self, what: impl fmt::Display) -> E {
        let what = format!("{}: {what}", self.place);
        let error = E::custom(&what);
        self.wrong.borrow_mut().get_or_insert(what);
        error
    }

    fn expected<E: Error>(&self, what: impl fmt::Display) -> E {
        const MOST: usize = 60;
        let mut got = self.value.to_string();
        if got.len() > MOST {
            got.truncate(got.floor_char_boundary(MOST));
            got.push('…');
        }
        self.wrong(format_args!("expected {what}, got {got}"))
    }

    fn number<T, E: Error>(&self, number: Option<T>) -> Result<T, E> {
        number.ok_or_else(|| self.expected(self.shape))
    }

    fn unsigned<T: TryFrom<u64>, E: Error>(&self) -> Result<T, E> {
        let number = self.value.as_u64();
        self.number(number.and_then(|number| T::try_from(number).ok()))
    }

    fn signed<T: TryFrom<i64>, E: Error>(&self) -> Result<T, E> {
        let number = self.value.as_i64();
        self.number(number.and_then(|number| T::try_from(number).ok()))
    }

    /// Integers that no number of JSON, or of scripts, holds.
    fn long<T: std::str::FromStr, E: Error>(&self) -> Result<T, E> {
        let text = match self.value {
            Value::Text(text) => text.parse().ok(),
            Value::Signed(number) => number.to_string().parse().ok(),
            Value::Unsigned(number) => number.to_string().parse().ok(),
            _ => None,
        };
        self.number(text)
    }

    fn float<E: Error>(&self) -> Result<f64, E> {
        self.number(match self.value {
            Value::Text(text) if matches!(text.as_str(), "NaN" | "inf" | "-inf") => {
                text.parse().ok()
            }
            value => value.as_f64(),
        })
    }

    fn array<E: Error>(&self, what: impl fmt::Display) -> Result<&'a [Value], E> {
        match self.value {
            Value::List(values) => Ok(values),
            _ => Err(self.expected(what)),
        }
    }

    fn parts<E: Error>(&self, shapes: &[Shape]) -> Result<&'a [Value], E> {
        let what = format_args!("an array of {}", shapes.len());
        let parts = self.array(what)?;
        match parts.len() == shapes.len() {
            true => Ok(parts),
            false => Err(self.wrong(format_args!("expected {what}, got one of {}", parts.len()))),
        }
    }

    fn bytes<E: Error>(&self) -> Result<Bytes, E> {
        let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
        let bytes = match self.value {
            Value::Bytes(bytes) | Value::Octets(bytes) => Some(bytes.clone()),
            Value::Text(text) => BASE64_STANDARD.decode(text).ok().map(Bytes::from),
            Value::List(bytes) => bytes.iter().map(byte).collect(),
            _ => None,
        };
        bytes.ok_or_else(|| self.expected("bytes as base64 or as an array of numbers"))
    }

    /// The pairs of a map.
    fn pairs<E: Error>(&self) -> Result<Vec<(Value, &'a Value)>, E> {
        if let Value::Record(fields) = self.value {
            let textual = matches!(self.shape, Shape::Map(key, _) if matches!(**key, Shape::Str | Shape::Char));
            let key = |key: &String| match serde_json::from_str::<serde_json::Value>(key) {
                Ok(value) if !textual => value.into(),
                _ => Value::Text(key.clone()),
            };
            return Ok(fields
                .iter()
                .map(|(name, value)| (key(name), value))
                .collect());
        }
        if let Value::Pairs(pairs) = self.value {
            return Ok(pairs
                .iter()
                .map(|(key, value)| (key.clone(), value))
                .collect());
        }
        let what = "a map as an object or as an array of pairs";
        let pairs = self.array(what)?.iter().map(|pair| match pair {
            Value::List(pair) => match pair.as_slice() {
                [key, value] => Some((key.clone(), value)),
                _ => None,
            },
            _ => None,
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs.ok_or_else(|| self.expected(what))
    }

    /// The values of fields, in the order of these.
    fn fields<E: Error>(&self, fields: &[Field]) -> Result<Vec<&'a Value>, E> {
        let Value::Record(given) = self.value else {
            return Err(self.expected("an object"));
        };
        let known = |name: &String| fields.iter().any(|field| field.name == *name);
        if let Some((other, _)) = given.iter().find(|(name, _)| !known(name)) {
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            let names = names.join(", ");
            return Err(self.wrong(format_args!("no field {other:?}; expected {names}")));
        }
        let value = |field: &Field| match given.iter().find(|(name, _)| *name == field.name) {
            Some((_, value)) => Ok(value),
            None if matches!(field.shape, Shape::Option(_)) => Ok(&Value::Null),
            None => Err(self.wrong(format_args!("the field {:?} is missing", field.name))),
        };
        fields.iter().map(value).collect()
    }

    /// A part of this, which is there.
    fn part<T>(
        &self,
        step: Step<'_>,
        shape: &Shape,
        value: &Value,
        act: impl FnOnce(&Given<'_>) -> T,
    ) -> T {
        act(&Given {
            place: &Place(Some(self.place), step),
            depth: self.depth + 1,
            shape,
            value,
            ..*self
        })
    }

    /// The same value, seen as something else.
    fn inner(&self, shape: &'a Shape) -> Self {
        Self {
            shape,
            depth: self.depth + 1,
            ..*self
        }
    }

    fn tuple<S: Serializer>(&self, shapes: &[Shape], format: S) -> Result<S::Ok, S::Error> {
        let parts = self.parts(shapes)?;
        let mut tuple = format.serialize_tuple(parts.len())?;
        for (index, (shape, value)) in shapes.iter().zip(parts).enumerate() {
            self.part(Step::Index(index), shape, value, |part| {
                tuple.serialize_element(part)
            })?;
        }
        tuple.end()
    }

    fn map<S: Serializer>(&self, key: &Shape, value: &Shape, format: S) -> Result<S::Ok, S::Error> {
        let pairs = self.pairs()?;
        let mut map = format.serialize_map(Some(pairs.len()))?;
        for (its_key, its_value) in &pairs {
            let name = its_key
                .as_text()
                .map_or_else(|| its_key.to_string(), str::to_owned);
            let step = || Step::Key(&name);
            self.part(step(), key, its_key, |part| map.serialize_key(part))?;
            self.part(step(), value, its_value, |part| map.serialize_value(part))?;
        }
        map.end()
    }

    fn content<S: Serializer>(&self, content: &'a Content, format: S) -> Result<S::Ok, S::Error> {
        match content {
            Content::Unknown => Err(self.wrong("its type is not known")),
            Content::Unit if *self.value == Value::Null => format.serialize_unit_struct(""),
            Content::Unit => Err(self.expected("null")),
            Content::Newtype(shape) => format.serialize_newtype_struct("", &self.inner(shape)),
            Content::Tuple(shapes) => self.tuple(shapes, format),
            Content::Fields(fields) if self.named => {
                let values = self.fields(fields)?;
                let mut map = format.serialize_map(Some(fields.len()))?;
                for (field, value) in fields.iter().zip(values) {
                    map.serialize_key(&field.name)?;
                    let step = Step::Field(&field.name);
                    self.part(step, &field.shape, value, |part| map.serialize_value(part))?;
                }
                map.end()
            }
            // By their places: names would have to be known when this program is compiled.
            Content::Fields(fields) => {
                let values = self.fields(fields)?;
                let mut tuple = format.serialize_tuple(fields.len())?;
                for (field, value) in fields.iter().zip(values) {
                    let step = Step::Field(&field.name);
                    self.part(step, &field.shape, value, |part| {
                        tuple.serialize_element(part)
                    })?;
                }
                tuple.end()
            }
        }
    }

    fn variant<S: Serializer>(
        &self,
        variants: &'a [Variant],
        format: S,
    ) -> Result<S::Ok, S::Error> {
        let (name, value) = match self.value {
            Value::Text(name) => (name, &Value::Null),
            Value::Record(fields) if let [(name, value)] = &fields[..] => (name, value),
            _ => return Err(self.expected("a variant as \"Name\" or {\"Name\": ..}")),
        };
        let Some(number) = variants.iter().position(|variant| variant.name == *name) else {
            let names: Vec<&str> = variants
                .iter()
                .map(|variant| variant.name.as_str())
                .collect();
            return Err(self.expected(format_args!("one of {}", names.join(", "))));
        };
        let place = Place(Some(self.place), Step::Field(name));
        let inner = Given {
            value,
            place: &place,
            ..*self
        };
        let content = &variants[number].content;
        if !self.named {
            return inner.of_variant(number as u32, content, format);
        }
        if *content == Content::Unit && *value == Value::Null {
            return format.serialize_str(name);
        }
        let mut map = format.serialize_map(Some(1))?;
        map.serialize_entry(name, &Inside(inner, content))?;
        map.end()
    }

    fn of_variant<S: Serializer>(
        &self,
        number: u32,
        content: &Content,
        format: S,
    ) -> Result<S::Ok, S::Error> {
        match content {
            Content::Unknown => Err(self.wrong("its type is not known")),
            Content::Unit if *self.value == Value::Null => {
                format.serialize_unit_variant("", number, "")
            }
            Content::Unit => Err(self.expected("no value")),
            Content::Newtype(shape) => {
                let inner = Given {
                    shape,
                    depth: self.depth + 1,
                    ..*self
                };
                format.serialize_newtype_variant("", number, "", &inner)
            }
            Content::Tuple(shapes) => {
                let parts = self.parts(shapes)?;
                let mut tuple = format.serialize_tuple_variant("", number, "", parts.len())?;
                for (index, (shape, value)) in shapes.iter().zip(parts).enumerate() {
                    self.part(Step::Index(index), shape, value, |part| {
                        tuple.serialize_field(part)
                    })?;
                }
                tuple.end()
            }
            Content::Fields(fields) => {
                let values = self.fields(fields)?;
                let mut tuple = format.serialize_tuple_variant("", number, "", fields.len())?;
                for (field, value) in fields.iter().zip(values) {
                    let step = Step::Field(&field.name);
                    self.part(step, &field.shape, value, |part| {
                        tuple.serialize_field(part)
                    })?;
                }
                tuple.end()
            }
        }
    }
}

/// What is in a variant.
struct Inside<'a>(Given<'a>, &'a Content);

impl Serialize for Inside<'_> {
    fn serialize<S: Serializer>(&self, format: S) -> Result<S::Ok, S::Error> {
        self.0.content(self.1, format)
    }
}

impl Serialize for Given<'_> {
    fn serialize<S: Serializer>(&self, format: S) -> Result<S::Ok, S::Error> {
        if self.depth > DEPTH {
            return Err(self.wrong(format_args!("nested more than {DEPTH} deep")));
        }
        match self.shape {
            Shape::Unknown => Err(self.wrong("its type is not known")),
            Shape::Bool => match self.value {
                Value::Bool(value) => format.serialize_bool(*value),
                _ => Err(self.expected("true or false")),
            },
            Shape::I8 => format.serialize_i8(self.signed()?),
            Shape::I16 => format.serialize_i16(self.signed()?),
            Shape::I32 => format.serialize_i32(self.signed()?),
            Shape::I64 => format.serialize_i64(self.long()?),
            Shape::I128 => format.serialize_i128(self.long()?),
            Shape::U8 => format.serialize_u8(self.unsigned()?),
            Shape::U16 => format.serialize_u16(self.unsigned()?),
            Shape::U32 => format.serialize_u32(self.unsigned()?),
            Shape::U64 => format.serialize_u64(self.long()?),
            Shape::U128 => format.serialize_u128(self.long()?),
            Shape::F32 => format.serialize_f32(self.float()? as f32),
            Shape::F64 => format.serialize_f64(self.float()?),
            Shape::Char => match self.value.as_text().map(|text| (text.chars().next(), text)) {
                Some((Some(only), text)) if text.len() == only.len_utf8() => {
                    format.serialize_char(only)
                }
                _ => Err(self.expected("one character")),
            },
            Shape::Str => match self.value.as_text() {
                Some(text) => format.serialize_str(text),
                None => Err(self.expected("a string")),
            },
            Shape::Bytes => format.serialize_bytes(&self.bytes()?),
            Shape::Unit if *self.value == Value::Null => format.serialize_unit(),
            Shape::Unit => Err(self.expected("null")),
            Shape::Option(_) if *self.value == Value::Null => format.serialize_none(),
            Shape::Option(some) => format.serialize_some(&self.inner(some)),
            Shape::Seq(element)
                if **element == Shape::U8
                    && let Value::Octets(bytes) | Value::Bytes(bytes) = self.value =>
            {
                match self.named {
                    true => format.collect_seq(bytes),
                    // The same bytes as a list of them.
                    false => format.serialize_bytes(bytes),
                }
            }
            Shape::Seq(element) => {
                let array = self.array("an array")?;
                let mut list = format.serialize_seq(Some(array.len()))?;
                for (index, value) in array.iter().enumerate() {
                    self.part(Step::Index(index), element, value, |part| {
                        list.serialize_element(part)
                    })?;
                }
                list.end()
            }
            Shape::Map(key, value) => self.map(key, value, format),
            Shape::Tuple(shapes) => self.tuple(shapes, format),
            Shape::Named(name) => match self.schema.types.get(name) {
                None => Err(self.wrong(format_args!("nobody says what {name} is"))),
                Some(Definition::Struct(content)) => self.content(content, format),
                Some(Definition::Enum(variants)) => self.variant(variants, format),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encode(schema: &Schema, json: serde_json::Value, name: &str) -> Result<Vec<u8>, String> {
        let written = write(SerdeFormat::Postcard, schema, &json.into(), name);
        written.map_err(|error| error.to_string())
    }

    #[test]
    fn types_of_a_hostile_peer_end() {
        let shape = Shape::Named("A".into());
        let itself = Definition::Struct(Content::Newtype(shape.clone()));
        let schema = Schema {
            root: shape,
            types: [("A".into(), itself)].into(),
        };
        let error = encode(&schema, json!(1), "arguments").expect_err("it never ends");
        assert_eq!(error, "arguments: nested more than 256 deep");
        let error = encode(&Schema::default(), json!(1), "arguments").expect_err("not known");
        assert_eq!(error, "arguments: its type is not known");
    }

    #[test]
    fn errors_are_short() {
        let schema = Schema {
            root: Shape::U8,
            ..Schema::default()
        };
        let error = encode(&schema, json!("ß".repeat(100)), "it").expect_err("no number");
        assert!(
            error.starts_with("it: expected u8, got \"ß") && error.len() < 90,
            "{error}"
        );
    }
}
