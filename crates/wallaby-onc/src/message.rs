//! The messages of ONC RPC version 2 (RFC 5531): a call, and the reply to it.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::auth::{AuthError, OpaqueAuth};
use crate::xdr::{DecodeError, EncodeError, Reader, Writer, Xdr, XdrLimits};

/// The version of the protocol that is spoken here.
pub const RPC_VERSION: u32 = 2;

const CALL: u32 = 0;
const REPLY: u32 = 1;

const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;

const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;

/// A reply that was accepted, flavor and length of no verifier, and success.
#[cfg(all(feature = "net", unix))]
const PLAIN_REPLY: [u8; 20] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

/// A message: a datagram over UDP, a [record](crate::record) over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcMessage {
    /// Names the call: its reply has the same, and so has the call when it is sent again.
    pub xid: u32,
    /// What it says.
    pub body: MessageBody,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageBody {
    /// Call a procedure.
    Call(CallBody),
    /// What became of a call.
    Reply(Reply),
}

/// The procedure that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Procedure {
    /// The program's number.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// The procedure's number within the version.
    pub number: u32,
}

impl From<(u32, u32, u32)> for Procedure {
    fn from((program, version, number): (u32, u32, u32)) -> Self {
        Self {
            program,
            version,
            number,
        }
    }
}

impl fmt::Display for Procedure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            version,
            number,
        } = self;
        write!(
            formatter,
            "procedure {number} of program {program} version {version}"
        )
    }
}

impl Procedure {
    /// That it is called.
    fn encode(self, writer: &mut Writer) {
        writer.u32(CALL);
        writer.u32(RPC_VERSION);
        writer.u32(self.program);
        writer.u32(self.version);
        writer.u32(self.number);
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBody {
    /// What is called.
    pub procedure: Procedure,
    /// Who calls.
    pub credential: OpaqueAuth,
    /// The proof of that.
    pub verifier: OpaqueAuth,
    /// The arguments, in XDR, one after another.
    pub arguments: Bytes,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The server knows who calls, and tried.
    Accepted {
        /// The proof that it is the server.
        verifier: OpaqueAuth,
        /// The procedure's results in XDR, or why there are none.
        outcome: Result<Bytes, AcceptError>,
    },
    /// The server did not look at what is called.
    Denied(Denial),
}

impl Reply {
    /// The reply of a procedure that was executed, or of a server that would have, without a verifier.
    #[must_use]
    pub fn accepted(outcome: Result<Bytes, AcceptError>) -> Self {
        Self::Accepted {
            verifier: OpaqueAuth::none(),
            outcome,
        }
    }

    /// The bytes of the message with this reply. `None`: a verifier is too long.
    pub(crate) fn message(&self, xid: u32) -> Option<Bytes> {
        let mut writer = Writer::with_capacity(self.length());
        self.write(xid, &mut writer).ok()?;
        Some(writer.into_bytes())
    }

    /// Writes the message with this reply.
    pub(crate) fn write(&self, xid: u32, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.u32(xid);
        self.encode(writer)
    }

    /// How many bytes its message has; those of a refusal may be a few less.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Accepted { verifier, outcome } => {
                verifier.length() + 16 + outcome.as_ref().map_or(8, Bytes::len)
            }
            Self::Denied(_) => 24,
        }
    }

    /// The number of the call, and where the results begin, in a reply with results and no verifier, as most are.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn plain(message: &[u8]) -> Option<(u32, usize)> {
        let (xid, rest) = message.split_first_chunk()?;
        let head: &[u8; 20] = rest.first_chunk()?;
        (*head == PLAIN_REPLY).then(|| (u32::from_be_bytes(*xid), 4 + head.len()))
    }

    /// The results in XDR, whoever proved to be the server.
    ///
    /// # Errors
    /// The procedure was not executed, or failed.
    pub fn results(self) -> Result<Bytes, Refusal> {
        match self {
            Self::Accepted { outcome, .. } => outcome.map_err(Refusal::Accept),
            Self::Denied(denial) => Err(Refusal::Denied(denial)),
        }
    }
}

/// Why an accepted call has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum AcceptError {
    /// The server has no such program.
    #[error("the server does not have this program")]
    ProgramUnavailable,
    /// The server has the program, but not in this version.
    #[error("the server has this program in {} only", versions(*low, *high))]
    ProgramMismatch {
        /// Its lowest version there.
        low: u32,
        /// Its highest version there.
        high: u32,
    },
    /// The version has no procedure with this number.
    #[error("the program has no such procedure")]
    ProcedureUnavailable,
    /// The server could not read the arguments.
    #[error("the server cannot read the arguments")]
    GarbageArguments,
    /// Something went wrong in the server.
    #[error("the server failed")]
    SystemError,
}

/// Why a call was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Denial {
    /// The server speaks other versions of ONC RPC.
    #[error("the server speaks {} of ONC RPC only", versions(*low, *high))]
    RpcMismatch {
        /// The lowest version that it speaks.
        low: u32,
        /// The highest version that it speaks.
        high: u32,
    },
    /// The server does not know, or not believe, who calls.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

fn versions(low: u32, high: u32) -> String {
    match low == high {
        true => format!("version {low}"),
        false => format!("versions {low} to {high}"),
    }
}

impl Denial {
    /// The denial of a call in any version but [`RPC_VERSION`].
    #[must_use]
    pub fn other_version() -> Self {
        Self::RpcMismatch {
            low: RPC_VERSION,
            high: RPC_VERSION,
        }
    }
}

/// Why a call has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The server tried.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The server did not.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// No reply at all, as some procedures want it: a service says so, a client never sees it.
    #[error("the server does not reply to this call")]
    Silent,
}

/// Bytes that are no message of ONC RPC version 2.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadMessage {
    /// A call in another version of ONC RPC, which says no more about itself: [`Denial::other_version`] is the reply.
    #[error("a call in version {version} of ONC RPC")]
    OtherVersion {
        /// Names the call.
        xid: u32,
        /// Its version.
        version: u32,
    },
    /// No message at all. There is nobody to reply to.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

impl RpcMessage {
    /// The message that takes up these bytes. Arguments and results are slices of them.
    ///
    /// # Errors
    /// It is a call in another version of ONC RPC, or no message.
    pub fn decode(bytes: Bytes) -> Result<Self, BadMessage> {
        let mut reader = Reader::new(bytes, XdrLimits::default());
        let xid = reader.u32()?;
        let body = match reader.u32()? {
            CALL => match reader.u32()? {
                RPC_VERSION => MessageBody::Call(CallBody::decode(reader)?),
                version => return Err(BadMessage::OtherVersion { xid, version }),
            },
            REPLY => MessageBody::Reply(Reply::decode(reader)?),
            other => return Err(reader.unknown("msg_type", other.into()).into()),
        };
        Ok(Self { xid, body })
    }

    /// The message's bytes.
    ///
    /// # Errors
    /// A credential or verifier is longer than [`MAX_AUTH_BYTES`](crate::auth::MAX_AUTH_BYTES).
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::with_capacity(self.length());
        writer.u32(self.xid);
        match &self.body {
            MessageBody::Call(call) => call.encode(&mut writer)?,
            MessageBody::Reply(reply) => reply.encode(&mut writer)?,
        }
        Ok(writer.into_bytes())
    }

    /// How many bytes it has; those of a refusal may be a few less.
    fn length(&self) -> usize {
        match &self.body {
            MessageBody::Call(call) => {
                call.credential.length() + call.verifier.length() + 24 + call.arguments.len()
            }
            MessageBody::Reply(reply) => reply.length(),
        }
    }
}

impl CallBody {
    /// The number and the procedure of a call by nobody in particular, as many are, and where its arguments begin.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn plain(message: &[u8]) -> Option<(u32, Procedure, usize)> {
        let head: &[u8; 40] = message.first_chunk()?;
        let ([xid, kind, version, program, of_program, number, auth @ ..], []) = head.as_chunks()
        else {
            return None;
        };
        let is_plain = (*kind, *version) == (CALL.to_be_bytes(), RPC_VERSION.to_be_bytes())
            && auth.iter().all(|word| *word == [0; 4]);
        let procedure = Procedure {
            program: u32::from_be_bytes(*program),
            version: u32::from_be_bytes(*of_program),
            number: u32::from_be_bytes(*number),
        };
        is_plain.then(|| (u32::from_be_bytes(*xid), procedure, head.len()))
    }

    /// Writes a message with a call up to its arguments, without a verifier.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn write_head(
        xid: u32,
        procedure: Procedure,
        credential: &OpaqueAuth,
        writer: &mut Writer,
    ) -> Result<(), EncodeError> {
        writer.u32(xid);
        procedure.encode(writer);
        credential.encode(writer)?;
        OpaqueAuth::none().encode(writer)
    }

    /// Reads what follows the version of ONC RPC.
    fn decode(mut reader: Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            procedure: Procedure {
                program: reader.u32()?,
                version: reader.u32()?,
                number: reader.u32()?,
            },
            credential: OpaqueAuth::decode(&mut reader)?,
            verifier: OpaqueAuth::decode(&mut reader)?,
            arguments: reader.rest(),
        })
    }

    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        self.procedure.encode(writer);
        self.credential.encode(writer)?;
        self.verifier.encode(writer)?;
        writer.raw(&self.arguments);
        Ok(())
    }
}

impl Reply {
    fn decode(mut reader: Reader) -> Result<Self, DecodeError> {
        match reader.u32()? {
            ACCEPTED => Ok(Self::Accepted {
                verifier: OpaqueAuth::decode(&mut reader)?,
                outcome: outcome(reader)?,
            }),
            DENIED => Denial::decode(reader).map(Self::Denied),
            other => Err(reader.unknown("reply_stat", other.into())),
        }
    }

    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.u32(REPLY);
        match self {
            Self::Accepted { verifier, outcome } => {
                writer.u32(ACCEPTED);
                verifier.encode(writer)?;
                match outcome {
                    Ok(results) => {
                        writer.u32(SUCCESS);
                        writer.raw(results);
                    }
                    Err(error) => error.encode(writer),
                }
            }
            Self::Denied(denial) => {
                writer.u32(DENIED);
                denial.encode(writer);
            }
        }
        Ok(())
    }
}

fn outcome(mut reader: Reader) -> Result<Result<Bytes, AcceptError>, DecodeError> {
    let error = match reader.u32()? {
        SUCCESS => return Ok(Ok(reader.rest())),
        PROG_UNAVAIL => AcceptError::ProgramUnavailable,
        PROG_MISMATCH => AcceptError::ProgramMismatch {
            low: reader.u32()?,
            high: reader.u32()?,
        },
        PROC_UNAVAIL => AcceptError::ProcedureUnavailable,
        GARBAGE_ARGS => AcceptError::GarbageArguments,
        SYSTEM_ERR => AcceptError::SystemError,
        other => return Err(reader.unknown("accept_stat", other.into())),
    };
    reader.finish()?;
    Ok(Err(error))
}

impl AcceptError {
    fn encode(self, writer: &mut Writer) {
        writer.u32(match self {
            Self::ProgramUnavailable => PROG_UNAVAIL,
            Self::ProgramMismatch { .. } => PROG_MISMATCH,
            Self::ProcedureUnavailable => PROC_UNAVAIL,
            Self::GarbageArguments => GARBAGE_ARGS,
            Self::SystemError => SYSTEM_ERR,
        });
        if let Self::ProgramMismatch { low, high } = self {
            writer.u32(low);
            writer.u32(high);
        }
    }
}

impl Denial {
    fn decode(mut reader: Reader) -> Result<Self, DecodeError> {
        let denial = match reader.u32()? {
            RPC_MISMATCH => Self::RpcMismatch {
                low: reader.u32()?,
                high: reader.u32()?,
            },
            AUTH_ERROR => Self::Auth(AuthError::from_number(reader.u32()?)),
            other => return Err(reader.unknown("reject_stat", other.into())),
        };
        reader.finish()?;
        Ok(denial)
    }

    fn encode(self, writer: &mut Writer) {
        match self {
            Self::RpcMismatch { low, high } => {
                writer.u32(RPC_MISMATCH);
                writer.u32(low);
                writer.u32(high);
            }
            Self::Auth(error) => {
                writer.u32(AUTH_ERROR);
                writer.u32(error.number());
            }
        }
    }
}
