//! Code of clients as servers and clients see it: real endpoints, real modules.

#[cfg(feature = "glue")]
mod beside;
mod guest;
mod sandbox;
mod world;
