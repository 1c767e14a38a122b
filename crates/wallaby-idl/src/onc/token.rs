//! The words of the `.x` language.

use std::fmt;

use super::source::Place;

/// A word and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Name(String),
    Number(i128),
    Text(String),
    Sign(&'static str),
    End,
}

/// Signs, longest first. There is no `>>`: `>` is a bracket.
pub(super) const SIGNS: &[&str] = &[
    "<<", "&&", "||", "==", "!=", "<=", ">=", "{", "}", "(", ")", "[", "]", "<", ">", ";", ",",
    "=", ":", "*", "-", "+", "/", "%", "|", "&", "^", "~", "!", "?", "#", ".",
];

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(formatter, "`{name}`"),
            Self::Number(number) => write!(formatter, "`{number}`"),
            Self::Text(text) => write!(formatter, "{text:?}"),
            Self::Sign(sign) => write!(formatter, "`{sign}`"),
            Self::End => formatter.write_str("the end of the file"),
        }
    }
}

impl Token {
    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(&self.kind, Kind::Sign(own) if *own == sign)
    }

    pub(super) fn name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// A comment: documentation of what it stands above or beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Comment {
    pub(super) file: usize,
    pub(super) start: usize,
    pub(super) first_line: usize,
    pub(super) last_line: usize,
    /// Whether nothing stands before it on its line.
    pub(super) is_alone: bool,
    pub(super) text: Vec<String>,
}
