//! Callers at a time, each a thread or not, and the link that what they send shares.

use crate::harness::Latencies;
use crate::workload::take_one;
use anyhow::{Result, anyhow};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

/// Lets each of these call until all operations are done: one on this thread, several on threads of their own.
pub(super) fn share<C: Send>(
    callers: &mut [C],
    operations: u64,
    latencies: &mut Latencies,
    call: impl Fn(&mut C) -> Result<()> + Sync,
) -> Result<()> {
    if let [caller] = callers {
        for _ in 0..operations {
            let start = Instant::now();
            call(caller)?;
            latencies.record(start.elapsed());
        }
        return Ok(());
    }
    let left = &AtomicU64::new(operations);
    let call = &call;
    let work = |caller: &mut C| {
        let mut taken = Vec::new();
        while take_one(left) {
            let start = Instant::now();
            call(caller)?;
            taken.push(start.elapsed());
        }
        anyhow::Ok(taken)
    };
    let work = &work;
    let all = thread::scope(|scope| {
        let start = |caller| scope.spawn(move || work(caller));
        let threads: Vec<_> = callers.iter_mut().map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            let taken = thread.join().map_err(|_| anyhow!("a thread panicked"));
            taken.flatten()
        });
        joined.collect::<Result<Vec<Vec<Duration>>>>()
    })?;
    all.iter()
        .flatten()
        .for_each(|taken| latencies.record(*taken));
    Ok(())
}

/// So many callers: those that there are, and new ones.
pub(super) fn grow<C>(
    callers: &mut Vec<C>,
    count: usize,
    mut open: impl FnMut() -> Result<C>,
) -> Result<()> {
    // A server that looks at each connection has no more of them than are used.
    callers.truncate(count);
    while callers.len() < count {
        callers.push(open()?);
    }
    Ok(())
}

/// What is sent; the same bytes each time.
pub(super) fn argument(bytes: usize) -> Vec<u8> {
    vec![0x77; bytes]
}
