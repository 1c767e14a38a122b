//! Deliberate faults at the border of the machines, in what goes in or comes out: what the oracle must catch.
//!
//! They are not inside `wallaby-proto`, so that nothing there knows of them: a feature would be on in every build of the
//! workspace that has the simulator's tests in it, and a switch looked at while running would cost each call. What a
//! wrong machine would say is as wrong when it is changed on its way out.

mod counts;
mod ghosts;

use clap::ValueEnum;

pub(crate) use self::counts::Counts;
pub(crate) use self::ghosts::Ghosts;

/// What is wrong in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Broken {
    /// A call is complete when as many responses and ends arrived as manifests name so far, in whatever places.
    CountsAlone,
    /// A manifest that comes again counts again.
    ManifestTwice,
    /// A response that comes again is delivered again.
    ResponseTwice,
    /// A request goes out again on another connection when its own is reset.
    ResendAfterReset,
    /// An answer of a call that is over is taken for one of a call that lives.
    AnyCall,
    /// A failed call says that nobody has told whether anything of it was executed.
    ExecutionUntold,
    /// Whoever answers at an initiator's address gets its answers, without a look at its node id.
    AnyIncarnation,
    /// Refused work ends like work that is done.
    LostStatus,
    /// The initiator says that a call which has just begun is already over.
    Watermark,
    /// A server that knows nothing of a call yet does not remember that it was aborted.
    NoTombstone,
    /// A pong lists a delegation that is still held back.
    PongListsHeld,
    /// A server forgets a request a gc timeout after it arrived, instead of after its end.
    GcFromArrival,
    /// A server never forgets.
    NeverForgets,
    /// A call that failed or was aborted turns complete when the rest arrives.
    OutcomeChanges,
    /// Nobody watches over calls.
    NoWatch,
    /// A server that does not know a request is a failure.
    UnknownFails,
    /// A node that was stopped judges its timers before it reads its input.
    TimersFirst,
    /// A request goes into a session though its peer has shown no life for long.
    NoQuestion,
    /// What has left by a session counts as being written until its peer has acknowledged it, so that a server which died before
    /// that is excused.
    UnacknowledgedExcuses,
    /// What a server tells of a request that has ended leaves out the manifest that it was given.
    ManifestForgotten,
    /// An initiator that finds a server gone does not tell its calls.
    NeverGone,
    /// The first word of who has a request goes unheard: what a server says when the one that it came from is gone, too.
    SurvivorUnheard,
    /// A call goes on without what is lost of it, and does not say so.
    LossUntold,
    /// A server that is closed says of requests that it has begun that it has not.
    NeverBegan,
    /// Who writes a body leaves out what was not accepted at once.
    BodyGap,
}

impl Broken {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}
