//! Whether anybody listens to what is logged: what makes up events stays out of the way of calls.

use tracing::level_filters::LevelFilter;

/// Whether a subscriber may want events and spans of level DEBUG.
pub(crate) fn debugs() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}
