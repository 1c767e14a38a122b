//! Every method is `async fn` and nothing more.

#[wallaby::service]
trait Clock {
    fn now() -> u64;
    async unsafe fn set(time: u64);
    async extern "C" fn stop();
}

fn main() {}
