//! The attribute belongs on the implementation of a service.

struct Clock;

#[wallaby::serve]
impl Clock {
    async fn now(&self) -> u64 {
        0
    }
}

#[wallaby::serve]
fn now() -> u64 {
    0
}

#[wallaby::serve]
impl !Send for Clock {}

fn main() {}
