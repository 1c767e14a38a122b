//! What programs of several processes have in common.
//!
//! | module | what it holds |
//! |---|---|
//! | [`child`] | processes of this very program, and their side of it |
//! | [`page`] | files that tell other programs where a cluster is |
//! | [`scratch`] | folders for the sockets and books of one run |
//! | [`output`] | standard output, whose reader may have had enough; tables |
//! | [`ending`] | signals, and what a program exits with |
//! | `testing` | what tests of such programs have in common, with the feature of that name |

pub mod child;
pub mod ending;
pub mod output;
pub mod page;
pub mod scratch;
#[cfg(feature = "testing")]
pub mod testing;
