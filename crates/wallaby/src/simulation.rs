//! Endpoints inside a simulation of [turmoil](https://docs.rs/turmoil): its network, its time, and one seed.
//!
//! With the feature `turmoil`, an endpoint that is made inside a simulated host listens on and dials `tcp:` and `udp:`
//! addresses of the simulated network, and its timers follow the host's virtual time. Anywhere else, the feature changes
//! nothing. It is for tests: of Wallaby itself, and of services that are built on it.
//!
//! turmoil's own seed decides its network; [`seed`] decides what Wallaby draws, so that a run repeats exactly.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::timer::{Alarms, Key, Target};

thread_local! {
    /// A generator of random numbers (SplitMix64).
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    static ALARMS: RefCell<Alarms> = RefCell::default();
}

/// Seeds what endpoints draw that this thread makes in a simulation from now on: node ids, tokens, secrets.
pub fn seed(seed: u64) {
    RANDOM.set(seed);
}

/// Fills in random bytes; `false` outside of a simulation.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    if !turmoil::in_simulation() {
        return false;
    }
    for chunk in bytes.chunks_mut(8) {
        let drawn = next().to_le_bytes();
        chunk.copy_from_slice(&drawn[..chunk.len()]);
    }
    true
}

fn next() -> u64 {
    let state = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Wakes the target at this time of the simulated host; `Err` with it outside of a simulation.
pub(crate) fn set_alarm(at: Instant, target: Target) -> Result<Key, Target> {
    if !turmoil::in_simulation() {
        return Err(target);
    }
    let key = ALARMS.with_borrow_mut(|alarms| alarms.add(at, target));
    // A host that crashes takes its tasks along: their alarms stay behind, unheard, like those of a process that died.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            tokio::time::sleep_until(at).await;
            let due = with_alarms(|alarms| alarms.remove(&key));
            due.flatten().into_iter().for_each(|due| due.wake(at));
        });
    }
    Ok(key)
}

/// Does something with the simulation's alarms; `None` outside of a simulation.
pub(crate) fn with_alarms<R>(act: impl FnOnce(&mut BTreeMap<Key, Target>) -> R) -> Option<R> {
    turmoil::in_simulation().then(|| ALARMS.with_borrow_mut(|alarms| act(&mut alarms.by_time)))
}
