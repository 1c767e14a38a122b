//! Code of clients as servers and clients see it: real endpoints, real modules.

mod guest;
mod sandbox;
mod world;
