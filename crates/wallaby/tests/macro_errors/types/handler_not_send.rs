//! A handler may run on any thread.

use std::rc::Rc;

#[wallaby::service]
trait Clock {
    async fn now() -> u64;
    async fn zone() -> String;
}

struct Sundial;

#[wallaby::serve]
impl Clock for Sundial {
    async fn now(&self) -> u64 {
        let time = Rc::new(12);
        std::future::ready(()).await;
        *time
    }
    async fn zone(&self) -> String {
        let zone: u64 = "sun";
        zone.to_string()
    }
}

fn main() {}
