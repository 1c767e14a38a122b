//! Calls per second for several sizes of payload.

use anyhow::Result;
use wallaby_bench::{MOST_BYTES, Progress, Row, RunOptions, ThroughputOptions, throughput};

/// Throughput for several sizes of payload.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// The numbers of calls under way.
    pub calls: Vec<usize>,
    /// Their payloads, in bytes.
    pub payloads: Vec<usize>,
}

impl Throughput {
    /// Measures one size after the other. What would have too many bytes under way is left out, and said on standard
    /// error.
    ///
    /// # Errors
    /// Options that can't be measured, and whatever fails while measuring.
    pub fn measure(
        &self,
        run: &RunOptions,
        mut progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for &payload in &self.payloads {
            let fits = |calls: &usize| calls.saturating_mul(payload) <= MOST_BYTES;
            let (calls, too_many): (Vec<usize>, Vec<usize>) =
                self.calls.iter().copied().partition(fits);
            for calls in too_many {
                let most = MOST_BYTES >> 20;
                eprintln!("{calls} calls of {payload} bytes are left out: more than {most} MiB");
            }
            let run = RunOptions {
                payload,
                ..run.clone()
            };
            rows.extend(throughput(
                &ThroughputOptions { calls, run },
                &mut progress,
            )?);
        }
        Ok(rows)
    }
}
