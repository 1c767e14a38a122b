//! Chapter 6 of the DPC thesis anew: its patterns of messages by multi-hop calls and by plain calls over the same stack.
//!
//! As there, handlers have no application in them: what is measured is what communication costs. [`latency`] has figures
//! 6.1, 6.2, 6.4, 6.5 and 6.6 and table 6.3, [`load`] has figure 6.7; [`cluster`] predicts what a cluster would do that is
//! not there, and says so in every row. What came of it is in `bench/README.md`.

mod calibrate;
mod cluster;
mod latency;
mod load;

pub use calibrate::calibrate;
pub use cluster::{ClusterOptions, cluster, cluster_load};
pub use latency::{LatencyOptions, latency};
pub use load::{LoadOptions, load};
