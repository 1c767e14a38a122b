//! The tests of this crate, a module for each subject, in one program.

#[path = "../../examples/scrape.rs"]
#[allow(dead_code, reason = "its main")]
mod scrape;

mod exposition;
mod labels;
mod scraped;
