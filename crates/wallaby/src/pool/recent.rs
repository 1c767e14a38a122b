//! The connections that requests went over lately: most go to one of a few servers.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wallaby_proto::Address;

use crate::driver::peer::Peer;

/// How many are kept, a power of two.
const PLACES: usize = 64;

/// Connections by the address dialled, each at the place that its address says: the one used last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// None until one is used.
    places: Vec<Option<(Address, Arc<Peer>)>>,
}

impl Recent {
    /// The connection to a server, if it was used lately.
    pub(super) fn get(&self, server: &Address) -> Option<&Arc<Peer>> {
        let (address, peer) = self.places.get(place(server))?.as_ref()?;
        (address == server).then_some(peer)
    }

    pub(super) fn keep(&mut self, server: Address, peer: Arc<Peer>) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let place = place(&server);
        self.places[place] = Some((server, peer));
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, peer: &Peer) {
        for place in &mut self.places {
            place.take_if(|(_, kept)| kept.id == peer.id);
        }
    }
}

fn place(server: &Address) -> usize {
    let mut mix = Mix(0);
    server.hash(&mut mix);
    mix.finish() as usize % PLACES
}

/// Quick, and not keyed: who makes addresses meet at a place only makes the pool look further.
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// The upper bits are mixed best.
    fn finish(&self) -> u64 {
        self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn neighbours_have_places_of_their_own() {
        for scheme in ["tcp://127.0.0.1:40", "unix:///run/service/socket."] {
            let address = |number| format!("{scheme}{number}").parse().expect("an address");
            let places: HashSet<usize> = (10..42).map(|number| place(&address(number))).collect();
            assert!(places.len() > 20, "{scheme}: {}", places.len());
        }
    }
}
