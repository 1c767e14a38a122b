//! One operation of a pattern: whom the client sends its messages to, and what servers do with them.
//!
//! A payload names the servers that are still to be visited, so that all stacks do the same work for the same bytes:
//!
//! ```text
//! bytes 0..8   number of the operation, little-endian
//! byte  8      what to do: to so many servers it is passed on; 128 more: and answered, too
//! byte  9      how many servers are still to be visited
//! bytes 10..   two bytes for each: the server, and its byte 8; the one to be visited first comes last, and those
//!              below it stand before it
//! ```
//! The rest of the payload is filled. One that is too short for this is answered as it is, as is one that says 0.

use crate::pattern::{Form, Pattern, Routes, Shape, Tree};
use anyhow::{Result, ensure};

/// Stands for the client where servers are named.
pub const CLIENT: u8 = u8::MAX;

/// The length in front of a floor's message on a stream, for which a phase keeps room.
pub(crate) const PREFIX: usize = 4;

const HEADER: usize = 10;
/// Bytes that name a server to be visited.
const ENTRY: usize = 2;
const ANSWERS: u8 = 128;
/// The most requests that a payload can ask for.
const MOST_ENTRIES: usize = u8::MAX as usize;
/// The most servers that one passes its message on to.
const MOST_CHILDREN: usize = (ANSWERS - 1) as usize;

/// The smallest payload with which a pattern can be carried out.
pub fn least_payload(pattern: Pattern) -> usize {
    match pattern {
        Pattern::Concurrent { .. } => 0,
        Pattern::Calls(_) => HEADER,
        Pattern::Multihop(shape) => HEADER + ENTRY * largest_branch(&shape.tree()),
    }
}

/// The most requests below one of the client's.
fn largest_branch(tree: &Tree) -> usize {
    let mut sizes = vec![0; tree.nodes().len()];
    for (index, node) in tree.nodes().iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            sizes[parent] += sizes[index] + 1;
        }
    }
    tree.roots().map(|root| sizes[root]).max().unwrap_or(0)
}

/// Whether a payload can say what this pattern asks for.
pub(crate) fn can_be_laid_out(pattern: Pattern) -> bool {
    let tree = pattern.shape().tree();
    let mut children = tree.nodes().iter().map(|node| node.children.len());
    largest_branch(&tree) <= MOST_ENTRIES && children.all(|count| count <= MOST_CHILDREN)
}

/// Where a server sends the message it got, after it changed the message to what is to be sent.
#[derive(Clone, Debug)]
pub struct Targets {
    servers: [u8; MOST_CHILDREN + 1],
    count: usize,
    /// The bytes from byte 8 on of each target's message, where they differ: from where to where in `entries`.
    branches: [(u16, u16); MOST_CHILDREN + 1],
    entries: [u8; ENTRY * MOST_ENTRIES],
    uniform: bool,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            servers: [0; MOST_CHILDREN + 1],
            count: 0,
            branches: [(0, 0); MOST_CHILDREN + 1],
            entries: [0; ENTRY * MOST_ENTRIES],
            uniform: true,
        }
    }
}

impl Targets {
    /// The servers, or [`CLIENT`], whose answer comes before what is passed on.
    pub fn as_slice(&self) -> &[u8] {
        &self.servers[..self.count]
    }

    /// Whether the message goes to all of them as [`Targets::of`] left it.
    pub fn is_uniform(&self) -> bool {
        self.uniform
    }

    /// Does what a server has to do with a payload. It then is what goes to each target if these are
    /// [uniform](Targets::is_uniform), else what goes to the client and to servers that pass nothing on; for the others
    /// there is [`Targets::address`].
    ///
    /// # Errors
    /// The payload is shorter than it says, or asks for servers that it does not name.
    pub fn of(&mut self, payload: &mut [u8]) -> Result<()> {
        (self.count, self.uniform) = (0, true);
        if let Some(next) = pass_on(payload)? {
            self.push(next, (0, 0));
            return Ok(());
        }
        let (verb, left) = (payload[8], usize::from(payload[9]));
        let end = HEADER + ENTRY * left;
        if verb & ANSWERS != 0 {
            self.push(CLIENT, (0, 0));
        }
        self.entries[..ENTRY * left].copy_from_slice(&payload[HEADER..end]);
        self.part(left, verb & !ANSWERS)?;
        (payload[8], payload[9]) = (0, 0);
        Ok(())
    }

    /// Finds what belongs to each of so many servers.
    fn part(&mut self, left: usize, children: u8) -> Result<()> {
        let mut end = left;
        for _ in 0..children {
            let (mut start, mut open) = (end, 1);
            while open > 0 {
                ensure!(
                    start > 0,
                    "a message asks for servers that it does not name"
                );
                start -= 1;
                let verb = self.entries[ENTRY * start + 1];
                open = open - 1 + usize::from(verb & !ANSWERS);
            }
            self.uniform &= end - start == 1;
            let server = self.entries[ENTRY * (end - 1)];
            self.push(server, (start as u16, end as u16)); // both at most MOST_ENTRIES
            end = start;
        }
        Ok(())
    }

    /// Makes of the payload, which [`Targets::of`] left, what goes to the target at this place.
    pub fn address(&self, place: usize, payload: &mut [u8]) {
        let (start, end) = self.branches[..self.count][place];
        if self.uniform {
            return;
        }
        let (start, end) = (usize::from(start), usize::from(end));
        let Some(below) = (end - start).checked_sub(1) else {
            (payload[8], payload[9]) = (0, 0);
            return;
        };
        payload[8] = self.entries[ENTRY * (end - 1) + 1];
        payload[9] = below as u8; // at most MOST_ENTRIES
        payload[HEADER..HEADER + ENTRY * below]
            .copy_from_slice(&self.entries[ENTRY * start..ENTRY * (end - 1)]);
    }

    fn push(&mut self, server: u8, branch: (u16, u16)) {
        self.servers[self.count] = server;
        self.branches[self.count] = branch;
        self.count += 1;
    }
}

/// Does what a server has to do with a payload that goes to one target: which that is. None, and nothing is done, if there
/// are to be several, for which there are [`Targets`].
///
/// # Errors
/// The payload is shorter than it says.
pub fn pass_on(payload: &mut [u8]) -> Result<Option<u8>> {
    if is_answer(payload) {
        return Ok(Some(CLIENT));
    }
    let left = usize::from(payload[9]);
    let end = HEADER + ENTRY * left;
    ensure!(payload.len() >= end, "a message is shorter than its route");
    let ([.., server, next], 1) = (&payload[HEADER..end], payload[8]) else {
        return Ok(None);
    };
    // What is left stands where it stood.
    let (server, next) = (*server, *next);
    (payload[8], payload[9]) = (next, (left - 1) as u8); // at least one is there
    Ok(Some(server))
}

/// Whether a payload goes to the client as it is: its route is at its end, or it has none.
pub fn is_answer(payload: &[u8]) -> bool {
    payload.len() < HEADER || payload[8] == 0
}

/// Whether whoever gets this payload, and everybody after him, passes it on to one other: then there is one answer.
pub fn is_line(payload: &[u8]) -> bool {
    let Some(header) = payload.first_chunk::<HEADER>() else {
        return true;
    };
    let route = payload[HEADER..].chunks(ENTRY).take(usize::from(header[9]));
    header[8] <= 1 && route.into_iter().all(|entry| entry[entry.len() - 1] <= 1)
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
    tree: Tree,
    of: Option<Shape>,
    route: Vec<u8>,
}

/// What the client sends, and from whom it then receives.
#[derive(Debug, Default)]
pub struct Phase {
    /// The messages as floors send them over a stream, prefix included: one for all of `to`, or one for each.
    frames: Vec<Vec<u8>>,
    /// The servers it sends to.
    pub to: Vec<u8>,
    /// The servers of which an answer will come, one of each.
    pub from: Vec<u8>,
}

impl Phase {
    /// What is sent to the server at this place of `to`.
    pub(crate) fn frame(&self, place: usize) -> &[u8] {
        &self.frames[place.min(self.frames.len() - 1)]
    }

    /// The message to the first one; to all of them, if it is the same.
    pub fn payload(&self) -> &[u8] {
        self.payload_to(0)
    }

    /// The message to the server at this place of `to`.
    pub fn payload_to(&self, place: usize) -> &[u8] {
        &self.frame(place)[PREFIX..]
    }
}

impl Plan {
    /// Plans for payloads of this size, at least [`least_payload`].
    pub fn new(payload: usize) -> Self {
        Self {
            phases: Vec::new(),
            used: 0,
            payload,
            tree: Tree::default(),
            of: None,
            route: Vec::new(),
        }
    }

    /// What was planned last. Calls that need the answers of others wait for all of the generation above.
    pub fn phases(&self) -> &[Phase] {
        &self.phases[..self.used]
    }

    /// The tree that was planned last.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The server of each of its requests.
    pub fn route(&self) -> &[u8] {
        &self.route
    }

    /// Draws the servers of an operation.
    pub fn draw(&mut self, pattern: Pattern, routes: &mut Routes, operation: u64) {
        self.grow(pattern.shape());
        self.lay_over(pattern.form(), routes.draw(&self.tree), operation);
    }

    /// Plans an operation over these servers, one for each request of its tree.
    pub fn lay(&mut self, pattern: Pattern, route: &[u8], operation: u64) {
        self.grow(pattern.shape());
        self.lay_over(pattern.form(), route, operation);
    }

    fn grow(&mut self, shape: Shape) {
        if self.of != Some(shape) {
            self.tree = shape.tree();
            self.of = Some(shape);
        }
    }

    fn lay_over(&mut self, form: Form, route: &[u8], operation: u64) {
        self.used = 0;
        self.route.clear();
        self.route.extend_from_slice(route);
        if route.is_empty() || route.len() != self.tree.nodes().len() {
            return;
        }
        match form {
            Form::Multihop => self.lay_call(operation),
            Form::Calls => self.lay_calls(operation),
        }
    }

    /// One phase, with all that servers are to do in the client's messages.
    fn lay_call(&mut self, operation: u64) {
        let Self { tree, route, .. } = self;
        let roots: Vec<usize> = tree.roots().collect();
        let answering = tree.nodes().iter().zip(&*route);
        let from: Vec<u8> = answering
            .filter_map(|(node, server)| node.answers.then_some(*server))
            .collect();
        let to: Vec<u8> = roots.iter().map(|root| route[*root]).collect();
        // Most patterns have one root; leaves alone have nothing to tell apart.
        let leaves = roots
            .iter()
            .all(|root| tree.nodes()[*root].children.is_empty());
        let frames = if leaves { 1 } else { roots.len() };
        self.phase(operation, frames, &to, &from);
        let Self {
            tree,
            route,
            phases,
            used,
            ..
        } = self;
        let phase = &mut phases[*used - 1];
        for (root, frame) in roots.iter().zip(&mut phase.frames) {
            put_branch(tree, route, *root, &mut frame[PREFIX..]);
        }
    }

    /// A phase for each generation.
    fn lay_calls(&mut self, operation: u64) {
        let levels: Vec<usize> = self.tree.levels().collect();
        let route = std::mem::take(&mut self.route);
        let mut start = 0;
        while start < route.len() {
            let count = levels[start..].partition_point(|level| *level == levels[start]);
            let servers = &route[start..start + count];
            self.phase(operation, 1, servers, servers);
            start += count;
        }
        self.route = route;
    }

    /// A phase with messages that are to be answered as they are.
    fn phase(&mut self, operation: u64, frames: usize, to: &[u8], from: &[u8]) {
        if self.phases.len() == self.used {
            self.phases.push(Phase::default());
        }
        let phase = &mut self.phases[self.used];
        self.used += 1;
        phase.frames.truncate(frames);
        while phase.frames.len() < frames {
            let mut frame = vec![0x5a; PREFIX + self.payload];
            frame[..PREFIX].copy_from_slice(&(self.payload as u32).to_le_bytes());
            phase.frames.push(frame);
        }
        for frame in &mut phase.frames {
            if let Some(header) = frame[PREFIX..].first_chunk_mut::<HEADER>() {
                header[..8].copy_from_slice(&operation.to_le_bytes());
                (header[8], header[9]) = (0, 0);
            }
        }
        phase.to.clear();
        phase.to.extend_from_slice(to);
        phase.from.clear();
        phase.from.extend_from_slice(from);
    }
}

/// What a server does for this request.
fn verb(tree: &Tree, index: usize) -> u8 {
    let node = &tree.nodes()[index];
    let children = node.children.len() as u8; // at most MOST_CHILDREN
    match children {
        0 => 0, // it answers, what else
        _ if node.answers => children | ANSWERS,
        _ => children,
    }
}

/// Writes what is below a request of the client into its message.
fn put_branch(tree: &Tree, route: &[u8], root: usize, payload: &mut [u8]) {
    let (header, entries) = payload.split_at_mut(HEADER.min(payload.len()));
    let Some(below) = header.get_mut(8..HEADER) else {
        return;
    };
    // The one to be visited first is last, so branches are written from the last one on, each with what is below first.
    let mut used = 0;
    put_below(tree, route, root, entries, &mut used);
    (below[0], below[1]) = (verb(tree, root), (used / ENTRY) as u8);
}

fn put_below(tree: &Tree, route: &[u8], parent: usize, entries: &mut [u8], used: &mut usize) {
    for &child in tree.nodes()[parent].children.iter().rev() {
        put_below(tree, route, child, entries, used);
        if let Some(entry) = entries.get_mut(*used..*used + ENTRY) {
            entry.copy_from_slice(&[route[child], verb(tree, child)]);
            *used += ENTRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Query;

    /// Plays all servers; who sent to whom, in order.
    fn play(plan: &Plan) -> Vec<(u8, u8)> {
        let mut sent = Vec::new();
        for phase in plan.phases() {
            let mut arrivals = Vec::new();
            let message = |(place, to): (usize, &u8)| (*to, phase.payload_to(place).to_vec());
            let mut under_way: Vec<(u8, Vec<u8>)> =
                phase.to.iter().enumerate().map(message).collect();
            sent.extend(phase.to.iter().map(|to| (CLIENT, *to)));
            while let Some((at, mut payload)) = under_way.pop() {
                let line = is_line(&payload);
                let mut targets = Targets::default();
                targets.of(&mut payload).unwrap();
                assert!(!line || targets.as_slice().len() == 1);
                for (place, &target) in targets.as_slice().iter().enumerate() {
                    sent.push((at, target));
                    targets.address(place, &mut payload);
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

    fn chain(servers: usize) -> Shape {
        Shape::Chain { servers }
    }

    fn plan(pattern: Pattern) -> Plan {
        let mut plan = Plan::new(100);
        // A former operation must leave no trace.
        plan.lay(Pattern::Calls(chain(6)), &[9, 8, 7, 6, 5, 4], 1);
        plan.lay(Pattern::Multihop(Shape::Query(Query::Is1)), &[9, 8], 2);
        let route: Vec<u8> = (0..pattern.requests() as u8).map(|at| 3 ^ at).collect();
        plan.lay(pattern, &route, 9);
        plan
    }

    #[test]
    fn forwarded_messages_visit_the_route_in_order() {
        let sent = play(&plan(Pattern::Multihop(chain(3))));
        assert_eq!(sent, [(CLIENT, 3), (3, 2), (2, 1), (1, CLIENT)]);
    }

    #[test]
    fn every_pattern_sends_the_messages_it_says() {
        let mut shapes = vec![chain(1), chain(10), Shape::Fan { servers: 20 }];
        shapes.extend([1, 2, 10].map(|bounces| Shape::Ray { bounces }));
        shapes.extend(Query::ALL.map(Shape::Query));
        for shape in shapes {
            for pattern in [Pattern::Multihop(shape), Pattern::Calls(shape)] {
                assert!(
                    can_be_laid_out(pattern) && least_payload(pattern) <= 100,
                    "{shape}"
                );
                let sent = play(&plan(pattern));
                let client = sent
                    .iter()
                    .filter(|(from, to)| [*from, *to].contains(&CLIENT))
                    .count();
                assert_eq!(sent.len(), pattern.messages(), "{pattern:?}");
                assert_eq!(client, pattern.client_messages(), "{pattern:?}");
            }
        }
    }

    #[test]
    fn every_request_goes_to_its_own_server() {
        for query in Query::ALL {
            let plan = plan(Pattern::Multihop(Shape::Query(query)));
            let mut expected: Vec<(u8, u8)> = plan
                .tree()
                .nodes()
                .iter()
                .enumerate()
                .map(|(index, node)| {
                    let above = node.parent.map_or(CLIENT, |parent| plan.route()[parent]);
                    (above, plan.route()[index])
                })
                .collect();
            expected.sort_unstable();
            let mut sent = play(&plan);
            sent.retain(|(_, to)| *to != CLIENT);
            sent.sort_unstable();
            assert_eq!(sent, expected, "{query:?}");
        }
    }

    #[test]
    fn what_is_too_much_for_a_payload_is_known() {
        assert!(!can_be_laid_out(Pattern::Multihop(Shape::Fan {
            servers: 128
        })));
        assert!(!can_be_laid_out(Pattern::Multihop(chain(300))));
        assert_eq!(least_payload(Pattern::Multihop(chain(10))), 28);
    }

    #[test]
    fn a_short_message_goes_back_and_a_short_route_is_an_error() {
        let mut targets = Targets::default();
        targets.of(&mut [7; 9]).unwrap();
        assert_eq!(targets.as_slice(), [CLIENT]);
        let refused = |payload: &mut [u8]| Targets::default().of(payload).is_err();
        assert!(refused(&mut [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]));
        assert!(
            refused(&mut [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
            "one to pass on to, none named"
        );
        assert!(refused(&mut [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 5, 0]));
        assert!(refused(&mut [0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 5, 0, 5, 9]));
    }
}
