//! What a request may still use up of its call's budgets, and what it hands on to those it delegates to.
//!
//! Nobody reports back what he did not need, so whatever is handed on is gone. The rule, for requests, responses and bytes:
//!
//! - Half of what a request was given stays with it, for its own answers and for the delegations themselves. The other half
//!   is for what these do further on: the first gets 1/2 of it, the second 1/6, the k-th 1/(k(k+1)); all shares together
//!   never exceed it, however many there are.
//! - A handler that has said how many delegations will come ([`Allowance::announce`]) gives each an equal part of all.
//! - What goes on down a line of servers ([`Allowance::announce_line`]) takes along an equal part for each of them.
//! - The last message, if it is a request, takes all that is left along: a line of tail calls loses nothing on its way.
//!
//! Depth goes down by one a hop. The sum over a tree never exceeds what its root was given.

use std::fmt;

use thiserror::Error;

use crate::status::Code;
use crate::wire::Budgets;

/// What is left of the budgets that a request was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    given: Budgets,
    left: Budgets,
    /// Delegations that have got their share by the rule.
    shares: u32,
    /// Delegations without a share that will still come, as the handler said.
    announced: u32,
    /// Requests that are paid for and have no share yet: held back.
    held: u32,
    /// How many servers of a line the next delegation is for.
    line: u32,
}

/// What a call's tree may use up only so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Budget {
    /// Requests.
    Requests,
    /// Responses.
    Responses,
    /// Bytes of responses.
    Bytes,
    /// Hops on the way from the initiator.
    Depth,
}

/// A message would exceed what its request was given: it was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the request's budget of {budget} is used up: {wanted} more wanted, {left} left (`Client::budgets` of its caller, or a server's `Builder::max_budgets`)"
)]
#[non_exhaustive]
pub struct Exhausted {
    /// Which budget.
    pub budget: Budget,
    /// How much the message takes.
    pub wanted: u64,
    /// How much was left.
    pub left: u64,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests",
            Self::Responses => "responses",
            Self::Bytes => "bytes",
            Self::Depth => "depth",
        })
    }
}

impl Exhausted {
    /// What kind of error it is: always [`Code::ResourceExhausted`].
    pub fn code(&self) -> Code {
        Code::ResourceExhausted
    }

    /// The error if `left` is less than what is wanted.
    fn unless(budget: Budget, left: u64, wanted: u64) -> Result<(), Self> {
        if left >= wanted {
            return Ok(());
        }
        Err(Self {
            budget,
            wanted,
            left,
        })
    }
}

impl Allowance {
    /// What a request may use up that was given this.
    pub fn new(given: Budgets) -> Self {
        Self {
            given,
            left: given,
            shares: 0,
            announced: 0,
            held: 0,
            line: 0,
        }
    }

    /// What is left.
    pub fn left(&self) -> Budgets {
        self.left
    }

    /// So many delegations will still come: each gets an equal part of what is left. Beyond them the rule holds again.
    pub fn announce(&mut self, delegations: u32) {
        self.announced = delegations;
    }

    /// The next delegation goes on to a line of so many servers: it takes along what they all may use up, as much each as
    /// stays here.
    pub fn announce_line(&mut self, servers: u32) {
        self.line = servers;
    }

    /// How many of the announced delegations have still not come.
    pub fn announced(&self) -> u32 {
        self.announced
    }

    /// An answer with so many bytes is about to be sent.
    ///
    /// # Errors
    ///
    /// If too little is left; nothing changes then.
    pub fn spend_answer(&mut self, bytes: u64) -> Result<(), Exhausted> {
        Exhausted::unless(Budget::Responses, self.left.responses.into(), 1)?;
        Exhausted::unless(Budget::Bytes, self.left.bytes, bytes)?;
        self.left.responses -= 1;
        self.left.bytes -= bytes;
        Ok(())
    }

    /// A request is about to be sent.
    ///
    /// # Errors
    ///
    /// If none is left, or nobody may be further away from the initiator; nothing changes then.
    pub fn spend_request(&mut self) -> Result<(), Exhausted> {
        Exhausted::unless(Budget::Depth, self.left.depth.into(), 1)?;
        Exhausted::unless(Budget::Requests, self.left.requests.into(), 1)?;
        self.left.requests -= 1;
        self.held += 1;
        Ok(())
    }

    /// What goes along with a request after which more may be sent.
    pub fn share(&mut self) -> Budgets {
        self.held = self.held.saturating_sub(1);
        let share = if self.line > 0 {
            self.part_of_line()
        } else if self.announced > 0 {
            self.equal_part()
        } else {
            self.part_by_rule()
        };
        self.left.requests -= share.requests;
        self.left.responses -= share.responses;
        self.left.bytes -= share.bytes;
        share
    }

    /// What goes along with the last message: all that is left.
    pub fn rest(&mut self) -> Budgets {
        let rest = Budgets {
            depth: self.left.depth.saturating_sub(1),
            ..self.left
        };
        self.left = Budgets {
            requests: 0,
            responses: 0,
            bytes: 0,
            depth: self.left.depth,
        };
        rest
    }

    fn equal_part(&mut self) -> Budgets {
        let coming = self.announced;
        self.announced -= 1;
        // Those that still come take a request each, and the request's own answers a part like theirs.
        let unpaid = (coming - 1).saturating_sub(self.held);
        let requests = self.left.requests.saturating_sub(unpaid) / coming;
        let parts = u64::from(coming) + 1;
        Budgets {
            requests,
            responses: (u64::from(self.left.responses) / parts) as u32,
            bytes: self.left.bytes / parts,
            depth: self.left.depth.saturating_sub(1),
        }
    }

    fn part_of_line(&mut self) -> Budgets {
        let servers = u64::from(std::mem::take(&mut self.line));
        let part = |left: u64| left - left / (servers + 1);
        Budgets {
            requests: part(self.left.requests.into()) as u32,
            responses: part(self.left.responses.into()) as u32,
            bytes: part(self.left.bytes),
            depth: self.left.depth.saturating_sub(1),
        }
    }

    fn part_by_rule(&mut self) -> Budgets {
        self.shares = self.shares.saturating_add(1);
        let number = u64::from(self.shares);
        let parts = number.saturating_mul(number + 1).saturating_mul(2);
        let part = |given: u64, left: u64| (given / parts).min(left);
        let (given, left) = (&self.given, &self.left);
        Budgets {
            requests: part(given.requests.into(), left.requests.into()) as u32,
            responses: part(given.responses.into(), left.responses.into()) as u32,
            bytes: part(given.bytes, left.bytes),
            depth: left.depth.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_of_a_line_gets_as_much() {
        let mut given = Budgets {
            requests: 12,
            responses: 8,
            bytes: 800,
            depth: 9,
        };
        for left in (0..4_u32).rev() {
            let mut allowance = Allowance::new(given);
            if left > 0 {
                allowance.announce_line(left);
                allowance.spend_request().expect("there are some");
                given = allowance.share();
            }
            let left = allowance.left();
            assert_eq!((left.responses, left.bytes), (2, 200), "{left:?}");
        }
        assert_eq!(given.depth, 6);
    }

    const GIVEN: Budgets = Budgets {
        requests: 1000,
        responses: 500,
        bytes: 10_000,
        depth: 3,
    };

    #[test]
    fn shares_get_smaller_and_half_stays() {
        let mut allowance = Allowance::new(GIVEN);
        let shares: Vec<u32> = (0..5)
            .map(|_| {
                allowance.spend_request().expect("there are enough");
                allowance.share().requests
            })
            .collect();
        assert_eq!(shares, [250, 83, 41, 25, 16]);
        let left = allowance.left();
        assert_eq!(left.requests, 1000 - 5 - 415);
        // However wide it becomes, the half that stays is there for the delegations themselves.
        let more = (0..500)
            .take_while(|_| {
                let enough = allowance.spend_request().is_ok();
                allowance.share();
                enough
            })
            .count();
        assert_eq!(more, 500);
    }

    #[test]
    fn announced_delegations_are_alike() {
        let mut allowance = Allowance::new(GIVEN);
        allowance.announce(10);
        for _ in 0..10 {
            allowance.spend_request().expect("there are enough");
            let share = allowance.share();
            assert_eq!((share.requests, share.depth), (99, 2));
            // What is left of it is the request's own part.
            assert!([45, 46].contains(&share.responses), "{share:?}");
        }
        assert_eq!(allowance.left().requests, 0);
        assert_eq!(
            allowance.spend_request(),
            Err(Exhausted {
                budget: Budget::Requests,
                wanted: 1,
                left: 0
            })
        );
    }

    #[test]
    fn the_last_takes_all_along() {
        let mut allowance = Allowance::new(GIVEN);
        allowance.spend_answer(1000).expect("there is enough");
        allowance.spend_request().expect("there are enough");
        let rest = allowance.rest();
        let expected = Budgets {
            requests: 999,
            responses: 499,
            bytes: 9000,
            depth: 2,
        };
        assert_eq!(rest, expected);
        let none_left = Exhausted {
            budget: Budget::Responses,
            wanted: 1,
            left: 0,
        };
        assert_eq!(allowance.spend_answer(0), Err(none_left));
    }

    #[test]
    fn what_is_used_up_is_named() {
        let mut flat = Allowance::new(Budgets { depth: 0, ..GIVEN });
        let error = flat.spend_request().expect_err("no further hop");
        assert_eq!(error.budget, Budget::Depth);
        let mut allowance = Allowance::new(GIVEN);
        let error = allowance.spend_answer(10_001).expect_err("too many bytes");
        assert_eq!(
            error.to_string(),
            "the request's budget of bytes is used up: 10001 more wanted, 10000 left (`Client::budgets` of its caller, or a \
             server's `Builder::max_budgets`)"
        );
        assert_eq!(allowance.left(), GIVEN, "nothing was spent");
    }
}
