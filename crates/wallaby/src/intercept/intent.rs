//! What is to be sent for a request, before it has a place in the call's tree.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{DelegateOptions, Outline};
use wallaby_proto::{Address, RequestId, Status};

use crate::body::{Attached, Body};

/// Something that is to be sent for a request. It has no place in the call's tree yet.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Intent {
    /// An answer to the initiator.
    Answer {
        /// The encoded answer.
        payload: Bytes,
        /// Nothing comes after it.
        last: bool,
    },
    /// Work for another server.
    Delegation {
        /// What, and where it goes.
        to: DelegatedRequest,
        /// Nothing comes after it.
        last: bool,
    },
    /// The request ends with this status.
    Status(Box<Status>),
}

/// Work for another server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DelegatedRequest {
    /// The server.
    pub server: Address,
    /// The method.
    pub method: Arc<MethodDefinition>,
    /// The arguments.
    pub payload: Bytes,
    /// What follows the request.
    pub(crate) body: Option<Attached>,
    pub(crate) own: Option<Box<DelegationOptions>>,
}

/// What a delegation has of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct DelegationOptions {
    pub(crate) options: DelegateOptions,
    /// It leaves at once, and its place is told here.
    pub(crate) place: Option<Arc<OnceLock<RequestId>>>,
}

impl DelegatedRequest {
    /// Work for this server.
    pub fn new(server: Address, method: Arc<MethodDefinition>, payload: Bytes) -> Self {
        Self {
            server,
            method,
            payload,
            body: None,
            own: None,
        }
    }

    /// What it has of its own, if anything.
    pub fn options(&self) -> Option<&DelegateOptions> {
        self.own.as_ref().map(|own| &own.options)
    }

    /// What it has of its own, to change it.
    pub fn options_mut(&mut self) -> &mut DelegateOptions {
        &mut self.own.get_or_insert_default().options
    }

    /// Whether bytes follow it; they can be sent once.
    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// This follows it, in place of what did.
    pub fn set_body(&mut self, body: Body) {
        self.body = Some(Attached::new(body));
    }

    /// What follows it, which is not sent then. `None` if nothing does, or it was sent.
    pub fn take_body(&mut self) -> Option<Body> {
        self.body.take()?.take()
    }
}

impl Intent {
    /// An answer after which more may come.
    pub fn answer(payload: impl Into<Bytes>) -> Self {
        let (payload, last) = (payload.into(), false);
        Self::Answer { payload, last }
    }

    /// Nothing comes after it.
    #[must_use]
    pub fn last(mut self) -> Self {
        if let Self::Answer { last, .. } | Self::Delegation { last, .. } = &mut self {
            *last = true;
        }
        self
    }

    /// Whether nothing comes after it.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Answer { last, .. } | Self::Delegation { last, .. } => *last,
            Self::Status(_) => true,
        }
    }

    /// Whether it has its place [whatever happens](DelegateOptions::always), or [something else](DelegateOptions::unless_sent) has it.
    pub(crate) fn is_always(&self) -> bool {
        let own = match self {
            Self::Delegation { to, .. } => to.options(),
            Self::Answer { .. } | Self::Status(_) => None,
        };
        own.is_some_and(|own| own.always || own.unless_sent.is_some())
    }

    pub(crate) fn is_status(&self) -> bool {
        matches!(self, Self::Status(_))
    }

    pub(crate) fn outline(&self) -> Outline<'_> {
        match self {
            Self::Answer { .. } | Self::Status(_) => Outline::answer(self.payload()),
            Self::Delegation { to, .. } => Outline {
                server: Some(&to.server),
                payload: to.payload.len(),
                followed: to.body.is_some(),
            },
        }
    }

    /// The server that it goes to, unless it goes to the initiator.
    pub(crate) fn server(&self) -> Option<&Address> {
        match self {
            Self::Delegation { to, .. } => Some(&to.server),
            Self::Answer { .. } | Self::Status(_) => None,
        }
    }

    /// How long its payload is; of a status nothing counts.
    pub(crate) fn payload(&self) -> usize {
        match self {
            Self::Answer { payload, .. } => payload.len(),
            Self::Delegation { to, .. } => to.payload.len(),
            Self::Status(_) => 0,
        }
    }

    /// How many bytes all of it has that handlers decide about.
    pub(crate) fn size(&self) -> usize {
        let rest = match self {
            Self::Answer { .. } => 0,
            Self::Delegation { to, .. } => to.options().map_or(0, DelegateOptions::size),
            Self::Status(status) => status.message().len(),
        };
        self.payload() + rest
    }
}

impl From<Status> for Intent {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// One after which more may come.
impl From<DelegatedRequest> for Intent {
    fn from(to: DelegatedRequest) -> Self {
        Self::Delegation { to, last: false }
    }
}
