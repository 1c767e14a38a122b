//! The floors' messages: a length, an operation, and the servers that are still to be visited.
//!
//! ```text
//! bytes 0..4   length of what follows (streams only)
//! bytes 0..8   number of the operation, little-endian
//! byte  8      what to do: 0 pass on, 1 spread
//! byte  9      how many servers are still to be visited
//! bytes 10..   these servers, last one first
//! ```
//! The rest of the payload is filled.

use crate::pattern::{Pattern, Routes};
use anyhow::{Result, ensure};

/// Stands for the client where servers are named.
pub(crate) const CLIENT: u8 = u8::MAX;

/// The length in front of a message on a stream.
pub(crate) const PREFIX: usize = 4;

const HEADER: usize = 10;
const PASS: u8 = 0;
const SPREAD: u8 = 1;

/// The smallest payload that can name this many servers.
pub(crate) fn least_payload(servers: usize) -> usize {
    HEADER + servers
}

/// Where a server sends the message it got, after it changed the message to what is to be sent.
#[derive(Debug)]
pub(crate) struct Targets {
    servers: [u8; 256],
    count: usize,
}

impl Targets {
    pub(crate) fn new() -> Self {
        Self {
            servers: [0; 256],
            count: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.servers[..self.count]
    }

    /// Does what a server has to do with a payload.
    pub(crate) fn of(&mut self, payload: &mut [u8]) -> Result<()> {
        ensure!(
            payload.len() >= HEADER,
            "a message of {} bytes is too short",
            payload.len()
        );
        let left = usize::from(payload[9]);
        ensure!(
            payload.len() >= HEADER + left,
            "a message is shorter than its route"
        );
        if payload[8] == SPREAD {
            self.servers[..left].copy_from_slice(&payload[HEADER..HEADER + left]);
            self.count = left;
            (payload[8], payload[9]) = (PASS, 0);
        } else if let Some(rest) = left.checked_sub(1) {
            (self.servers[0], self.count) = (payload[HEADER + rest], 1);
            payload[9] = rest as u8; // was a byte and got smaller
        } else {
            (self.servers[0], self.count) = (CLIENT, 1);
        }
        Ok(())
    }
}

/// The operation a payload belongs to.
pub(crate) fn operation(payload: &[u8]) -> Option<u64> {
    payload
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

/// What the client does in one operation: phases, in each of which it sends and then receives.
///
/// Its memory is used again and again, so that drawing a plan costs nothing to speak of between two operations.
#[derive(Debug)]
pub(crate) struct Plan {
    phases: Vec<Phase>,
    used: usize,
    payload: usize,
}

#[derive(Debug)]
pub(crate) struct Phase {
    /// The message as it goes over a stream, prefix included; the same to all of `to`.
    frame: Vec<u8>,
    pub(crate) to: Vec<u8>,
    pub(crate) from: Vec<u8>,
}

impl Phase {
    pub(crate) fn frame(&self) -> &[u8] {
        &self.frame
    }

    pub(crate) fn datagram(&self) -> &[u8] {
        &self.frame[PREFIX..]
    }
}

impl Plan {
    /// Plans for payloads of this size, at least [`least_payload`].
    pub(crate) fn new(payload: usize) -> Self {
        Self {
            phases: Vec::new(),
            used: 0,
            payload,
        }
    }

    pub(crate) fn phases(&self) -> &[Phase] {
        &self.phases[..self.used]
    }

    /// Draws the servers of an operation.
    pub(crate) fn draw(&mut self, pattern: Pattern, routes: &mut Routes, operation: u64) {
        self.lay(pattern, routes.draw(pattern.servers()), operation);
    }

    /// Plans an operation over these servers.
    pub(crate) fn lay(&mut self, pattern: Pattern, route: &[u8], operation: u64) {
        self.used = 0;
        let Some((first, rest)) = route.split_first() else {
            return;
        };
        let first = std::slice::from_ref(first);
        match pattern {
            Pattern::Forward { .. } => {
                self.phase(operation, PASS, rest, first, &route[route.len() - 1..])
            }
            Pattern::Sequential { .. } => {
                for server in route.chunks(1) {
                    self.phase(operation, PASS, &[], server, server);
                }
            }
            Pattern::Spread { .. } => self.phase(operation, SPREAD, rest, first, rest),
            Pattern::Parallel { .. } => {
                self.phase(operation, PASS, &[], first, first);
                self.phase(operation, PASS, &[], rest, rest);
            }
        }
    }

    fn phase(&mut self, operation: u64, verb: u8, onward: &[u8], to: &[u8], from: &[u8]) {
        if self.phases.len() == self.used {
            let mut frame = vec![0x5a; PREFIX + self.payload];
            frame[..PREFIX].copy_from_slice(&(self.payload as u32).to_le_bytes());
            self.phases.push(Phase {
                frame,
                to: Vec::new(),
                from: Vec::new(),
            });
        }
        let phase = &mut self.phases[self.used];
        self.used += 1;
        let payload = &mut phase.frame[PREFIX..];
        payload[..8].copy_from_slice(&operation.to_le_bytes());
        payload[8] = verb;
        payload[9] = onward.len() as u8; // servers are numbered by bytes
        for (place, server) in payload[HEADER..].iter_mut().zip(onward.iter().rev()) {
            *place = *server;
        }
        phase.to.clear();
        phase.to.extend_from_slice(to);
        phase.from.clear();
        phase.from.extend_from_slice(from);
    }
}

/// Cuts a stream into frames.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Frames {
    /// For payloads up to this size.
    pub(crate) fn new(largest_payload: usize) -> Self {
        // Room for several, as a real server would have, so that reading has no reason to stop at a frame's end.
        let size = 2 * (PREFIX + largest_payload) + 4_096;
        Self {
            buffer: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The next whole frame, prefix included, if there is one.
    pub(crate) fn take(&mut self) -> Result<Option<&mut [u8]>> {
        let filled = &self.buffer[self.start..self.end];
        let Some(prefix) = filled.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let size = PREFIX + u32::from_le_bytes(*prefix) as usize;
        ensure!(
            size <= self.buffer.len(),
            "a frame of {size} bytes is too large"
        );
        if filled.len() < size {
            return Ok(None);
        }
        let start = self.start;
        self.start += size;
        Ok(Some(&mut self.buffer[start..start + size]))
    }

    /// Where to read further bytes to; never empty while [`Frames::take`] yields nothing.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were read to there.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays all servers; who sent to whom, in order.
    fn play(plan: &Plan) -> Vec<(u8, u8)> {
        let mut sent = Vec::new();
        for phase in plan.phases() {
            let mut arrivals = Vec::new();
            let mut under_way: Vec<(u8, Vec<u8>)> = phase
                .to
                .iter()
                .map(|to| (*to, phase.datagram().to_vec()))
                .collect();
            sent.extend(phase.to.iter().map(|to| (CLIENT, *to)));
            while let Some((at, mut payload)) = under_way.pop() {
                let mut targets = Targets::new();
                targets.of(&mut payload).unwrap();
                for &target in targets.as_slice() {
                    sent.push((at, target));
                    if target == CLIENT {
                        assert_eq!(operation(&payload), Some(9));
                        arrivals.push(at);
                    } else {
                        under_way.push((target, payload.clone()));
                    }
                }
            }
            arrivals.sort_unstable();
            let mut expected = phase.from.clone();
            expected.sort_unstable();
            assert_eq!(arrivals, expected);
        }
        sent
    }

    fn plan(pattern: Pattern) -> Plan {
        let mut plan = Plan::new(100);
        // A former operation must leave no trace.
        plan.lay(Pattern::Sequential { servers: 6 }, &[9, 8, 7, 6, 5, 4], 1);
        plan.lay(pattern, &[3, 1, 2][..pattern.servers()], 9);
        plan
    }

    #[test]
    fn forwarded_messages_visit_the_route_in_order() {
        let sent = play(&plan(Pattern::Forward { servers: 3 }));
        assert_eq!(sent, [(CLIENT, 3), (3, 1), (1, 2), (2, CLIENT)]);
    }

    #[test]
    fn every_pattern_sends_the_messages_it_says() {
        for pattern in [
            Pattern::Forward { servers: 1 },
            Pattern::Forward { servers: 3 },
            Pattern::Sequential { servers: 3 },
            Pattern::Spread { servers: 2 },
            Pattern::Parallel { servers: 2 },
        ] {
            let sent = play(&plan(pattern));
            let client = sent
                .iter()
                .filter(|(from, to)| [*from, *to].contains(&CLIENT))
                .count();
            assert_eq!(sent.len(), pattern.messages(), "{pattern:?}");
            assert_eq!(client, pattern.client_messages(), "{pattern:?}");
        }
    }

    #[test]
    fn short_messages_are_errors() {
        assert!(Targets::new().of(&mut [0; 9]).is_err());
        assert!(
            Targets::new()
                .of(&mut [0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
                .is_err()
        );
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let stream: Vec<u8> = (0..200_u32)
            .flat_map(|number| {
                let size = number % 37;
                [&size.to_le_bytes()[..], &vec![number as u8; size as usize]].concat()
            })
            .collect();
        for step in [1, 3, 50, 5_000] {
            let mut frames = Frames::new(40);
            let (mut read, mut found) = (0, Vec::new());
            while read < stream.len() {
                let space = frames.space();
                let count = step.min(space.len()).min(stream.len() - read);
                assert!(count > 0);
                space[..count].copy_from_slice(&stream[read..read + count]);
                frames.filled(count);
                read += count;
                while let Some(frame) = frames.take().unwrap() {
                    found.extend_from_slice(frame);
                }
            }
            assert_eq!(found, stream, "in steps of {step}");
        }
    }

    #[test]
    fn an_oversized_frame_is_an_error() {
        let mut frames = Frames::new(10);
        frames.space()[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        frames.filled(4);
        assert!(frames.take().is_err());
    }
}
