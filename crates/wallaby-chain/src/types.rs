//! Of which types values are, for functions that have none of their own: scripts. What is said of them stands in states, under names
//! that are no user's.

use serde::{Deserialize, Serialize};
use wallaby::Status;
use wallaby::codec::Codec;
use wallaby::schema::Schema;

/// Whether a value of a user may be called so.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    match name.starts_with(' ') {
        false => Ok(()),
        true => Err(Status::invalid_argument(format!(
            "value {name:?}: names that begin with a space are not for values of functions"
        ))),
    }
}

/// Of which type values are: the codec that writes them, and what they look like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Type {
    /// The codec's name; `json` is JSON.
    pub codec: String,
    /// What they look like. It says nothing for `json` and `raw`.
    #[serde(default)]
    pub schema: Schema,
}

/// Names under which functions are told, for who runs them.
impl Type {
    /// The type of the answer that the function gets; `null` if it is not known, as for the others.
    pub const ANSWER: &str = "  answer";

    /// Those of the results that it merges, a list.
    pub const RESULTS: &str = "  results";

    /// The type of what its chain is to come to.
    pub const END: &str = "  end";

    /// The [shape](wallaby_chain_guest::Value::shape) of values that are JSON, as all of these are.
    pub const JSON: u64 = 0x6a73_6f6e;
}

impl Type {
    /// What this codec writes of values of this type; none if it does not say what they look like.
    pub fn of<T, C: Codec<T>>() -> Option<Self> {
        let (codec, schema) = (C::NAME.to_owned(), C::schema());
        match codec.as_str() {
            "raw" | "json" => Some(Self {
                codec,
                schema: Schema::default(),
            }),
            _ => Some(Self {
                codec,
                schema: schema?,
            }),
        }
    }

    /// Any value, as JSON.
    pub fn json() -> Self {
        Self {
            codec: "json".into(),
            schema: Schema::default(),
        }
    }
}

/// Of which types the arguments of a link and its answer are, as far as that is known. Its codec is the link's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTypes {
    /// All arguments, as a tuple.
    pub arguments: Option<Schema>,
    /// Its answer, or one of several.
    pub answer: Option<Schema>,
}

impl LinkTypes {
    /// The name of those of the link with this name.
    pub fn name_of(link: &str) -> String {
        format!(" {link}")
    }
}

/// Where a type is to be found: looking for it takes time, so it is looked for where somebody wants it.
#[derive(Debug, Clone)]
pub(crate) enum Find {
    None,
    By(fn() -> Option<Type>),
    Known(Type),
}

impl Find {
    pub(crate) fn find(&self) -> Option<Type> {
        match self {
            Self::None => None,
            Self::By(find) => find(),
            Self::Known(known) => Some(known.clone()),
        }
    }
}
