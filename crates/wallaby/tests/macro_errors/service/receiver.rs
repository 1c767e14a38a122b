//! A service says what callers send; the server behind it is no part of that.

#[wallaby::service]
trait Clock {
    async fn now(&self) -> u64;
    async fn zone(self: std::sync::Arc<Self>, of: u64) -> String;
}

fn main() {}
