//! Which limit a chain has reached.

use wallaby::{Code, Status};

use crate::exception::bare;

/// What stands before the name of a limit, at the end of a message.
const OPENING: &str = " (limit: ";

/// How the message of a status begins that the protocol itself tells: it is no exception of the chain.
const BUDGET: &str = "the request's budget of ";

/// A limit that a chain, or a function of it, has reached: all of them are `ResourceExhausted`, and this tells them from each other
/// ([`Exception::limit`](crate::Exception::limit), [`Limit::of`]). That the time of the call is over is `DeadlineExceeded`, and none of
/// these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The length of the chain: [`ChainLimits::hops`](crate::ChainLimits::hops).
    Hops,
    /// Chains inside each other: [`ChainLimits::levels`](crate::ChainLimits::levels).
    Levels,
    /// What travels with its requests: [`ChainLimits::bytes`](crate::ChainLimits::bytes).
    Bytes,
    /// States that follow them: [`ChainLimits::state`](crate::ChainLimits::state).
    State,
    /// Branches of one split: [`ChainLimits::branches`](crate::ChainLimits::branches).
    Branches,
    /// Splits inside each other: [`ChainLimits::splits`](crate::ChainLimits::splits).
    Splits,
    /// Lines and values that are said in one step: [`ChainLimits::said`](crate::ChainLimits::said).
    Said,
    /// The size of code, or of what it consists of.
    Code,
    /// Instructions of a function (its fuel), or steps of a script.
    Instructions,
    /// The time of a function.
    Time,
    /// The memory of a function, or the size of its values.
    Memory,
    /// The stack of a function.
    Stack,
    /// What a function says.
    Output,
    /// What all chains together may use of a server at once.
    Load,
    /// A budget of the call ([`Caller::budgets`](wallaby::Caller::budgets)), of which the protocol tells.
    Budget,
}

/// All that have a name in messages.
const NAMED: [(Limit, &str); 14] = [
    (Limit::Hops, "hops"),
    (Limit::Levels, "levels"),
    (Limit::Bytes, "bytes"),
    (Limit::State, "state"),
    (Limit::Branches, "branches"),
    (Limit::Splits, "splits"),
    (Limit::Said, "said"),
    (Limit::Code, "code"),
    (Limit::Instructions, "instructions"),
    (Limit::Time, "time"),
    (Limit::Memory, "memory"),
    (Limit::Stack, "stack"),
    (Limit::Output, "output"),
    (Limit::Load, "load"),
];

impl Limit {
    /// The status that says so: `message`, and which limit it is.
    ///
    /// ```
    /// use wallaby_chain::Limit;
    ///
    /// let status = Limit::Memory.exceeded("the function wants 20 MiB: at most 16 are allowed");
    /// assert_eq!(Limit::of(&status), Some(Limit::Memory));
    /// ```
    pub fn exceeded(self, message: impl AsRef<str>) -> Status {
        let name = NAMED.iter().find(|named| named.0 == self);
        let name = name.map_or("budget", |named| named.1);
        Status::resource_exhausted(format!("{}{OPENING}{name})", message.as_ref()))
    }

    /// Which limit has ended a chain with this status. `None` if it was none of them, or one that this release does not know.
    pub fn of(status: &Status) -> Option<Self> {
        match status.code() {
            Code::ResourceExhausted => Self::read(bare(status.clone()).message()),
            _ => None,
        }
    }

    /// The same of the message alone.
    pub(crate) fn read(message: &str) -> Option<Self> {
        if message.starts_with(BUDGET) {
            return Some(Self::Budget);
        }
        let (_, name) = message.strip_suffix(')')?.rsplit_once(OPENING)?;
        let named = NAMED.iter().find(|named| named.1 == name);
        named.map(|named| named.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_from_the_others() {
        for (limit, _) in NAMED {
            let status = limit.exceeded("too much (of it)");
            assert_eq!(Limit::of(&status), Some(limit));
            let told = format!("{} [chain 7: mem://a > mem://b]", status.message());
            assert_eq!(Limit::of(&Status::new(status.code(), told)), Some(limit));
            assert_eq!(Limit::of(&Status::internal(status.message())), None);
        }
        let other = Status::resource_exhausted("too much (limit: another)");
        assert_eq!(Limit::of(&other), None);
    }
}
