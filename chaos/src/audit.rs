//! The books compared: what callers saw, what servers did, and what was done to both.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::control::{CallRecord, Outcome, Watch};
use crate::harm::{Fault, Harm};
use crate::journal::{Entry, Event};
use crate::moment::{MILLI, millis};
use crate::plan::Number;

/// How much later than it should anything may end on a machine that has other things to do.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// All that is known of a round.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// Of all clients: seat, and how a call ended.
    pub(crate) calls: Vec<(usize, CallRecord)>,
    /// Of all servers, in order of their seats.
    pub(crate) journals: Vec<Vec<Entry>>,
    pub(crate) harms: Vec<Harm>,
    /// Addresses of servers, in order.
    pub(crate) addresses: Vec<String>,
    /// Nothing was wrong from then on.
    pub(crate) calm: u64,
    /// Clients that do not listen: their answers may pass by any server.
    pub(crate) relayed: Vec<usize>,
    /// The first seat of a client.
    pub(crate) first_client: usize,
}

/// What was over for so long before a call began, in nanoseconds, is told of a call that should not have felt it.
const BEFORE: u64 = 20_000 * MILLI;

/// Calls whose books are closed: nothing of them may be executed any more.
#[derive(Debug, Default)]
pub(crate) struct Closed(HashMap<(u8, u16), u32>);

impl Closed {
    /// All calls of this incarnation before the one with this number are over.
    pub(crate) fn close(&mut self, client: u8, incarnation: u16, next: u32) {
        self.0.insert((client, incarnation), next);
    }

    /// All calls of this incarnation up to the one with this number are over.
    pub(crate) fn close_until(&mut self, number: Number) {
        let next = self
            .0
            .entry((number.client, number.incarnation))
            .or_default();
        *next = (*next).max(number.call + 1);
    }

    fn has(&self, number: Number) -> bool {
        let closed = self.0.get(&(number.client, number.incarnation));
        closed.is_some_and(|next| number.call < *next)
    }
}

/// What a comparison found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Findings {
    /// What must never be, as sentences.
    #[serde(skip)]
    pub(crate) violations: Vec<String>,
    /// Calls by how they ended.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// Calls that nobody was done anything to.
    pub(crate) calm_calls: u64,
    pub(crate) answers: u64,
    pub(crate) executed: u64,
    /// Longest time from a fault to the failure that came of it alone, in milliseconds, and how many there were.
    pub(crate) detection_ms: BTreeMap<Fault, (u64, f64)>,
}

impl Findings {
    pub(crate) fn add(&mut self, other: Self) {
        self.violations.extend(other.violations);
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.calm_calls += other.calm_calls;
        self.answers += other.answers;
        self.executed += other.executed;
        for (fault, (count, worst)) in other.detection_ms {
            let entry = self.detection_ms.entry(fault).or_default();
            entry.0 += count;
            entry.1 = entry.1.max(worst);
        }
    }
}

/// What servers wrote about a request.
#[derive(Debug, Default)]
struct Done {
    begun: Vec<usize>,
    answers: HashSet<u16>,
    ended: bool,
}

/// Compares the books of a round.
pub(crate) fn audit(books: &Books, watch: Watch, closed: &Closed) -> Findings {
    let mut findings = Findings::default();
    let mut done: HashMap<u64, Done> = HashMap::new();
    for (server, journal) in books.journals.iter().enumerate() {
        for entry in journal {
            let done = done.entry(entry.id).or_default();
            match entry.event {
                Event::Begun => done.begun.push(server),
                Event::Answering(index) => _ = done.answers.insert(index),
                Event::Ended => done.ended = true,
            }
        }
    }
    for (id, done) in &done {
        findings.executed += done.begun.len() as u64;
        if done.begun.len() > 1 {
            findings.violations.push(format!(
                "request {id} was executed {} times, by servers {:?}",
                done.begun.len(),
                done.begun
            ));
        }
        if closed.has(Number::unpack(*id)) {
            findings.violations.push(format!(
                "request {id} was executed by servers {:?} long after its call was over",
                done.begun
            ));
        }
    }
    for (client, call) in &books.calls {
        let check = Check {
            books,
            watch,
            client: *client,
            call,
            done: &done,
        };
        check.run(&mut findings);
    }
    findings
}

/// A call under comparison.
struct Check<'a> {
    books: &'a Books,
    watch: Watch,
    client: usize,
    call: &'a CallRecord,
    done: &'a HashMap<u64, Done>,
}

impl Check<'_> {
    fn run(&self, findings: &mut Findings) {
        let outcome = self.kind();
        *findings.outcomes.entry(outcome).or_default() += 1;
        findings.answers += self.call.delivered.len() as u64;
        let mut wrong = Vec::new();
        self.check_answers(&mut wrong);
        self.check_time(&mut wrong);
        match &self.call.outcome {
            Outcome::Complete => self.check_complete(&mut wrong),
            Outcome::Aborted => self.check_abort(&mut wrong),
            _ => self.check_failure(&mut wrong, findings),
        }
        if self.call.begun >= self.books.calm {
            findings.calm_calls += 1;
            let is_whole = self.call.outcome == Outcome::Complete && self.call.statuses.is_empty();
            if !is_whole {
                wrong.push("although nothing was wrong".to_owned());
            }
        }
        let described = wrong.into_iter().map(|words| self.describe(&words));
        findings.violations.extend(described);
    }

    fn kind(&self) -> String {
        match &self.call.outcome {
            Outcome::Complete if self.call.statuses.is_empty() => "complete".to_owned(),
            Outcome::Complete => "complete, with statuses".to_owned(),
            Outcome::Lost { kind, .. } => format!("failed: {kind}"),
            Outcome::NotSent { .. } => "failed: not sent".to_owned(),
            Outcome::Deadline { .. } => "failed: deadline".to_owned(),
            Outcome::Aborted => "aborted".to_owned(),
            Outcome::Other { .. } => "failed: otherwise".to_owned(),
        }
    }

    /// Whatever was delivered was sent by the handler of that request, and came once.
    fn check_answers(&self, wrong: &mut Vec<String>) {
        if self.call.damaged > 0 {
            wrong.push(format!("{} answers were damaged", self.call.damaged));
        }
        let mut seen = HashSet::new();
        for (id, index) in &self.call.delivered {
            if !seen.insert((id, index)) {
                wrong.push(format!(
                    "answer {index} of request {id} was delivered twice"
                ));
            }
            let was_sent = self.done.get(id).is_some_and(|d| d.answers.contains(index));
            let is_own = self.call.planned.iter().any(|planned| planned.id == *id);
            if !was_sent || !is_own {
                wrong.push(format!(
                    "answer {index} of request {id} was never sent to it"
                ));
            }
        }
    }

    fn check_time(&self, wrong: &mut Vec<String>) {
        let took = Duration::from_nanos(self.call.ended.saturating_sub(self.call.begun));
        let limit =
            self.call.deadline + MARGIN + self.own_stops() + self.call.settled.unwrap_or_default();
        if took > limit {
            wrong.push(format!(
                "ended after {took:?}, {limit:?} at most were allowed"
            ));
        }
        let is_early = took + Duration::from_millis(1) < self.call.deadline;
        if matches!(self.call.outcome, Outcome::Deadline { .. }) && is_early {
            wrong.push(format!("ended by its deadline after {took:?}"));
        }
    }

    /// How long the initiator was stopped during the call.
    fn own_stops(&self) -> Duration {
        let during = self.books.harms.iter().filter(|harm| {
            harm.fault == Fault::Stop
                && harm.seat == self.client
                && harm.is_within(self.call.begun, self.call.ended)
        });
        let stops = during.map(|harm| harm.until.min(self.call.ended).saturating_sub(harm.from));
        Duration::from_nanos(stops.sum())
    }

    fn check_complete(&self, wrong: &mut Vec<String>) {
        let has_statuses = !self.call.statuses.is_empty();
        let all: Vec<usize> = self.planned_servers();
        if has_statuses && !self.was_hurt(&all) {
            wrong.push("got statuses although nobody of its servers was hurt".to_owned());
        }
        let delivered: HashSet<_> = self.call.delivered.iter().copied().collect();
        for planned in &self.call.planned {
            let done = self.done.get(&planned.id);
            let was_executed = done.is_some_and(|d| d.begun == [usize::from(planned.server)]);
            if !has_statuses && !was_executed {
                wrong.push(format!(
                    "is complete, but server {} did not execute request {}",
                    planned.server, planned.id
                ));
            }
            // A handler that returned a status may have answered before.
            let is_due = !has_statuses || done.is_some_and(|done| done.ended);
            for index in (0..planned.answers).filter(|_| is_due) {
                if !delivered.contains(&(planned.id, index)) {
                    wrong.push(format!(
                        "is complete without answer {index} of request {}",
                        planned.id
                    ));
                }
            }
        }
    }

    fn check_abort(&self, wrong: &mut Vec<String>) {
        let settled = self.call.settled.unwrap_or_default();
        let limit = self.watch.timeout + 2 * self.watch.period + MARGIN + self.own_stops();
        if settled > limit {
            wrong.push(format!("had not settled {settled:?} after its abort"));
        }
    }

    fn check_failure(&self, wrong: &mut Vec<String>, findings: &mut Findings) {
        let executed = self
            .call
            .planned
            .iter()
            .any(|planned| self.done.contains_key(&planned.id));
        let first = self.call.planned.first();
        let root = first.map(|planned| usize::from(planned.server));
        let hurt = match &self.call.outcome {
            Outcome::Lost { servers, .. } => {
                let mut named = self.named(servers);
                if named.is_empty() {
                    named = self.planned_servers();
                }
                if self.books.relayed.contains(&self.client) {
                    named.extend(0..self.books.first_client);
                }
                named
            }
            Outcome::NotSent { .. } => {
                if executed {
                    wrong.push("says that it was not sent, but it was executed".to_owned());
                }
                root.into_iter().collect()
            }
            Outcome::Deadline { .. } => self.planned_servers(),
            _ => {
                wrong.push("failed for no known reason".to_owned());
                return;
            }
        };
        if !self.was_hurt(&hurt) {
            wrong.push(format!("failed, but none of servers {hurt:?} was hurt"));
        }
        self.measure(findings);
    }

    /// The servers named by an error, and those that handed the call on to them: what a hop that is not known any more sent
    /// may have been lost on its way.
    fn named(&self, servers: &[String]) -> Vec<usize> {
        let place = |name: &String| self.books.addresses.iter().position(|a| a == name);
        let mut named: Vec<usize> = servers.iter().filter_map(place).collect();
        for planned in &self.call.planned {
            let is_named = servers.contains(&self.books.addresses[usize::from(planned.server)]);
            named.extend(planned.delegator.filter(|_| is_named).map(usize::from));
        }
        named
    }

    fn planned_servers(&self) -> Vec<usize> {
        let servers = self.call.planned.iter().map(|p| usize::from(p.server));
        servers.collect()
    }

    /// Whether one of these servers, or a link between them and the initiator, was hurt during the call. Servers take an
    /// initiator that was stopped for long for dead, and stop what they do for it.
    fn was_hurt(&self, servers: &[usize]) -> bool {
        let long = self.watch.timeout.as_nanos() as u64 * 3 / 2;
        self.felt().any(|harm| {
            let is_long = harm.until.saturating_sub(harm.from) >= long;
            harm.touches(servers, self.client)
                || (harm.fault == Fault::Stop && harm.seat == self.client && is_long)
        })
    }

    fn felt(&self) -> impl Iterator<Item = &Harm> {
        let harms = self.books.harms.iter();
        harms.filter(|harm| harm.is_within(self.call.begun, self.call.ended))
    }

    /// How long it took to find out, where only one thing can have been the reason.
    fn measure(&self, findings: &mut Findings) {
        if !matches!(self.call.outcome, Outcome::Lost { .. }) {
            return;
        }
        let all = self.planned_servers();
        let mut reasons = self.felt().filter(|harm| {
            harm.touches(&all, self.client)
                || harm.seat == self.client
                || harm.other == Some(self.client)
        });
        let (Some(reason), None) = (reasons.next(), reasons.next()) else {
            return;
        };
        let took = self.call.ended - reason.from.max(self.call.begun);
        let entry = findings.detection_ms.entry(reason.fault).or_default();
        entry.0 += 1;
        entry.1 = entry.1.max(millis(took));
    }

    fn describe(&self, words: &str) -> String {
        let CallRecord {
            shape,
            outcome,
            begun,
            ended,
            statuses,
            planned,
            ..
        } = self.call;
        let call = planned.first().map(|planned| Number::unpack(planned.id));
        let call = call.map_or_else(String::new, |n| format!("{}.{}", n.incarnation, n.call));
        let servers: Vec<u8> = planned.iter().map(|planned| planned.server).collect();
        let mut text = format!(
            "call {call} of client {} ({shape:?} at servers {servers:?}, {:.0} ms): {words}; outcome: {outcome:?}",
            self.client - self.books.first_client,
            millis(ended - begun),
        );
        if !statuses.is_empty() {
            text += &format!("; statuses: {}", statuses.join(", "));
        }
        let harms: Vec<String> = self.felt().map(|harm| self.describe_harm(harm)).collect();
        if !harms.is_empty() {
            text += &format!("; felt: {}", harms.join(", "));
        }
        let (all, begun) = (self.planned_servers(), *begun);
        let over = self.books.harms.iter().filter(|harm| {
            harm.felt_until() < begun
                && harm.until.saturating_add(BEFORE) >= begun
                && harm.touches(&all, self.client)
        });
        let over: Vec<String> = over.map(|harm| self.describe_harm(harm)).collect();
        if !over.is_empty() {
            text += &format!("; over before: {}", over.join(", "));
        }
        text
    }

    /// With times counted from the call's begin.
    fn describe_harm(&self, harm: &Harm) -> String {
        let since = |at: u64| (at as i64 - self.call.begun as i64) / MILLI as i64;
        let name = |seat: usize| match seat.checked_sub(self.books.first_client) {
            Some(client) => format!("client {client}"),
            None => format!("server {seat}"),
        };
        let other = harm.other.map(|other| format!(" to {}", name(other)));
        format!(
            "{}{} {} ({} to {} ms)",
            name(harm.seat),
            other.unwrap_or_default(),
            harm.fault.words(),
            since(harm.from),
            since(harm.until)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Planned, Shape};

    const WATCH: Watch = Watch {
        period: Duration::from_millis(100),
        timeout: Duration::from_secs(1),
        deadline: Duration::from_secs(8),
    };
    const ADDRESSES: [&str; 2] = ["tcp://10.77.0.1:7000", "tcp://10.77.0.2:7000"];

    /// A call of client 0 (seat 2): request 0 at server 0, which hands on request 1 to server 1, which answers once.
    fn books() -> Books {
        let planned = |id, server, answers| Planned {
            id,
            server,
            answers,
            delegator: None,
        };
        let call = CallRecord {
            shape: Shape::Line,
            begun: 1_000 * MILLI,
            ended: 1_500 * MILLI,
            deadline: WATCH.deadline,
            planned: vec![planned(256, 0, 0), planned(257, 1, 1)],
            delivered: vec![(257, 0)],
            damaged: 0,
            statuses: Vec::new(),
            outcome: Outcome::Complete,
            settled: None,
        };
        let entry = |event, id| Entry { event, id, at: 0 };
        Books {
            calls: vec![(2, call)],
            journals: vec![
                vec![entry(Event::Begun, 256), entry(Event::Ended, 256)],
                vec![
                    entry(Event::Begun, 257),
                    entry(Event::Answering(0), 257),
                    entry(Event::Ended, 257),
                ],
            ],
            harms: Vec::new(),
            addresses: ADDRESSES.map(str::to_owned).to_vec(),
            calm: u64::MAX,
            relayed: Vec::new(),
            first_client: 2,
        }
    }

    fn violations(change: impl FnOnce(&mut Books)) -> Vec<String> {
        let mut books = books();
        change(&mut books);
        audit(&books, WATCH, &Closed::default()).violations
    }

    fn lost(server: usize) -> Outcome {
        Outcome::Lost {
            kind: "silent".to_owned(),
            servers: vec![ADDRESSES[server].to_owned()],
            words: String::new(),
        }
    }

    fn kill(seat: usize) -> Harm {
        Harm {
            fault: Fault::Kill,
            seat,
            other: None,
            unnoticed: false,
            from: 1_100 * MILLI,
            until: 1_200 * MILLI,
        }
    }

    #[test]
    fn books_that_agree_are_fine() {
        assert_eq!(violations(|_| ()), Vec::<String>::new());
        let calm = violations(|books| books.calm = 0);
        assert_eq!(calm, Vec::<String>::new());
    }

    #[test]
    fn a_second_execution_is_found_even_by_another_server() {
        let twice = violations(|books| {
            let again = books.journals[1][0];
            books.journals[0].push(again);
        });
        assert!(
            twice.iter().any(|words| words.contains("2 times")),
            "{twice:?}"
        );
    }

    #[test]
    fn an_execution_after_the_books_were_closed_is_found() {
        let mut closed = Closed::default();
        closed.close(0, 0, 2);
        let late = audit(&books(), WATCH, &closed).violations;
        assert!(
            late.iter().any(|words| words.contains("long after")),
            "{late:?}"
        );
    }

    #[test]
    fn complete_means_all_answers_of_all_requests() {
        let missing = violations(|books| books.calls[0].1.delivered.clear());
        assert!(missing[0].contains("without answer 0"), "{missing:?}");
        let skipped = violations(|books| books.journals[0].clear());
        assert!(skipped[0].contains("did not execute"), "{skipped:?}");
    }

    #[test]
    fn answers_that_nobody_sent_or_that_came_twice_are_found() {
        let invented = violations(|books| books.journals[1].truncate(1));
        assert!(invented[0].contains("never sent"), "{invented:?}");
        let twice = violations(|books| books.calls[0].1.delivered.push((257, 0)));
        assert!(twice[0].contains("twice"), "{twice:?}");
        let damaged = violations(|books| books.calls[0].1.damaged = 1);
        assert!(damaged[0].contains("damaged"), "{damaged:?}");
    }

    #[test]
    fn a_failure_must_name_a_server_that_was_hurt() {
        let fail = |harm: Option<Harm>| {
            violations(|books| {
                books.calls[0].1.outcome = lost(1);
                books.harms.extend(harm);
            })
        };
        assert_eq!(fail(Some(kill(1))), Vec::<String>::new());
        assert!(fail(None)[0].contains("was hurt"));
        assert!(fail(Some(kill(0)))[0].contains("was hurt"));
        let long_ago = Harm {
            from: 0,
            until: 1,
            ..kill(1)
        };
        assert!(fail(Some(long_ago))[0].contains("was hurt"));
    }

    #[test]
    fn what_was_not_sent_was_not_executed() {
        let sent = violations(|books| {
            books.harms.push(kill(0));
            books.calls[0].1.outcome = Outcome::NotSent {
                words: String::new(),
            };
        });
        assert!(sent[0].contains("it was executed"), "{sent:?}");
    }

    #[test]
    fn nothing_fails_in_calm() {
        let failed = violations(|books| {
            books.calm = 0;
            books.harms.push(kill(1));
            books.calls[0].1.outcome = lost(1);
        });
        assert!(failed[0].contains("nothing was wrong"), "{failed:?}");
    }

    #[test]
    fn calls_end_in_time() {
        let late = violations(|books| books.calls[0].1.ended = 60_000 * MILLI);
        assert!(late[0].contains("ended after"), "{late:?}");
        let early = violations(|books| {
            books.harms.push(kill(1));
            books.calls[0].1.outcome = Outcome::Deadline {
                words: String::new(),
            };
        });
        assert!(early[0].contains("by its deadline"), "{early:?}");
    }

    #[test]
    fn detection_is_measured_where_the_reason_is_one() {
        let mut books = books();
        books.calls[0].1.outcome = lost(1);
        books.harms.push(kill(1));
        let one = audit(&books, WATCH, &Closed::default());
        assert_eq!(one.detection_ms.get(&Fault::Kill), Some(&(1, 400.0)));
        books.harms.push(kill(0));
        let two = audit(&books, WATCH, &Closed::default());
        assert!(two.detection_ms.is_empty());
    }
}
