//! Tests of the protocol core through its public interface.
//!
//! | module | what it checks |
//! |---|---|
//! | `vectors`, `sizes`, `doc` | the bytes of every message and frame, how many they are, and that `docs/protocol.md` says so |
//! | `roundtrip`, `hostile`, `limits` | what is written is read again; what nobody would write is refused |
//! | `handshake`, `credit`, `parts`, `bodies` | what a connection does besides carrying messages |
//! | `bounds` | what a hostile peer can make a connection hold |
//! | `items` | items in a body, cut anywhere |
//! | `transcript` | what the halves of a call say to each other, scenario by scenario |
//! | `tree` | completion against an independent oracle |
//! | `initiator` | contradictions and budgets |
//! | `exactly` | limits to the byte, unknown flags, what a server and a status tell |
//! | `budgets` | trees that grow without end |
//! | `seal` | what a seal covers |
//! | `keep_alive` | half-open connections |
//! | `transit` | how long requests waited on their way |
//! | `told`, `driven` | what messages say about themselves, and a connection to its driver |
//!
//! The other modules are what these share. `WALLABY_CASES=20` runs twenty times as many cases of each property,
//! `WALLABY_BLESS=1` rewrites the golden files.

mod bodies;
mod bounds;
mod budgets;
mod credit;
mod doc;
mod driven;
mod exactly;
mod frames;
mod handshake;
mod hostile;
mod initiator;
mod items;
mod keep_alive;
mod layout;
mod limits;
mod pair;
mod parts;
mod repeatable;
mod roundtrip;
mod samples;
mod seal;
mod sizes;
mod strategies;
mod told;
mod transcript;
mod transit;
mod tree;
mod vectors;
