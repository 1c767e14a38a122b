//! Where an endpoint is reached.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;
use std::sync::Arc;

use bytes::BufMut;
use thiserror::Error;

use crate::status::Code;
use crate::varint::{self, Reader, WireError};

/// Longest name of a `unix:`, `shm:` or `mem:` address, in bytes (a unix socket's path cannot be longer on Linux), and
/// longest text of an address with another scheme.
pub const MAX_NAME: usize = 107;

/// Longest scheme of an address, in bytes.
pub const MAX_SCHEME: usize = 16;

/// Where an endpoint is reached; the scheme picks the transport.
///
/// ```
/// use wallaby_proto::Address;
///
/// let address: Address = "tcp://127.0.0.1:4000".parse()?;
/// assert_eq!(address.to_string(), "tcp://127.0.0.1:4000");
/// let named: Address = "tcp://index.example.org:4000".parse()?; // it is looked up whenever it is dialled
/// assert_eq!(named.scheme(), "tcp");
/// assert!("tcp://nowhere".parse::<Address>().is_err(), "there is no port");
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
    /// `tcp://HOST:PORT` and `udp://HOST:PORT`, where HOST is a name, which is looked up at each dial: over tcp up to 16 of its IP
    /// addresses are tried, over udp one, of IPv4 if it has any; or `SCHEME://TEXT`: reached by
    /// a transport that is not part of Wallaby, if an endpoint has it
    Other(OtherAddress),
}

/// An address whose text means something to its transport alone: a host name and a port for `tcp` and `udp`, anything for schemes
/// that Wallaby itself has no transport for.
///
/// Every endpoint can read it, keep it and pass it on. Other schemes can be dialled where a transport was added for them.
///
/// ```
/// use wallaby_proto::{Address, OtherAddress};
///
/// let address: Address = "tls://example.org:443".parse()?;
/// let Address::Other(other) = &address else { panic!() };
/// assert_eq!((other.scheme(), other.text()), ("tls", "example.org:443"));
/// assert_eq!(address, Address::Other(OtherAddress::new("tls", "example.org:443")?));
/// assert!(OtherAddress::new("tcp", "127.0.0.1:80").is_err(), "an address has one form");
/// # Ok::<(), wallaby_proto::AddressError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherAddress {
    /// Scheme, `://` and text in one: as small as the other variants.
    whole: Arc<str>,
}

/// Why a text is not an address.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no `scheme://`, or none that can be one.
    #[error(
        "{text:?} is no address: expected tcp://HOST:PORT, udp://HOST:PORT, unix:///PATH, shm:///PATH, mem://NAME or SCHEME://TEXT"
    )]
    BadScheme {
        /// What was given.
        text: String,
    },
    /// The scheme needs an IP address or a host name, and a port.
    #[error(
        "{text:?} is no address: expected an IP address or a host name, and a port after the scheme, as in tcp://127.0.0.1:4000"
    )]
    NoSocketAddress {
        /// What was given.
        text: String,
    },
    /// The scheme needs a name or text of 1 to [`MAX_NAME`] bytes without NUL.
    #[error("{text:?} is no address: expected a name of 1 to {MAX_NAME} bytes after the scheme")]
    BadName {
        /// What was given.
        text: String,
    },
}

impl AddressError {
    /// What kind of error it is: always [`Code::InvalidArgument`].
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}

const TCP4: u8 = 0;
const TCP6: u8 = 1;
const UDP4: u8 = 2;
const UDP6: u8 = 3;
const UNIX: u8 = 4;
const MEM: u8 = 5;
const SHM: u8 = 6;
const OTHER: u8 = 7;

/// Schemes whose addresses may have a host's name in place of an IP address.
const NAMED: [&str; 2] = ["tcp", "udp"];

/// Schemes that have a variant, and so a form of their own.
const BUILT_IN: [&str; 5] = ["tcp", "udp", "unix", "mem", "shm"];

impl OtherAddress {
    /// An address of this scheme: 1 to [`MAX_SCHEME`] lowercase letters, digits and `+.-`, a letter first; and a text of 1 to
    /// [`MAX_NAME`] bytes, none of them 0. For `tcp` and `udp` the text is a host's name and a port.
    ///
    /// # Errors
    ///
    /// If one of the two is something else, or there is a variant of [`Address`] for it.
    pub fn new(scheme: &str, text: &str) -> Result<Self, AddressError> {
        let whole = || format!("{scheme}://{text}");
        if NAMED.contains(&scheme) && !is_host_and_port(text) {
            return Err(AddressError::NoSocketAddress { text: whole() });
        }
        if !NAMED.contains(&scheme) && !is_other_scheme(scheme) {
            return Err(AddressError::BadScheme { text: whole() });
        }
        if !is_name(text) {
            return Err(AddressError::BadName { text: whole() });
        }
        let whole = whole().into();
        Ok(Self { whole })
    }

    fn split(&self) -> (&str, &str) {
        self.whole.split_once("://").unwrap_or_default() // no scheme has a colon
    }

    /// What stands before `://`.
    pub fn scheme(&self) -> &str {
        self.split().0
    }

    /// What stands after it.
    pub fn text(&self) -> &str {
        self.split().1
    }

    /// The text as an IP address and a port, if it is that.
    pub fn socket(&self) -> Option<SocketAddr> {
        self.text().parse().ok()
    }
}

/// Whether this is the name of a host, and a port. What looks like an IPv4 address is none.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(fits)
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    port.parse::<u16>()
        .is_ok_and(|number| number.to_string() == port)
        && host.split('.').all(label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether this can be the scheme of an [`OtherAddress`] that means nothing to Wallaby.
fn is_other_scheme(scheme: &str) -> bool {
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'.' | b'-');
    scheme.len() <= MAX_SCHEME
        && scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(fits)
        && !BUILT_IN.contains(&scheme)
}

impl Address {
    /// Whether it is reached by datagrams.
    pub fn is_udp(&self) -> bool {
        match self {
            Self::Udp(_) => true,
            Self::Other(other) => other.scheme() == "udp",
            _ => false,
        }
    }

    /// Whether only its transport knows where it leads, as from a host's name.
    pub fn is_name(&self) -> bool {
        matches!(self, Self::Other(other) if other.socket().is_none())
    }

    /// Whether a host's name has to be looked up to reach it: it may lead to several endpoints, and to another one tomorrow.
    pub fn has_host_name(&self) -> bool {
        matches!(self, Self::Other(other) if NAMED.contains(&other.scheme()))
    }

    /// What stands before `://`.
    pub fn scheme(&self) -> &str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Udp(_) => "udp",
            Self::Unix(_) => "unix",
            Self::Mem(_) => "mem",
            Self::Shm(_) => "shm",
            Self::Other(other) => other.scheme(),
        }
    }

    /// Appends the address: a tag, then 6 bytes (IPv4), 18 (IPv6), a name with its length, or two texts.
    pub(crate) fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::Tcp(SocketAddr::V4(v4)) => put_v4(out, TCP4, v4),
            Self::Tcp(SocketAddr::V6(v6)) => put_v6(out, TCP6, v6),
            Self::Udp(SocketAddr::V4(v4)) => put_v4(out, UDP4, v4),
            Self::Udp(SocketAddr::V6(v6)) => put_v6(out, UDP6, v6),
            Self::Unix(name) => put_name(out, UNIX, name),
            Self::Mem(name) => put_name(out, MEM, name),
            Self::Shm(name) => put_name(out, SHM, name),
            Self::Other(other) => {
                let (scheme, text) = other.split();
                put_name(out, OTHER, scheme);
                varint::put_bytes(out, text.as_bytes());
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "address";
        Ok(match reader.u8(what)? {
            TCP4 => Self::Tcp(read_v4(reader)?),
            TCP6 => Self::Tcp(read_v6(reader)?),
            UDP4 => Self::Udp(read_v4(reader)?),
            UDP6 => Self::Udp(read_v6(reader)?),
            UNIX => Self::Unix(read_name(reader)?),
            MEM => Self::Mem(read_name(reader)?),
            SHM => Self::Shm(read_name(reader)?),
            OTHER => Self::Other(read_other(reader)?),
            _ => {
                return Err(WireError::Malformed {
                    what,
                    why: "an unknown tag",
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

fn read_v4(reader: &mut Reader<'_>) -> Result<SocketAddr, WireError> {
    let [a, b, c, d, high, low] = reader.array("address")?;
    Ok((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into())
}

fn read_v6(reader: &mut Reader<'_>) -> Result<SocketAddr, WireError> {
    let ip = Ipv6Addr::from(reader.array::<16>("address")?);
    Ok((ip, u16::from_be_bytes(reader.array("address")?)).into())
}

fn read_name(reader: &mut Reader<'_>) -> Result<Arc<str>, WireError> {
    let name = reader.str(MAX_NAME, "address")?;
    if !is_name(name) {
        return Err(WireError::Malformed {
            what: "address",
            why: "an empty name or one with NUL",
        });
    }
    Ok(name.into())
}

fn read_other(reader: &mut Reader<'_>) -> Result<OtherAddress, WireError> {
    let what = "address";
    let scheme = reader.str(MAX_SCHEME, what)?;
    let text = reader.str(MAX_NAME, what)?;
    OtherAddress::new(scheme, text).map_err(|_| WireError::Malformed {
        what,
        why: "no scheme of another transport, an empty text or one with NUL",
    })
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0')
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let socket = |scheme: &str, rest: &str, of: fn(SocketAddr) -> Self| match rest.parse() {
            Ok(socket) => Ok(of(socket)),
            Err(_) => OtherAddress::new(scheme, rest).map(Self::Other),
        };
        let name = |rest: &str| {
            if is_name(rest) {
                Ok(rest.into())
            } else {
                Err(AddressError::BadName { text: text.into() })
            }
        };
        match text.split_once("://") {
            Some(("tcp", rest)) => socket("tcp", rest, Self::Tcp),
            Some(("udp", rest)) => socket("udp", rest, Self::Udp),
            Some(("unix", rest)) => Ok(Self::Unix(name(rest)?)),
            Some(("mem", rest)) => Ok(Self::Mem(name(rest)?)),
            Some(("shm", rest)) => Ok(Self::Shm(name(rest)?)),
            Some((scheme, rest)) if is_other_scheme(scheme) && is_name(rest) => {
                Ok(Self::Other(OtherAddress { whole: text.into() }))
            }
            Some((scheme, _)) if is_other_scheme(scheme) => {
                Err(AddressError::BadName { text: text.into() })
            }
            _ => Err(AddressError::BadScheme { text: text.into() }),
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
            Self::Other(other) => (OTHER, other).hash(state),
        }
    }
}

impl From<&Self> for Address {
    fn from(address: &Self) -> Self {
        address.clone()
    }
}

/// What says where an endpoint is reached: an [`Address`], or text that is one. Who takes it tells later, where errors are told, if
/// the text is none.
///
/// ```
/// use wallaby_proto::{Address, IntoAddress};
///
/// assert_eq!("tcp://127.0.0.1:4000".into_address(), "tcp://127.0.0.1:4000".parse());
/// assert!("127.0.0.1".into_address().is_err(), "there is no scheme");
/// ```
pub trait IntoAddress {
    /// The address.
    ///
    /// # Errors
    ///
    /// If it is text that is none.
    fn into_address(self) -> Result<Address, AddressError>;
}

impl<T: Into<Address>> IntoAddress for T {
    fn into_address(self) -> Result<Address, AddressError> {
        Ok(self.into())
    }
}

impl IntoAddress for &str {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
    }
}

impl IntoAddress for &String {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
    }
}

impl IntoAddress for String {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
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
            Self::Other(other) => f.write_str(&other.whole),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl fmt::Debug for OtherAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OtherAddress({})", self.whole)
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

crate::debug_as_text!(AddressError);

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
            "tls://example.org:443",
            "tcp://localhost:80",
            "udp://a-1.b_2.example.:65535",
            "a+b.c-9://x://y",
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
            "Http://x",
            "9p://x",
            "h_2://x",
            "://x",
            "seventeen-letters://x",
            "tls://",
            "tls://\0",
            "tcp://localhost",
            "tcp://local host:80",
            "tcp://.example:80",
            "tcp://a..b:80",
            "tcp://localhost:65536",
            "tcp://localhost:+80",
            "tcp://localhost:080",
            "tcp://:80",
            "tcp://1.2.3.4",
            "tcp://1.2.3:80",
            "udp://1.2.3.4.5:80",
            "udp://[::1:80",
            "unix://",
            "mem://",
            "shm://",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("expected"), "{error}");
        }
        let long = format!("tls://{}", "x".repeat(MAX_NAME + 1));
        let error = long.parse::<Address>().expect_err("too long");
        assert!(matches!(error, AddressError::BadName { .. }));
    }

    /// An address has one form: what has a variant cannot come in disguise, past a policy that looks at variants.
    #[test]
    fn other_schemes_are_no_second_way_to_say_a_known_one() {
        for (scheme, text) in [
            ("tcp", "127.0.0.1:1"),
            ("udp", "[::1]:1"),
            ("tcp", "localhost"),
            ("unix", "/tmp/a"),
            ("TLS", "x"),
            ("", "x"),
            ("a:b", "x"),
            ("tls", ""),
            ("tls", "\0"),
        ] {
            assert!(
                OtherAddress::new(scheme, text).is_err(),
                "{scheme} {text:?}"
            );
            let mut bytes = Vec::new();
            put_name(&mut bytes, OTHER, scheme);
            varint::put_bytes(&mut bytes, text.as_bytes());
            let read = Address::read(&mut Reader::new(&bytes));
            assert!(matches!(read, Err(WireError::Malformed { .. })), "{read:?}");
        }
    }
}
