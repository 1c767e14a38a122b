//! A host: one processor core, which does one thing after the other, and a network card.

use std::time::Duration;

use super::costs::{MessageCosts, micros};

/// Work is done in the order in which it arrives, and so are bytes carried.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    /// When the core has nothing more to do.
    free: Duration,
    /// When the card has sent, and has received, all that there was.
    sent: Duration,
    received: Duration,
    /// What the core was busy for, since the start.
    pub(super) busy: Duration,
}

/// Something the core does: what it is at.
#[derive(Debug)]
pub(super) struct Turn {
    /// How far it is.
    pub(super) now: Duration,
    began: Duration,
    costs: MessageCosts,
    messages: u32,
}

impl Host {
    /// The core begins with what arrived now, when it has done all before; `asleep` if nobody is awake to notice it.
    pub(super) fn begin(&self, now: Duration, asleep: bool, costs: MessageCosts) -> Turn {
        let began = now.max(self.free);
        let wake = match asleep && now >= self.free {
            true => micros(costs.wake_us),
            false => Duration::ZERO,
        };
        Turn {
            now: began + wake,
            began,
            costs,
            messages: 0,
        }
    }

    /// The core has done that, but for what is left to do afterwards.
    pub(super) fn end(&mut self, turn: Turn) {
        let afterwards = micros(turn.costs.afterwards_us) * turn.messages;
        self.free = turn.now + afterwards;
        self.busy += self.free - turn.began;
    }

    /// When the last byte of a message that the core is done with now has left.
    pub(super) fn send(&mut self, now: Duration, serialised: Duration) -> Duration {
        self.sent = now.max(self.sent) + serialised;
        self.sent
    }

    /// When the last byte of a message that reaches the card now is there.
    pub(super) fn receive(&mut self, now: Duration, serialised: Duration) -> Duration {
        // Its first byte came so much earlier, if nothing was in its way.
        self.received = now.max(self.received + serialised);
        self.received
    }
}

impl Turn {
    pub(super) fn receive(&mut self) {
        self.now += micros(self.costs.receive_us);
        self.messages += 1;
    }

    pub(super) fn send(&mut self) {
        self.now += micros(self.costs.send_us);
        self.messages += 1;
    }

    pub(super) fn pass_on(&mut self) {
        self.now += micros(self.costs.pass_on_us);
    }

    pub(super) fn call(&mut self) {
        self.now += micros(self.costs.call_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: MessageCosts = MessageCosts {
        send_us: 2.0,
        receive_us: 3.0,
        afterwards_us: 5.0,
        wake_us: 7.0,
        call_us: 11.0,
        pass_on_us: 13.0,
    };

    #[test]
    fn a_core_does_one_thing_after_the_other() {
        let mut host = Host::default();
        let mut turn = host.begin(micros(100.0), true, COSTS);
        turn.receive();
        turn.send();
        assert_eq!(turn.now, micros(112.0), "woken, received, sent");
        host.end(turn);
        assert_eq!(
            host.busy,
            micros(22.0),
            "two messages need something afterwards"
        );
        let turn = host.begin(micros(105.0), true, COSTS);
        assert_eq!(turn.now, micros(122.0), "it was awake");
    }

    #[test]
    fn a_card_carries_one_message_after_the_other() {
        let mut host = Host::default();
        assert_eq!(host.send(micros(1.0), micros(2.0)), micros(3.0));
        assert_eq!(host.send(micros(1.0), micros(2.0)), micros(5.0));
        assert_eq!(host.receive(micros(9.0), micros(2.0)), micros(9.0));
        assert_eq!(host.receive(micros(9.0), micros(2.0)), micros(11.0));
    }
}
