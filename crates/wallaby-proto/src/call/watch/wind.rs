//! Winding down: after a failure or an abort all that still runs is stopped, and two milestones say how far that is.

use std::time::Duration;

use crate::call::watch::branch::Stopped;
use crate::call::watch::{MOST_LOOKED_AT, Phase, Watch, WatchAction};

impl Watch {
    /// The outcome is settled: all that still runs is told so, round by round (docs/protocol.md, rules 33 to 35).
    pub(super) fn wind_down(&mut self, now: Duration) {
        if self.is_winding_down() {
            return;
        }
        self.phase = Phase::Winding {
            since: now,
            frozen: false,
        };
        (self.unfrozen, self.unquiet) = (self.branches.len(), self.branches.len());
        self.unwound = 0..self.branches.len() as u32;
        self.wind_on(MOST_LOOKED_AT, now);
        self.check_milestones();
    }

    /// Tells further branches to stop, until the turn has taken so many steps.
    pub(super) fn wind_on(&mut self, most: usize, now: Duration) {
        while self.steps < most
            && let Some(position) = self.unwound.next()
        {
            self.take_turn(position, now);
        }
    }

    /// What is told of a branch counts from now on only if its server knows that it is to stop.
    pub(super) fn wind(&mut self, position: u32, now: Duration) {
        let watched = &mut self.branches[position as usize];
        if self.phase == Phase::Watching || std::mem::replace(&mut watched.wound, true) {
            return;
        }
        // Who was asked before is told at once; the others when it is their turn, or when they announce themselves.
        let was_asked = watched.was_asked();
        if !watched.placed || was_asked {
            // Those of a call with heartbeats may be very many that were never asked.
            watched.placed = was_asked || self.settings.heartbeats.is_none();
            watched.next_ping = now;
        }
        // What they answered before is not what they answer to an abort.
        watched.hops.iter_mut().for_each(|hop| {
            (hop.aborted, hop.unknown) = (false, false);
            hop.pinged = None;
        });
        watched.climbed = None;
        // That it waits for its turn keeps the call alive no longer.
        watched.evidence = watched.evidence.min(now);
        let told = match self.tree.branch_at(position) {
            Some(branch) => watched.told_stop(branch),
            None => Stopped::Quiet,
        };
        self.stopped(position, told);
    }

    /// A branch has been wound down this far.
    pub(super) fn stopped(&mut self, position: u32, stopped: Stopped) {
        let watched = &mut self.branches[position as usize];
        if stopped > watched.stopped {
            self.unfrozen -= usize::from(watched.stopped < Stopped::Frozen);
            self.unquiet -= usize::from(stopped == Stopped::Quiet);
            watched.stopped = stopped;
            if stopped == Stopped::Frozen {
                watched.frozen = Some(self.turn);
            }
        }
        if watched.stopped == Stopped::Quiet
            && let Some(due) = watched.due.take()
        {
            self.queue.remove((due, position));
        }
        self.check_milestones();
    }

    pub(super) fn check_milestones(&mut self) {
        let Phase::Winding { since, frozen } = self.phase else {
            return;
        };
        if self.unseen {
            return;
        }
        if self.unfrozen == 0 && !frozen {
            self.phase = Phase::Winding {
                since,
                frozen: true,
            };
            self.actions.push_back(WatchAction::Frozen);
        }
        if self.unquiet == 0 {
            self.phase = Phase::Quiet;
            self.actions.push_back(WatchAction::Quiet);
        }
    }
}
