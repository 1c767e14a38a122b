//! What is told of a request, asked or unasked, and which handlers have to stop.

use std::time::Duration;

use bytes::Bytes;

use crate::call::records::outputs::{ResponseFate, is_written};
use crate::call::records::table::{NewRecord, Record, RecordedCallKey};
use crate::call::records::time::Nanoseconds;
use crate::call::records::{MessageOrigin, RecordAction, Records, StopReason, Ticket};
use crate::call::shares::Share;
use crate::id::{CallId, NodeId, Path, RequestId, Token};
use crate::manifest::Facts;
use crate::wire::{MAX_CHILDREN, MAX_MISSING, Ping, Pong, Progress, ReplyTo, Response};

impl Records {
    /// A ping arrived: it is answered at once, known or not. Whether its request is known, so that answers of it may have a
    /// route now: see [`Self::route_back`] and [`Self::direct_route`].
    pub fn handle_ping(&mut self, ping: &Ping, origin: MessageOrigin, now: Duration) -> bool {
        let now = Nanoseconds::from(now);
        let key = RecordedCallKey {
            call: ping.call,
            token: ping.token,
        };
        if ping.shows {
            return self.handle_shown(key, ping.request, origin, now);
        }
        if ping.abort {
            self.abort(key, origin, now);
        }
        let call = self.table.call(&key);
        let found = call
            .filter(|_| ping.request.path != Path::ROOT)
            .and_then(|call| self.table.latest_request(call, ping.request));
        let pong = match found {
            Some(slot) => {
                let record = self.table.records.at(slot);
                record.pinged = now;
                record.hear(now);
                self.look_at(slot, now);
                self.note_shown(slot, origin);
                let lost = match self.may_resend(slot, origin) {
                    true => self.resend(slot, ping, origin),
                    false => Vec::new(),
                };
                self.pong(slot, ping.children_from, lost, now)
            }
            None => self.unknown(ping, now),
        };
        // Over its own connection the initiator needs no token to know what it asked.
        let token = pong.token.filter(|_| origin.peer != ping.call.initiator);
        self.actions.push_back(RecordAction::Pong {
            conn: origin.conn,
            pong: Pong { token, ..pong },
            ticket: found.map(|slot| self.ticket(slot)),
        });
        found.is_some()
    }

    /// The token was shown of a request that is known, or of one that came of a request here. If that has no other route to its
    /// initiator, what was to be announced goes this one. Whether its answers have a route now.
    fn handle_shown(
        &mut self,
        key: RecordedCallKey,
        request: RequestId,
        origin: MessageOrigin,
        now: Nanoseconds,
    ) -> bool {
        let call = self.table.call(&key);
        let known = call.and_then(|call| {
            let known = self.table.latest_request(call, request);
            known.or_else(|| self.nearest(call, request).map(|(slot, _)| slot))
        });
        let (Some(call), Some(slot)) = (call, known) else {
            return false;
        };
        if self.note_shown(slot, origin) {
            let pong = self.pong(slot, 0, Vec::new(), now);
            self.actions.push_back(RecordAction::Pong {
                conn: origin.conn,
                pong,
                ticket: Some(self.ticket(slot)),
            });
        }
        // Answers of the whole call go by its nearest request. They look for a route only if there is one now: without, the
        // initiator would be asked for the token once more.
        if let Some(nearest) = self.nearest_to_initiator(call) {
            self.note_shown(nearest, origin);
        }
        let route = self.route_back(key.call, key.token);
        route.is_some_and(|route| self.conns.contains_key(&route))
    }

    /// Whether kept answers may go to who asks: to the call's initiator, or to who brought the request. Other servers of the
    /// call know its token, too, but need none of its answers.
    fn may_resend(&self, slot: u32, origin: MessageOrigin) -> bool {
        let record = self.table.records.get(slot);
        let initiator = self.table.calls.get(record.call).key.call.initiator;
        let brought = self.conns.get(&record.conn);
        origin.peer == initiator
            || record.conn == origin.conn
            || brought.is_some_and(|brought| brought.peer == origin.peer)
    }

    /// What is told of a request that is not remembered.
    #[cold]
    #[inline(never)]
    fn unknown(&self, ping: &Ping, now: Nanoseconds) -> Pong {
        let key = RecordedCallKey {
            call: ping.call,
            token: ping.token,
        };
        // A call that was aborted, and for whose mark there was no room, may still come.
        let is_forgotten = ping.abort && self.table.call(&key).is_none();
        let relay = self.relayed_pong(key, ping.request);
        relay.unwrap_or_else(|| Pong {
            call: ping.call,
            distance: 0,
            token: Some(ping.token),
            request: ping.request,
            attempt: 0,
            announced: false,
            writing: false,
            evicted: is_forgotten || now < self.evicted_until,
            gone: false,
            heartbeats: false,
            progress: None,
        })
    }

    #[inline(never)]
    fn abort(&mut self, key: RecordedCallKey, origin: MessageOrigin, now: Nanoseconds) {
        self.relays.forget(key);
        let call = match self.table.call(&key) {
            Some(call) => call,
            None => match self.mark_aborted(key, origin, now) {
                Some(call) => call,
                None => return,
            },
        };
        if std::mem::replace(&mut self.table.calls.at(call).aborted, true) {
            return;
        }
        let requests: Vec<u32> = self.table.requests(call).collect();
        for slot in requests {
            self.stop(slot, StopReason::Aborted);
            // Nobody asks for its responses any more.
            if let Some(first) = self.table.records.at(slot).kept.take() {
                self.kept.forget(first);
            }
        }
    }

    /// Remembers that a call was aborted of which nothing has come: its requests may be on their way. That only saves work
    /// (docs/protocol.md, rule 36): such marks take no more than half of the table, and nothing is forgotten for them.
    fn mark_aborted(
        &mut self,
        key: RecordedCallKey,
        origin: MessageOrigin,
        now: Nanoseconds,
    ) -> Option<u32> {
        let known = self.table.peer(key.call.initiator);
        let is_half_full = self.table.records.len() * 2 >= self.limits.requests
            || known.is_none() && self.table.peers.len() * 2 >= self.limits.initiators;
        if is_half_full {
            return None;
        }
        let peer = self.admit_peer(known, key.call.initiator, now)?;
        let own = origin.peer == key.call.initiator;
        let conn_index = self.table.conn_index(peer, origin.conn, own);
        let call = self.table.add_call(key, (peer, conn_index), (self.ping, 0));
        let id = RequestId {
            path: Path::ROOT,
            hop: 0,
        };
        let slot = self.table.add_record(NewRecord {
            call,
            id,
            attempt: 0,
            depth: 0,
            base: 0,
            manifest: None,
            conn: origin.conn,
            share: Share::NOBODY,
            direct: own,
            reply_to: &ReplyTo::Peer,
            carried: Nanoseconds::ZERO,
            deadline: now,
            now,
        });
        let none = Facts {
            requests: 0,
            responses: 0,
        };
        self.table.records.at(slot).facts = Some(none);
        self.end_if_over(slot, now);
        Some(call)
    }

    pub(super) fn stop(&mut self, slot: u32, reason: StopReason) {
        let record = self.table.records.at(slot);
        if record.ended || record.stopped {
            return;
        }
        record.stopped = true;
        self.tell_stopped(slot, reason);
    }

    fn tell_stopped(&mut self, slot: u32, reason: StopReason) {
        let ticket = self.ticket(slot);
        let record = self.table.records.get(slot);
        self.actions.push_back(RecordAction::Stop {
            ticket,
            call: self.table.calls.get(record.call).key.call,
            request: record.id,
            reason,
        });
    }

    /// Does what is due for a request, and sees to it that it is looked at again.
    #[inline(never)]
    pub(super) fn look_at(&mut self, slot: u32, now: Nanoseconds) {
        let record = self.table.records.at(slot);
        if let Some(due) = record.due.take() {
            self.queue.remove(&(due, slot));
        }
        self.fresh.remove(slot);
        if record.ended && record.pinged > record.since {
            let pinged = record.pinged;
            self.renew(slot, pinged); // it is remembered from then on
        }
        let record = self.table.records.get(slot);
        let settings = self.table.calls.get(record.call).settings;
        let belief = settings.belief(self.limits.patience.into());
        let silent_at = record.pinged.saturating_add(belief);
        let aborted = self.table.calls.get(record.call).aborted;
        let owes = !aborted && record.outputs.are_being_written(&self.conns);
        let is_silent = silent_at <= now;
        // Of a handler that goes on though it was told to stop, who asks no more is not told for ever, and nothing need wait for that.
        if record.ended && !owes || aborted && is_silent {
            if !record.ended && record.stopped {
                self.tell_stopped(slot, StopReason::InitiatorSilent);
            }
            return;
        }
        if !record.ended && is_silent {
            self.stop(slot, StopReason::InitiatorSilent);
        }
        let announce_at = self.table.records.get(slot).announce_at(settings.quiet());
        if announce_at <= now {
            self.announce(slot, now);
        }
        let record = self.table.records.at(slot);
        let announce_at = record.announce_at(settings.quiet());
        let due = match record.stopped || record.ended {
            true => announce_at,
            false => announce_at.min(silent_at),
        };
        record.due = Some(due);
        self.queue.insert((due, slot));
        self.note_due(due);
    }

    pub(super) fn announce(&mut self, slot: u32, now: Nanoseconds) {
        let mut pong = self.pong(slot, 0, Vec::new(), now);
        pong.announced = true;
        let ticket = Some(self.ticket(slot));
        let record = self.table.records.at(slot);
        record.hear(now);
        self.actions.push_back(RecordAction::Announce {
            ticket,
            pong,
            reply_to: record.reply_to(),
            conn: record.conn,
        });
    }

    /// An announcement has left over a connection with this peer. An initiator that wants heartbeats does not ask: it is believed
    /// in as long as they leave for it. One that others pass them on to asks. For how long something is remembered that has ended,
    /// or was stopped, they are no reason, but for the one by which they go back.
    #[cold]
    pub fn announcement_left(&mut self, ticket: Ticket, to: Option<NodeId>, now: Duration) {
        let Some(slot) = self.slot(ticket) else {
            return;
        };
        let record = self.table.records.at(slot);
        let call = self.table.calls.get(record.call);
        let is_there = to == Some(call.key.call.initiator);
        let beats = call.settings.heartbeats.is_some();
        if !(beats && is_there) || record.ended || record.stopped {
            return;
        }
        let (call, now) = (record.call, Nanoseconds::from(now));
        record.pinged = record.pinged.max(now);
        // Nobody asks about the request that has shown where the initiator is, either.
        self.renew_way_back(call, now);
    }

    /// Sends missing responses again that were kept, and returns those that are lost for certain.
    pub(super) fn resend(&mut self, slot: u32, ping: &Ping, origin: MessageOrigin) -> Vec<u32> {
        let ticket = self.ticket(slot);
        let mut lost = Vec::new();
        for &index in ping.missing.iter().take(MAX_MISSING) {
            let record = self.table.records.at(slot);
            if !(record.base..record.count).contains(&index) {
                continue;
            }
            let conn = origin.conn;
            let output = match record.outputs.fate(index, &self.conns) {
                // It is on its way.
                ResponseFate::Waiting => continue,
                ResponseFate::Sent(output) if !is_written(output, &self.conns) => continue,
                ResponseFate::Sent(output) if output.conn == conn => continue,
                ResponseFate::Sent(output) => Some(output),
                ResponseFate::Dropped => None,
            };
            let open = output.is_some_and(|output| self.conns.contains_key(&output.conn));
            let mut response = response_of(record, ping.call, ping.token);
            if record.outputs.fits(index, conn)
                && self.kept.restore(record.kept, index, &mut response)
            {
                record.outputs.resend(index, conn, output);
                self.actions.push_back(RecordAction::Resend {
                    ticket,
                    conn,
                    response,
                });
            } else if !open {
                lost.push(index);
            }
        }
        lost
    }

    /// What is known of a request.
    pub(super) fn pong(
        &self,
        slot: u32,
        children_from: u32,
        lost: Vec<u32>,
        now: Nanoseconds,
    ) -> Pong {
        let record = self.table.records.get(slot);
        let call = self.table.calls.get(record.call);
        let owes = record.outputs.are_being_written(&self.conns);
        let writing = owes && record.outputs.excuse_silence(&self.conns);
        let children = record.children();
        let from = (children_from as usize).min(children.len());
        let to = children.len().min(from + MAX_CHILDREN);
        let children = children[from..to].to_vec();
        Pong {
            call: call.key.call,
            distance: 0,
            token: Some(call.key.token),
            request: record.id,
            attempt: record.attempt,
            announced: false,
            writing,
            evicted: now < self.evicted_until,
            gone: false,
            heartbeats: call.settings.heartbeats.is_some(),
            progress: Some(Progress {
                finished: record.ended,
                aborted: record.stopped || call.aborted,
                base: record.base,
                count: record.count,
                children_from: if children.is_empty() { 0 } else { from as u32 },
                children,
                continuation: record.continuation().cloned(),
                // A status must arrive itself: its place may hold an answer of an earlier attempt, and the facts alone would
                // complete the call as if nothing had been refused.
                facts: record.facts.filter(|_| !record.failed),
                // What took it along may have been lost since it was written out, and nobody else may hold it.
                manifest: record.manifest(),
                idle: (!record.ended).then(|| now.saturating_sub(record.since).into()),
                lost,
                handled_by: None,
            }),
        }
    }
}

fn response_of(record: &Record, call: CallId, token: Token) -> Response {
    Response {
        call,
        distance: 0,
        token: Some(token),
        request: record.id,
        index: 0,
        last: false,
        manifest: None,
        status: false,
        compressed: false,
        options: None,
        payload: Bytes::new(),
    }
}
