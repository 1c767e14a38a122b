//! What is fuzzed: every decoder of `wallaby-proto` and of ONC RPC, and state machines driven by arbitrary events.
//!
//! A target is a function of bytes that panics where something does not hold. `engine/` runs one under libFuzzer, with
//! coverage, on the stable toolchain (`scripts/fuzz.sh`); `tests/replay.rs` runs all of them over the corpus and a little more.
//!
//! | target | what the bytes are | what must hold besides "no panic" |
//! |---|---|---|
//! | `message` | a kind and a frame's body | what is read is written and read again as the same |
//! | `status` | a payload | the same |
//! | `address` | a text | the same |
//! | `hello` | a stream before the handshake | nothing but a handshake passes |
//! | `frames` | a stream after it, raw or as frames | output, requests and unfinished messages stay within their limits |
//! | `datagram` | datagrams from anybody to a gate | no address gets more than three times what it sent |
//! | `connections` | what two honest ends of a stream do | every message arrives once, as it was sent |
//! | `gates` | the same for datagrams, with loss and damage | at most once, as it was sent; all, once the net heals |
//! | `client` | what an endpoint with a call is told, and what its application does | one verdict; the call ends; nothing is asked after it is over |
//! | `server` | what is said to an endpoint with handlers, and what these do | limits hold; who claims an initiator's node id stops, refuses and learns nothing of its calls; all is forgotten in the end |
//! | `endpoints` | what happens to whole endpoints, their streams and calls | each call ends, nothing runs twice or is left, COMPLETE has all answers |
//! | `items` | a limit, how it is cut, and the body of a request | the same items, however it is cut; none over the limit |
//! | `onc-message` | a message of ONC RPC | what is read is written and read again as the same |
//! | `onc-record` | a limit, and a stream of records | the same records, however it comes in pieces; none over the limit |
//! | `onc-value` | a type of rpcbind's, and a value | what is read is written and read again as the same |
//! | `onc-address` | an address as rpcbind is told it | the same |
//! | `onc-interface` | a `.x` file | code comes of it, or errors |
//! | `chain` | what travels with a request of a chain | what is read is written and read again as the same; it can go on and end |
//! | `chain-exception` | an exception on its way to who catches it | the same |
//! | `script` | a script of chaining functions | what they say can be read |

mod alone;
mod chain;
mod choices;
mod client;
mod connections;
mod datagram;
mod decode;
mod endpoints;
mod frames;
mod gates;
mod items;
mod onc;
mod script;
mod seeds;
mod server;
mod things;

pub use seeds::seeds;

/// One thing that is fuzzed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "message",
        run: decode::message,
    },
    Target {
        name: "status",
        run: decode::status,
    },
    Target {
        name: "address",
        run: decode::address,
    },
    Target {
        name: "hello",
        run: frames::before_the_handshake,
    },
    Target {
        name: "frames",
        run: frames::after_the_handshake,
    },
    Target {
        name: "datagram",
        run: datagram::run,
    },
    Target {
        name: "connections",
        run: connections::run,
    },
    Target {
        name: "gates",
        run: gates::run,
    },
    Target {
        name: "client",
        run: client::run,
    },
    Target {
        name: "server",
        run: server::run,
    },
    Target {
        name: "endpoints",
        run: endpoints::run,
    },
    Target {
        name: "items",
        run: items::run,
    },
    Target {
        name: "onc-message",
        run: onc::message,
    },
    Target {
        name: "onc-record",
        run: onc::records,
    },
    Target {
        name: "onc-value",
        run: onc::values,
    },
    Target {
        name: "onc-address",
        run: onc::address,
    },
    Target {
        name: "onc-interface",
        run: onc::interface,
    },
    Target {
        name: "chain",
        run: chain::stack,
    },
    Target {
        name: "chain-exception",
        run: chain::exception,
    },
    Target {
        name: "script",
        run: script::run,
    },
];
