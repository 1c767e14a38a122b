//! What runs on of a call that is wound down, and how long its servers are asked about that.

use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::watch::branch::Stopped;
use crate::call::watch::{Step, Watch};
use crate::id::RequestId;

/// For so many ping periods a branch is asked about that cannot go on any further, though nobody waits for its handlers: most of
/// them are done when they are asked again.
const ASKED: u32 = 2;

impl Watch {
    /// Somebody waits until then for handlers that go on.
    pub fn wait_for_stop(&mut self, until: Duration) {
        self.asked_until = self.asked_until.max(until);
    }

    /// When a branch is asked no more whose handler goes on although it was told to stop: a server that always says so must not
    /// keep the call for ever.
    pub(super) fn let_go_at(&self, position: u32) -> Option<Duration> {
        let frozen = self.branches[position as usize].frozen?;
        let asked = self.settings.ping.period.saturating_mul(ASKED);
        Some(frozen.saturating_add(asked).max(self.asked_until))
    }

    /// Requests whose handlers go on although they were told to stop, as their servers have said last, and what led to them, as far
    /// as known; and how many branches have not said whether they have stopped.
    pub fn still_running(&self, initiator: &Initiator) -> (Vec<(RequestId, Vec<Step>)>, u64) {
        let (mut running, mut unheard) = (Vec::new(), 0);
        for (position, watched) in (0..).zip(&self.branches) {
            let Some(branch) = initiator.branch_at(position) else {
                continue;
            };
            match watched.told_stop(branch) {
                Stopped::Frozen => {
                    let hop = watched
                        .top()
                        .map_or(branch.hop, |top| top.hop.max(branch.hop));
                    let request = RequestId {
                        path: branch.path,
                        hop,
                    };
                    running.push((request, self.path_to(initiator, Some(position), request)));
                }
                Stopped::No if self.is_winding_down() && watched.stopped < Stopped::Quiet => {
                    unheard += 1;
                }
                _ => {}
            }
        }
        (running, unheard)
    }
}
