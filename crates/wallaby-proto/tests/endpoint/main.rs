//! Whole endpoints without IO, whose messages the test carries.
//!
//! | module | what it checks |
//! |---|---|
//! | `bodies` | bodies of requests: who reads and writes them, and how they end |
//!
//! `world` is what these share.

mod bodies;
mod world;
