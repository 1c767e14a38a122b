//! Which server has a vertex.
//!
//! Ids are hashed to partitions, whose number never changes, and partitions are dealt out to servers. So a graph that was
//! loaded once can be served by any number of servers.

use crate::model::Vertex;
use std::fmt;
use std::str::FromStr;
use wallaby::Address;

/// How many partitions a graph has: no more servers than that have something to do.
pub const PARTITIONS: u32 = 256;

/// The partition of a vertex.
pub fn partition(vertex: Vertex) -> u32 {
    let id = match vertex {
        Vertex::Person(id) => id.0,
        Vertex::Message(id) => id.0,
        Vertex::Forum(id) => id.0,
    };
    (mix(id as u64) % u64::from(PARTITIONS)) as u32
}

/// Ids count up, and their upper bits tell months: every bit must matter (the finalizer of MurmurHash3).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}

/// One of several servers: `1/4` is the first of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    index: u32,
    servers: u32,
}

impl Seat {
    /// All seats of a cluster of so many servers: at least one, and not more than there are partitions.
    pub fn all(servers: u32) -> impl Iterator<Item = Self> {
        let servers = servers.clamp(1, PARTITIONS);
        (0..servers).map(move |index| Self { index, servers })
    }

    /// Whether its server has this vertex.
    pub fn has(&self, vertex: Vertex) -> bool {
        partition(vertex) % self.servers == self.index
    }

    /// The partitions of its server.
    pub fn partitions(&self) -> impl Iterator<Item = u32> {
        (self.index..PARTITIONS).step_by(self.servers as usize)
    }

    /// Its place among the servers, from 0.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.index + 1
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number(), self.servers)
    }
}

impl FromStr for Seat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || -> Option<Self> {
            let (number, servers) = text.split_once('/')?;
            let (number, servers) = (number.parse().ok()?, servers.parse().ok()?);
            let index = (1..=servers).contains(&number).then(|| number - 1)?;
            (servers <= PARTITIONS).then_some(Self { index, servers })
        };
        read().ok_or_else(|| {
            format!("'{text}' names no server: 2/4 is the second of four, {PARTITIONS} at most")
        })
    }
}

/// The servers of a cluster, in the order of their seats.
#[derive(Clone, Debug)]
pub struct Placement {
    servers: Vec<Address>,
}

impl Placement {
    /// `None` if there are no servers, or more than partitions.
    pub fn new(servers: Vec<Address>) -> Option<Self> {
        (1..=PARTITIONS as usize)
            .contains(&servers.len())
            .then_some(Self { servers })
    }

    /// The server that has this vertex.
    pub fn server(&self, vertex: impl Into<Vertex>) -> &Address {
        &self.servers[self.index(vertex)]
    }

    /// The same as a number, from 0.
    pub fn index(&self, vertex: impl Into<Vertex>) -> usize {
        partition(vertex.into()) as usize % self.servers.len()
    }

    /// All servers.
    pub fn servers(&self) -> &[Address] {
        &self.servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PersonId;

    #[test]
    fn every_vertex_has_one_seat_and_all_have_about_as_many() {
        const VERTICES: i64 = 10_000;
        for servers in [1, 3, 10, 256] {
            let mut vertices = vec![0; servers as usize];
            for id in 0..VERTICES {
                let vertex = Vertex::Person(PersonId(id << 20));
                let seats: Vec<Seat> = Seat::all(servers).filter(|seat| seat.has(vertex)).collect();
                assert_eq!(seats.len(), 1);
                assert!(seats[0].partitions().any(|own| own == partition(vertex)));
                vertices[seats[0].index as usize] += 1;
            }
            let fair = VERTICES / i64::from(servers);
            let (least, most) = (vertices.iter().min(), vertices.iter().max());
            assert!(
                least > Some(&(fair / 3)) && most < Some(&(fair * 2)),
                "{servers} servers: {least:?} to {most:?}"
            );
        }
    }

    #[test]
    fn seats_are_written_as_fractions() {
        let seat: Seat = "2/4".parse().unwrap();
        assert_eq!(seat.to_string(), "2/4");
        for wrong in ["", "2", "0/4", "5/4", "1/257", "-1/2", "1/0"] {
            assert!(wrong.parse::<Seat>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn placements_have_servers() {
        assert!(Placement::new(Vec::new()).is_none());
    }
}
