//! Lookup in a ring: Chord (Stoica et al., 2001) on Wallaby, with keys that outlive churn.
//!
//! To see how to build with Wallaby, read [`service`] first: a lookup is *one call* that nodes forward until its owner answers the
//! client, as in figure 3.2 of the DPC thesis. [`client`] asks, by delegation or by iteration. Chord itself is [`node`], a state
//! machine without IO.
//!
//! | part | what it is |
//! |---|---|
//! | [`id`], [`store`], [`message`] | places and spans on the ring; what a node keeps; what nodes say to each other |
//! | [`node`] | one node: tables, routing, joins and leaves, copies |
//! | [`search`] | attempts of a lookup that learn from each other |
//! | [`process`], [`draw`], [`command`] | endpoints as processes of their own; what a user sees |
//! | [`host`], [`service`], [`client`] | nodes on an endpoint; its methods; who asks them |

pub mod client;
pub mod command;
pub mod draw;
pub mod host;
pub mod id;
pub mod message;
pub mod node;
pub mod process;
pub mod search;
pub mod service;
pub mod store;
