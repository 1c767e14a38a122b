//! What fits into a datagram, and what receivers of them have in common.

mod buffer;
mod reply;
mod socket;
mod way;

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use buffer::Buffer;
pub(crate) use reply::Written;
pub(crate) use socket::Socket;
pub(crate) use way::{Bound, Way};

/// How long a receiver waits after an error: one that stays must not keep a core busy.
pub(crate) const AFTER_ERROR: Duration = Duration::from_millis(1);

/// More than any datagram has.
pub(crate) const LARGEST: usize = 65_536;

/// Most bytes of a datagram to this address: 65,535 without the headers of IP and UDP (RFC 768, 791, 8200).
pub(crate) fn max_payload(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => 65_535 - 20 - 8,
        SocketAddr::V6(_) => 65_535 - 8,
    }
}
