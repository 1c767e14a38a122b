//! From JSON to messages of Protocol Buffers and back, by the files that define them.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use bytes::Bytes;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage,
};
use serde_json::Value;
use wallaby::reflection::{DESCRIPTORS, Follows, MethodDescription, Signature};
use wallaby::schema::{Schema, Shape};
use wallaby::{Client, Code};

/// So many sets of files there are for a method at most: of what it takes, of what follows, and of what it gives.
const MOST_SETS: usize = 3;

/// Files that a server has told.
pub(super) struct Files(Vec<DescriptorPool>);

/// The messages that a method takes and gives, and those that follow its requests.
pub(super) struct Messages {
    argument: Message,
    items: Option<Message>,
    answer: Message,
}

/// A message that can be made.
#[derive(Clone)]
pub(super) struct Message(MessageDescriptor);

impl Files {
    /// Asks the server what the messages of so many methods look like, whose names begin with the prefix.
    pub(super) async fn ask(client: &Client, prefix: &str, methods: usize) -> anyhow::Result<Self> {
        let mut sets = client.call(&DESCRIPTORS, (prefix.to_owned(),));
        // Each set has a pool of its own, as two may have files of one name. This one has what comes with Protocol Buffers.
        let mut pools = vec![DescriptorPool::global()];
        while let Some(set) = sets.next().await {
            let set = match set {
                Err(error) if error.code() == Code::Unimplemented => {
                    bail!("the server is too old to tell what messages look like")
                }
                set => set.context("cannot ask the server what messages look like")?,
            };
            let pool = DescriptorPool::decode(&set[..]);
            let pool = pool.context("what the server says of its messages is wrong")?;
            check_maps(&pool)?;
            pools.push(pool);
            if pools.len() > methods * MOST_SETS {
                break;
            }
        }
        Ok(Self(pools))
    }

    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        let mut found = self.0.iter().rev();
        found.find_map(|pool| pool.get_message_by_name(name))
    }

    /// The message that a schema names.
    fn find(&self, schema: Option<&Schema>) -> anyhow::Result<Message> {
        let name = schema.and_then(name_of);
        let name = name.context("the server does not name its messages")?;
        let message = self.message(name);
        let message = message.map(Message);
        message.with_context(|| format!("the server does not tell what a {name} looks like"))
    }

    /// What the messages of a method look like in a `.proto` file, and those inside them, by their full names.
    pub(super) fn texts(&self, method: &MethodDescription, texts: &mut BTreeMap<String, String>) {
        let Some(Signature {
            arguments,
            answer,
            follows,
            ..
        }) = &method.signature
        else {
            return;
        };
        let items = match follows {
            Follows::ItemsOf(items) => items.as_ref(),
            Follows::Nothing | Follows::Bytes => None,
        };
        let schemas = [arguments.as_ref(), items, answer.as_ref()];
        let names = schemas.into_iter().flatten().filter_map(name_of);
        let mut messages: Vec<_> = names.filter_map(|name| self.message(name)).collect();
        while let Some(message) = messages.pop() {
            let name = message.full_name().to_owned();
            if name.starts_with("google.protobuf.") || texts.contains_key(&name) {
                continue;
            }
            for field in message.fields() {
                match value_of(&field).kind() {
                    Kind::Message(inside) => messages.push(inside),
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

/// An entry of a map has a key and a value: all that reads them takes that for granted.
fn check_maps(pool: &DescriptorPool) -> anyhow::Result<()> {
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
            bail!("what the server says of its messages is wrong: {name} is no entry of a map")
        }
    }
}

/// Most messages in messages of any type, one inside the other: each is decoded by itself.
const MOST_ANY: u32 = 16;

/// Checks that: what writes JSON does not.
fn check_any(message: &DynamicMessage, left: u32) -> Result<(), String> {
    if message.descriptor().full_name() != "google.protobuf.Any" {
        let mut values = message.fields().map(|(_, value)| value);
        return values.try_for_each(|value| check_value(value, left));
    }
    let left = left.checked_sub(1).ok_or_else(|| {
        format!("more than {MOST_ANY} messages of any type are inside each other")
    })?;
    unpacked(message).map_or(Ok(()), |inside| check_any(&inside, left))
}

fn check_value(value: &prost_reflect::Value, left: u32) -> Result<(), String> {
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

/// The message that this is.
fn name_of(schema: &Schema) -> Option<&str> {
    match &schema.root {
        Shape::Unit => Some("google.protobuf.Empty"),
        Shape::Named(name) => Some(name),
        Shape::Tuple(parts) if let [Shape::Named(name)] = &parts[..] => Some(name),
        _ => None,
    }
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

impl Messages {
    /// Asks the server what the messages of a method look like.
    pub(super) async fn ask(client: &Client, method: &MethodDescription) -> anyhow::Result<Self> {
        let Some(signature) = &method.signature else {
            bail!("the server does not tell the messages of {}", method.name);
        };
        let files = Files::ask(client, &method.name, 1).await?;
        let items = match &signature.follows {
            Follows::ItemsOf(items) => Some(files.find(items.as_ref())?),
            Follows::Nothing | Follows::Bytes => None,
        };
        Ok(Self {
            argument: files.find(signature.arguments.as_ref())?,
            items,
            answer: files.find(signature.answer.as_ref())?,
        })
    }

    /// The payload for a text in JSON: a message, or an array of one or none.
    pub(super) fn payload(&self, text: &[u8]) -> anyhow::Result<Bytes> {
        let given = match text.iter().all(u8::is_ascii_whitespace) {
            true => Value::Array(Vec::new()),
            false => serde_json::from_slice(text).context("this is no JSON")?,
        };
        let message = match given {
            Value::Array(mut all) if all.len() < 2 => {
                all.pop().unwrap_or_else(|| self.argument.none())
            }
            given => given,
        };
        self.argument.payload(message)
    }

    /// What the items are that follow.
    pub(super) fn items(&self) -> anyhow::Result<Message> {
        let items = self.items.clone();
        items.context("the server does not tell the type of the items")
    }

    /// An answer as JSON.
    pub(super) fn answer(&self, payload: &Bytes) -> Result<String, String> {
        let Message(answer) = &self.answer;
        let name = answer.full_name();
        let answer = DynamicMessage::decode(answer.clone(), payload.clone());
        let answer = answer.map_err(|error| format!("{name}: {error}"))?;
        check_any(&answer, MOST_ANY)?;
        serde_json::to_string(&answer).map_err(|error| error.to_string())
    }
}

impl Message {
    /// The payload of a message in JSON.
    pub(super) fn payload(&self, message: Value) -> anyhow::Result<Bytes> {
        let message = DynamicMessage::deserialize(self.0.clone(), message);
        let message =
            message.map_err(|error| anyhow::anyhow!("{}: {error}", self.0.full_name()))?;
        Ok(message.encode_to_vec().into())
    }

    /// What stands for a message of which nothing is said.
    fn none(&self) -> Value {
        let none = DynamicMessage::new(self.0.clone());
        serde_json::to_value(none).unwrap_or(Value::Null)
    }
}
