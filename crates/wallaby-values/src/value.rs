//! Values of any type, and JSON.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;

/// A value of any type. As text it is JSON: structs are objects, tuples and lists arrays, maps objects or arrays of pairs, variants
/// `"Name"` or `{"Name": ..}`, bytes base64; what JSON has no numbers for is strings.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing: `()`, or `None`.
    Null,
    /// Whether something is so.
    Bool(bool),
    /// An integer.
    Signed(i64),
    /// An integer that is not below 0.
    Unsigned(u64),
    /// A number of 4 bytes.
    F32(f32),
    /// A number of 8 bytes.
    F64(f64),
    /// Text, a character, or an integer of 16 bytes.
    Text(String),
    /// Bytes in one piece; those of a payload keep its memory.
    Bytes(Bytes),
    /// A list of `u8`, such as a `Vec<u8>`: for JSON it is one of numbers.
    Octets(Bytes),
    /// Values one behind the other.
    List(Vec<Self>),
    /// Values with names, in their order: the fields of a struct, or a variant and what is in it.
    Record(Vec<(String, Self)>),
    /// A map.
    Pairs(Vec<(Self, Self)>),
}

impl Value {
    /// About how many bytes it has in a payload; not fewer than in any format.
    pub fn size(&self) -> usize {
        const EACH: usize = 20;
        let inside = match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Octets(bytes) => bytes.len().saturating_mul(2),
            Self::List(values) => sum(values.iter().map(Self::size)),
            Self::Record(fields) => sum(fields
                .iter()
                .map(|(name, value)| name.len().saturating_add(value.size()))),
            Self::Pairs(pairs) => sum(pairs
                .iter()
                .map(|(key, value)| key.size().saturating_add(value.size()))),
            _ => 0,
        };
        inside.saturating_add(EACH)
    }

    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Signed(number) => u64::try_from(*number).ok(),
            Self::Unsigned(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Signed(number) => Some(*number),
            Self::Unsigned(number) => i64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(crate) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Signed(number) => Some(*number as f64),
            Self::Unsigned(number) => Some(*number as f64),
            Self::F32(number) => Some(f64::from(*number)),
            Self::F64(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it may be the name of a value in JSON.
    fn is_name(&self) -> bool {
        !matches!(
            self,
            Self::Null | Self::List(_) | Self::Octets(_) | Self::Record(_) | Self::Pairs(_)
        )
    }
}

fn sum(sizes: impl Iterator<Item = usize>) -> usize {
    sizes.fold(0, usize::saturating_add)
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match json {
            Json::Null => Self::Null,
            Json::Bool(is_so) => Self::Bool(is_so),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Signed(number),
                (None, Some(number)) => Self::Unsigned(number),
                (None, None) => number.as_f64().map_or(Self::Null, Self::F64),
            },
            Json::String(text) => Self::Text(text),
            Json::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            Json::Object(fields) => {
                let fields = fields.into_iter();
                Self::Record(fields.map(|(name, value)| (name, value.into())).collect())
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(is_so) => write!(f, "{is_so}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::F32(number) if number.is_finite() => f.write_str(&json_of(number)?),
            Self::F32(number) => write!(f, "\"{number}\""),
            Self::F64(number) if number.is_finite() => f.write_str(&json_of(number)?),
            Self::F64(number) => write!(f, "\"{number}\""),
            Self::Text(text) => f.write_str(&json_of(text)?),
            Self::Bytes(bytes) => write!(f, "\"{}\"", BASE64_STANDARD.encode(bytes)),
            Self::Octets(bytes) => list(f, "[]", bytes, |f, byte| write!(f, "{byte}")),
            Self::List(values) => list(f, "[]", values, |f, value| write!(f, "{value}")),
            Self::Record(fields) => list(f, "{}", fields, |f, (name, value)| {
                write!(f, "{}:{value}", json_of(name)?)
            }),
            Self::Pairs(pairs) if pairs.iter().all(|(key, _)| key.is_name()) => {
                list(f, "{}", pairs, |f, (key, value)| match key.to_string() {
                    key if key.starts_with('"') => write!(f, "{key}:{value}"),
                    key => write!(f, "\"{key}\":{value}"),
                })
            }
            Self::Pairs(pairs) => list(f, "[]", pairs, |f, (key, value)| {
                write!(f, "[{key},{value}]")
            }),
        }
    }
}

/// A number of 4 bytes has fewer digits than the one of 8 that is the same.
fn json_of(value: &(impl serde::Serialize + ?Sized)) -> Result<String, fmt::Error> {
    serde_json::to_string(value).map_err(|_| fmt::Error)
}

fn list<'a, T: 'a>(
    f: &mut fmt::Formatter<'_>,
    around: &str,
    parts: impl IntoIterator<Item = &'a T>,
    show: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    let (open, close) = around.split_at(1);
    f.write_str(open)?;
    for (index, part) in parts.into_iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        show(f, part)?;
    }
    f.write_str(close)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_json() {
        let check = |value: Value, json: &str| {
            assert_eq!(value.to_string(), json);
            assert!(value.size() >= json.len() / 2, "{json}");
        };
        let text = |text: &str| Value::Text(text.into());
        check(Value::F32(0.1), "0.1");
        check(Value::F64(f64::NAN), "\"NaN\"");
        check(text("a\"b"), r#""a\"b""#);
        check(Value::Bytes(Bytes::from_static(&[1, 255])), "\"Af8=\"");
        check(Value::Octets(Bytes::from_static(&[1, 255])), "[1,255]");
        check(
            Value::Record(vec![
                ("b".into(), Value::Null),
                ("a".into(), Value::List(vec![])),
            ]),
            r#"{"b":null,"a":[]}"#,
        );
        check(
            Value::Pairs(vec![
                (Value::Unsigned(7), Value::Bool(true)),
                (text("x"), Value::Null),
            ]),
            r#"{"7":true,"x":null}"#,
        );
        check(
            Value::Pairs(vec![(Value::List(vec![]), Value::Bool(true))]),
            "[[[],true]]",
        );
        let json = json!({"a": [1, -1, 18446744073709551615u64, 0.5, "x", null, true]});
        check(json.clone().into(), &json.to_string());
    }
}
