//! Tests of sessions over datagrams, through the public interface.
//!
//! | module | what it checks |
//! |---|---|
//! | `vectors` | the bytes of every kind of datagram |
//! | `session` | what two sides do on a good network, and what they refuse |
//! | `handshake` | cookies, restarts, other versions and nodes, limits on sessions |
//! | `loss` | repair, congestion, giving up, closing, on networks that lose in known ways |
//! | `random` | many sides on networks that lose, duplicate, delay and damage, with crashes |
//! | `hostile` | bytes that nobody would send, and strangers |
//! | `refused` | that each datagram that is refused is counted, and costs nothing else |
//! | `full` | what is sent where nothing is acknowledged, and who has his turn |
//! | `sizing` | longer datagrams to peers on the same host |
//! | `bounds` | what a peer can make a session hold |
//! | `transit` | how long requests waited on their way |
//! | `told` | what a gate and its sessions tell their driver |
//! | `allocations` | that an exchange allocates nothing |
//!
//! `world` is the network: virtual time, one seed. `WALLABY_CASES=20` runs twenty times as many seeds, `WALLABY_SEED=7`
//! that one only, `WALLABY_BLESS=1` rewrites the vectors.

mod allocations;
mod bounds;
mod full;
mod handshake;
mod hostile;
mod layout;
mod loss;
mod messages;
mod presence;
mod random;
mod refused;
mod session;
mod sizing;
mod told;
mod transit;
mod vectors;
mod world;
