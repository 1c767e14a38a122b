//! Messages of Protocol Buffers and their JSON, by the files that define them.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage,
};
use serde_json::Value;
use wallaby::schema::{Schema, Shape};

use crate::ValueError;

/// Most messages in messages of any type, one inside the other: each is decoded by itself.
const MOST_ANY: u32 = 16;

/// What is known of messages. What comes with Protocol Buffers is known from the beginning.
#[derive(Debug, Clone)]
pub struct Files(Vec<DescriptorPool>);

impl Default for Files {
    fn default() -> Self {
        Self(vec![DescriptorPool::global()])
    }
}

impl Files {
    /// One more `FileDescriptorSet`, which has all files that its files need. Two sets may have files of one name.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn add(&mut self, set: &[u8]) -> Result<(), ValueError> {
        let pool = DescriptorPool::decode(set).map_err(|error| ValueError(error.to_string()))?;
        check_maps(&pool)?;
        self.0.push(pool);
        Ok(())
    }

    /// The message of this name, which begins with its package.
    pub fn message(&self, name: &str) -> Option<MessageType> {
        let mut found = self.0.iter().rev();
        found.find_map(|pool| pool.get_message_by_name(name).map(MessageType))
    }

    /// What the message of this name looks like in a `.proto` file, and those inside it, by their full names.
    pub fn texts(&self, name: &str, texts: &mut BTreeMap<String, String>) {
        let mut messages: Vec<_> = self.message(name).into_iter().collect();
        while let Some(MessageType(message)) = messages.pop() {
            let name = message.full_name().to_owned();
            if name.starts_with("google.protobuf.") || texts.contains_key(&name) {
                continue;
            }
            for field in message.fields() {
                match value_of(&field).kind() {
                    Kind::Message(inside) => messages.push(MessageType(inside)),
                    Kind::Enum(inside) => {
                        texts.insert(inside.full_name().to_owned(), enum_text(&inside));
                    }
                    _ => {}
                }
            }
            texts.insert(name, message_text(&message));
        }
    }
}

/// A message that can be made and read.
#[derive(Debug, Clone)]
pub struct MessageType(MessageDescriptor);

impl MessageType {
    /// Its name, which begins with its package.
    pub fn name(&self) -> &str {
        self.0.full_name()
    }

    /// The payload of a message in JSON.
    ///
    /// # Errors
    ///
    /// Where it does not fit, and why.
    pub fn write(&self, message: Value) -> Result<Bytes, ValueError> {
        let message = DynamicMessage::deserialize(self.0.clone(), message);
        let message = message.map_err(|error| self.wrong(&error))?;
        Ok(message.encode_to_vec().into())
    }

    /// The message in a payload as JSON.
    ///
    /// # Errors
    ///
    /// If it is no such message, or has too many messages of any type inside each other.
    pub fn read(&self, payload: &Bytes) -> Result<String, ValueError> {
        let message = DynamicMessage::decode(self.0.clone(), payload.clone());
        let message = message.map_err(|error| self.wrong(&error))?;
        check_any(&message, MOST_ANY)?;
        serde_json::to_string(&message).map_err(|error| ValueError(error.to_string()))
    }

    /// What stands for a message of which nothing is said, in JSON.
    pub fn none(&self) -> Value {
        let none = DynamicMessage::new(self.0.clone());
        serde_json::to_value(none).unwrap_or(Value::Null)
    }

    fn wrong(&self, error: &dyn std::fmt::Display) -> ValueError {
        ValueError(format!("{}: {error}", self.name()))
    }
}

/// The name of the message that a schema is: that of a method's only argument, or of its answer.
pub fn name_of(schema: &Schema) -> Option<&str> {
    match &schema.root {
        Shape::Unit => Some("google.protobuf.Empty"),
        Shape::Named(name) => Some(name),
        Shape::Tuple(parts) if let [Shape::Named(name)] = &parts[..] => Some(name),
        _ => None,
    }
}

/// An entry of a map has a key and a value: all that reads them takes that for granted.
fn check_maps(pool: &DescriptorPool) -> Result<(), ValueError> {
    let is_whole = |entry: &MessageDescriptor| {
        let has = |number| {
            entry
                .get_field(number)
                .is_some_and(|field| !field.is_list())
        };
        has(1) && has(2)
    };
    let mut entries = pool.all_messages().filter(MessageDescriptor::is_map_entry);
    match entries.find(|entry| !is_whole(entry)) {
        None => Ok(()),
        Some(entry) => {
            let name = entry.full_name();
            Err(ValueError(format!("{name} is no entry of a map")))
        }
    }
}

/// Checks that: what writes JSON does not.
fn check_any(message: &DynamicMessage, left: u32) -> Result<(), ValueError> {
    if message.descriptor().full_name() != "google.protobuf.Any" {
        let mut values = message.fields().map(|(_, value)| value);
        return values.try_for_each(|value| check_value(value, left));
    }
    let left = left.checked_sub(1).ok_or_else(|| {
        ValueError(format!(
            "more than {MOST_ANY} messages of any type are inside each other"
        ))
    })?;
    unpacked(message).map_or(Ok(()), |inside| check_any(&inside, left))
}

fn check_value(value: &prost_reflect::Value, left: u32) -> Result<(), ValueError> {
    use prost_reflect::Value;
    match value {
        Value::Message(message) => check_any(message, left),
        Value::List(values) => values.iter().try_for_each(|value| check_value(value, left)),
        Value::Map(values) => values
            .values()
            .try_for_each(|value| check_value(value, left)),
        _ => Ok(()),
    }
}

/// The message in one of any type, if its type is known.
fn unpacked(any: &DynamicMessage) -> Option<DynamicMessage> {
    let (url, bytes) = (
        any.get_field_by_name("type_url")?,
        any.get_field_by_name("value")?,
    );
    let name = url.as_str()?.rsplit('/').next()?;
    let inside = any.descriptor().parent_pool().get_message_by_name(name)?;
    DynamicMessage::decode(inside, bytes.as_bytes()?.clone()).ok()
}

/// The field, or that of the values where it is a map.
fn value_of(field: &FieldDescriptor) -> FieldDescriptor {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => entry.map_entry_value_field(),
        _ => field.clone(),
    }
}

fn message_text(message: &MessageDescriptor) -> String {
    let mut text = format!("message {} {{", message.full_name());
    for field in message.fields() {
        let kind = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let key = entry.map_entry_key_field().kind();
                format!("map<{key:?}, {:?}>", value_of(&field).kind())
            }
            kind if field.is_list() => format!("repeated {kind:?}"),
            kind => match field.containing_oneof() {
                Some(oneof) if !oneof.is_synthetic() => format!("oneof {} {kind:?}", oneof.name()),
                Some(_) => format!("optional {kind:?}"),
                None => format!("{kind:?}"),
            },
        };
        text += &format!(" {kind} {} = {};", field.name(), field.number());
    }
    text + " }"
}

fn enum_text(definition: &EnumDescriptor) -> String {
    let values = definition.values();
    let values = values.map(|value| format!(" {} = {};", value.name(), value.number()));
    let values: String = values.collect();
    format!("enum {} {{{values} }}", definition.full_name())
}
