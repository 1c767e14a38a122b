//! How many branches all calls of an endpoint know together.
//!
//! A few bytes are enough to say that a request has led to 65,535 others, and an initiator has to remember each of them
//! until it is heard of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::initiator::{LimitReached, Violation};

/// So many branches of each call are not counted.
pub(super) const UNCOUNTED: u32 = 1024;

/// The branches of all calls of an endpoint, but for the first 1,024 of each. Clones count together.
#[derive(Debug, Clone)]
pub struct BranchRoom(Arc<SharedRoom>);

#[derive(Debug)]
struct SharedRoom {
    limit: u64,
    held: AtomicU64,
}

impl BranchRoom {
    /// Room for so many.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(SharedRoom {
            limit,
            held: AtomicU64::new(0),
        }))
    }

    /// How many there are.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }
}

/// What one call has of it.
#[derive(Debug)]
pub(super) struct RoomShare {
    room: BranchRoom,
    held: u64,
}

impl RoomShare {
    pub(super) fn of(room: &BranchRoom) -> Self {
        Self {
            room: room.clone(),
            held: 0,
        }
    }

    /// One more branch of this call. A call has no more than it leaves free.
    pub(super) fn grow(&mut self) -> Result<(), Violation> {
        let BranchRoom(room) = &self.room;
        let held = room.held.fetch_add(1, Ordering::Relaxed);
        if room.limit.saturating_sub(held) <= self.held {
            room.held.fetch_sub(1, Ordering::Relaxed);
            return Err(Violation::Limit(LimitReached::Branches {
                limit: room.limit,
            }));
        }
        self.held += 1;
        Ok(())
    }
}

impl Drop for RoomShare {
    fn drop(&mut self) {
        let BranchRoom(room) = &self.room;
        room.held.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::call::initiator::Initiator;
    use crate::id::{CallId, NodeId, RequestId, Token};
    use crate::manifest::Facts;
    use crate::wire::{Budgets, End};

    const REQUESTS: u32 = 65_000;

    /// A call whose only initial request is said to have led to so many.
    fn call(room: &BranchRoom, requests: u32) -> (Initiator, Result<(), Violation>) {
        let call = CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        };
        let mut initiator = Initiator::new(call, Token::new(2), Budgets::default());
        initiator.count_in(room);
        initiator.send().expect("within the budget");
        let end = End {
            call,
            distance: 0,
            token: None,
            request: RequestId::FIRST,
            facts: Facts {
                requests,
                responses: 0,
            },
            manifest: None,
            options: None,
        };
        let ended = initiator.handle_end(&end);
        (initiator, ended)
    }

    #[test]
    fn all_calls_share_the_room_for_branches() {
        let limit = 500_000;
        let room = BranchRoom::new(limit);
        let mut calls = Vec::new();
        let refused = loop {
            let (initiator, ended) = call(&room, REQUESTS);
            calls.push(initiator);
            assert!(room.held() <= limit);
            if let Err(violation) = ended {
                break violation;
            }
        };
        assert_eq!(refused, Violation::Limit(LimitReached::Branches { limit }));
        // The one that was refused has as much as is left: half of what the others left.
        assert!((7..=8).contains(&calls.len()), "{} calls", calls.len());
        assert!(limit - room.held() > 10_000);
        let (_, ended) = call(&room, UNCOUNTED - 1);
        assert_eq!(ended, Ok(()), "few are not counted");
        let (_, ended) = call(&room, 5_000);
        assert_eq!(ended, Ok(()), "there is room for less");
        drop(calls);
        assert_eq!(room.held(), 0);
        let (_, ended) = call(&room, REQUESTS);
        assert_eq!(ended, Ok(()));
    }
}
