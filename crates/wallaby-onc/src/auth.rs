//! Who calls: credentials and verifiers (RFC 5531, section 8 and appendix A).

use bytes::Bytes;
use thiserror::Error;

use crate::peer::Origin;
use crate::xdr::{self, DecodeError, EncodeError, Reader, Text, Writer, Xdr, XdrLimits};

/// Most bytes of a credential or verifier.
pub const MAX_AUTH_BYTES: u32 = 400;
/// Most bytes of the machine's name in [`AuthSys`].
pub const MAX_MACHINE_NAME: u32 = 255;
/// Most groups in [`AuthSys`], besides the first one.
pub const MAX_GROUPS: u32 = 16;

/// The flavor of no authentication.
pub const AUTH_NONE: u32 = 0;
/// The flavor of [`AuthSys`].
pub const AUTH_SYS: u32 = 1;
/// The flavor of a shorthand for a credential, which a server may hand out.
pub const AUTH_SHORT: u32 = 2;

/// A credential or verifier of any flavor, as it travels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct OpaqueAuth {
    /// What kind of authentication this belongs to; [`AUTH_NONE`] and [`AUTH_SYS`] are known here.
    pub flavor: u32,
    /// What that kind has to say, at most [`MAX_AUTH_BYTES`].
    pub body: Bytes,
}

impl OpaqueAuth {
    /// No authentication.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }
}

impl OpaqueAuth {
    /// How many bytes it has in a message.
    pub(crate) fn length(&self) -> usize {
        8 + self.body.len().next_multiple_of(4)
    }
}

impl Xdr for OpaqueAuth {
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.u32(self.flavor);
        writer.opaque(&self.body, Some(MAX_AUTH_BYTES))
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            flavor: reader.u32()?,
            body: reader.opaque(Some(MAX_AUTH_BYTES))?,
        })
    }
}

/// Who calls, as a Unix system says it. Nothing proves it: who trusts it trusts the network and all on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct AuthSys {
    /// An arbitrary number of the caller's.
    pub stamp: u32,
    /// The caller's machine, at most [`MAX_MACHINE_NAME`] bytes.
    pub machine_name: Text,
    /// The user.
    pub uid: u32,
    /// The user's first group.
    pub gid: u32,
    /// The user's other groups, at most [`MAX_GROUPS`].
    pub gids: Vec<u32>,
}

impl AuthSys {
    /// Who this process is: its effective user and group, its groups (the first [`MAX_GROUPS`]), its machine.
    ///
    /// # Errors
    /// The system does not tell the groups.
    #[cfg(all(feature = "net", unix))]
    pub fn of_this_process() -> std::io::Result<Self> {
        use rustix::process::{getegid, geteuid, getgroups};
        let name = rustix::system::uname();
        let name = name.nodename().to_bytes();
        let limit = MAX_MACHINE_NAME as usize;
        let groups = getgroups()?.into_iter().map(|group| group.as_raw());
        Ok(Self {
            stamp: 0,
            machine_name: Bytes::copy_from_slice(name.get(..limit).unwrap_or(name)).into(),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            gids: groups.take(MAX_GROUPS as usize).collect(),
        })
    }

    /// The credential that says this.
    ///
    /// # Errors
    /// The machine's name is too long, or there are too many groups.
    pub fn credential(&self) -> Result<OpaqueAuth, EncodeError> {
        Ok(OpaqueAuth {
            flavor: AUTH_SYS,
            body: xdr::encode(self)?,
        })
    }
}

impl Xdr for AuthSys {
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.u32(self.stamp);
        writer.text(&self.machine_name, Some(MAX_MACHINE_NAME))?;
        writer.u32(self.uid);
        writer.u32(self.gid);
        writer.array(&self.gids, Some(MAX_GROUPS), |writer, gid| {
            gid.encode(writer)
        })
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            stamp: reader.u32()?,
            machine_name: reader.text(Some(MAX_MACHINE_NAME))?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            gids: reader.array(Some(MAX_GROUPS), u32::decode)?,
        })
    }
}

/// Who calls, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Who the caller says it is.
    pub identity: Credential,
    /// Where the call came from, if it came over a socket.
    pub origin: Option<Origin>,
}

/// Who a caller says it is, as far as it is understood.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Credential {
    /// Nobody in particular.
    Anonymous,
    /// Who a Unix system says it is.
    Sys(AuthSys),
    /// Somebody with a credential of another flavor.
    Other(OpaqueAuth),
}

impl Credential {
    /// What a credential says.
    ///
    /// # Errors
    /// The credential is of a flavor that is known, but malformed: [`AuthError::BadCredential`].
    pub fn from_opaque(credential: OpaqueAuth) -> Result<Self, AuthError> {
        match credential.flavor {
            AUTH_NONE => Ok(Self::Anonymous),
            AUTH_SYS => xdr::decode(credential.body, XdrLimits::default())
                .map(Self::Sys)
                .map_err(|_| AuthError::BadCredential),
            _ => Ok(Self::Other(credential)),
        }
    }
}

/// Why a server does not believe a caller, or a caller a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The credential is malformed: its seal is broken.
    #[error("the credential is malformed")]
    BadCredential,
    /// The client must begin a new session.
    #[error("the credential is rejected: begin a new session")]
    RejectedCredential,
    /// The verifier is malformed.
    #[error("the verifier is malformed")]
    BadVerifier,
    /// The verifier is expired or was replayed.
    #[error("the verifier is expired or was seen before")]
    RejectedVerifier,
    /// Rejected for security reasons: a stronger flavor is wanted.
    #[error("the authentication is too weak")]
    TooWeak,
    /// The verifier of the server's reply is not as it should be.
    #[error("the verifier of the reply is invalid")]
    InvalidResponse,
    /// Some other reason.
    #[error("authentication failed")]
    Failed,
    /// One of the reasons of Kerberos or RPCSEC_GSS, 8 to 14.
    #[error("authentication failed for reason {0} of its flavor")]
    Flavor(u32),
}

impl AuthError {
    /// The number on the wire, `auth_stat`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::BadCredential => 1,
            Self::RejectedCredential => 2,
            Self::BadVerifier => 3,
            Self::RejectedVerifier => 4,
            Self::TooWeak => 5,
            Self::InvalidResponse => 6,
            Self::Failed => 7,
            Self::Flavor(number) => number,
        }
    }

    /// The reason with this number. Numbers that no standard knows are kept too.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => Self::BadCredential,
            2 => Self::RejectedCredential,
            3 => Self::BadVerifier,
            4 => Self::RejectedVerifier,
            5 => Self::TooWeak,
            6 => Self::InvalidResponse,
            7 => Self::Failed,
            other => Self::Flavor(other),
        }
    }
}
