//! Addresses as rpcbind writes them: a network id (`tcp`, `udp6`, `local`) and a universal address, which is the IP
//! address and the two bytes of the port, `127.0.0.1.8.1` (RFC 5665, section 5.2.3), or a path.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::peer::Peer;

/// The network id of an address.
#[must_use]
pub fn netid(peer: &Peer) -> &'static str {
    let is_v4 = |address: &SocketAddr| address.ip().to_canonical().is_ipv4();
    match peer {
        Peer::Tcp(address) if is_v4(address) => "tcp",
        Peer::Tcp(_) => "tcp6",
        Peer::Udp(address) if is_v4(address) => "udp",
        Peer::Udp(_) => "udp6",
        Peer::Unix(_) => "local",
    }
}

/// The universal address of an address.
#[must_use]
pub fn universal_address(peer: &Peer) -> String {
    match peer {
        Peer::Tcp(address) | Peer::Udp(address) => {
            let [high, low] = address.port().to_be_bytes();
            format!("{}.{high}.{low}", address.ip().to_canonical())
        }
        Peer::Unix(path) => match path {
            Some(path) => path.display().to_string(),
            None => String::new(),
        },
    }
}

/// The address that a network id and a universal address stand for. `None`: another network, or no address of it.
#[must_use]
pub fn parse(netid: &str, address: &str) -> Option<Peer> {
    let ip_and_port = || {
        let (rest, low) = address.rsplit_once('.')?;
        let (ip, high) = rest.rsplit_once('.')?;
        let port = u16::from_be_bytes([byte(high)?, byte(low)?]);
        Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port))
    };
    match netid {
        "tcp" => ip_and_port().filter(SocketAddr::is_ipv4).map(Peer::Tcp),
        "udp" => ip_and_port().filter(SocketAddr::is_ipv4).map(Peer::Udp),
        "tcp6" => ip_and_port().filter(SocketAddr::is_ipv6).map(Peer::Tcp),
        "udp6" => ip_and_port().filter(SocketAddr::is_ipv6).map(Peer::Udp),
        "local" if address.starts_with('/') => Some(Peer::Unix(Some(PathBuf::from(address)))),
        _ => None,
    }
}

/// A number that is written without a sign or zeros in front.
fn byte(text: &str) -> Option<u8> {
    let number: u8 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_and_read() {
        for (peer, id, text) in [
            (
                Peer::Tcp(([127, 0, 0, 1], 2049).into()),
                "tcp",
                "127.0.0.1.8.1",
            ),
            (
                Peer::Udp(([0, 0, 0, 0], 111).into()),
                "udp",
                "0.0.0.0.0.111",
            ),
            (
                Peer::Udp((IpAddr::from([0; 16]), 111).into()),
                "udp6",
                "::.0.111",
            ),
            (
                Peer::Tcp("[fe80::1]:65535".parse().expect("an address")),
                "tcp6",
                "fe80::1.255.255",
            ),
            (
                Peer::Unix(Some("/run/rpcbind.sock".into())),
                "local",
                "/run/rpcbind.sock",
            ),
        ] {
            assert_eq!((netid(&peer), &*universal_address(&peer)), (id, text));
            assert_eq!(parse(id, text), Some(peer));
        }
        let mapped = Peer::Tcp("[::ffff:127.0.0.1]:2049".parse().expect("an address"));
        assert_eq!(
            (netid(&mapped), &*universal_address(&mapped)),
            ("tcp", "127.0.0.1.8.1")
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (id, text) in [
            ("tcp", ""),
            ("tcp", "127.0.0.1"),
            ("tcp", "127.0.0.1.8"),
            ("tcp", "127.0.0.1.8.256"),
            ("tcp", "127.0.0.1.8.+1"),
            ("tcp", "127.0.0.1.8.01"),
            ("tcp", "::1.8.1"),
            ("udp6", "127.0.0.1.8.1"),
            ("local", "run"),
            ("rawip", "127.0.0.1.8.1"),
        ] {
            assert_eq!(parse(id, text), None, "{id} {text}");
        }
    }
}
