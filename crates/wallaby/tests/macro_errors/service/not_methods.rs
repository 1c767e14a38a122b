//! A service has methods and nothing else.

#[wallaby::service]
unsafe trait Clock: Clone {
    const ZONE: u64;
    type Time;
    async fn now() -> u64;
}

fn main() {}
