//! A gate to which anybody sends datagrams: their checksums fit, and some name sessions that exist.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{BufMut, Bytes};

use crate::choices::Choices;
use crate::gates::{Net, address};

/// The first byte of a datagram of a known session, without its flags.
const DATA: u8 = 0x10;

/// Bytes before its packet: that byte and the session's id.
const DATA_HEADER: usize = 9;

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut net = Net::new(&mut choices);
    let stranger = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 9), 9));
    // What the peer wrote begins datagrams of its session.
    let mut written = Vec::new();
    let sessions = choices.below(3);
    if sessions > 0 {
        net.dial(sessions as usize - 1);
        for _ in 0..6 {
            net.settle();
            let to_gate = net.flying.iter().filter(|flying| flying.0 == 1);
            written.extend(to_gate.map(|flying| flying.1.clone()));
            while !net.flying.is_empty() {
                net.deliver(0);
            }
        }
    }
    let (mut got, mut sent) = (0, 0);
    while !choices.is_empty() {
        let datagram = datagram(&mut choices, &written);
        let now = net.now;
        let from = if choices.once_in(4) {
            stranger
        } else {
            address(0)
        };
        got += if from == stranger { datagram.len() } else { 0 };
        let gate = &mut net.ends[1].gate;
        gate.handle_datagram(now, from, Bytes::from(datagram));
        let mut out = Vec::new();
        while let Some(transmit) = gate.poll_transmit(now, &mut out) {
            sent += if transmit.to == stranger {
                transmit.len
            } else {
                0
            };
        }
        while let Some((id, event)) = gate.poll_event() {
            drop(format!("{id:?} {event:?}"));
        }
        assert!(
            sent <= 3 * got,
            "a stranger sent {got} bytes and got {sent}"
        );
        if choices.once_in(8) {
            net.now += choices.time();
            let now = net.now;
            let gate = &mut net.ends[1].gate;
            gate.handle_timeout(now);
            if choices.once_in(4) {
                gate.handle_unreachable(now, stranger);
            }
        }
        if net.now > Duration::from_secs(3600) {
            return;
        }
    }
}

fn datagram(choices: &mut Choices<'_>, written: &[Vec<u8>]) -> Vec<u8> {
    let template = choices.byte() as usize;
    let mut datagram = match written.get(template % (written.len() + 3)) {
        Some(data) if data[0] & !3 == DATA && data.len() > DATA_HEADER => {
            let mut begin = data[..DATA_HEADER].to_vec();
            begin[0] = DATA | (choices.byte() & 3);
            begin
        }
        // Everything but its end, which something else takes the place of.
        Some(other) => {
            let kept = other.len() - 4 - usize::from(choices.byte()).min(other.len() - 4);
            other[..kept].to_vec()
        }
        None => Vec::new(),
    };
    let len = usize::from(choices.byte());
    datagram.extend_from_slice(choices.bytes(len));
    match choices.below(8) {
        0 => datagram.resize(1200 - 4, 0),
        1 => return datagram, // with no checksum
        _ => {}
    }
    let checksum = crc32c::crc32c(&datagram);
    datagram.put_u32(checksum);
    datagram
}
