//! A distributed social graph: persons, who they know, forums, posts and comments.
//!
//! | part | what it is |
//! |---|---|
//! | [`model`], [`fact`] | the vertices and edges; an insert, and what of it each vertex keeps |
//! | [`placement`], [`shard`] | which server has a vertex; one server's part of the graph, in memory |
//! | [`log`], [`store`] | the same on disk |
//! | [`source`] | where graphs come from: LDBC's files, its update streams, a generator |

pub mod fact;
pub mod log;
pub mod model;
pub mod placement;
pub mod shard;
pub mod source;
pub mod store;
