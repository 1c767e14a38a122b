//! The client half of a call and its watch, where anything may arrive at any time.

use std::time::Duration;

use wallaby_proto::RequestId;
use wallaby_proto::call::initiator::{Initiator, Violation};
use wallaby_proto::call::watch::{Action, FailureKind, Location, Source, Watch, WatchSettings};
use wallaby_proto::wire::{Budgets, PingSettings};

use crate::choices::Choices;
use crate::things::{address, alice, call, end, node, pong, response, token};

const PERIOD: Duration = Duration::from_millis(100);

struct Client {
    initiator: Initiator,
    watch: Option<Watch>,
    settings: WatchSettings,
    now: Duration,
    failures: u32,
    aborted: bool,
    quiet: bool,
    complete: bool,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let budgets = match choices.below(2) {
        0 => Budgets {
            requests: 2000, // more take long
            ..Budgets::default()
        },
        _ => Budgets {
            requests: 6,
            responses: 10,
            bytes: 1000,
            ..Budgets::default()
        },
    };
    let settings = WatchSettings {
        ping: PingSettings {
            period: PERIOD,
            timeout: PERIOD * 5,
        },
        stall: choices.once_in(2).then_some(PERIOD * 3),
        retries: choices.below(3),
        tolerant: choices.once_in(4),
    };
    let id = call(alice(), 1 + u64::from(choices.byte()));
    let mut client = Client {
        initiator: Initiator::new(id, token(), budgets),
        watch: None,
        settings,
        now: Duration::ZERO,
        failures: 0,
        aborted: false,
        quiet: false,
        complete: false,
    };
    for _ in 0..=choices.below(3) {
        if !client.initiator.is_closed() {
            client.send();
        }
    }
    while !choices.is_empty() {
        client.step(&mut choices);
        client.check(&budgets);
        if client.quiet {
            return; // the driver is done with it
        }
    }
    client.end(&budgets);
}

fn source(choices: &mut Choices<'_>) -> Source {
    let number = choices.below(5);
    if number == 4 {
        return Source::default();
    }
    Source {
        location: Location {
            address: Some(address(number)),
            node: Some(node(u64::from(number))),
        },
        alone: choices.once_in(2),
    }
}

impl Client {
    fn send(&mut self) {
        match (self.initiator.send(), &mut self.watch) {
            (Ok(request), Some(watch)) => {
                let server = Location::at(address(1));
                watch.sent(&mut self.initiator, request, server, self.now);
            }
            (Ok(_), None) => {}
            (Err(violation), _) => drop(violation.to_string()),
        }
    }

    fn watch(&mut self) -> (&mut Watch, &mut Initiator) {
        let (initiator, settings, now) = (&mut self.initiator, self.settings, self.now);
        let watch = self.watch.get_or_insert_with(|| {
            let servers = (0..3).map(|number| Location::at(address(number)));
            Watch::new(initiator, settings, servers, now)
        });
        (watch, initiator)
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let (id, now) = (self.initiator.call(), self.now);
        match choices.below(12) {
            0 | 1 => {
                let response = response(choices, id);
                let arrived = self.initiator.handle_response(&response).map(drop);
                self.heard(response.request, arrived, choices);
            }
            2 => {
                let end = end(choices, id);
                let arrived = self.initiator.handle_end(&end);
                self.heard(end.request, arrived, choices);
            }
            3..=5 => {
                let (pong, source) = (pong(choices, id), source(choices));
                let (watch, initiator) = self.watch();
                let back = watch.handle_pong(initiator, &pong, &source, now);
                if let Some(ping) = back {
                    assert_eq!(ping.abort, watch.is_winding_down());
                    assert_eq!((ping.call, ping.request), (id, pong.request));
                }
            }
            6 | 7 => {
                self.now += choices.time();
                self.time_out();
            }
            8 => {
                let node = node(u64::from(choices.below(5)));
                let gone = choices.once_in(2);
                let (watch, initiator) = self.watch();
                match gone {
                    true => watch.handle_gone(initiator, node, now),
                    false => watch.handle_disconnect(initiator, node, now),
                }
            }
            9 if choices.once_in(4) => {
                let (watch, initiator) = self.watch();
                watch.abort(initiator, now);
                self.aborted = true;
            }
            10 if !self.initiator.is_closed() => match choices.once_in(3) {
                true => self.initiator.close(),
                false => self.send(),
            },
            11 => {
                let (watch, initiator) = self.watch();
                watch.writing(initiator, RequestId::FIRST, now);
            }
            _ => {}
        }
    }

    fn heard(
        &mut self,
        request: RequestId,
        arrived: Result<(), Violation>,
        choices: &mut Choices<'_>,
    ) {
        let (source, now) = (source(choices), self.now);
        match arrived {
            Ok(()) => {
                if let Some(watch) = &mut self.watch {
                    watch.handle_heard(&mut self.initiator, request, &source, now);
                }
            }
            // The driver lets the call fail, once.
            Err(violation) => {
                let (watch, initiator) = self.watch();
                watch.fail(initiator, request, FailureKind::Violation(violation), now);
            }
        }
    }

    fn time_out(&mut self) {
        let now = self.now;
        let (watch, initiator) = self.watch();
        watch.handle_timeout(initiator, now);
        if let Some(next) = watch.next_timeout() {
            assert!(
                next > now,
                "it is {now:?}, and something is due at {next:?}"
            );
        }
    }

    /// What holds after each step.
    fn check(&mut self, budgets: &Budgets) {
        while let Some(action) = self.watch.as_mut().and_then(Watch::poll) {
            drop(format!("{action:?}"));
            assert!(!self.quiet, "{action:?} after quiet");
            match action {
                Action::Failed(failure) => {
                    drop(failure.to_string());
                    self.failures += 1;
                }
                Action::Quiet => self.quiet = true,
                Action::Retry { request, .. } => {
                    let (server, now) = (Location::at(address(2)), self.now);
                    let (watch, initiator) = self.watch();
                    watch.sent(initiator, request, server, now);
                }
                Action::Lost(failure) => {
                    drop(failure.to_string());
                    assert!(self.settings.tolerant, "{failure}");
                    self.end_without_the_lost();
                }
                Action::Ping { .. } | Action::Frozen => {}
            }
        }
        assert!(self.failures + u32::from(self.aborted) <= 2 && self.failures <= 1);
        assert!(self.initiator.branches().count() <= budgets.requests as usize);
        let complete = self.initiator.is_complete();
        assert!(complete || !self.complete, "it was complete");
        self.complete = complete;
        let missing = self.initiator.missing().next();
        assert!(!complete || missing.is_none(), "{missing:?} is missing");
    }

    /// Nothing is missing besides what is lost: what may still run is stopped, as a driver does.
    fn end_without_the_lost(&mut self) {
        if self.aborted || !self.initiator.is_complete() {
            return;
        }
        let now = self.now;
        let (watch, initiator) = self.watch();
        watch.abort(initiator, now);
        self.aborted = true;
    }

    /// From now on nothing arrives: the call ends all the same.
    fn end(&mut self, budgets: &Budgets) {
        self.initiator.close();
        if self.initiator.branches().next().is_none() {
            return;
        }
        self.time_out();
        self.check(budgets);
        let most = 1000 + 100 * self.initiator.branches().count();
        for _ in 0..most {
            let settled = self.failures > 0 || self.aborted;
            if self.quiet || (self.complete && !settled) {
                return;
            }
            let next = self.watch.as_ref().and_then(Watch::next_timeout);
            self.now = next.expect("what has not ended has something to do");
            self.time_out();
            self.check(budgets);
        }
        panic!("the call does not end: {:?}", self.watch);
    }
}
