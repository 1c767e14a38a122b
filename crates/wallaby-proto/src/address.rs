//! Where an endpoint is reached.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;
use std::sync::Arc;

use bytes::BufMut;
use thiserror::Error;

use crate::varint::{self, Reader};
use crate::wire::DecodeError;

/// Longest name of a `unix:`, `shm:` or `mem:` address, in bytes (a unix socket's path cannot be longer on Linux).
pub const MAX_NAME: usize = 107;

/// Where an endpoint is reached; the scheme picks the transport.
///
/// ```
/// use wallaby_proto::Address;
///
/// let address: Address = "tcp://127.0.0.1:4000".parse()?;
/// assert_eq!(address.to_string(), "tcp://127.0.0.1:4000");
/// assert!("tcp://nowhere".parse::<Address>().is_err());
/// # Ok::<(), wallaby_proto::AddressError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// `tcp://IP:PORT`
    Tcp(SocketAddr),
    /// `udp://IP:PORT`
    Udp(SocketAddr),
    /// `unix:///path/of/the/socket`
    Unix(Arc<str>),
    /// `mem://name`: another endpoint of this process
    Mem(Arc<str>),
    /// `shm:///path/of/the/socket`: another process of this host, over shared memory that is agreed on at this unix socket
    Shm(Arc<str>),
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// There is no `scheme:` or it is not one of ours.
    #[error(
        "{text:?} is no address: expected tcp://IP:PORT, udp://IP:PORT, unix:///PATH, shm:///PATH or mem://NAME"
    )]
    UnknownScheme {
        /// What was given.
        text: String,
    },
    /// The scheme needs an IP address and a port.
    #[error(
        "{text:?} is no address: expected an IP address and a port after the scheme, as in tcp://127.0.0.1:4000"
    )]
    NoSocketAddress {
        /// What was given.
        text: String,
    },
    /// The scheme needs a name of 1 to [`MAX_NAME`] bytes without NUL.
    #[error("{text:?} is no address: expected a name of 1 to {MAX_NAME} bytes after the scheme")]
    BadName {
        /// What was given.
        text: String,
    },
}

const TCP4: u8 = 0;
const TCP6: u8 = 1;
const UDP4: u8 = 2;
const UDP6: u8 = 3;
const UNIX: u8 = 4;
const MEM: u8 = 5;
const SHM: u8 = 6;

impl Address {
    /// Appends the address: a tag, then 6 bytes (IPv4), 18 (IPv6), or a name with its length.
    pub(crate) fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::Tcp(SocketAddr::V4(v4)) => put_v4(out, TCP4, v4),
            Self::Tcp(SocketAddr::V6(v6)) => put_v6(out, TCP6, v6),
            Self::Udp(SocketAddr::V4(v4)) => put_v4(out, UDP4, v4),
            Self::Udp(SocketAddr::V6(v6)) => put_v6(out, UDP6, v6),
            Self::Unix(name) => put_name(out, UNIX, name),
            Self::Mem(name) => put_name(out, MEM, name),
            Self::Shm(name) => put_name(out, SHM, name),
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "address";
        Ok(match reader.u8(what)? {
            TCP4 => Self::Tcp(read_v4(reader)?),
            TCP6 => Self::Tcp(read_v6(reader)?),
            UDP4 => Self::Udp(read_v4(reader)?),
            UDP6 => Self::Udp(read_v6(reader)?),
            UNIX => Self::Unix(read_name(reader)?),
            MEM => Self::Mem(read_name(reader)?),
            SHM => Self::Shm(read_name(reader)?),
            _ => {
                return Err(DecodeError::Malformed {
                    what,
                    why: "an unknown scheme",
                });
            }
        })
    }
}

fn put_v4(out: &mut impl BufMut, tag: u8, address: &SocketAddrV4) {
    let [a, b, c, d] = address.ip().octets();
    let [high, low] = address.port().to_be_bytes();
    out.put_slice(&[tag, a, b, c, d, high, low]);
}

fn put_v6(out: &mut impl BufMut, tag: u8, address: &SocketAddrV6) {
    out.put_u8(tag);
    out.put_slice(&address.ip().octets());
    out.put_u16(address.port());
}

fn put_name(out: &mut impl BufMut, tag: u8, name: &str) {
    out.put_u8(tag);
    varint::put_bytes(out, name.as_bytes());
}

fn read_v4(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let [a, b, c, d, high, low] = reader.array("address")?;
    Ok((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into())
}

fn read_v6(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let ip = Ipv6Addr::from(reader.array::<16>("address")?);
    Ok((ip, u16::from_be_bytes(reader.array("address")?)).into())
}

fn read_name(reader: &mut Reader<'_>) -> Result<Arc<str>, DecodeError> {
    let name = reader.str(MAX_NAME, "address")?;
    if !is_name(name) {
        return Err(DecodeError::Malformed {
            what: "address",
            why: "an empty name or one with NUL",
        });
    }
    Ok(name.into())
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0')
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let socket = |rest: &str| {
            rest.parse()
                .map_err(|_| AddressError::NoSocketAddress { text: text.into() })
        };
        let name = |rest: &str| {
            if is_name(rest) {
                Ok(rest.into())
            } else {
                Err(AddressError::BadName { text: text.into() })
            }
        };
        match text.split_once("://") {
            Some(("tcp", rest)) => Ok(Self::Tcp(socket(rest)?)),
            Some(("udp", rest)) => Ok(Self::Udp(socket(rest)?)),
            Some(("unix", rest)) => Ok(Self::Unix(name(rest)?)),
            Some(("mem", rest)) => Ok(Self::Mem(name(rest)?)),
            Some(("shm", rest)) => Ok(Self::Shm(name(rest)?)),
            _ => Err(AddressError::UnknownScheme { text: text.into() }),
        }
    }
}

/// In one piece where it fits one: a server looks up where each message goes.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let socket = |scheme: u8, socket: &SocketAddr, state: &mut H| match socket {
            SocketAddr::V4(v4) => {
                let ip = u64::from(v4.ip().to_bits());
                state.write_u64(u64::from(scheme) << 48 | ip << 16 | u64::from(v4.port()));
            }
            SocketAddr::V6(v6) => {
                state.write_u128(v6.ip().to_bits());
                state.write_u64(u64::from(scheme) << 48 | u64::from(v6.port()));
            }
        };
        match self {
            Self::Tcp(address) => socket(TCP4, address, state),
            Self::Udp(address) => socket(UDP4, address, state),
            Self::Unix(name) => (UNIX, name).hash(state),
            Self::Mem(name) => (MEM, name).hash(state),
            Self::Shm(name) => (SHM, name).hash(state),
        }
    }
}

impl From<&Self> for Address {
    fn from(address: &Self) -> Self {
        address.clone()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(socket) => write!(f, "tcp://{socket}"),
            Self::Udp(socket) => write!(f, "udp://{socket}"),
            Self::Unix(path) => write!(f, "unix://{path}"),
            Self::Mem(name) => write!(f, "mem://{name}"),
            Self::Shm(path) => write!(f, "shm://{path}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// As text, so that an address can be part of an application's payload.
#[cfg(feature = "serde")]
impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_survive() {
        for text in [
            "tcp://127.0.0.1:4000",
            "tcp://[::1]:4000",
            "udp://10.1.2.3:1",
            "udp://[2001:db8::1]:9",
            "unix:///tmp/a.sock",
            "mem://index",
            "shm:///tmp/a.sock",
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            let mut out = Vec::new();
            address.put(&mut out);
            assert_eq!(Address::read(&mut Reader::new(&out)), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_says_what_was_expected() {
        for text in [
            "",
            "127.0.0.1:80",
            "http://x",
            "tcp://localhost:80",
            "tcp://1.2.3.4",
            "unix://",
            "mem://",
            "shm://",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("expected"), "{error}");
        }
    }
}
