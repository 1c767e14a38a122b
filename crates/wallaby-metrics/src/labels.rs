//! What metrics are told apart by, and how few values these have.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use wallaby::Code;

/// A method's metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfMethod {
    pub(crate) method: Name,
}

/// Requests of a method that have ended so.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndedRequest {
    pub(crate) method: Name,
    pub(crate) code: CodeLabel,
}

/// Calls of a method that have ended so.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndedCall {
    pub(crate) method: Name,
    pub(crate) outcome: OutcomeLabel,
    pub(crate) code: CodeLabel,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OutcomeLabel {
    Complete,
    /// Complete, and statuses were among its answers.
    Statuses,
    Failed,
    Aborted,
}

impl EncodeLabelValue for OutcomeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let outcome = match self {
            Self::Complete => "complete",
            Self::Statuses => "statuses",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        };
        outcome.encode(encoder)
    }
}

/// The kind of an error, `ok` if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CodeLabel(pub(crate) Option<Code>);

impl EncodeLabelValue for CodeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self.0 {
            None => "ok".encode(encoder),
            Some(code) => code.to_string().replace(' ', "_").encode(encoder),
        }
    }
}

/// A method's name, or [`OTHER`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(Arc<str>);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        (&*self.0).encode(encoder)
    }
}

/// What all methods are called for which there is no room.
const OTHER: &str = "other";

/// Names that are labels. Whoever calls a gateway can invent methods, and each label is kept for ever: there are only so many.
#[derive(Debug)]
pub(crate) struct Names {
    most: usize,
    known: RwLock<HashSet<Arc<str>>>,
    other: Name,
}

impl Names {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            known: RwLock::default(),
            other: Name(OTHER.into()),
        }
    }

    /// The label of a method.
    pub(crate) fn label(&self, method: &Arc<str>) -> Name {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(method) {
            return Name(Arc::clone(known));
        }
        if known.len() >= self.most {
            return self.other.clone();
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.most && !known.contains(method) {
            return self.other.clone();
        }
        known.insert(Arc::clone(method));
        Name(Arc::clone(method))
    }
}
