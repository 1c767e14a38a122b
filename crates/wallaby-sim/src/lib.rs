//! The real protocol under virtual time and one source of randomness, with faults, watched by an oracle.
//!
//! A seed names a [`Plan`]: nodes, calls and faults as lists. [`run`] runs it through `wallaby-proto`'s machines, which
//! the nodes here only glue together. The oracle sees every message and says what must never be; [`shrink`] makes a
//! plan that fails small.

mod addresses;
mod applications;
mod bodies;
mod broken;
mod campaign;
mod context;
mod coverage;
mod detection;
mod kinds;
mod network;
mod node;
mod oracle;
mod plan;
mod queue;
mod random;
mod resends;
mod services;
mod short;
mod shrink;
mod sight;
mod trail;
mod weights;
mod workload;
mod world;

pub use broken::Broken;
pub use campaign::Summary;
pub use coverage::{Coverage, Point};
pub use kinds::Kind;
pub use oracle::{Rule, Verdict, Violation};
pub use plan::{CallPlan, Fault, LinkPlan, Manner, NodePlan, Plan};
pub use shrink::{Shrunk, shrink};
pub use world::{Options, Report, run};

/// The programs of the guide's page about tests, which need the simulated network.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/testing.md")]
struct TestingPage;
