//! What endpoints say in the log, whatever drives them; and whether anybody listens: what makes up events stays out of the way of calls.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::field::display;
use tracing::level_filters::LevelFilter;
use wallaby_proto::call::watch::Loss;
#[cfg(target_os = "linux")]
use wallaby_proto::endpoint::{Endpoint as Core, RequestKey};
use wallaby_proto::endpoint::{Load, StuckHandler};
use wallaby_proto::{Address, CallId, NodeId, RequestId, Status};

use crate::error::ConnectError;
use crate::metrics::Metrics;
use crate::timer::Instant;
use crate::transport::Identity;

/// Whether a subscriber may want events and spans of level DEBUG.
pub(crate) fn debugs() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Whether a subscriber may want warnings.
pub(crate) fn warns() -> bool {
    LevelFilter::current() >= LevelFilter::WARN
}

/// What an endpoint says of single things, of which peers or many calls may cause very many.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) panics: Limiter,
    pub(crate) late_errors: Limiter,
    pub(crate) stuck: Limiter,
    pub(crate) dials: Vain,
    pub(crate) accepts: Limiter,
    pub(crate) opened: Limiter,
    pub(crate) not_opened: Limiter,
    pub(crate) ended: Limiter,
    pub(crate) broken: Limiter,
    pub(crate) blocked: Limiter,
}

/// The request of which something is said.
pub(crate) struct Of {
    pub(crate) method: Arc<str>,
    pub(crate) call: CallId,
    pub(crate) request: RequestId,
}

#[cfg(target_os = "linux")] // the polling driver's
impl Of {
    #[cold]
    pub(crate) fn new(core: &Core, key: RequestKey) -> Option<Self> {
        let (request, method) = (core.request(key)?, core.method_of(key)?);
        Some(Self {
            method: Arc::clone(method.name()),
            call: request.call(),
            request: request.id(),
        })
    }
}

impl Logs {
    // Requests.

    pub(crate) fn panicked(&self, of: &Of, panic: &str) {
        if let Some(left_out) = self.panics.pass() {
            let (method, call, request) = (&*of.method, of.call, of.request);
            tracing::warn!(method, %call, %request, panic, left_out, "a handler or an interceptor panicked");
        }
    }

    pub(crate) fn late_error(&self, of: &Of, status: &Status) {
        if let Some(left_out) = self.late_errors.pass() {
            let (method, call, request) = (&*of.method, of.call, of.request);
            tracing::warn!(method, %call, %request, %status, left_out, "error after the request ended");
        }
    }

    // Connections.

    /// A dial has failed, for whatever reason.
    pub(crate) fn vain(&self, endpoint: NodeId, server: &Address, why: &ConnectError) {
        match self.dials.pass(server) {
            Some(left_out) => {
                tracing::warn!(%endpoint, %server, %why, left_out, "a server was dialled in vain");
            }
            None => tracing::debug!(%endpoint, %server, %why, "a server was dialled in vain"),
        }
    }

    pub(crate) fn connected(&self, endpoint: NodeId, server: &Address) {
        self.dials.forget(server);
        if let Some(left_out) = self.opened.pass() {
            tracing::info!(%endpoint, %server, left_out, "is connected to a server");
        }
    }

    pub(crate) fn accepted(&self, endpoint: NodeId, peer: &Identity) {
        if let Some(left_out) = self.opened.pass() {
            let from = peer.address.map(display);
            tracing::info!(%endpoint, %peer, from, left_out, "a peer has connected");
        }
    }

    pub(crate) fn accept_failed(&self, error: &io::Error) {
        if let Some(left_out) = self.accepts.pass() {
            tracing::error!(%error, left_out, "cannot accept a connection");
        }
    }

    /// A dial is given up before its stream was open; why others have failed was said.
    pub(crate) fn not_opened(&self, endpoint: NodeId, why: &ConnectError) {
        if let ConnectError::TimedOut { server, .. } = why {
            self.vain(endpoint, server, why);
        }
    }

    /// A stream has ended: peers that leave are news, those that do not keep to the protocol a warning.
    pub(crate) fn closed(&self, endpoint: NodeId, peer: &Identity, why: &ConnectError) {
        let from = peer.address.map(display);
        let (is_broken, why): (bool, &dyn fmt::Display) = match why {
            ConnectError::TimedOut { server, .. } => return self.vain(endpoint, server, why),
            ConnectError::Handshake { source, .. } => (source.is_violation(), source),
            ConnectError::Closed { reason, .. } => (false, reason),
            why => (false, why),
        };
        if is_broken && let Some(left_out) = self.broken.pass() {
            tracing::warn!(%endpoint, %peer, from, %why, left_out, "a peer does not keep to the protocol");
        } else if !is_broken && let Some(left_out) = self.ended.pass() {
            tracing::info!(%endpoint, %peer, from, %why, left_out, "a connection has ended");
        }
    }
}

/// A handler that was stopped goes on for long, and so many others that were not told of.
pub(crate) fn stuck(stuck: &StuckHandler, left_out: u64) {
    let method = (stuck.method.as_ref()).map_or("", |method| method.name());
    let (call, request) = (&stuck.call, &stuck.request);
    tracing::warn!(
        method,
        %call,
        %request,
        left_out,
        "a handler goes on for long after its request was stopped, and no longer counts as running"
    );
}

/// A part of a call is lost, and of so many others that were not told of.
pub(crate) fn lost(loss: &Loss, left_out: u64) {
    let method = loss.method.as_deref().unwrap_or("");
    let (call, request, server, why) = (loss.call, loss.request, &loss.server, &loss.kind);
    tracing::warn!(method, %call, %request, %server, %why, left_out, "a part of a call is lost");
}

pub(crate) fn listens(endpoint: NodeId, address: &Address) {
    tracing::info!(%endpoint, %address, "listens");
}

pub(crate) fn drains(endpoint: NodeId, Load { running, waiting }: Load) {
    tracing::info!(%endpoint, running, waiting, "is drained: takes no more requests");
}

pub(crate) fn drained(endpoint: NodeId) {
    tracing::info!(%endpoint, "is drained: nothing runs any more");
}

pub(crate) fn closes(endpoint: NodeId) {
    tracing::info!(%endpoint, "is closed");
}

/// Lets ten of a kind pass in a second.
#[derive(Debug, Default)]
pub(crate) struct Limiter(Mutex<Passed>);

/// Where was dialled in vain: in a minute each is told once, unless somebody listened there meanwhile, and ten a second.
#[derive(Debug, Default)]
pub(crate) struct Vain {
    told: Mutex<VecDeque<(Address, Instant)>>,
    limiter: Limiter,
}

/// So many are remembered.
const REMEMBERED: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);

impl Vain {
    /// Whether this one may be told, and how many were left out before it.
    pub(crate) fn pass(&self, to: &Address) -> Option<u64> {
        self.pass_at(to, Instant::now())
    }

    fn pass_at(&self, to: &Address, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= MINUTE;
        while told.front().is_some_and(|(_, at)| is_old(at)) || told.len() > REMEMBERED {
            told.pop_front();
        }
        if told.iter().any(|(address, _)| address == to) {
            return None;
        }
        let left_out = self.limiter.pass_at(now)?;
        told.push_back((to.clone(), now));
        Some(left_out)
    }

    /// Somebody listens there.
    pub(crate) fn forget(&self, to: &Address) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(address, _)| address != to);
    }
}

/// What has passed since then, for a second, and what has not.
#[derive(Debug, Default)]
struct Passed {
    since: Option<Instant>,
    passed: u32,
    left_out: u64,
}

/// So many of a kind are told in a second.
const MOST: u32 = 10;

impl Limiter {
    /// Whether one more may be told, and how many were left out before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passed.pass(now, MOST)
    }
}

impl Passed {
    fn pass(&mut self, now: Instant, most: u32) -> Option<u64> {
        let is_over = self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1));
        if is_over {
            (self.since, self.passed) = (Some(now), 0);
        }
        if self.passed == most {
            self.left_out += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// What the endpoint without IO counts and that somebody should know of. It is told once a second at most: what peers can cause
/// must not fill the log.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    known: [u64; KINDS],
    /// The sum of these.
    all: u64,
    /// What was told of each.
    told: [Passed; KINDS],
}

/// Something that was counted, and how often since it was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trouble {
    what: &'static str,
    times: u64,
}

const KINDS: usize = 9;

/// That clients leave is nothing to be warned of.
const UNDELIVERABLE: &str =
    "answers are undeliverable: their initiators have left, or no route leads to them";

/// What an operator should know of, and how often each was counted.
fn troubles(of: &Metrics) -> [(u64, &'static str); KINDS] {
    [
        (
            of.forged_dropped,
            "messages without the token of their call were dropped",
        ),
        (of.undeliverable, UNDELIVERABLE),
        (
            of.unsealed_refused,
            "requests were refused: they are not sealed with a key of the cluster",
        ),
        (
            of.dials_forbidden,
            "addresses were not dialled: the dial policy forbids them",
        ),
        (
            of.connections_silent,
            "connections were given up: their peers were silent",
        ),
        (
            of.requests_refused,
            "requests were refused: too many wait for a handler",
        ),
        (
            of.connections_evicted,
            "connections were closed to make room for others",
        ),
        (
            of.connections_refused,
            "connections were refused: all that may be are in use",
        ),
        (
            of.strangers_dismissed,
            "connections were closed: their peers did not say who they are",
        ),
    ]
}

impl Watcher {
    /// What is to be told now.
    pub(crate) fn look(&mut self, counted: &Metrics, now: Instant) -> Option<Trouble> {
        let troubles = troubles(counted);
        let all: u64 = troubles.iter().map(|(times, _)| times).sum();
        if all == self.all {
            return None;
        }
        let mut kinds = self.known.iter_mut().zip(&mut self.told).zip(troubles);
        let news = kinds.find_map(|((known, told), (counted, what))| {
            let is_news = counted != *known && told.pass(now, 1).is_some();
            is_news.then(|| (counted - std::mem::replace(known, counted), what))
        });
        let (times, what) = news?;
        self.all += times;
        Some(Trouble { what, times })
    }
}

impl Trouble {
    pub(crate) fn tell(self, endpoint: NodeId) {
        match self.what {
            UNDELIVERABLE => tracing::info!(%endpoint, times = self.times, "{UNDELIVERABLE}"),
            what => tracing::warn!(%endpoint, times = self.times, "{what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_of_a_kind_a_second_passes() {
        let (mut watcher, begun) = (Watcher::default(), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        let mut look = |counted: [u64; 3], now| {
            let mut all = Metrics::default();
            all.forged_dropped = counted[0];
            (all.connections_silent, all.strangers_dismissed) = (counted[1], counted[2]);
            watcher.look(&all, at(now)).map(|told| told.times)
        };
        assert_eq!(look([0; 3], 5), None);
        assert_eq!(look([1, 0, 0], 5), Some(1));
        assert_eq!(look([2, 0, 0], 6), None);
        assert_eq!(look([3, 0, 1], 1004), Some(1));
        assert_eq!(look([3, 0, 1], 1005), Some(2));
        assert_eq!(look([3, 0, 1], 9000), None);
        assert_eq!(look([3, 2, 1], 9000), Some(2));
    }

    #[test]
    fn who_is_dialled_in_vain_is_told_of_once_a_minute() {
        let (vain, begun) = (Vain::default(), Instant::now());
        let [here, there]: [Address; 2] =
            ["mem://here", "mem://there"].map(|at| at.parse().expect("an address"));
        let pass = |to, seconds| vain.pass_at(to, begun + Duration::from_secs(seconds));
        assert_eq!(
            [pass(&here, 0), pass(&here, 59), pass(&there, 59)],
            [Some(0), None, Some(0)]
        );
        vain.forget(&there);
        assert_eq!(
            [pass(&here, 60), pass(&there, 61), pass(&there, 62)],
            [Some(0), Some(0), None]
        );
    }

    #[test]
    fn who_could_not_be_told_of_is_told_of_later() {
        let (vain, begun) = (Vain::default(), Instant::now());
        let addresses = (0..11).map(|number| format!("mem://{number}").parse());
        let addresses: Vec<Address> = addresses.map(|at| at.expect("an address")).collect();
        let told = addresses.iter().map(|to| vain.pass_at(to, begun).is_some());
        assert_eq!(told.filter(|told| *told).count(), 10);
        let later = begun + Duration::from_secs(2);
        assert_eq!(vain.pass_at(&addresses[10], later), Some(1));
    }

    #[test]
    fn ten_of_a_kind_are_told_in_a_second_and_the_others_counted() {
        let (limiter, begun) = (Limiter::default(), Instant::now());
        let pass = |millis| limiter.pass_at(begun + Duration::from_millis(millis));
        assert!((0..10).all(|number| pass(number) == Some(0)));
        assert!((10..15).all(|number| pass(number).is_none()));
        assert_eq!(pass(999), None);
        assert_eq!(pass(1000), Some(6));
        assert_eq!(pass(1001), Some(0));
    }
}
