//! The attribute belongs on a trait.

#[wallaby::service]
struct Clock {
    now: u64,
}

#[wallaby::service]
impl Clock {
    fn now(&self) -> u64 {
        self.now
    }
}

fn main() {}
