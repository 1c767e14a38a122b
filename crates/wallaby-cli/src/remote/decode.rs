//! From a payload to JSON, by a schema.

use std::fmt::{self, Display};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Serialize;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde_json::json;
use wallaby::schema::{Content, Definition, Field, Schema, Shape, Variant};

use super::DEPTH;
use super::types::Format;

/// A payload may hold so many values that take none of its bytes.
const FREE: usize = 1 << 20;

/// Longest JSON of one, in bytes: names come from a peer, too.
const LONGEST: usize = 256 << 20;

/// The value in a payload as JSON, fields in their order; else why it cannot be read.
pub(super) fn decode(format: Format, schema: &Schema, payload: &[u8]) -> Result<String, String> {
    let mut out = Out {
        text: String::new(),
        wrong: None,
        left: FREE.saturating_add(payload.len().saturating_mul(4)),
    };
    let wanted = Wanted {
        schema,
        out: &mut out,
        depth: 0,
        shape: &schema.root,
    };
    let read = match format {
        Format::Postcard => {
            let mut format = postcard::Deserializer::from_bytes(payload);
            let read = wanted.deserialize(&mut format);
            read.and_then(|()| format.finalize())
                .map_err(|error| error.to_string())
        }
        Format::MessagePack => {
            let mut rest = payload;
            let mut format = rmp_serde::Deserializer::new(&mut rest);
            format.set_max_depth(DEPTH);
            let read = wanted.deserialize(&mut format);
            read.map(|()| rest).map_err(|error| error.to_string())
        }
    };
    match read {
        Ok([]) => Ok(out.text),
        Ok(rest) => Err(format!("an answer with {} bytes too many", rest.len())),
        Err(error) => {
            let why = out.wrong.unwrap_or(error);
            Err(format!("an answer that is no {}: {why}", schema.root))
        }
    }
}

/// The JSON so far.
struct Out {
    text: String,
    /// The error, kept here since formats may drop the words of errors.
    wrong: Option<String>,
    /// Values that may still come.
    left: usize,
}

impl Out {
    fn wrong<E: Error>(&mut self, what: impl Display) -> E {
        let error = E::custom(&what);
        self.wrong.get_or_insert(what.to_string());
        error
    }

    fn push(&mut self, text: impl Display) {
        use fmt::Write;
        let _ = write!(self.text, "{text}");
    }
}

/// A value of this shape, which is to be written.
struct Wanted<'a> {
    schema: &'a Schema,
    out: &'a mut Out,
    depth: usize,
    shape: &'a Shape,
}

impl<'a> Wanted<'a> {
    fn inner<'b>(&'b mut self, shape: &'b Shape) -> Wanted<'b> {
        Wanted {
            schema: self.schema,
            out: self.out,
            depth: self.depth + 1,
            shape,
        }
    }

    fn visit(self, what: What<'a>) -> Reading<'a> {
        Reading { wanted: self, what }
    }

    fn push<'de, D: Deserializer<'de>, T: Deserialize<'de>, U: Display>(
        self,
        format: D,
        show: impl FnOnce(T) -> U,
    ) -> Result<(), D::Error> {
        let value = T::deserialize(format)?;
        self.out.push(show(value));
        Ok(())
    }

    fn content<'de, D: Deserializer<'de>>(
        mut self,
        content: &'a Content,
        format: D,
    ) -> Result<(), D::Error> {
        match content {
            Content::Unknown => Err(self.out.wrong("its type is not known")),
            Content::Unit => format.deserialize_unit_struct("", self.visit(What::Null)),
            Content::Newtype(shape) => self.inner(shape).deserialize(format),
            Content::Tuple(shapes) => {
                let parts = Parts::Tuple(shapes);
                format.deserialize_tuple(shapes.len(), self.visit(What::Parts(parts)))
            }
            // By their places: names would have to be known when this program is compiled.
            Content::Fields(fields) => {
                let parts = Parts::Fields(fields);
                format.deserialize_tuple(fields.len(), self.visit(What::Parts(parts)))
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, format: D) -> Result<(), D::Error> {
        if self.depth > DEPTH {
            let what = format!("nested more than {DEPTH} deep");
            return Err(self.out.wrong(what));
        }
        let Some(left) = self.out.left.checked_sub(1) else {
            return Err(self.out.wrong("more values than its bytes can hold"));
        };
        self.out.left = left;
        if self.out.text.len() > LONGEST {
            return Err(self.out.wrong("longer than 256 MiB in JSON"));
        }
        match self.shape {
            Shape::Unknown => Err(self.out.wrong("the type of a part is not known")),
            Shape::Bool => self.push(format, |value: bool| value),
            Shape::I8 => self.push(format, |value: i8| value),
            Shape::I16 => self.push(format, |value: i16| value),
            Shape::I32 => self.push(format, |value: i32| value),
            Shape::I64 => self.push(format, |value: i64| value),
            Shape::I128 => self.push(format, |value: i128| format!("\"{value}\"")),
            Shape::U8 => self.push(format, |value: u8| value),
            Shape::U16 => self.push(format, |value: u16| value),
            Shape::U32 => self.push(format, |value: u32| value),
            Shape::U64 => self.push(format, |value: u64| value),
            Shape::U128 => self.push(format, |value: u128| format!("\"{value}\"")),
            Shape::F32 => self.push(format, |value: f32| float(value.is_finite(), value)),
            Shape::F64 => self.push(format, |value: f64| float(value.is_finite(), value)),
            Shape::Char => self.push(format, |value: char| json!(value)),
            Shape::Str => self.push(format, |value: String| json!(value)),
            Shape::Unit => self.push(format, |()| "null"),
            Shape::Bytes => format.deserialize_bytes(self.visit(What::Bytes)),
            Shape::Option(some) => format.deserialize_option(self.visit(What::Option(some))),
            Shape::Seq(element) => {
                format.deserialize_seq(self.visit(What::Parts(Parts::Elements(element))))
            }
            Shape::Map(key, value) => format.deserialize_map(self.visit(What::Map(key, value))),
            Shape::Tuple(shapes) => {
                let parts = What::Parts(Parts::Tuple(shapes));
                format.deserialize_tuple(shapes.len(), self.visit(parts))
            }
            Shape::Named(name) => match self.schema.types.get(name) {
                None => {
                    let what = format!("the server does not say what {name} is");
                    Err(self.out.wrong(what))
                }
                Some(Definition::Struct(content)) => self.content(content, format),
                Some(Definition::Enum(variants)) => {
                    format.deserialize_enum("", &[], self.visit(What::Enum(variants)))
                }
            },
        }
    }
}

/// A number as short as can be; those that JSON does not have as strings.
fn float(finite: bool, value: impl Display + Serialize) -> String {
    match serde_json::to_string(&value) {
        Ok(number) if finite => number,
        _ => format!("\"{value}\""),
    }
}

/// The value that is being read.
#[derive(Clone, Copy)]
enum What<'a> {
    Null,
    Bytes,
    Option(&'a Shape),
    Parts(Parts<'a>),
    Map(&'a Shape, &'a Shape),
    Enum(&'a [Variant]),
}

/// Parts one behind the other.
#[derive(Clone, Copy)]
enum Parts<'a> {
    Elements(&'a Shape),
    Tuple(&'a [Shape]),
    Fields(&'a [Field]),
}

struct Reading<'a> {
    wanted: Wanted<'a>,
    what: What<'a>,
}

impl Reading<'_> {
    /// Fields with their names, in the order in which they come.
    fn named<'de, A: MapAccess<'de>>(
        mut self,
        fields: &[Field],
        mut map: A,
    ) -> Result<(), A::Error> {
        self.wanted.out.push('{');
        let (mut next, mut comma) = (0, "");
        while let Some(name) = map.next_key::<String>()? {
            // Nearly always they come in their order.
            let (before, behind) = fields.split_at(next);
            let mut rest = behind.iter().chain(before);
            let Some(passed) = rest.position(|field| field.name == name) else {
                let _of_a_newer_version: IgnoredAny = map.next_value()?;
                continue;
            };
            let place = (next + passed) % fields.len();
            let name = json!(name);
            self.wanted.out.push(format_args!("{comma}{name}:"));
            map.next_value_seed(self.wanted.inner(&fields[place].shape))?;
            next = place + 1;
            comma = ",";
        }
        self.wanted.out.push('}');
        Ok(())
    }
}

/// Which of these variants it is, by its number or its name.
struct Which<'a>(&'a [Variant], &'a mut Out);

impl<'de> DeserializeSeed<'de> for Which<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, format: D) -> Result<usize, D::Error> {
        format.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Which<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {} variants", self.0.len())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<usize, E> {
        let place = usize::try_from(number).ok();
        let place = place.filter(|place| *place < self.0.len());
        place.ok_or_else(|| {
            let count = self.0.len();
            self.1
                .wrong(format_args!("no variant {number} among {count}"))
        })
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        let place = self.0.iter().position(|variant| variant.name == name);
        place.ok_or_else(|| self.1.wrong(format_args!("no variant {name:?}")))
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.wanted.shape)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.wanted.out.push("null");
        Ok(())
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.wanted
            .out
            .push(format_args!("\"{}\"", BASE64_STANDARD.encode(bytes)));
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(mut self, format: D) -> Result<(), D::Error> {
        match self.what {
            What::Option(some) => self.wanted.inner(some).deserialize(format),
            _ => Err(Error::custom("an option where none was expected")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let What::Parts(parts) = self.what else {
            return Err(Error::custom("parts where none were expected"));
        };
        let (open, close) = match parts {
            Parts::Fields(_) => ('{', '}'),
            _ => ('[', ']'),
        };
        self.wanted.out.push(open);
        for index in 0.. {
            let (name, shape) = match parts {
                Parts::Elements(element) => (None, Some(element)),
                Parts::Tuple(shapes) => (None, shapes.get(index)),
                Parts::Fields(fields) => {
                    let field = fields.get(index);
                    (
                        field.map(|field| &field.name),
                        field.map(|field| &field.shape),
                    )
                }
            };
            let Some(shape) = shape else {
                break;
            };
            let before = self.wanted.out.text.len();
            if index > 0 {
                self.wanted.out.push(',');
            }
            if let Some(name) = name {
                self.wanted.out.push(format_args!("{}:", json!(name)));
            }
            if list.next_element_seed(self.wanted.inner(shape))?.is_none() {
                self.wanted.out.text.truncate(before);
                break;
            }
        }
        self.wanted.out.push(close);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let (key, value) = match self.what {
            What::Map(key, value) => (key, value),
            What::Parts(Parts::Fields(fields)) => return self.named(fields, map),
            _ => return Err(Error::custom("a map where none was expected")),
        };
        let mut pairs = Vec::new();
        // Each key and each value is written by itself first.
        let (start, mut names) = (self.wanted.out.text.len(), true);
        while map.next_key_seed(self.wanted.inner(key))?.is_some() {
            let key = self.wanted.out.text.split_off(start);
            map.next_value_seed(self.wanted.inner(value))?;
            let value = self.wanted.out.text.split_off(start);
            names &= !key.starts_with(['[', '{']) && key != "null";
            pairs.push((key, value));
        }
        let out = self.wanted.out;
        out.push(if names { '{' } else { '[' });
        for (index, (key, value)) in pairs.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match names {
                true if key.starts_with('"') => out.push(format_args!("{comma}{key}:{value}")),
                true => out.push(format_args!("{comma}\"{key}\":{value}")),
                false => out.push(format_args!("{comma}[{key},{value}]")),
            }
        }
        out.push(if names { '}' } else { ']' });
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(mut self, access: A) -> Result<(), A::Error> {
        let What::Enum(variants) = self.what else {
            return Err(Error::custom("a variant where none was expected"));
        };
        let (place, inside) = access.variant_seed(Which(variants, self.wanted.out))?;
        let Variant { name, content } = &variants[place];
        let name = json!(name);
        if *content == Content::Unit {
            self.wanted.out.push(name);
            return inside.unit_variant();
        }
        self.wanted.out.push(format_args!("{{{name}:"));
        let shape = self.wanted.shape;
        match content {
            Content::Unknown | Content::Unit => {
                let what = "what is in a variant is not known";
                return Err(self.wanted.out.wrong(what));
            }
            Content::Newtype(inner) => inside.newtype_variant_seed(self.wanted.inner(inner))?,
            Content::Tuple(shapes) => {
                let parts = What::Parts(Parts::Tuple(shapes));
                inside.tuple_variant(shapes.len(), self.wanted.inner(shape).visit(parts))?;
            }
            Content::Fields(fields) => {
                let parts = What::Parts(Parts::Fields(fields));
                inside.tuple_variant(fields.len(), self.wanted.inner(shape).visit(parts))?;
            }
        }
        self.wanted.out.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema<const N: usize>(root: Shape, types: [(&str, Definition); N]) -> Schema {
        let types = types.map(|(name, definition)| (name.to_owned(), definition));
        Schema {
            root,
            types: types.into(),
        }
    }

    fn named(name: &str) -> Shape {
        Shape::Named(name.to_owned())
    }

    fn refused(schema: &Schema, payload: &[u8], why: &str) {
        let error = decode(Format::Postcard, schema, payload).expect_err("it cannot be read");
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn types_of_a_hostile_peer_end() {
        let itself = Definition::Struct(Content::Newtype(named("A")));
        refused(&schema(named("A"), [("A", itself)]), &[], "256 deep");
        let list = || Shape::Seq(Box::new(Shape::Unit));
        let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        refused(&schema(list(), []), &endless, "more values");
        let name = |level: usize| format!("T{level}");
        let mut wide = schema(named("T0"), []);
        for level in 0..100 {
            let twice = Content::Tuple(vec![named(&name(level + 1)); 2]);
            wide.types.insert(name(level), Definition::Struct(twice));
        }
        wide.types
            .insert(name(100), Definition::Struct(Content::Unit));
        refused(&wide, &[], "more values");
        refused(&schema(named("B"), []), &[], "does not say what B is");
        refused(&Schema::default(), &[], "is not known");
    }

    #[test]
    fn payloads_that_do_not_fit_are_refused() {
        let one = Variant {
            name: "One".into(),
            content: Content::Newtype(Shape::U8),
        };
        let found = schema(named("Found"), [("Found", Definition::Enum(vec![one]))]);
        assert_eq!(
            decode(Format::Postcard, &found, &[0, 7]),
            Ok(r#"{"One":7}"#.into())
        );
        refused(&found, &[1, 7], "no variant 1");
        refused(&found, &[0], "no Found");
        refused(&found, &[0, 7, 7], "1 bytes too many");
        let short = schema(Shape::Tuple(vec![Shape::Str, Shape::Str]), []);
        refused(&short, &[1, b'a'], "no (String, String)");
    }

    #[test]
    fn fields_of_other_versions_are_shown_or_left_out() {
        let field = |name: &str, shape| Field {
            name: name.into(),
            shape,
        };
        let fields = vec![
            field("name", Shape::Str),
            field("size", Shape::U8),
            field("price", Shape::Option(Box::new(Shape::U8))),
        ];
        let kinds = vec![Variant {
            name: "Plain".into(),
            content: Content::Unit,
        }];
        let schema = schema(
            Shape::Tuple(vec![named("Item"), named("Kind")]),
            [
                ("Item", Definition::Struct(Content::Fields(fields))),
                ("Kind", Definition::Enum(kinds)),
            ],
        );
        let read = |value: serde_json::Value| {
            let payload = rmp_serde::to_vec(&value).expect("it can be written");
            decode(Format::MessagePack, &schema, &payload)
        };
        let newer = json!([{ "colour": [1, { "deep": 2 }], "price": 3, "name": "x" }, "Plain"]);
        let shown = read(newer).expect("it can be read");
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        assert_eq!(shown, json!([{ "price": 3, "name": "x" }, "Plain"]));
        let by_place = json!([["x", 1, null], "Plain"]);
        let shown = read(by_place).expect("it can be read");
        assert_eq!(shown, r#"[{"name":"x","size":1,"price":null},"Plain"]"#);
        let error = read(json!([{}, "Round"])).expect_err("no such variant");
        assert!(error.contains("no variant \"Round\""), "{error}");
        let error = read(json!([{ "size": 256 }, "Plain"])).expect_err("too large");
        assert!(error.contains("expected u8"), "{error}");
    }
}
