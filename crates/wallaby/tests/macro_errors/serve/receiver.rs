//! A handler shares its server with all others.

#[wallaby::service]
trait Clock {
    async fn now() -> u64;
    async fn set(time: u64);
    async fn zone() -> String;
    async fn stop();
    async fn start();
}

struct Sundial;

#[wallaby::serve]
impl Clock for Sundial {
    async fn now() -> u64 {
        0
    }
    async fn set(&mut self, time: u64) {
        drop(time);
    }
    async fn zone(self) -> String {
        String::new()
    }
    async fn stop(self: std::sync::Arc<Self>) {}
    async fn start(self: &std::sync::Arc<Self>) {}
}

fn main() {}
