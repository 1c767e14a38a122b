//! A distributed social graph: persons, who they know, forums, posts and comments, spread over any number of servers, and
//! the seven interactive short reads of the LDBC Social Network Benchmark, each as one multi-hop call and as plain calls.
//!
//! To see how to build with Wallaby, read [`query::is2`] first: one query, the tree of its hops, and its two forms side by
//! side. Then follow it down: [`client`] asks, [`placement`] says whom, [`server`] answers from its [`shard`]. Inserts take
//! the other way: [`fact`] cuts one into what each vertex learns, [`insert`] brings it there, [`facts`] keeps it.
//!
//! | part | what it is |
//! |---|---|
//! | [`model`], [`fact`] | the vertices; an insert, and what of it each vertex keeps |
//! | [`placement`], [`shard`] | which server has a vertex; one server's part of the graph, in memory |
//! | [`facts`], [`store`] | the same on disk |
//! | [`source`] | where graphs come from: LDBC's files, its update streams, a generator |
//! | [`server`], [`vertices`], [`insert`], [`census`] | what a server offers besides the queries |
//! | [`query`], [`client`] | the queries; who asks them |
//! | [`process`], [`command`], [`output`] | servers as processes, the program, what its user sees |

pub mod census;
pub mod client;
pub mod command;
pub mod fact;
pub mod facts;
pub mod insert;
pub mod model;
pub mod output;
pub mod placement;
pub mod process;
pub mod query;
pub mod server;
pub mod shard;
pub mod source;
pub mod store;
pub mod vertices;
