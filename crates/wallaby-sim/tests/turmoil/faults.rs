//! What happens to servers and to the network between them.

use turmoil::Sim;

use crate::random::Random;

/// Hosts are numbers; the initiator is the last one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Crash(usize),
    Restart(usize),
    Cut(usize, usize),
    Repair(usize, usize),
    Hold(usize, usize),
    Release(usize, usize),
}

impl Fault {
    /// Whose handlers end by it.
    pub(crate) fn ends(self) -> Option<usize> {
        match self {
            Self::Crash(host) | Self::Restart(host) => Some(host),
            _ => None,
        }
    }

    pub(crate) fn happen(self, sim: &mut Sim<'_>, name: fn(usize) -> String) {
        match self {
            Self::Crash(host) => sim.crash(name(host)),
            Self::Restart(host) => sim.bounce(name(host)),
            Self::Cut(one, other) => sim.partition(name(one), name(other)),
            Self::Repair(one, other) => sim.repair(name(one), name(other)),
            Self::Hold(one, other) => sim.hold(name(one), name(other)),
            Self::Release(one, other) => sim.release(name(one), name(other)),
        }
    }
}

/// Faults in the order of their times, in milliseconds: each is mended. Often there are none.
pub(crate) fn random(servers: usize, random: &mut Random) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    if random.one_in(4) {
        return faults;
    }
    for _ in 0..random.between(1..=3) {
        let at = random.between(0..=700);
        let over = at + random.between(1..=6_000);
        let (one, other) = (random.index(servers + 1), random.index(servers + 1));
        let pair = match random.between(0..=3) {
            0 if one != other => [Fault::Cut(one, other), Fault::Repair(one, other)],
            1 if one != other => [Fault::Hold(one, other), Fault::Release(one, other)],
            _ => {
                let victim = random.index(servers);
                [Fault::Crash(victim), Fault::Restart(victim)]
            }
        };
        faults.extend([(at, pair[0]), (over, pair[1])]);
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
