//! Where functions run: at a server that handles a request of the chain, or at who walks the chain itself.

use std::time::Duration;

use wallaby::{Address, Caller, Client, DurableId, RequestInfo, SendError, Status};

use crate::exception::Exception;
use crate::stack::Stack;
use crate::turns::Who;

/// Where a step of a chain is taken.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) at: At<'a>,
    /// The chain may have code here: who has sent it may bring it, or it came without any.
    pub(crate) may_bring: bool,
    /// From which the names of what leaves follow, in place of the request's.
    pub(crate) durable: Option<DurableId>,
}

#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// This request is handled.
    Server(&'a RequestInfo),
    /// Nobody has sent it: this is who makes the calls.
    Home {
        caller: &'a Caller,
        /// The number of the latest call, or of the durable id.
        call: u64,
        /// How many steps were taken before.
        step: u64,
    },
}

impl Place<'_> {
    /// The number of the call; of a chain that may be made again that of its durable id, which stays the same.
    pub(crate) fn call(&self, stack: &Stack) -> u64 {
        match self.at {
            At::Server(request) => match request.durable_id() {
                Some(id) if stack.tail.asked.record => id.sequence,
                _ => request.call_id().sequence,
            },
            At::Home { call, .. } => call,
        }
    }

    pub(crate) fn exception(&self, stack: &Stack, status: &Status) -> Exception {
        stack.exception(self.call(stack), status)
    }

    /// From which the names of what leaves follow.
    pub(crate) fn durable_id(&self) -> Option<DurableId> {
        self.durable.or_else(|| match self.at {
            At::Server(request) => request.durable_id(),
            At::Home { .. } => None,
        })
    }

    /// What tells a split here from others of the same call.
    pub(crate) fn split(&self) -> String {
        match self.at {
            At::Server(request) => request.id().to_string(),
            At::Home { step, .. } => step.to_string(),
        }
    }

    /// For calls that are needed to take the step, to a server that the chain names.
    ///
    /// # Errors
    ///
    /// If others may not have this endpoint dial it.
    pub(crate) fn named(&self, server: &Address) -> Result<Client, SendError> {
        match self.at {
            At::Server(request) => request.client_named(server),
            At::Home { caller, .. } => Ok(caller.clone().at(server)),
        }
    }

    /// How much time there is for them.
    pub(crate) fn time(&self) -> Duration {
        match self.at {
            At::Server(request) => request.remaining(),
            At::Home { caller, .. } => caller.time(),
        }
    }

    /// Whose turn it is when it is this chain's.
    pub(crate) fn who(&self) -> Who {
        match self.at {
            At::Server(request) => (request.delegator(), Some(request.initiator())),
            At::Home { .. } => (None, None),
        }
    }

    /// Who has sent the chain here, for people.
    pub(crate) fn sender(&self) -> String {
        match self.at {
            At::Server(request) => request.identity().to_string(),
            At::Home { .. } => "who has started it".to_owned(),
        }
    }

    /// Where functions are registered, for people.
    pub(crate) fn here(&self) -> &'static str {
        match self.at {
            At::Server(_) => "at this server",
            At::Home { .. } => "at home (`Chains::at_home`), where the chain is walked",
        }
    }
}
