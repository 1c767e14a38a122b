//! A request that waits for its turn, and for interceptors to decide about that.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::detach::detach;

use super::Handling;
use crate::intercept::{Intent, Interceptor};
use crate::pipeline::StoredBytes;
use crate::service::Registered;
use crate::timer::Instant;

/// A handler that waits for its turn, or for interceptors to decide about that.
pub(crate) struct WaitingHandler {
    /// Which of the methods served it is for.
    pub(crate) served: usize,
    pub(crate) registered: Arc<Registered>,
    pub(crate) payload: Bytes,
    /// What its arguments take of what may be stored.
    pub(crate) held: Option<StoredBytes>,
    /// How many interceptors were not asked yet.
    unasked: usize,
    /// What is sent in place of what its handler would send.
    pub(super) replay: Option<Vec<Intent>>,
}

impl WaitingHandler {
    pub(crate) fn new(
        served: usize,
        registered: Arc<Registered>,
        payload: Bytes,
        held: Option<StoredBytes>,
    ) -> Self {
        Self {
            served,
            unasked: registered.interceptors.len(),
            registered,
            payload,
            held,
            replay: None,
        }
    }
}

impl Handling {
    /// The next interceptor to be asked, the outermost first, with its place among them, and whether it is still to be asked if
    /// this method concerns it.
    pub(crate) fn next_interceptor(&self) -> Option<(u32, Arc<dyn Interceptor>, bool)> {
        let mut state = self.lock();
        let job = state.job.as_mut()?;
        job.unasked = job.unasked.checked_sub(1)?;
        let next = job.registered.interceptors.get(job.unasked)?;
        Some((job.unasked as u32, Arc::clone(next), job.registered.rest))
    }

    /// Somebody wants to wait before that is decided: from now on an abort and the deadline find the request.
    pub(crate) fn wait_for_admission(&self) {
        if let Some(job) = &mut self.lock().job {
            detach(&mut job.payload);
        }
        self.enlist();
    }

    /// Its arguments, until its handler runs.
    pub(crate) fn arguments(&self) -> Bytes {
        let state = self.lock();
        state
            .job
            .as_ref()
            .map_or_else(Bytes::new, |job| job.payload.clone())
    }

    /// Its handler gets none, and their credit is free.
    pub(crate) fn take_arguments(&self) -> Bytes {
        let mut state = self.lock();
        let taken = state
            .job
            .as_mut()
            .map(|job| std::mem::take(&mut job.payload));
        drop(state);
        self.endpoint
            .enter(|core| core.endpoint.free_credit(self.key));
        taken.unwrap_or_default()
    }

    pub(crate) fn set_arguments(&self, payload: Bytes) {
        if let Some(job) = &mut self.lock().job {
            job.payload = payload;
        }
    }

    /// What is to run, now that its turn has come.
    pub(super) fn begin_job(&self) -> Option<WaitingHandler> {
        let mut state = self.lock();
        let job = state.job.take()?;
        if let Some(watches) = &mut state.watch {
            watches.began = Some(Instant::now());
        }
        Some(job)
    }

    /// This is to be done for it in place of what was to be done before.
    pub(crate) fn reroute(&self, job: WaitingHandler) {
        let before = self.lock().job.replace(job);
        drop(before);
    }

    /// Its handler runs when its turn has come, or in its place this is sent.
    pub(crate) fn enqueue(&self, replay: Option<Vec<Intent>>) {
        let served = self.lock().job.as_mut().map(|job| {
            job.replay = replay;
            job.served
        });
        let Some(served) = served else {
            return; // it was stopped
        };
        let placed = self.endpoint.enter(|core| {
            let placed = core.endpoint.run_as(self.key, served);
            placed.inspect_err(|_| {
                self.cancel();
                core.forget_request(self.key);
            })
        });
        if let Err(why) = placed {
            self.handle_stopped(&why);
        }
    }

    /// From now on an abort finds the request.
    pub(crate) fn enlist(&self) {
        self.endpoint
            .enter(|core| core.endpoint.put_aside(self.key));
    }
}
