//! Endpoints inside a simulation of [turmoil](https://docs.rs/turmoil): its network, its time, and one seed.
//!
//! With the feature `turmoil`, an endpoint that is made inside a simulated host listens on and dials `tcp:` and `udp:`
//! addresses of the simulated network, and its timers follow the host's virtual time. Anywhere else, the feature changes
//! nothing. It is for tests: of Wallaby itself, and of services that are built on it.
//!
//! turmoil's own seed decides its network; [`seed`] decides what Wallaby draws, so that a run repeats exactly.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fastrand::Rng;
use tokio::time::Instant;

use crate::timer::{Alarms, Key, Target};

thread_local! {
    static RANDOM: RefCell<Rng> = const { RefCell::new(Rng::with_seed(0)) };
    static ALARMS: RefCell<Alarms> = RefCell::default();
}

/// Seeds what endpoints draw that this thread makes in a simulation from now on: node ids, tokens, secrets.
pub fn seed(seed: u64) {
    RANDOM.set(Rng::with_seed(seed));
}

/// Fills in random bytes; `false` outside of a simulation.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    if !turmoil::in_simulation() {
        return false;
    }
    RANDOM.with_borrow_mut(|random| random.fill(bytes));
    true
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
