//! Values of links and states as scripts have them, and back.

use std::collections::HashMap;
use std::sync::OnceLock;

use bytes::Bytes;
use rhai::{Dynamic, Map};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wallaby::codec::{Codec, Postcard};
use wallaby_chain::{Link as Wire, LinkTypes, Type};
use wallaby_chain_guest::State;
use wallaby_values::{Room, Schema, SerdeFormat, Value, ValueError, read, write};

use crate::engine::Run;
use crate::limits::ScriptLimits;
use crate::said::Link;

/// Values may be so deep inside each other.
const DEPTH: usize = 64;

/// Bytes that no script looks into without asking: they are not copied, and their length does not count.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) bytes: Bytes,
    /// What a value of the state looks like that nobody here can read.
    pub(crate) shape: u64,
}

impl Handle {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, shape: 0 }
    }
}

/// What is to be read from a payload, or an answer that nobody here can read.
pub(crate) fn from_payload(
    payload: Bytes,
    of: Option<&Type>,
    limits: &ScriptLimits,
) -> Result<Dynamic, ValueError> {
    let name = "an answer";
    match of {
        Some(of) if let Some(format) = SerdeFormat::of(&of.codec) => {
            let room = Room {
                bytes: limits.text + limits.elements * 128,
            };
            Ok(dynamic(read(format, &of.schema, &payload, room, name)?))
        }
        Some(of) if of.codec == "json" => from_json(&payload, name, limits),
        _ => Ok(Dynamic::from(Handle::new(payload))),
    }
}

/// A payload of this value.
pub(crate) fn to_payload(
    value: &Dynamic,
    of: &Type,
    name: &str,
    run: &Run,
) -> Result<Vec<u8>, ValueError> {
    let value = to_value(value, 0).map_err(|error| ValueError::new(name, &error))?;
    run.take(value.size(), name)?;
    match (SerdeFormat::of(&of.codec), of.codec.as_str(), value) {
        (Some(format), _, value) => write(format, &of.schema, &value, name),
        (None, "json", value) => Ok(value.to_string().into_bytes()),
        (None, "raw", Value::Bytes(bytes)) => Ok(bytes.into()),
        (None, "raw", Value::Text(text)) => Ok(text.into_bytes()),
        (None, codec, value) => {
            let message = format!("codec {codec:?}: expected bytes, got {}", kind(&value));
            Err(ValueError::new(name, &message))
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a bool",
        Value::Text(_) => "text",
        Value::List(_) | Value::Octets(_) => "an array",
        Value::Record(_) | Value::Pairs(_) => "a map",
        Value::Bytes(_) => "bytes",
        _ => "a number",
    }
}

/// What JSON holds is many times as large, so it may not be longer than a text.
fn from_json(json: &[u8], name: &str, limits: &ScriptLimits) -> Result<Dynamic, ValueError> {
    if json.len() > limits.text {
        let (found, most) = (json.len(), limits.text);
        let why = format!("{found} bytes of JSON: at most {most} are read");
        return Err(ValueError::new(name, &why));
    }
    let value = serde_json::from_slice::<serde_json::Value>(json);
    let value = value.map_err(|error| ValueError::new(name, &error))?;
    Ok(dynamic(value.into()))
}

/// What functions are given of the state.
pub(crate) fn state(state: &State, limits: &ScriptLimits) -> Result<Map, ValueError> {
    let mut map = Map::new();
    let values = state.values().filter(|(name, _)| !name.starts_with(' '));
    for (name, value) in values {
        let shape = value.shape;
        let given = if shape == Type::JSON {
            from_json(&value.bytes, name, limits)?
        } else if shape == fingerprint::<Wire>() {
            let link = postcard::from_bytes(&value.bytes);
            let link = link.map_err(|error| ValueError::new(name, &error))?;
            let types: Option<LinkTypes> = told(state, &LinkTypes::name_of(name));
            Dynamic::from(Link::new(link, types.unwrap_or_default()))
        } else {
            let bytes = Bytes::copy_from_slice(&value.bytes);
            match plain().get(&shape) {
                Some(schema) => {
                    let room = Room {
                        bytes: 64 * bytes.len() + 64,
                    };
                    dynamic(read(SerdeFormat::Postcard, schema, &bytes, room, name)?)
                }
                None => Dynamic::from(Handle { bytes, shape }),
            }
        };
        map.insert(name.into(), given);
    }
    Ok(map)
}

/// What the state says to who runs functions.
pub(crate) fn told<T: DeserializeOwned>(state: &State, name: &str) -> Option<T> {
    serde_json::from_slice(&state.value(name)?.bytes).ok()
}

fn fingerprint<T: Serialize + DeserializeOwned + 'static>() -> u64 {
    <Postcard as Codec<T>>::fingerprint()
}

/// Types of values that clients and servers put into states, by what they look like. Others are handles.
fn plain() -> &'static HashMap<u64, Schema> {
    static PLAIN: OnceLock<HashMap<u64, Schema>> = OnceLock::new();
    fn of<T: Serialize + DeserializeOwned + 'static>() -> (u64, Schema) {
        let schema = <Postcard as Codec<T>>::schema();
        (fingerprint::<T>(), schema.unwrap_or_default())
    }
    PLAIN.get_or_init(|| {
        HashMap::from([
            of::<bool>(),
            of::<i8>(),
            of::<i16>(),
            of::<i32>(),
            of::<i64>(),
            of::<u8>(),
            of::<u16>(),
            of::<u32>(),
            of::<u64>(),
            of::<f32>(),
            of::<f64>(),
            of::<char>(),
            of::<String>(),
            of::<Option<String>>(),
            of::<Vec<String>>(),
            of::<Vec<i64>>(),
            of::<Vec<u64>>(),
            of::<wallaby::Address>(),
        ])
    })
}

pub(crate) fn dynamic(value: Value) -> Dynamic {
    match value {
        Value::Null => Dynamic::UNIT,
        Value::Bool(is_so) => is_so.into(),
        Value::Signed(number) => number.into(),
        Value::Unsigned(number) => match i64::try_from(number) {
            Ok(number) => number.into(),
            Err(_) => number.to_string().into(),
        },
        Value::F32(number) => f64::from(number).into(),
        Value::F64(number) => number.into(),
        Value::Text(text) => text.into(),
        Value::Bytes(bytes) | Value::Octets(bytes) => Dynamic::from(Handle::new(bytes)),
        Value::List(values) => array(values.into_iter().map(dynamic)),
        Value::Record(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name.into(), dynamic(value)));
            Dynamic::from_map(fields.collect())
        }
        Value::Pairs(pairs) if pairs.iter().all(|(key, _)| matches!(key, Value::Text(_))) => {
            let pairs = pairs.into_iter().filter_map(|(key, value)| match key {
                Value::Text(name) => Some((name.into(), dynamic(value))),
                _ => None,
            });
            Dynamic::from_map(pairs.collect())
        }
        Value::Pairs(pairs) => {
            let pairs = pairs.into_iter();
            array(pairs.map(|(key, value)| array([dynamic(key), dynamic(value)].into_iter())))
        }
    }
}

fn array(values: impl Iterator<Item = Dynamic>) -> Dynamic {
    Dynamic::from_array(values.collect())
}

/// What may be sent of what a script has.
fn to_value(given: &Dynamic, depth: usize) -> Result<Value, String> {
    if depth > DEPTH {
        return Err(format!("nested more than {DEPTH} deep"));
    }
    let inside = |value: &Dynamic| to_value(value, depth + 1);
    if let Ok(number) = given.as_int() {
        return Ok(Value::Signed(number));
    }
    if let Ok(text) = given.as_immutable_string_ref() {
        return Ok(Value::Text(text.as_str().to_owned()));
    }
    if let Ok(is_so) = given.as_bool() {
        return Ok(Value::Bool(is_so));
    }
    if let Ok(number) = given.as_float() {
        return Ok(Value::F64(number));
    }
    if let Ok(letter) = given.as_char() {
        return Ok(Value::Text(letter.into()));
    }
    if let Ok(values) = given.as_array_ref() {
        let values: Result<_, String> = values.iter().map(inside).collect();
        return Ok(Value::List(values?));
    }
    if let Ok(fields) = given.as_map_ref() {
        let fields = fields.iter();
        let fields: Result<_, String> = fields
            .map(|(name, value)| Ok((name.to_string(), inside(value)?)))
            .collect();
        return Ok(Value::Record(fields?));
    }
    if let Ok(bytes) = given.as_blob_ref() {
        return Ok(Value::Bytes(Bytes::copy_from_slice(&bytes)));
    }
    if given.is_unit() {
        return Ok(Value::Null);
    }
    match given.read_lock::<Handle>() {
        Some(handle) => Ok(Value::Bytes(handle.bytes.clone())),
        None => Err(format!("a value of type {}", name_of(given))),
    }
}

/// The type of a value, as scripts know it.
pub(crate) fn name_of(value: &Dynamic) -> &str {
    let name = value.type_name();
    name.rsplit("::").next().unwrap_or(name)
}
