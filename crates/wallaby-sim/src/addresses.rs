//! Where nodes are reached.

use std::net::{Ipv4Addr, SocketAddr};

use wallaby_proto::Address;

use crate::plan::Plan;

const PORT: u16 = 7000;

/// Where the node with this index is reached.
pub(crate) fn address(plan: &Plan, node: u32) -> Address {
    match plan.nodes[node as usize].udp {
        true => Address::Udp(socket_address(node)),
        false => Address::Tcp(socket_address(node)),
    }
}

/// Where the sockets of the node with this index are.
pub(crate) fn socket_address(node: u32) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, node as u8 + 1), PORT).into()
}

/// Which node is reached at an address.
pub(crate) fn node_at(address: &Address) -> Option<u32> {
    match address {
        Address::Tcp(address) | Address::Udp(address) => node_of(*address),
        _ => None,
    }
}

pub(crate) fn node_of(address: SocketAddr) -> Option<u32> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    u32::from(address.ip().octets()[3]).checked_sub(1)
}
