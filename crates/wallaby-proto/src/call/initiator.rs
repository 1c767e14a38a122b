//! The client half of a call: which responses are there, which are missing, and when the call is complete.
//!
//! COMPLETE means: walking from the root, every branch reached has facts, and every response that they name is here
//! (docs/protocol.md, rule 8). Messages may arrive in any order; what arrives before it is expected is kept, within the call's
//! budgets. Counting alone would be wrong: it completes early in a third of random trees under reordering.

use std::collections::VecDeque;
use std::time::Duration;

use thiserror::Error;

use crate::call::allowance::Budget;
use crate::call::branches::{Branch, Branches};
use crate::call::counts::{BranchCounts, Counts};
use crate::call::room::{BranchRoom, UNCOUNTED};
use crate::cold::Cold;
use crate::id::{CallId, Path, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::wire::{Budgets, End, HandledBy, Progress, Response, TraceRecord};

/// Most trace records that an initiator keeps of one call.
const MAX_KEPT_TRACE_RECORDS: usize = 4096;

/// Most branches of a call of which it is kept who handles them.
const MAX_KEPT_HANDLED_BY: u32 = 4096;

/// The client half of one call.
///
/// ```
/// use wallaby_proto::call::initiator::{Arrival, Initiator};
/// use wallaby_proto::wire::{Budgets, Response};
/// use wallaby_proto::{CallId, NodeId, RequestId, Token};
///
/// let call = CallId { initiator: NodeId::new(1).unwrap(), sequence: 1 };
/// let mut initiator = Initiator::new(call, Token::new(2), Budgets::default());
/// let request = initiator.send().unwrap(); // now send it to a server
/// initiator.close();
///
/// let answer = Response {
///     call, distance: 0, request, token: None, index: 0, last: true, manifest: None, status: false,
///     compressed: false, options: None, payload: "hop".into(),
/// };
/// assert_eq!(initiator.handle_response(&answer), Ok(Arrival::New));
/// assert!(initiator.is_complete());
/// ```
#[derive(Debug)]
pub struct Initiator {
    call: CallId,
    token: Token,
    /// Where they are not the default.
    budgets: Option<Box<Budgets>>,
    branches: Branches,
    /// How many initial requests there are.
    roots: u32,
    /// No further initial request comes.
    closed: bool,
    /// Expected branches without facts.
    missing_facts: u64,
    /// Responses that facts of expected branches name and that have not arrived.
    missing_responses: u64,
    /// Responses that have arrived, statuses included.
    received: u64,
    bytes: u64,
    statuses: u64,
    trace: Cold<Vec<TraceRecord>>,
    /// Branches that have changed, while somebody watches over the call.
    changes: Cold<Changes>,
    /// Initial requests of it were sent again.
    executed_again: bool,
    /// Of how many branches it is known who handles them.
    located: u32,
    /// Where its branches are counted.
    room: Option<BranchRoom>,
}

/// What is noted while somebody watches over the call.
#[derive(Debug, Default)]
struct Changes {
    /// Positions of branches that have changed since the call's watch last looked at them, in the order in which they did.
    positions: VecDeque<u32>,
    /// Made when the first of them is lost.
    counts: Option<Box<BranchCounts>>,
}

/// What a response turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is to be delivered.
    New,
    /// It had been delivered before and is to be dropped.
    Duplicate,
    /// An answer was delivered in its place, and this is a status, or the other way round. It is to be dropped: a status
    /// may take the place of an answer that one way to the initiator cannot carry, and both arrive. But if the call was
    /// sent again (thesis 7.3), its executions differ, and that is a [`Violation::ConflictingResponse`].
    Contradiction,
}

/// What a peer did that the protocol forbids; it ends the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The facts of a branch were stated twice and differ.
    #[error("branch {path} reported {now:?} after it had reported {before:?}")]
    ConflictingFacts {
        /// The branch.
        path: Path,
        /// What was known.
        before: Facts,
        /// What came.
        now: Facts,
    },
    /// An initial request that was not sent has facts.
    #[error("initial request {path} is said to have ended, but was not sent")]
    NotSent {
        /// The request's place.
        path: Path,
    },
    /// A response has a number that its branch's facts exclude.
    #[error("branch {path} sent response {index}, but it reported only {responses}")]
    UnexpectedResponse {
        /// The branch.
        path: Path,
        /// The response's number.
        index: u32,
        /// How many there should be.
        responses: u32,
    },
    /// A response came as an answer and as a status, in a call that was sent again; see [`Arrival::Contradiction`].
    #[error("response {index} of branch {path} came as an answer and as a status")]
    ConflictingResponse {
        /// The branch.
        path: Path,
        /// The response's number.
        index: u32,
    },
    /// A connection has brought more answers than were granted, or connections that have ended have brought many times that.
    #[error("more answers came than were granted")]
    Overdrawn,
    /// Nobody did anything wrong: the call has reached a limit of its own endpoint.
    #[error(transparent)]
    Limit(LimitReached),
}

/// A limit of the initiator's that a call has reached, though its servers may do all that the protocol allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitReached {
    /// One of the call's budgets ([`Budgets`]).
    #[error("the call has more than {limit} {budget}, which is its budget (`Client::budgets`)")]
    Budget {
        /// Of what.
        budget: Budget,
        /// How much that is.
        limit: u64,
    },
    /// What all calls of the endpoint may know of requests ([`Limits::branches`](crate::endpoint::Limits::branches)).
    #[error(
        "no room is left for more of its requests: all calls may know {limit} of them (`Limits::branches`)"
    )]
    Branches {
        /// How many.
        limit: u64,
    },
}

impl Violation {
    fn over(budget: Budget, limit: impl Into<u64>) -> Self {
        let limit = limit.into();
        Self::Limit(LimitReached::Budget { budget, limit })
    }
}

/// What an initiator knows of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchView {
    /// Its place.
    pub path: Path,
    /// Its parent's place; `None` for initial requests and while it is unknown.
    pub parent: Option<Path>,
    /// The highest hop that was heard of.
    pub hop: u32,
    /// What it sent, once that is known.
    pub facts: Option<Facts>,
    /// How many of its responses have arrived.
    pub received: u32,
    /// Its request certainly did not reach its server: who would have sent it has said so.
    pub undelivered: bool,
    /// The call goes on without what is missing of it.
    pub lost: bool,
}

impl BranchView {
    /// Whether it is known what it sent, and all of its responses have arrived.
    pub fn has_ended(&self) -> bool {
        self.facts
            .is_some_and(|facts| facts.responses == self.received)
    }
}

impl Initiator {
    /// The client half of a call that has sent nothing yet.
    pub fn new(call: CallId, token: Token, budgets: Budgets) -> Self {
        Self {
            call,
            token,
            budgets: (budgets != Budgets::DEFAULT).then(|| Box::new(budgets)),
            branches: Branches::default(),
            roots: 0,
            closed: false,
            missing_facts: 0,
            missing_responses: 0,
            received: 0,
            bytes: 0,
            statuses: 0,
            trace: Cold::NONE,
            changes: Cold::NONE,
            executed_again: false,
            located: 0,
            room: None,
        }
    }

    /// Its branches are counted among those of all calls of this endpoint.
    pub fn count_in(&mut self, room: &BranchRoom) {
        self.room = Some(room.clone());
    }

    /// The call's id.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// The call's reply token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether all that the call will ever deliver has arrived. Once true, it stays true.
    pub fn is_complete(&self) -> bool {
        self.closed && self.missing_facts == 0 && self.missing_responses == 0
    }

    /// Whether no further initial request comes.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// How many responses have arrived, and how many of them were statuses.
    pub fn responses(&self) -> (u64, u64) {
        (self.received, self.statuses)
    }

    /// All branches heard of so far; parents come before children unless messages overtook each other.
    pub fn branches(&self) -> impl Iterator<Item = BranchView> {
        self.branches.iter().map(|branch| self.view(branch))
    }

    /// What is known of the branch at this place.
    pub fn branch_view(&self, path: &Path) -> Option<BranchView> {
        let position = self.branches.find(path)?;
        self.branches.get(position).map(|branch| self.view(branch))
    }

    /// Whether a branch has [ended](BranchView::has_ended), and all its children are known.
    pub fn is_whole(&self, branch: &BranchView) -> bool {
        let requests = branch.facts.map_or(0, |facts| facts.requests);
        let mut children = (0..requests).map(|index| self.child_of(&branch.path, index));
        branch.has_ended() && children.all(|child| self.branches.find(&child).is_some())
    }

    /// The place of each server of a line: the first delegation of the one before, from the first initial request on.
    pub fn places_in_line(&self, servers: usize) -> Vec<Path> {
        let next = |path: &Path| Some(self.child_of(path, 0));
        std::iter::successors(Some(Path::FIRST), next)
            .take(servers)
            .collect()
    }

    fn child_of(&self, path: &Path, index: u32) -> Path {
        path.child(index, self.call, self.token)
    }

    fn view(&self, branch: &Branch) -> BranchView {
        let parent = branch.parent.and_then(|parent| self.branches.get(parent));
        BranchView {
            path: branch.path,
            parent: parent.map(|parent| parent.path),
            hop: branch.hop,
            facts: branch.facts,
            received: branch.received.count,
            undelivered: branch.undelivered,
            lost: branch.lost,
        }
    }

    /// Whether it is noted from now on which branches get their parent: those of which it could not be told whence they came.
    pub fn note_adopted(&mut self, wanted: bool) {
        self.branches.note_adopted(wanted);
    }

    /// Whether [`take_adopted`](Self::take_adopted) has anything to tell.
    pub fn has_adopted(&self) -> bool {
        self.branches.has_adopted()
    }

    /// The places of branches whose parents have become known since this was asked last.
    pub fn take_adopted(&mut self) -> Vec<Path> {
        let adopted = self.branches.take_adopted().into_iter();
        adopted
            .filter_map(|position| self.branches.get(position))
            .map(|branch| branch.path)
            .collect()
    }

    /// Branches that must exist and have not ended, or whose responses are missing.
    pub fn missing(&self) -> impl Iterator<Item = RequestId> {
        self.branches
            .iter()
            .filter(|branch| branch.expected && !branch.is_settled())
            .map(|branch| RequestId {
                path: branch.path,
                hop: branch.hop,
            })
    }

    /// What the requests of a traced call reported.
    pub fn trace(&self) -> &[TraceRecord] {
        self.trace.get().map_or(&[], |trace| trace)
    }

    /// The next initial request's id; the caller sends it.
    ///
    /// # Errors
    ///
    /// If the call has used up its budget of requests; nothing has changed then.
    ///
    /// # Panics
    ///
    /// If the call is closed.
    #[inline]
    pub fn send(&mut self) -> Result<RequestId, Violation> {
        assert!(
            !self.closed,
            "a closed call sends no further initial request"
        );
        if self.branches.is_empty() && self.budgets.is_none() && !self.changes.is_some() {
            self.branches.begin(Path::FIRST).expected = true;
            self.missing_facts = 1;
            self.roots = 1;
            return Ok(RequestId::FIRST);
        }
        self.send_further()
    }

    /// Most calls have a single initial request, and send it before they hear of any.
    #[inline(never)]
    fn send_further(&mut self) -> Result<RequestId, Violation> {
        let path = Path::initial(self.roots);
        let position = self.find_or_add(path)?;
        // It has no facts yet (`Violation::NotSent`), so nothing else is expected with it.
        self.expect(position, None, self.roots);
        self.roots += 1;
        Ok(RequestId { path, hop: 0 })
    }

    /// No further initial request comes: from now on the call can be complete.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// A response of this call arrived.
    ///
    /// # Errors
    ///
    /// If it contradicts what is known or exceeds a budget; the call has failed then.
    pub fn handle_response(&mut self, response: &Response) -> Result<Arrival, Violation> {
        let budgets = *self.budgets();
        let limit = budgets.responses;
        let position = self.branch(response.request)?;
        let branch = self.branches.at(position);
        if let Some(facts) = branch.facts
            && response.index >= facts.responses
        {
            return Err(unexpected(branch, response.index, facts));
        }
        // A status ends a branch that may have used up all.
        if response.index >= limit && !(response.status && response.index == limit) {
            return Err(Violation::over(Budget::Responses, limit));
        }
        let new = branch.received.insert(response.index);
        if new {
            if branch.expected && branch.facts.is_some() && !branch.lost {
                self.missing_responses -= 1;
            }
            if response.status {
                branch.note_status(response.index);
            }
            self.changed(position);
            self.count_response(response, &budgets)?;
        }
        let arrival = match new {
            true => Arrival::New,
            false => self.branches.at(position).again(response),
        };
        // What one execution says of the branch's end must not complete what the other has sent.
        if arrival == Arrival::Contradiction && self.executed_again {
            return Err(Violation::ConflictingResponse {
                path: response.request.path,
                index: response.index,
            });
        }
        if response.last {
            let facts = Facts {
                requests: 0,
                responses: response.index + 1,
            };
            self.learn(position, facts)?;
        }
        if let Some(manifest) = &response.manifest {
            self.handle_manifest(manifest)?;
        }
        if let Some(options) = &response.options {
            self.branches.at(position).undelivered |= options.undelivered && response.status;
            if let Some(by) = &options.handled_by {
                self.note_handled_by(position, response.request.hop, by);
            }
            self.handle_trace(&options.trace);
        }
        Ok(arrival)
    }

    /// A branch of this call reports its end.
    ///
    /// # Errors
    ///
    /// If it contradicts what is known or exceeds a budget; the call has failed then.
    pub fn handle_end(&mut self, end: &End) -> Result<(), Violation> {
        let position = self.branch(end.request)?;
        self.learn(position, end.facts)?;
        if let Some(manifest) = &end.manifest {
            self.handle_manifest(manifest)?;
        }
        if let Some(options) = &end.options {
            self.handle_trace(&options.trace);
        }
        Ok(())
    }

    #[cold]
    fn note_handled_by(&mut self, position: u32, hop: u32, by: &HandledBy) {
        let known = &mut self.branches.at(position).handled_by;
        if known.is_some() || self.located < MAX_KEPT_HANDLED_BY {
            self.located += u32::from(!known.is_some());
            let known = known.get_or_insert_default();
            if known.as_ref().is_none_or(|(before, _)| *before <= hop) {
                *known = Some((hop, by.clone()));
            }
        }
    }

    /// Something was heard of the branch at this place, which may have more to say.
    pub fn note_heard(&mut self, path: &Path, now: Duration) {
        if let Some(position) = self.branches.find(path) {
            self.branches.at(position).heard = Some(now);
        }
    }

    /// Who handles a request, as its server has said.
    pub fn handled_by(&self, request: RequestId) -> Option<&HandledBy> {
        let position = self.branches.find(&request.path)?;
        self.branches.get(position)?.handled_by(request.hop)
    }

    /// When something of the branch at this place was heard last.
    pub fn heard(&self, path: &Path) -> Option<Duration> {
        let position = self.branches.find(path)?;
        self.branches.get(position)?.heard
    }

    /// Trace records of this call arrived.
    pub fn handle_trace(&mut self, records: &[TraceRecord]) {
        if records.is_empty() {
            return;
        }
        let trace = self.trace.get_or_insert_default();
        let room = MAX_KEPT_TRACE_RECORDS.saturating_sub(trace.len());
        trace.extend(records.iter().take(room).cloned());
    }

    // What the call's watch does.

    /// From now on changes are noted; those that are known already come first.
    pub(super) fn note_changes(&mut self) {
        if self.changes.is_some() {
            return;
        }
        self.changes.get_or_insert_default();
        let known = 0..self.branches.len();
        known.clone().for_each(|position| self.changed(position));
        for position in known {
            if self.discover_children(position).is_err() {
                return; // more than the budget: what else arrives will show it
            }
        }
    }

    /// The position of a branch that has changed.
    pub(super) fn next_change(&mut self) -> Option<u32> {
        let position = self.changes.get_mut()?.positions.pop_front()?;
        self.branches.at(position).changed = false;
        self.count(position);
        Some(position)
    }

    /// Whether branches have changed since the call's watch last looked at them.
    pub(super) fn has_changes(&self) -> bool {
        let changes = self.changes.get();
        changes.is_some_and(|changes| !changes.positions.is_empty())
    }

    /// What the call may use up.
    pub(super) fn budgets(&self) -> &Budgets {
        self.budgets.as_deref().unwrap_or(&Budgets::DEFAULT)
    }

    /// The branch at a position.
    pub(super) fn branch_at(&self, position: u32) -> Option<&Branch> {
        self.branches.get(position)
    }

    /// How many branches are known.
    pub(super) fn branch_count(&self) -> u32 {
        self.branches.len()
    }

    /// The initial request with this number, if it was sent.
    pub(super) fn initial(&self, index: u32) -> Option<RequestId> {
        (index < self.roots).then(|| RequestId {
            path: self.child_of(&Path::ROOT, index),
            hop: 0,
        })
    }

    /// The position of the branch with this path.
    pub(super) fn find(&self, path: &Path) -> Option<u32> {
        self.branches.find(path)
    }

    /// The position of a branch's parent, as far as known.
    pub(super) fn parent_of(&self, position: u32) -> Option<u32> {
        let branch = self.branches.get(position)?;
        branch.parent.or_else(|| self.find(&branch.path.parent()?))
    }

    /// Whether an initial request is at this position.
    pub(super) fn is_initial(&self, position: u32) -> bool {
        let branch = self.branches.get(position);
        branch.is_some_and(|branch| branch.path.parent() == Some(Path::ROOT))
    }

    /// A pong about this request arrived: its facts count as the manifest (rule 13).
    pub(super) fn handle_progress(
        &mut self,
        request: RequestId,
        progress: Option<&Progress>,
    ) -> Result<u32, Violation> {
        let position = self.branch(request)?;
        if let Some(progress) = progress {
            let branch = self.branches.at(position);
            if let Some(index) = progress.status().filter(|_| self.executed_again)
                && branch.has_answer(index)
            {
                let path = branch.path;
                return Err(Violation::ConflictingResponse { path, index });
            }
            if let Some(facts) = progress.facts {
                self.learn(position, facts)?;
            }
            if let Some(manifest) = &progress.manifest {
                self.handle_manifest(manifest)?;
            }
            if let Some(by) = &progress.handled_by {
                self.note_handled_by(position, request.hop, by);
            }
        }
        Ok(position)
    }

    /// Some of the call is executed again (thesis 7.3): its executions must not differ.
    pub(super) fn execute_again(&mut self) {
        self.executed_again = true;
    }

    /// A branch is executed again: how it ended is told anew, unless all that it sent is here. Its children are
    /// expected all the same: the second execution has them, too.
    pub(super) fn forget_end(&mut self, position: u32) {
        let branch = self.branches.at(position);
        if branch.facts.is_none() || branch.is_settled() {
            return;
        }
        let missing = branch.missing();
        branch.facts = None;
        if branch.expected {
            self.missing_responses -= missing;
            self.missing_facts += 1;
        }
        self.count(position);
    }

    /// A branch is lost, and the call goes on without what is missing of it. What was heard of that it led to is expected
    /// all the same, though nobody will say any more that it exists.
    pub(super) fn give_up(&mut self, position: u32) -> Result<(), Violation> {
        let complete = self.is_complete();
        let branch = self.branches.at(position);
        let (path, expected, ended) = (branch.path, branch.expected, branch.facts.is_some());
        let missing = branch.missing();
        if std::mem::replace(&mut branch.lost, true) {
            return Ok(());
        }
        match (expected, ended) {
            (true, true) => self.missing_responses -= missing,
            (true, false) => self.missing_facts -= 1,
            (false, _) => {}
        }
        self.changed(position);
        if complete {
            return Ok(());
        }
        self.count_all();
        let counts = self.changes.get_mut().and_then(|all| all.counts.as_mut());
        let orphans = counts.map(|counts| counts.take_orphans(&path));
        for child in orphans.into_iter().flatten() {
            let branch = self.branches.at(child);
            let (child_path, index) = (branch.path, branch.index);
            if !branch.expected {
                self.expect_one(child_path, Some(position), index)?;
                self.expect_children(child)?;
            }
        }
        Ok(())
    }

    /// A branch has released child `index`: the child exists, whatever the branch's facts will be.
    pub(super) fn discover(&mut self, parent: u32, index: u32) -> Result<u32, Violation> {
        let above = self.branches.at(parent).path;
        let path = self.child_of(&above, index);
        let position = self.find_or_add(path)?;
        let branch = self.branches.at(position);
        branch.index = index;
        if branch.parent.replace(parent).is_none() {
            self.branches.adopt(position);
        }
        if let Some(counts) = self.counts_mut() {
            counts.note_parent(position, above);
        }
        Ok(position)
    }

    /// How many branches there are of each kind.
    pub(super) fn counts(&mut self) -> Counts {
        self.count_all();
        self.counts_mut()
            .map_or_else(Counts::default, |counts| counts.counts())
    }

    fn counts_mut(&mut self) -> Option<&mut BranchCounts> {
        self.changes.get_mut()?.counts.as_deref_mut()
    }

    /// Counts what has changed; the first time, all there is.
    fn count_all(&mut self) {
        let Some(changes) = self.changes.get_mut() else {
            return;
        };
        if changes.counts.is_none() {
            changes.counts = Some(Box::new(BranchCounts::new(self.token)));
            return (0..self.branches.len()).for_each(|position| self.count(position));
        }
        let positions = std::mem::take(&mut changes.positions);
        positions.iter().for_each(|position| self.count(*position));
        if let Some(changes) = self.changes.get_mut() {
            changes.positions = positions;
        }
    }

    fn count(&mut self, position: u32) {
        let counts = self.changes.get_mut().and_then(|all| all.counts.as_mut());
        let (Some(counts), Some(branch)) = (counts, self.branches.get(position)) else {
            return;
        };
        let known = branch.parent.and_then(|parent| self.branches.get(parent));
        let parent = known.map(|parent| parent.path);
        counts.count(position, branch, parent.or_else(|| branch.path.parent()));
    }

    #[inline(never)]
    fn handle_manifest(&mut self, manifest: &Manifest) -> Result<(), Violation> {
        let position = self.branch(RequestId {
            path: manifest.owner,
            hop: 0,
        })?;
        self.learn(position, manifest.facts)
    }

    #[inline]
    fn count_response(&mut self, response: &Response, budgets: &Budgets) -> Result<(), Violation> {
        self.received += 1;
        self.statuses += u64::from(response.status);
        if !response.status {
            self.bytes += response.payload.len() as u64;
        }
        // The status that ends a branch counts with its request.
        let most = u64::from(budgets.responses);
        if self.received > most && self.received - self.statuses.min(budgets.requests.into()) > most
        {
            return Err(Violation::over(Budget::Responses, budgets.responses));
        }
        if self.bytes > budgets.bytes {
            return Err(Violation::over(Budget::Bytes, budgets.bytes));
        }
        Ok(())
    }

    /// The branch of this request, which may be heard of for the first time.
    #[inline(always)]
    fn branch(&mut self, request: RequestId) -> Result<u32, Violation> {
        let position = self.find_or_add(request.path)?;
        let branch = self.branches.at(position);
        if request.hop > branch.hop {
            branch.hop = request.hop;
            self.changed(position);
        }
        Ok(position)
    }

    #[inline]
    fn find_or_add(&mut self, path: Path) -> Result<u32, Violation> {
        match self.branches.find(&path) {
            Some(position) => Ok(position),
            None => self.add_branch(path),
        }
    }

    #[inline(never)]
    fn add_branch(&mut self, path: Path) -> Result<u32, Violation> {
        if path.is_root() {
            return Err(Violation::NotSent { path }); // that is the initiator's own place
        }
        if self.branches.len() >= self.budgets().requests {
            return Err(Violation::over(Budget::Requests, self.budgets().requests));
        }
        if self.branches.len() >= UNCOUNTED
            && let Some(room) = &self.room
        {
            self.branches.take_room(room)?;
        }
        let position = self.branches.add(path, self.token);
        self.changed(position);
        Ok(position)
    }

    /// Notes a change for the call's watch.
    #[inline]
    fn changed(&mut self, position: u32) {
        if self.changes.is_some() {
            self.note_changed(position);
        }
    }

    #[inline(never)]
    fn note_changed(&mut self, position: u32) {
        if let Some(changes) = self.changes.get_mut() {
            let branch = self.branches.at(position);
            if !branch.changed {
                branch.changed = true;
                changes.positions.push_back(position);
            }
        }
    }

    /// The facts of a branch became known, perhaps again.
    #[inline(always)]
    fn learn(&mut self, position: u32, facts: Facts) -> Result<(), Violation> {
        let limit = self.budgets().requests;
        let branch = self.branches.at(position);
        if let Some(before) = branch.facts {
            return told_again(branch, before, facts);
        }
        if !branch.expected && branch.path.parent() == Some(Path::ROOT) {
            return Err(Violation::NotSent { path: branch.path });
        }
        if branch.received.bound() > facts.responses {
            return Err(unexpected(branch, branch.received.bound() - 1, facts));
        }
        if facts.requests >= limit {
            return Err(Violation::over(Budget::Requests, limit));
        }
        branch.facts = Some(facts);
        let (expected, lost) = (branch.expected, branch.lost);
        if expected && !lost {
            self.missing_facts -= 1;
            self.missing_responses += branch.missing();
        }
        self.changed(position);
        if lost && self.is_complete() {
            return Ok(()); // what was lost tells too late what it led to
        }
        if facts.requests == 0 {
            return Ok(());
        }
        if expected {
            self.expect_children(position)?;
        } else if self.changes.is_some() {
            self.discover_children(position)?;
        }
        Ok(())
    }

    /// A branch of a watched call may have ended, though nothing says yet that it is expected: a branch above it still runs.
    /// Its children exist all the same, and may run for long: they must be found.
    #[inline(never)]
    fn discover_children(&mut self, position: u32) -> Result<(), Violation> {
        let facts = self.branches.at(position).facts;
        for index in 0..facts.map_or(0, |facts| facts.requests) {
            self.discover(position, index)?;
        }
        Ok(())
    }

    /// Walks down from a branch that is expected, as far as facts are known.
    #[inline(never)]
    fn expect_children(&mut self, position: u32) -> Result<(), Violation> {
        let mut open = vec![];
        let mut next = Some(position);
        while let Some(parent) = next {
            let branch = self.branches.at(parent);
            let (path, requests) = (branch.path, branch.facts.map_or(0, |facts| facts.requests));
            for index in 0..requests {
                let child = self.child_of(&path, index);
                let child = self.expect_one(child, Some(parent), index)?;
                if self.branches.at(child).facts.is_some() {
                    open.push(child);
                }
            }
            next = open.pop();
        }
        Ok(())
    }

    /// Counts what one newly expected branch adds to what is missing.
    fn expect_one(
        &mut self,
        path: Path,
        parent: Option<u32>,
        index: u32,
    ) -> Result<u32, Violation> {
        let position = self.find_or_add(path)?;
        self.expect(position, parent, index);
        Ok(position)
    }

    #[inline(always)]
    fn expect(&mut self, position: u32, parent: Option<u32>, index: u32) {
        let branch = self.branches.at(position);
        if branch.expected && branch.parent == parent {
            return; // its parent was executed again
        }
        debug_assert!(
            !branch.expected,
            "every branch has one parent, which reports once"
        );
        branch.expected = true;
        let adopted = branch.parent.is_none() && parent.is_some();
        branch.parent = parent;
        branch.index = index;
        match branch.facts {
            _ if branch.lost => {}
            None => self.missing_facts += 1,
            Some(_) => self.missing_responses += branch.missing(),
        }
        if adopted {
            self.branches.adopt(position);
        }
        self.changed(position);
    }
}

#[cold]
fn unexpected(branch: &Branch, index: u32, facts: Facts) -> Violation {
    Violation::UnexpectedResponse {
        path: branch.path,
        index,
        responses: facts.responses,
    }
}

/// The facts of a branch are stated twice: they must not differ.
#[cold]
fn told_again(branch: &Branch, before: Facts, now: Facts) -> Result<(), Violation> {
    if before == now {
        return Ok(());
    }
    let path = branch.path;
    Err(Violation::ConflictingFacts { path, before, now })
}
