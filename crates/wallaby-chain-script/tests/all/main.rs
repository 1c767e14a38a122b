//! Scripts of clients as servers and clients see them: real endpoints, real text.

mod language;
mod sandbox;
mod values;
mod world;
