//! One operation of a pattern: whom the client sends its messages to, and what servers do with them.
//!
//! A payload names the servers that are still to be visited, so that all stacks do the same work for the same bytes:
//!
//! ```text
//! bytes 0..8   number of the operation, little-endian
//! byte  8      what to do: 0 pass on, 1 spread
//! byte  9      how many servers are still to be visited
//! bytes 10..   these servers, last one first
//! ```
//! The rest of the payload is filled. One that is too short for a route has none, and is answered as it is.

use crate::pattern::{Pattern, Routes};
use anyhow::{Result, ensure};

/// Stands for the client where servers are named.
pub const CLIENT: u8 = u8::MAX;

/// The length in front of a floor's message on a stream, for which a phase keeps room.
pub(crate) const PREFIX: usize = 4;

const HEADER: usize = 10;
const PASS: u8 = 0;
const SPREAD: u8 = 1;

/// The smallest payload with which a pattern can be carried out.
pub fn least_payload(pattern: Pattern) -> usize {
    match pattern {
        Pattern::Concurrent { .. } => 0,
        _ => HEADER + pattern.servers(),
    }
}

/// Where a server sends the message it got, after it changed the message to what is to be sent.
#[derive(Clone, Debug)]
pub struct Targets {
    servers: [u8; 256],
    count: usize,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            servers: [0; 256],
            count: 0,
        }
    }
}

impl Targets {
    /// The servers, or [`CLIENT`].
    pub fn as_slice(&self) -> &[u8] {
        &self.servers[..self.count]
    }

    /// Does what a server has to do with a payload.
    ///
    /// # Errors
    /// The payload is shorter than the route it says it has.
    pub fn of(&mut self, payload: &mut [u8]) -> Result<()> {
        if is_answer(payload) {
            (self.servers[0], self.count) = (CLIENT, 1);
            return Ok(());
        }
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
        }
        Ok(())
    }
}

/// Whether a payload goes to the client as it is: its route is at its end, or it has none.
pub fn is_answer(payload: &[u8]) -> bool {
    payload.len() < HEADER || payload[8..HEADER] == [PASS, 0]
}

/// Checks that an answer belongs to the request: every server sends on what it got, but for the route.
///
/// # Errors
/// It belongs to another one, or was cut.
pub fn check(answer: &[u8], request: &[u8]) -> Result<()> {
    ensure!(
        operation(answer) == operation(request),
        "an answer to another operation came back"
    );
    ensure!(
        answer.len() == request.len(),
        "an answer of {} bytes came back instead of {}",
        answer.len(),
        request.len()
    );
    Ok(())
}

/// The operation a payload belongs to, if it is long enough to say so.
pub fn operation(payload: &[u8]) -> Option<u64> {
    payload
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

/// What the client does in one operation: phases, in each of which it sends and then receives.
///
/// Its memory is used again and again, so that drawing a plan costs nothing to speak of between two operations.
#[derive(Debug)]
pub struct Plan {
    phases: Vec<Phase>,
    used: usize,
    payload: usize,
}

/// What the client sends, and from whom it then receives.
#[derive(Debug)]
pub struct Phase {
    /// The message as floors send it over a stream, prefix included; the same to all of `to`.
    frame: Vec<u8>,
    /// The servers it is sent to.
    pub to: Vec<u8>,
    /// The servers of which an answer will come, one of each.
    pub from: Vec<u8>,
}

impl Phase {
    pub(crate) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The message.
    pub fn payload(&self) -> &[u8] {
        &self.frame[PREFIX..]
    }
}

impl Plan {
    /// Plans for payloads of this size, at least [`least_payload`].
    pub fn new(payload: usize) -> Self {
        Self {
            phases: Vec::new(),
            used: 0,
            payload,
        }
    }

    /// What was planned last.
    pub fn phases(&self) -> &[Phase] {
        &self.phases[..self.used]
    }

    /// Draws the servers of an operation.
    pub fn draw(&mut self, pattern: Pattern, routes: &mut Routes, operation: u64) {
        self.lay(pattern, routes.draw(pattern.servers()), operation);
    }

    /// Plans an operation over these servers.
    pub fn lay(&mut self, pattern: Pattern, route: &[u8], operation: u64) {
        self.used = 0;
        let Some((first, rest)) = route.split_first() else {
            return;
        };
        let first = std::slice::from_ref(first);
        match pattern {
            Pattern::Forward { .. } => {
                self.phase(operation, PASS, rest, first, &route[route.len() - 1..])
            }
            Pattern::Concurrent { .. } => self.phase(operation, PASS, &[], first, first),
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
        if let Some((header, route)) = payload.split_first_chunk_mut::<HEADER>() {
            header[..8].copy_from_slice(&operation.to_le_bytes());
            header[8] = verb;
            header[9] = onward.len() as u8; // servers are numbered by bytes
            for (place, server) in route.iter_mut().zip(onward.iter().rev()) {
                *place = *server;
            }
        }
        phase.to.clear();
        phase.to.extend_from_slice(to);
        phase.from.clear();
        phase.from.extend_from_slice(from);
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
                .map(|to| (*to, phase.payload().to_vec()))
                .collect();
            sent.extend(phase.to.iter().map(|to| (CLIENT, *to)));
            while let Some((at, mut payload)) = under_way.pop() {
                let mut targets = Targets::default();
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
    fn a_short_message_goes_back_and_a_short_route_is_an_error() {
        let mut targets = Targets::default();
        targets.of(&mut [7; 9]).unwrap();
        assert_eq!(targets.as_slice(), [CLIENT]);
        assert!(
            Targets::default()
                .of(&mut [0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
                .is_err()
        );
    }
}
