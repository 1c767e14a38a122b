//! Sidecars as those who use them see them: real endpoints before real servers, over TCP.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod code;
mod config;
mod grpc;
mod http;
#[cfg(unix)]
mod onc;
mod world;
