//! From a payload to a value, by a schema.

use std::fmt::{self, Display};
use std::mem::size_of;

use bytes::Bytes;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use wallaby::schema::{Content, Definition, Field, Schema, Shape, Variant};

use crate::{DEPTH, SerdeFormat, Value, ValueError};

/// A payload may hold so many values that take none of its bytes.
const FREE: usize = 1 << 20;

/// What a value may take up. What it is made of has limits of its own: values are at most 256 deep, and not many more than the
/// payload has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of memory, about. Bytes that stay those of the payload do not count. Default 64 MiB.
    pub bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: 64 << 20 }
    }
}

/// The value in a payload, which is called `name`.
///
/// # Errors
///
/// If it is not exactly one value that looks like that, or takes more room.
pub fn read(
    format: SerdeFormat,
    schema: &Schema,
    payload: &Bytes,
    room: Room,
    name: &str,
) -> Result<Value, ValueError> {
    let mut left = Left {
        wrong: None,
        values: FREE.saturating_add(payload.len().saturating_mul(4)),
        room: room.bytes,
        bytes: room.bytes,
    };
    let wanted = Wanted {
        schema,
        payload,
        packed: format == SerdeFormat::Postcard,
        left: &mut left,
        depth: 0,
        shape: &schema.root,
    };
    let read = match format {
        SerdeFormat::Postcard => {
            let mut format = postcard::Deserializer::from_bytes(payload);
            let read = wanted.deserialize(&mut format);
            read.and_then(|value| Ok((value, format.finalize()?)))
                .map_err(|error| error.to_string())
        }
        SerdeFormat::MessagePack => {
            let mut rest = &payload[..];
            let mut format = rmp_serde::Deserializer::new(&mut rest);
            format.set_max_depth(DEPTH);
            let read = wanted.deserialize(&mut format);
            read.map(|value| (value, rest))
                .map_err(|error| error.to_string())
        }
    };
    match read {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(ValueError(format!(
            "{name} with {} bytes too many",
            rest.len()
        ))),
        Err(error) => {
            let why = left.wrong.unwrap_or(error);
            Err(ValueError(format!(
                "{name} that is no {}: {why}",
                schema.root
            )))
        }
    }
}

/// What may still come.
struct Left {
    /// The error, kept here since formats may drop the words of errors.
    wrong: Option<String>,
    values: usize,
    bytes: usize,
    /// Bytes in the beginning.
    room: usize,
}

impl Left {
    fn wrong<E: Error>(&mut self, what: impl Display) -> E {
        let error = E::custom(&what);
        self.wrong.get_or_insert(what.to_string());
        error
    }

    /// So many bytes more.
    fn take<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => {
                let what = format!("larger than {} bytes", self.room);
                return Err(self.wrong(what));
            }
        }
        Ok(())
    }
}

/// A value of this shape is to be read.
struct Wanted<'a> {
    schema: &'a Schema,
    payload: &'a Bytes,
    /// A list of `u8` looks like bytes in one piece.
    packed: bool,
    left: &'a mut Left,
    depth: usize,
    shape: &'a Shape,
}

impl<'a> Wanted<'a> {
    fn inner<'b>(&'b mut self, shape: &'b Shape) -> Wanted<'b> {
        Wanted {
            schema: self.schema,
            payload: self.payload,
            packed: self.packed,
            left: self.left,
            depth: self.depth + 1,
            shape,
        }
    }

    fn visit(self, what: What<'a>) -> Reading<'a> {
        Reading { wanted: self, what }
    }

    fn content<'de, D: Deserializer<'de>>(
        mut self,
        content: &'a Content,
        format: D,
    ) -> Result<Value, D::Error> {
        match content {
            Content::Unknown => Err(self.left.wrong("its type is not known")),
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

    fn text<E: Error>(self, text: String) -> Result<Value, E> {
        self.left.take(text.len())?;
        Ok(Value::Text(text))
    }
}

fn whole<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    format: D,
    value: impl FnOnce(T) -> Value,
) -> Result<Value, D::Error> {
    T::deserialize(format).map(value)
}

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, format: D) -> Result<Value, D::Error> {
        if self.depth > DEPTH {
            let what = format!("nested more than {DEPTH} deep");
            return Err(self.left.wrong(what));
        }
        let Some(left) = self.left.values.checked_sub(1) else {
            return Err(self.left.wrong("more values than its bytes can hold"));
        };
        self.left.values = left;
        self.left.take(size_of::<Value>())?;
        let signed = |number: i64| Value::Signed(number);
        let unsigned = |number: u64| Value::Unsigned(number);
        match self.shape {
            Shape::Unknown => Err(self.left.wrong("the type of a part is not known")),
            Shape::Bool => whole(format, Value::Bool),
            Shape::I8 => whole(format, |number: i8| signed(number.into())),
            Shape::I16 => whole(format, |number: i16| signed(number.into())),
            Shape::I32 => whole(format, |number: i32| signed(number.into())),
            Shape::I64 => whole(format, signed),
            Shape::I128 => self.text(i128::deserialize(format)?.to_string()),
            Shape::U8 => whole(format, |number: u8| unsigned(number.into())),
            Shape::U16 => whole(format, |number: u16| unsigned(number.into())),
            Shape::U32 => whole(format, |number: u32| unsigned(number.into())),
            Shape::U64 => whole(format, unsigned),
            Shape::U128 => self.text(u128::deserialize(format)?.to_string()),
            Shape::F32 => whole(format, Value::F32),
            Shape::F64 => whole(format, Value::F64),
            Shape::Char => self.text(char::deserialize(format)?.to_string()),
            Shape::Str => self.text(String::deserialize(format)?),
            Shape::Unit => whole(format, |()| Value::Null),
            Shape::Bytes => format.deserialize_bytes(self.visit(What::Bytes(Value::Bytes))),
            Shape::Option(some) => format.deserialize_option(self.visit(What::Option(some))),
            Shape::Seq(element) if **element == Shape::U8 && self.packed => {
                format.deserialize_bytes(self.visit(What::Bytes(Value::Octets)))
            }
            Shape::Seq(element) => {
                let is_octets = **element == Shape::U8;
                let parts = self.visit(What::Parts(Parts::Elements(element)));
                let list = format.deserialize_seq(parts)?;
                Ok(match is_octets {
                    true => octets(list),
                    false => list,
                })
            }
            Shape::Map(key, value) => format.deserialize_map(self.visit(What::Map(key, value))),
            Shape::Tuple(shapes) => {
                let parts = What::Parts(Parts::Tuple(shapes));
                format.deserialize_tuple(shapes.len(), self.visit(parts))
            }
            Shape::Named(name) => match self.schema.types.get(name) {
                None => {
                    let what = format!("nobody says what {name} is");
                    Err(self.left.wrong(what))
                }
                Some(Definition::Struct(content)) => self.content(content, format),
                Some(Definition::Enum(variants)) => {
                    format.deserialize_enum("", &[], self.visit(What::Enum(variants)))
                }
            },
        }
    }
}

/// The same list in one piece.
fn octets(list: Value) -> Value {
    let Value::List(values) = &list else {
        return list;
    };
    let octet = |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok());
    let octets: Option<Vec<u8>> = values.iter().map(octet).collect();
    octets.map_or(list, |octets| Value::Octets(octets.into()))
}

/// The value that is being read.
#[derive(Clone, Copy)]
enum What<'a> {
    Null,
    Bytes(fn(Bytes) -> Value),
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
    ) -> Result<Value, A::Error> {
        let (mut record, mut next) = (Vec::new(), 0);
        while let Some(name) = map.next_key::<String>()? {
            // Nearly always they come in their order.
            let (before, behind) = fields.split_at(next);
            let mut rest = behind.iter().chain(before);
            let Some(passed) = rest.position(|field| field.name == name) else {
                let _of_a_newer_version: IgnoredAny = map.next_value()?;
                continue;
            };
            let place = (next + passed) % fields.len();
            self.name(&name)?;
            let value = map.next_value_seed(self.wanted.inner(&fields[place].shape))?;
            record.push((name, value));
            next = place + 1;
        }
        Ok(Value::Record(record))
    }

    /// A name takes room.
    fn name<E: Error>(&mut self, name: &str) -> Result<(), E> {
        self.wanted.left.take(size_of::<String>() + name.len())
    }

    fn bytes<E: Error>(self, bytes: Bytes) -> Result<Value, E> {
        match self.what {
            What::Bytes(value) => Ok(value(bytes)),
            _ => Err(Error::custom("bytes where none were expected")),
        }
    }
}

/// Which of these variants it is, by its number or its name.
struct Which<'a>(&'a [Variant], &'a mut Left);

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
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.wanted.shape)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Value, E> {
        self.wanted.left.take(bytes.len())?;
        self.bytes(Bytes::copy_from_slice(bytes))
    }

    /// They are of the payload.
    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Value, E> {
        let bytes = self.wanted.payload.slice_ref(bytes);
        self.bytes(bytes)
    }

    fn visit_some<D: Deserializer<'de>>(mut self, format: D) -> Result<Value, D::Error> {
        match self.what {
            What::Option(some) => self.wanted.inner(some).deserialize(format),
            _ => Err(Error::custom("an option where none was expected")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let What::Parts(parts) = self.what else {
            return Err(Error::custom("parts where none were expected"));
        };
        if let Parts::Fields(fields) = parts {
            let mut record = Vec::new();
            for Field { name, shape } in fields {
                let Some(value) = list.next_element_seed(self.wanted.inner(shape))? else {
                    break;
                };
                self.name(name)?;
                record.push((name.clone(), value));
            }
            return Ok(Value::Record(record));
        }
        let mut values = Vec::new();
        loop {
            let shape = match parts {
                Parts::Tuple(shapes) => shapes.get(values.len()),
                Parts::Elements(element) => Some(element),
                Parts::Fields(_) => None,
            };
            let Some(shape) = shape else { break };
            match list.next_element_seed(self.wanted.inner(shape))? {
                Some(value) => values.push(value),
                None => break,
            }
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let (key, value) = match self.what {
            What::Map(key, value) => (key, value),
            What::Parts(Parts::Fields(fields)) => return self.named(fields, map),
            _ => return Err(Error::custom("a map where none was expected")),
        };
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key_seed(self.wanted.inner(key))? {
            pairs.push((key, map.next_value_seed(self.wanted.inner(value))?));
        }
        Ok(Value::Pairs(pairs))
    }

    fn visit_enum<A: EnumAccess<'de>>(mut self, access: A) -> Result<Value, A::Error> {
        let What::Enum(variants) = self.what else {
            return Err(Error::custom("a variant where none was expected"));
        };
        let (place, inside) = access.variant_seed(Which(variants, self.wanted.left))?;
        let Variant { name, content } = &variants[place];
        self.name(name)?;
        if *content == Content::Unit {
            inside.unit_variant()?;
            return Ok(Value::Text(name.clone()));
        }
        let shape = self.wanted.shape;
        let inside = match content {
            Content::Unknown | Content::Unit => {
                let what = "what is in a variant is not known";
                return Err(self.wanted.left.wrong(what));
            }
            Content::Newtype(inner) => inside.newtype_variant_seed(self.wanted.inner(inner))?,
            Content::Tuple(shapes) => {
                let parts = What::Parts(Parts::Tuple(shapes));
                inside.tuple_variant(shapes.len(), self.wanted.inner(shape).visit(parts))?
            }
            Content::Fields(fields) => {
                let parts = What::Parts(Parts::Fields(fields));
                inside.tuple_variant(fields.len(), self.wanted.inner(shape).visit(parts))?
            }
        };
        Ok(Value::Record(vec![(name.clone(), inside)]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(format: SerdeFormat, schema: &Schema, payload: &[u8]) -> Result<String, String> {
        let payload = Bytes::copy_from_slice(payload);
        let value = read(format, schema, &payload, Room::default(), "an answer");
        value
            .map(|value| value.to_string())
            .map_err(|error| error.to_string())
    }

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
        let error = decode(SerdeFormat::Postcard, schema, payload).expect_err("it cannot be read");
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
        refused(&schema(named("B"), []), &[], "nobody says what B is");
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
            decode(SerdeFormat::Postcard, &found, &[0, 7]),
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
            decode(SerdeFormat::MessagePack, &schema, &payload)
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
