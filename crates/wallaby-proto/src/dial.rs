//! Which addresses an endpoint dials because others say so: nobody makes it knock at strangers' doors.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use crate::connection::DialLimits;
use crate::{Address, Code, OtherAddress};
use thiserror::Error;

/// Which addresses an endpoint dials because others say so: to answer an initiator, to hand work on for a handler, to ask
/// about a request that a server has delegated.
///
/// By default all are dialled but those that lead to no one server: multicast, broadcast, and port 0. An address that is not
/// dialled counts as one that cannot be: answers go back the way their request came, and a handler's delegation fails with
/// [`SendError::Forbidden`](crate::error::SendError::Forbidden). Addresses that the application itself gives to its calls are not
/// restricted, unless that is asked for ([`for_calls`](Self::for_calls)). Connections that are open are used whatever their
/// address.
///
/// An address of [another scheme](Address::Other) whose text is an IP address with a port is judged like any other. All other
/// texts, host names among them, are *names*: they may lead to any IP address. So names are not dialled where a network is denied,
/// as by [`public`](Self::public), or only networks are allowed, unless [`names_if`](Self::names_if) says yes.
///
/// ```
/// # use wallaby_proto::dial::DialPolicy;
/// let inside = DialPolicy::default().allow("10.0.0.0/8")?.deny("10.9.0.0/16")?;
/// assert!(inside.permits(&"tcp://10.1.2.3:80".parse()?) && !inside.permits(&"tcp://10.9.2.3:80".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct DialPolicy {
    allowed: Vec<Range>,
    denied: Vec<Range>,
    judge: Option<Arc<Judge>>,
    names: Option<Arc<Judge>>,
    for_calls: bool,
    limits: DialLimits,
}

type Judge = dyn Fn(&Address) -> bool + Send + Sync;

/// Addresses that are no stranger's business: this host, private networks, and what is reserved.
const INNER: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "240.0.0.0/4",
    "::/128",
    "::1/128",
    "64:ff9b::/96",
    "fc00::/7",
    "fe80::/10",
    "unix",
    "shm",
    "mem",
];

/// Why a text is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no range of addresses: expected tcp, udp, unix, shm, mem, another scheme with a colon as in tls:, or an IP address, perhaps with a number of bits as in 10.0.0.0/8"
)]
#[non_exhaustive]
pub struct DialRangeError {
    /// What was given.
    pub text: String,
}

impl DialRangeError {
    /// What kind of error it is: always [`Code::InvalidArgument`].
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}

impl DialPolicy {
    /// Dials only what everybody can reach: neither this host (`unix:`, `shm:` and `mem:` included) nor private, link-local and
    /// reserved addresses, nor names, which may lead to all of these ([`names_if`](Self::names_if)).
    pub fn public() -> Self {
        let denied = INNER
            .iter()
            .map(|text| text.parse().expect("the list is well formed"))
            .collect();
        Self {
            denied,
            ..Self::default()
        }
    }

    /// Dials what is in this range: `tcp`, `udp`, `unix`, `shm`, `mem`, another scheme with a colon (`tls:`), an IP address, or a
    /// network as `10.0.0.0/8` or `fd00::/8`. If any are named, nothing else is dialled.
    ///
    /// # Errors
    ///
    /// If the text is no range.
    pub fn allow(mut self, range: &str) -> Result<Self, DialRangeError> {
        self.allowed.push(range.parse()?);
        Ok(self)
    }

    /// Does not dial what is in this range, even if it is allowed.
    ///
    /// # Errors
    ///
    /// If the text is no range.
    pub fn deny(mut self, range: &str) -> Result<Self, DialRangeError> {
        self.denied.push(range.parse()?);
        Ok(self)
    }

    /// Dials only what this says yes to, too. It is asked last, often, and within the endpoint: it must neither block nor use that. If
    /// it panics, that is a no. It is asked about names as well: one that only looks at [`Address::Tcp`] and [`Address::Udp`] should say no to [`Address::Other`].
    #[must_use]
    pub fn only_if(mut self, judge: impl Fn(&Address) -> bool + Send + Sync + 'static) -> Self {
        self.judge = Some(Arc::new(judge));
        self
    }

    /// Dials the names that this says yes to, whatever networks are allowed or denied: who says so knows where they lead. It
    /// is asked as the one of [`Self::only_if`] is.
    ///
    /// ```
    /// # use wallaby_proto::{Address, dial::DialPolicy};
    /// let ours = |address: &Address| match address {
    ///     Address::Other(tls) => tls.text().ends_with(".servers.example:443"),
    ///     _ => false,
    /// };
    /// let policy = DialPolicy::public().names_if(ours);
    /// assert!(policy.permits(&"tls://a.servers.example:443".parse()?));
    /// assert!(!policy.permits(&"tls://localhost:443".parse()?));
    /// # Ok::<(), wallaby_proto::AddressError>(())
    /// ```
    #[must_use]
    pub fn names_if(mut self, judge: impl Fn(&Address) -> bool + Send + Sync + 'static) -> Self {
        self.names = Some(Arc::new(judge));
        self
    }

    /// Restricts the addresses of the application's own calls as well; those on behalf of a request are among them.
    #[must_use]
    pub fn for_calls(mut self) -> Self {
        self.for_calls = true;
        self
    }

    /// How many addresses are dialled a second because others say so, all together, and how many at once after a pause.
    /// Beyond, such an address counts as one that cannot be dialled. Default 256 and 1,024. Beside that, one address is dialled
    /// once at a time, and not again for a second if that was in vain, whoever names it.
    ///
    /// Addresses that the application itself gives to its calls are not counted.
    #[must_use]
    pub fn rate(mut self, per_second: u32, at_once: u32) -> Self {
        self.limits = DialLimits {
            rate: per_second,
            burst: at_once,
        };
        self
    }

    /// How often addresses are dialled because others say so.
    pub fn limits(&self) -> DialLimits {
        self.limits
    }

    /// Whether this address is dialled because others say so.
    pub fn permits(&self, address: &Address) -> bool {
        let is_name = address.is_name();
        let known = is_name
            && self
                .names
                .as_ref()
                .is_some_and(|judge| says_yes(judge.as_ref(), address));
        // A name may lead into any network.
        let denies = |range: &Range| range.contains(address) || is_name && range.is_network();
        let allows = |range: &Range| range.contains(address);
        let by_range = if known {
            !self.denied.iter().any(allows)
        } else {
            !self.denied.iter().any(denies)
                && (self.allowed.is_empty() || self.allowed.iter().any(allows))
        };
        leads_somewhere(address)
            && by_range
            && self
                .judge
                .as_ref()
                .is_none_or(|judge| says_yes(judge.as_ref(), address))
    }

    /// Whether it is dialled for a call of the application.
    pub fn permits_call(&self, address: &Address) -> bool {
        !self.for_calls || self.permits(address)
    }
}

/// A panic of the application's code must not leave an endpoint half changed.
fn says_yes(judge: &Judge, address: &Address) -> bool {
    catch_unwind(AssertUnwindSafe(|| judge(address))).unwrap_or(false)
}

/// Where it is a socket's address, an IPv4 one that is written as IPv6 among them.
fn socket(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Tcp(socket) | Address::Udp(socket) => {
            Some(SocketAddr::new(socket.ip().to_canonical(), socket.port()))
        }
        Address::Other(other) => other
            .socket()
            .map(|socket| SocketAddr::new(socket.ip().to_canonical(), socket.port())),
        _ => None,
    }
}

fn leads_somewhere(address: &Address) -> bool {
    socket(address).is_none_or(|socket| {
        let broadcast = matches!(socket.ip(), IpAddr::V4(ip) if ip.is_broadcast());
        socket.port() != 0 && !socket.ip().is_multicast() && !broadcast
    })
}

/// Addresses that have a scheme or some leading bits in common.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Range {
    Other(Arc<str>),
    Tcp,
    Udp,
    Unix,
    Shm,
    Mem,
    Network { first: IpAddr, bits: u32 },
}

impl Range {
    fn is_network(&self) -> bool {
        matches!(self, Self::Network { .. })
    }

    fn contains(&self, address: &Address) -> bool {
        match self {
            Self::Other(scheme) => {
                matches!(address, Address::Other(other) if other.scheme() == &**scheme)
            }
            Self::Tcp => address.scheme() == "tcp",
            Self::Udp => address.is_udp(),
            Self::Unix => matches!(address, Address::Unix(_)),
            Self::Shm => matches!(address, Address::Shm(_)),
            Self::Mem => matches!(address, Address::Mem(_)),
            Self::Network { first, bits } => {
                socket(address).is_some_and(|socket| are_near(*first, socket.ip(), *bits))
            }
        }
    }
}

/// Whether two addresses have so many leading bits in common.
fn are_near(one: IpAddr, other: IpAddr, bits: u32) -> bool {
    let (differ, width) = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u128::from(one.to_bits() ^ other.to_bits()), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits(), 128),
        _ => return false,
    };
    differ.checked_shr(width - bits).unwrap_or(0) == 0
}

impl FromStr for Range {
    type Err = DialRangeError;

    fn from_str(text: &str) -> Result<Self, DialRangeError> {
        let wrong = || DialRangeError { text: text.into() };
        let (ip, bits) = match text {
            "tcp" => return Ok(Self::Tcp),
            "udp" => return Ok(Self::Udp),
            "unix" => return Ok(Self::Unix),
            "shm" => return Ok(Self::Shm),
            "mem" => return Ok(Self::Mem),
            text if let Some(scheme) = text.strip_suffix(':')
                && OtherAddress::new(scheme, "any").is_ok() =>
            {
                return Ok(Self::Other(scheme.into()));
            }
            text => match text.split_once('/') {
                Some((ip, bits)) => (ip, Some(bits)),
                None => (text, None),
            },
        };
        let first: IpAddr = ip.parse().map_err(|_| wrong())?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| wrong())?,
            None => width,
        };
        if bits > width {
            return Err(wrong());
        }
        // Of addresses written as IPv6 that are IPv4 the last 32 bits count, as where they are looked up.
        match (first.to_canonical(), first) {
            (IpAddr::V4(_), IpAddr::V6(_)) if bits < 96 => Err(wrong()),
            (v4 @ IpAddr::V4(_), IpAddr::V6(_)) => Ok(Self::Network {
                first: v4,
                bits: bits - 96,
            }),
            _ => Ok(Self::Network { first, bits }),
        }
    }
}

impl fmt::Debug for DialPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialPolicy")
            .field("allowed", &self.allowed)
            .field("denied", &self.denied)
            .field("judge", &self.judge.is_some())
            .field("names", &self.names.is_some())
            .field("for_calls", &self.for_calls)
            .field("limits", &self.limits)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(policy: &DialPolicy, address: &str) -> bool {
        policy.permits(&address.parse().expect("an address"))
    }

    #[test]
    fn by_default_all_that_lead_somewhere_are_dialled() {
        let policy = DialPolicy::default();
        for address in [
            "tcp://127.0.0.1:1",
            "udp://[::1]:1",
            "tcp://0.0.0.0:1",
            "unix:///tmp/a",
            "shm:///tmp/a",
            "mem://a",
            "tcp://8.8.8.8:53",
        ] {
            assert!(permits(&policy, address), "{address}");
        }
        for address in [
            "tcp://127.0.0.1:0",
            "udp://224.0.0.1:1",
            "udp://255.255.255.255:1",
            "udp://[ff02::1]:1",
            "udp://[::ffff:224.0.0.1]:1",
        ] {
            assert!(!permits(&policy, address), "{address}");
        }
    }

    #[test]
    fn denied_wins_and_allowed_excludes_the_rest() {
        let policy = DialPolicy::default()
            .allow("10.0.0.0/8")
            .and_then(|policy| policy.allow("fd00::/8"))
            .and_then(|policy| policy.deny("10.9.0.0/16"))
            .and_then(|policy| policy.deny("10.0.0.7"))
            .expect("ranges");
        for (address, expected) in [
            ("tcp://10.1.2.3:4", true),
            ("udp://[fd12::1]:4", true),
            ("tcp://[::ffff:10.1.2.3]:4", true),
            ("tcp://10.9.2.3:4", false),
            ("tcp://[::ffff:10.9.2.3]:4", false),
            ("tcp://10.0.0.7:4", false),
            ("tcp://10.0.0.8:4", true),
            ("tcp://11.1.2.3:4", false),
            ("tcp://[fe80::1]:4", false),
            ("unix:///tmp/a", false),
            ("shm:///tmp/a", false),
        ] {
            assert_eq!(permits(&policy, address), expected, "{address}");
        }
        let judged = policy.only_if(|address| address.to_string().ends_with(":4"));
        assert!(permits(&judged, "tcp://10.1.2.3:4"));
        assert!(!permits(&judged, "tcp://10.1.2.3:5"));
        assert!(!permits(&judged, "tcp://11.1.2.3:4"));
    }

    #[test]
    fn public_is_neither_this_host_nor_a_private_network() {
        let policy = DialPolicy::public();
        for address in [
            "tcp://127.0.0.1:1",
            "tcp://0.0.0.0:1",
            "tcp://[::]:1",
            "tcp://[::1]:1",
            "tcp://[::ffff:127.0.0.1]:1",
            "tcp://192.168.3.4:1",
            "tcp://172.31.0.1:1",
            "tcp://169.254.169.254:80",
            "udp://[fe80::1]:1",
            "unix:///var/run/docker.sock",
            "shm:///tmp/a",
            "mem://a",
        ] {
            assert!(!permits(&policy, address), "{address}");
        }
        assert!(permits(&policy, "tcp://8.8.8.8:1"));
        assert!(permits(&policy, "tcp://172.32.0.1:1"));
        assert!(permits(&policy, "udp://[2001:4860:4860::8888]:1"));
    }

    #[test]
    fn other_schemes_are_judged_by_ip_address_where_they_have_one() {
        let public = DialPolicy::public();
        for (address, expected) in [
            ("tls://8.8.8.8:443", true),
            ("tls://[2001:4860:4860::8888]:443", true),
            ("tls://127.0.0.1:443", false),
            ("tls://[::ffff:10.0.0.1]:443", false),
            ("tls://8.8.8.8:0", false),
            // Names may lead anywhere; all but an IP address and a port is one.
            ("tls://example.org:443", false),
            ("tls://localhost:443", false),
            ("tls://127.1:443", false),
            ("tls://8.8.8.8", false),
            ("obfuscated:///var/run/docker.sock", false),
        ] {
            assert_eq!(permits(&public, address), expected, "{address}");
        }
        let known = public.names_if(|address| address.to_string().contains("example"));
        assert!(permits(&known, "tls://example.org:443"));
        assert!(!permits(&known, "tls://localhost:443"));
        let judged = known.only_if(|address| address.to_string().ends_with(":443"));
        assert!(!permits(&judged, "tls://example.org:444"));
    }

    #[test]
    fn names_are_dialled_where_no_network_is_denied() {
        let default = DialPolicy::default();
        assert!(permits(&default, "tls://example.org:443"));
        assert!(!permits(&default, "tls://224.0.0.1:443"));
        let denied = DialPolicy::default().deny("10.0.0.0/8").expect("a range");
        assert!(!permits(&denied, "tls://example.org:443"));
        assert!(permits(&denied, "tls://11.0.0.1:443"));
        let allowed = DialPolicy::default().allow("10.0.0.0/8").expect("a range");
        assert!(!permits(&allowed, "tls://example.org:443"));
        assert!(permits(&allowed, "tls://10.0.0.1:443"));
        assert!(permits(
            &allowed.names_if(|_| true),
            "tls://example.org:443"
        ));
        let tls = DialPolicy::default().allow("tls:").expect("a range");
        assert!(permits(&tls, "tls://example.org:443"));
        assert!(!permits(&tls, "tcp://8.8.8.8:443"));
        assert!(!permits(&tls, "quic://example.org:443"));
        let other = DialPolicy::default().deny("tls:").expect("a range");
        let other = other.names_if(|_| true);
        assert!(!permits(&other, "tls://example.org:443"));
        assert!(permits(&other, "quic://example.org:443"));
    }

    #[test]
    fn ranges_are_checked() {
        for text in [
            "",
            "tls",
            "tcp:",
            "TLS:",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0/8",
            "::/129",
            "tcp://10.0.0.0/8",
            "::ffff:0.0.0.0/95",
            "host",
        ] {
            let error = DialPolicy::default().deny(text).expect_err("no range");
            assert_eq!(error.text, text);
        }
        let all = DialPolicy::default().deny("0.0.0.0/0").expect("a range");
        assert!(!permits(&all, "tcp://1.2.3.4:5"));
        assert!(permits(&all, "tcp://[2001::1]:5"));
        let mapped = DialPolicy::default().deny("::ffff:10.0.0.0/104");
        assert!(!permits(&mapped.expect("a range"), "tcp://10.2.3.4:5"));
    }
}
