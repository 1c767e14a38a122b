//! What can go wrong, one type an operation; those of calls and connections are [`wallaby_proto::error`]'s.
//!
//! The text of an error is whole: it says what its cause says. So the cause is not its `source()` as well, or who prints
//! the chain of sources would read it twice; it is a field (with `r#`, which says so to thiserror).

use std::io;

use thiserror::Error;
use wallaby_proto::connection::ConnectionError;
use wallaby_proto::{Address, AddressError, Code, Status};

use crate::blocking::WouldBlock;
use crate::transport::is_broken;

pub use wallaby_proto::error::{
    AttemptsFailed, Breakdown, CallError, ConnectError, FailedAttempt, Failure, NoMore, SendError,
    ServeError, StillRunning, UnreadableAnswer, UnstoppedRequest,
};

/// Why an endpoint could not be made.
#[derive(Error)]
#[non_exhaustive]
pub enum BindError {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The host's name is not known.
    #[error("cannot find the host of {address:?}: {source}")]
    Resolve {
        /// What was given.
        address: String,
        /// What the system said.
        r#source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: Address,
        /// What the system said.
        r#source: io::Error,
    },
    /// No transport for this scheme can listen.
    #[error(
        "cannot listen on {address}: no transport for its scheme: on this system expected {}, or one that \
         `Builder::transport` was given",
        crate::transport::SCHEMES
    )]
    NoTransport {
        /// Where.
        address: Address,
    },
    /// Others cannot be told an address without a port ([`crate::Builder::advertise`]).
    #[error(
        "cannot tell others {address}: port 0 stands for the one that is listened at over {}, and none is",
        address.scheme()
    )]
    Advertise {
        /// What was given.
        address: Address,
    },
    /// A transport from outside cannot have this scheme ([`crate::Builder::transport`]).
    #[error("no transport can be added for the scheme {scheme:?}: {why}")]
    Transport {
        /// The scheme.
        scheme: String,
        /// Why.
        why: String,
    },
    /// The operating system gives no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
    /// Seals are required, but no cluster key can verify them.
    #[error("seals are required, but there is no cluster key")]
    NoClusterKey,
    /// There is no tokio runtime here.
    #[error(
        "an endpoint needs a tokio runtime: call this inside one, or take `wallaby::blocking::bind`"
    )]
    NoRuntime,
    /// The thread of a [blocking](crate::blocking) endpoint cannot be started.
    #[error("no thread for the endpoint: {0}")]
    Thread(io::Error),
    /// A [blocking](crate::blocking) endpoint was to be made where that would stop an async runtime.
    #[error(transparent)]
    WouldBlock(WouldBlock),
    /// Two services have a method of the same name.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl BindError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Address(_) | Self::Advertise { .. } | Self::Transport { .. } => {
                Code::InvalidArgument
            }
            Self::Resolve { .. } => Code::NotFound,
            Self::Listen { r#source, .. } => kind(r#source),
            Self::NoTransport { .. } => Code::Unimplemented,
            Self::Random(_) => Code::Internal,
            Self::Thread(error) => kind(error),
            Self::NoClusterKey | Self::NoRuntime | Self::WouldBlock(_) => Code::FailedPrecondition,
            Self::Serve(error) => error.code(),
        }
    }
}

/// An endpoint was not done when it had to close.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("{running} handlers ran and {waiting} requests waited when time was up")]
#[non_exhaustive]
pub struct Undrained {
    /// Handlers that still ran.
    pub running: usize,
    /// Requests that waited for a handler.
    pub waiting: usize,
}

impl Undrained {
    /// What kind of error it is: always [`Code::DeadlineExceeded`].
    pub fn code(&self) -> Code {
        Code::DeadlineExceeded
    }
}

/// What kind of error this is of the system's.
fn kind(error: &io::Error) -> Code {
    Status::from(io::Error::from(error.kind())).code()
}

/// What the system says of a dial.
pub(crate) fn dial_failed(server: &Address, error: &io::Error) -> ConnectError {
    let (server, reason) = (server.clone(), error.to_string());
    match error.kind() {
        _ if has_no_room(error) => ConnectError::Local { server, reason },
        // A name in the file system, or in this process, is there as long as somebody listens.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            ConnectError::Refused { server, reason }
        }
        _ if is_broken(error) && !matches!(server, Address::Other(_)) => ConnectError::Handshake {
            server: Some(server),
            source: ConnectionError::Transport { reason },
        },
        io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied
            if matches!(server, Address::Other(_)) && !server.has_host_name() =>
        {
            ConnectError::Rejected { server, reason }
        }
        // Somebody took the connection, and let it go before it was open.
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => ConnectError::Closed {
            server: Some(server),
            reason,
        },
        _ => ConnectError::Unreachable { server, reason },
    }
}

/// Whether the system has no room for a socket here.
fn has_no_room(error: &io::Error) -> bool {
    #[cfg(unix)]
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS];
    #[cfg(not(unix))]
    let full: [i32; 0] = [];
    error.kind() == io::ErrorKind::OutOfMemory
        || error
            .raw_os_error()
            .is_some_and(|number| full.contains(&number))
}

wallaby_proto::debug_as_text!(BindError, Undrained);

#[cfg(test)]
mod tests {
    use std::error::Error;

    use wallaby_proto::RequestId;
    use wallaby_proto::error::CodecError;
    use wallaby_proto::wire::WireError;

    use super::*;

    /// All that an error and its sources say, one behind the other, as anyhow's `{:#}` prints it.
    fn chain(error: &dyn Error) -> String {
        let sources = std::iter::successors(Some(error), |error| (*error).source());
        let texts: Vec<String> = sources.map(ToString::to_string).collect();
        texts.join(": ")
    }

    #[cfg(unix)]
    #[test]
    fn what_is_missing_here_says_nothing_of_the_server() {
        let server: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        for (number, is_about_server) in [
            (libc::EMFILE, false),
            (libc::EADDRNOTAVAIL, true), // a host without IPv6 says so of addresses of IPv6
            (libc::ECONNREFUSED, true),
            (libc::EHOSTUNREACH, true),
        ] {
            let error = dial_failed(&server, &io::Error::from_raw_os_error(number));
            assert_eq!(error.is_about_server(), is_about_server, "{error}");
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let address: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        let taken = || io::Error::from(io::ErrorKind::AddrInUse);
        let cause = "the cause";
        let codec = || CodecError::new("postcard", cause);
        let malformed = ConnectionError::from(WireError::Truncated { what: cause });
        let server = Some(address.clone());
        let handshake = ConnectError::Handshake {
            server,
            source: malformed.clone(),
        };
        let request = RequestId::FIRST;
        let not_sent = Failure::NotSent {
            request,
            error: handshake.clone(),
        };
        let errors: [(Box<dyn Error>, &str); 9] = [
            (
                Box::new(BindError::Listen {
                    address,
                    source: taken(),
                }),
                "in use",
            ),
            (
                Box::new(BindError::Resolve {
                    address: "host".into(),
                    source: taken(),
                }),
                "in use",
            ),
            (Box::new(malformed), cause),
            (Box::new(handshake), cause),
            (Box::new(not_sent.clone()), cause),
            (Box::new(CallError::from(not_sent)), cause),
            (Box::new(SendError::from(codec())), cause),
            (Box::new(Failure::from(codec())), cause),
            (Box::new(CallError::from(Failure::from(codec()))), cause),
        ];
        for (error, cause) in errors {
            let text = chain(error.as_ref());
            assert_eq!(text.matches(cause).count(), 1, "{text}");
        }
    }
}
