//! What a watch asks, whom, and when: work is proportional to what is due.

use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::watch::line::{Line, State, Stopped};
use crate::call::watch::{Action, Phase, Watch};
use crate::id::RequestId;
use crate::wire::{MAX_MISSING, Ping};

impl Watch {
    /// Whether something of the branch itself is still to come.
    pub(super) fn is_open(&self, initiator: &Initiator, position: u32) -> bool {
        match self.phase {
            Phase::Watching => initiator
                .branch_at(position)
                .is_some_and(|branch| !branch.is_settled()),
            Phase::Winding { .. } => self.lines[position as usize].stopped < Stopped::Quiet,
            Phase::Quiet => false,
        }
    }

    /// A branch's time has come: it is judged, and asked about if that is due.
    pub(super) fn take_turn(&mut self, initiator: &mut Initiator, position: u32, now: Duration) {
        if !self.is_open(initiator, position) {
            return;
        }
        if self.judge(initiator, position, now) {
            return;
        }
        let line = &mut self.lines[position as usize];
        if line.next_ping <= now {
            line.next_ping = now.saturating_add(self.settings.ping.period);
            self.ask(initiator, position, now);
        }
        self.arm(initiator, position);
    }

    /// A hint says that asking now may tell something; one in a ping period is believed.
    pub(super) fn ask_out_of_turn(&mut self, initiator: &Initiator, position: u32, now: Duration) {
        let period = self.settings.ping.period;
        let line = &mut self.lines[position as usize];
        if line
            .hinted
            .is_some_and(|hinted| hinted.saturating_add(period) > now)
        {
            return;
        }
        line.hinted = Some(now);
        // What was asked before the hint tells nothing about it.
        line.hops.iter_mut().for_each(|hop| hop.pinged = None);
        self.ask(initiator, position, now);
    }

    /// Asks all that can tell something about a branch.
    pub(super) fn ask(&mut self, initiator: &Initiator, position: u32, now: Duration) {
        let Some(branch) = initiator.branch_at(position) else {
            return;
        };
        let line = &self.lines[position as usize];
        let top = line.highest_located();
        let seen = line.top().is_some_and(|hop| hop.state != State::Unseen);
        let bound = line.gaps.bound();
        let asked: Vec<usize> = (0..line.hops.len())
            .filter(|&index| {
                let (from, to) = line.range(index);
                let misses = branch
                    .received
                    .missing(from, to.min(bound))
                    .next()
                    .is_some();
                // Who has sent the highest hop is asked too, as long as nobody has seen that one.
                let sender = !seen && index + 2 == line.hops.len();
                line.hops[index].at.is_known() && (Some(index) == top || sender || misses)
            })
            .collect();
        let alone = asked.iter().all(|&index| Some(index) == top);
        // Who announces itself is alive, but must be asked as well, or it takes the initiator for dead.
        let found = line.top().is_some_and(|hop| hop.at.is_known());
        for index in asked {
            self.ping_unless_recent(initiator, position, index, now);
        }
        if (!seen || !found) && alone {
            self.ask_above(initiator, position, now);
        }
    }

    /// Asks the nearest ancestor that can be asked: it knows where its children are (PROTOCOL-NOTES 17).
    pub(super) fn ask_above(&mut self, initiator: &Initiator, position: u32, now: Duration) {
        let mut place = position;
        while let Some(above) = initiator.parent_of(place) {
            self.ensure_line(above, now);
            let child = initiator.branch_at(place).map_or(0, |branch| branch.index);
            let line = &mut self.lines[above as usize];
            line.wanted = Some(line.wanted.map_or(child, |wanted| wanted.min(child)));
            if let Some(index) = line.highest_located() {
                return self.ping_unless_recent(initiator, above, index, now);
            }
            place = above;
        }
    }

    /// Many children may want to ask the same parent.
    pub(super) fn ping_unless_recent(
        &mut self,
        initiator: &Initiator,
        position: u32,
        index: usize,
        now: Duration,
    ) {
        let recent = self.settings.ping.period / 2;
        let pinged = self.lines[position as usize].hops[index].pinged;
        if pinged.is_none_or(|pinged| pinged.saturating_add(recent) <= now) {
            self.ping(initiator, position, index, now);
        }
    }

    pub(super) fn ping(
        &mut self,
        initiator: &Initiator,
        position: u32,
        index: usize,
        now: Duration,
    ) {
        if self.phase == Phase::Quiet {
            return; // nothing follows
        }
        let Some(branch) = initiator.branch_at(position) else {
            return;
        };
        let abort = self.is_winding_down();
        let line = &mut self.lines[position as usize];
        let (from, to) = line.range(index);
        let to = to.min(line.gaps.bound());
        let missing = match abort {
            true => Vec::new(),
            false => branch
                .received
                .missing(from, to)
                .take(MAX_MISSING)
                .collect(),
        };
        let hop = &mut line.hops[index];
        if !hop.at.is_known() {
            return;
        }
        hop.pinged = Some(now);
        self.actions.push_back(Action::Ping {
            to: hop.at.clone(),
            ping: Ping {
                call: initiator.call(),
                token: initiator.token(),
                request: RequestId {
                    path: branch.path,
                    hop: hop.hop,
                },
                abort,
                children_from: line
                    .wanted
                    .map_or(line.listed, |wanted| wanted.min(line.listed)),
                missing,
            },
        });
    }

    /// Enters the queue for the next time at which something is to be done for a branch.
    pub(super) fn arm(&mut self, initiator: &Initiator, position: u32) {
        let due = match self.is_open(initiator, position) {
            true => {
                let line = &self.lines[position as usize];
                let verdict = self.verdict_due(initiator, position);
                Some(verdict.map_or(line.next_ping, |verdict| verdict.min(line.next_ping)))
            }
            false => None,
        };
        let line = &mut self.lines[position as usize];
        if line.due != due {
            if let Some(before) = line.due {
                self.queue.remove((before, position));
            }
            line.due = due;
            if let Some(due) = due {
                self.queue.insert((due, position));
            }
        }
    }

    pub(super) fn line(&mut self, position: u32) -> &mut Line {
        &mut self.lines[position as usize]
    }
}
