//! A service has no provided methods.

#[wallaby::service]
trait Clock {
    async fn now() -> u64 {
        0
    }
}

fn main() {}
