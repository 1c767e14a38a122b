//! `wallaby-storage` as its users run it: servers of NFS that others wrote, and files compared byte by byte. A module for each subject,
//! in one program.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod copies;
mod gone;
mod mixed;
mod program;
mod world;
