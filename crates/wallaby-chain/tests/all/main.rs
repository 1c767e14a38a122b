//! Chains as those who use them see them: real endpoints, over TCP and unix sockets.

#[allow(dead_code, reason = "another program uses the rest")]
#[path = "../../../wallaby/tests/common/process.rs"]
mod process;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../../../wallaby/tests/common/raw.rs"]
mod raw;
mod world;

mod code;
mod composition;
mod exceptions;
mod functions;
mod hostile;
mod large;
mod limits;
mod lost;
mod pipes;
mod policy;
mod proxy;
mod recovery;
mod repository;
mod said;
mod splits;
mod unsent;
mod walk;
