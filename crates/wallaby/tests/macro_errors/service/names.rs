//! Names that would clash on the wire or in the generated module.

#[wallaby::service]
trait Clock {
    async fn now() -> u64;
    async fn now() -> u64;
    async fn zone_of(place: String) -> String;
    async fn zoneOf(place: String) -> String;
    async fn at(place: String) -> u64;
    async fn within(place: String) -> u64;
    async fn service() -> String;
}

#[wallaby::service]
trait index {
    async fn lookup(word: String);
}

#[wallaby::service]
trait Crate {
    async fn open();
}

fn main() {}
