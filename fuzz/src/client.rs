//! A call and its watch, to whose endpoint anything may be said at any time.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::CallId;
use wallaby_proto::endpoint::{CallKey, CallOptions, Config, Next, Outcome, Output, Resend};
use wallaby_proto::wire::{Budgets, Message, PingSettings, Pong};

use crate::alone::{Alone, LONG};
use crate::choices::Choices;
use crate::things::{address, alice, call, end, node, pong, response};

const PERIOD: Duration = Duration::from_millis(100);

/// Within so long of the last word all of a call has ended, though each initial request is sent again and winds down.
const REST: Duration = Duration::from_secs(3600);

struct Client {
    alone: Alone,
    key: CallKey,
    id: CallId,
    tolerant: bool,
    budgets: Budgets,
    outcome: Option<Outcome>,
    complete: bool,
    /// Nothing of it runs any more, as far as its endpoint knows.
    over: bool,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut client = Client::new(&mut choices);
    for _ in 0..=choices.below(3) {
        client.send(&mut choices);
    }
    client.settle();
    while !choices.is_empty() {
        client.step(&mut choices);
        client.settle();
    }
    client.end();
}

impl Client {
    fn new(choices: &mut Choices<'_>) -> Self {
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
        let mut alone = Alone::new(alice(), Config::default());
        let mut options = CallOptions::default();
        options.deadline = Some(LONG);
        options.budgets = Some(budgets);
        options.ping = Some(PingSettings {
            period: PERIOD,
            timeout: PERIOD * 5,
        });
        options.stall_limit = choices.once_in(2).then_some(PERIOD * 3);
        let resends = choices.below(3);
        options.resend = (resends > 0).then(|| Resend::deterministic(resends));
        options.tolerant = choices.once_in(4);
        let key = alone.endpoint.begin(&options).expect("the first call");
        Self {
            id: alone.endpoint.call_id(key),
            alone,
            key,
            tolerant: options.tolerant,
            budgets,
            outcome: None,
            complete: false,
            over: false,
        }
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        let (to, method) = (address(choices.below(4)), &self.alone.method);
        let sent = (self.alone.endpoint).send(self.key, &to, method, Bytes::new());
        drop(sent.map_err(|failure| failure.to_string()));
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        // Another call, now and then: of that nothing is known.
        let id = match choices.once_in(16) {
            true => call(alice(), 1 + u64::from(choices.byte())),
            false => self.id,
        };
        match choices.below(12) {
            0 | 1 => {
                let message = Message::Response(response(choices, id));
                self.say(choices, message);
            }
            2 => {
                let message = Message::End(end(choices, id));
                self.say(choices, message);
            }
            3..=5 => {
                let message = Message::Pong(pong(choices, id));
                self.say(choices, message);
            }
            6 | 7 => self.pass(choices.time()),
            8 => match choices.once_in(2) {
                // Another incarnation is there from now on, or nobody.
                true => {
                    let number = choices.below(3);
                    self.alone.found.remove(&address(number));
                    let next = node(u64::from(number) + 10 * u64::from(choices.below(3)));
                    if choices.once_in(2) {
                        self.alone.found.insert(address(number), next);
                    }
                }
                false => {
                    if let Some(conn) = self.alone.any_peer(choices, None) {
                        self.alone.cut(conn);
                    }
                }
            },
            9 if choices.once_in(4) => self.alone.endpoint.abort(self.key),
            10 => match choices.once_in(3) {
                true => self.alone.endpoint.close_call(self.key),
                false => self.send(choices),
            },
            11 => drop(self.alone.connect(node(u64::from(choices.below(5))))),
            _ => {}
        }
    }

    fn say(&mut self, choices: &mut Choices<'_>, mut message: Message) {
        // What shows no token comes by the connection of a request, or is forged.
        match &mut message {
            Message::Response(response) if choices.once_in(3) => response.token = None,
            Message::Pong(Pong { token, .. }) if choices.once_in(3) => *token = None,
            _ => {}
        }
        if let Some(conn) = self.alone.any_peer(choices, None) {
            self.alone.say(conn, message);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.alone.pass(time);
        self.settle();
        // A turn takes a limited number of steps.
        let now = self.alone.now;
        for _ in 0..100 {
            let due = self.alone.endpoint.poll_timeout();
            if due.is_none_or(|due| due > now) {
                return;
            }
            self.alone.pass(Duration::ZERO);
            self.settle();
        }
        panic!("it is {now:?}, and something is due at once for ever");
    }

    /// Follows what was said, and sees whether all holds.
    fn settle(&mut self) {
        let winds_down = matches!(self.outcome, Some(Outcome::Failed(_)));
        let over = self.over;
        for output in self.alone.settle() {
            if matches!(output, Output::Call(call) if call == self.key) {
                self.hear();
            }
        }
        let endpoint = &mut self.alone.endpoint;
        for (_, message) in self.alone.heard.drain(..) {
            let Message::Ping(ping) = message else {
                continue;
            };
            assert_eq!(ping.call.initiator, self.id.initiator);
            // Who shows a token asks nothing; of other calls only those are answered that announce themselves.
            let stops = ping.abort || ping.shows;
            assert!(stops || ping.call == self.id && !over, "{ping:?} after all");
            assert!(stops || !winds_down, "{ping:?} after the end");
        }
        self.over |= !endpoint.is_live(self.key);
        if let Some(tree) = endpoint.tree(self.key) {
            assert!(tree.branches().count() <= self.budgets.requests as usize);
            let complete = tree.is_complete();
            assert!(complete || !self.complete, "it was complete");
            self.complete = complete;
            let missing = tree.missing().next();
            assert!(!complete || missing.is_none(), "{missing:?} is missing");
            let ended = endpoint.has_ended(self.key);
            assert!(ended || !complete, "it is complete, and goes on");
        }
    }

    /// Takes what has come of the call.
    fn hear(&mut self) {
        loop {
            match self.alone.endpoint.next_answer(self.key) {
                Next::Pending => return,
                Next::Answer(answer) => {
                    assert!(self.outcome.is_none(), "an answer after the end");
                    let loss = answer.loss().map(ToString::to_string);
                    assert!(loss.is_none() || self.tolerant, "{loss:?}");
                }
                Next::Trace(trace) => panic!("nobody asked for {trace:?}"),
                Next::Ended(outcome) => {
                    if let Outcome::Failed(failure) = &outcome {
                        drop(failure.to_string());
                    }
                    assert_eq!(self.outcome.replace(outcome), None, "it ends twice");
                    return;
                }
            }
        }
    }

    /// From now on nothing is said: the call ends all the same.
    fn end(&mut self) {
        self.alone.endpoint.close_call(self.key);
        self.settle();
        let end = self.alone.now + REST;
        while self.alone.endpoint.is_live(self.key) {
            let due = self.alone.endpoint.poll_timeout();
            let due = due.expect("what has not ended has something to do");
            assert!(due < end, "the call does not end");
            self.pass(due.saturating_sub(self.alone.now));
        }
        assert!(self.outcome.is_some(), "it has ended, and nobody was told");
        assert_eq!(self.alone.endpoint.sizes().calls, 0);
    }
}
