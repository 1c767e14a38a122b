//! One endpoint's states, found as they are needed.
//!
//! The real machines can be neither copied nor compared. But they are deterministic: a state is what its inputs have led
//! to. So a state is named by a digest of all that the machine holds (its `Debug` output), and comes back by feeding a
//! new machine the inputs that first led there. Each pair of state and input is run once and remembered; runs of the
//! whole world then only look up what its endpoints do. The world's states are thereby as many as with machines that
//! could be copied.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use siphasher::sip128::{Hasher128, SipHasher24};

/// An endpoint's machine: its state depends on nothing but where it began and its inputs.
pub(crate) trait Machine: Debug {
    type Seed: Debug + Clone;
    type Input: Debug + Clone;
    type Output;
    /// What the world sees of its state.
    type View: Copy;

    fn new(seed: &Self::Seed) -> Self;
    fn handle(&mut self, input: &Self::Input) -> Vec<Self::Output>;
    fn view(&self) -> Self::View;
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Digest(u128);

impl Digest {
    pub(crate) fn of(value: &impl Debug) -> Self {
        let mut hasher = Hashing(SipHasher24::new());
        // Hashing never fails.
        let _ = write!(hasher, "{value:?}");
        Self(hasher.0.finish128().as_u128())
    }
}

struct Hashing(SipHasher24);

impl Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Where an input led.
pub(crate) struct Reached<M: Machine> {
    pub(crate) state: Digest,
    pub(crate) view: M::View,
    pub(crate) outputs: Vec<M::Output>,
}

/// All states of a kind of endpoint that were reached.
pub(crate) struct Space<M: Machine> {
    /// How each state was first reached.
    origins: Mutex<HashMap<Digest, Origin<M>>>,
    reached: Mutex<HashMap<StateAndInput, Arc<Reached<M>>>>,
}

type StateAndInput = (Digest, Digest);

enum Origin<M: Machine> {
    Seed(M::Seed),
    Input(Digest, M::Input),
}

impl<M: Machine> Space<M> {
    pub(crate) fn new() -> Self {
        Self {
            origins: Mutex::default(),
            reached: Mutex::default(),
        }
    }

    /// How many states were reached, and how many inputs run.
    pub(crate) fn size(&self) -> (usize, usize) {
        (locked(&self.origins).len(), locked(&self.reached).len())
    }

    /// The state in which a machine begins.
    pub(crate) fn begin(&self, seed: M::Seed) -> (Digest, M::View) {
        let machine = M::new(&seed);
        let state = Digest::of(&machine);
        let mut origins = locked(&self.origins);
        origins.entry(state).or_insert(Origin::Seed(seed));
        (state, machine.view())
    }

    /// What a machine in this state does with this input.
    pub(crate) fn step(&self, state: Digest, input: M::Input) -> Arc<Reached<M>> {
        let key = (state, Digest::of(&input));
        if let Some(reached) = locked(&self.reached).get(&key) {
            return reached.clone();
        }
        let mut machine = self.rebuild(state);
        let outputs = machine.handle(&input);
        let reached = Arc::new(Reached {
            state: Digest::of(&machine),
            view: machine.view(),
            outputs,
        });
        let mut origins = locked(&self.origins);
        let origin = || Origin::Input(state, input);
        origins.entry(reached.state).or_insert_with(origin);
        drop(origins);
        locked(&self.reached).insert(key, reached.clone());
        reached
    }

    fn rebuild(&self, state: Digest) -> M {
        let origins = locked(&self.origins);
        let mut inputs = Vec::new();
        let mut place = state;
        let mut machine = loop {
            match &origins[&place] {
                Origin::Seed(seed) => break M::new(seed),
                Origin::Input(before, input) => {
                    inputs.push(input.clone());
                    place = *before;
                }
            }
        };
        drop(origins);
        for input in inputs.iter().rev() {
            drop(machine.handle(input));
        }
        machine
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
