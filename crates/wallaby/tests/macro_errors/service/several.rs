//! All errors of a trait are reported at once, and methods without one are there: `now` and its client raise no error.

#[wallaby::service(packet = "demo")]
trait Clock {
    async fn now() -> u64;
    async fn set(&self, time: u64);
    fn zone(of: &str) -> String;
    async fn at(place: String) -> u64 {
        0
    }
}

struct Sundial;

#[wallaby::serve]
impl Clock for Sundial {
    async fn now(&self) -> u64 {
        12
    }
}

fn main() {
    let _targets = clock::now();
    let _service = clock::service(Sundial);
}
