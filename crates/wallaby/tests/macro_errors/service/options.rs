//! What may stand in the parentheses.

#[wallaby::service(name = "demo", version = 2, package = "demo")]
trait Unknown {
    async fn now() -> u64;
}

#[wallaby::service(package = "demo", package = "demo")]
trait Twice {
    async fn now() -> u64;
}

#[wallaby::service(package = "wallaby.health")]
trait Reserved {
    async fn now() -> u64;
}

#[wallaby::service(package = "demo/search")]
trait Slash {
    async fn now() -> u64;
}

#[wallaby::service(package = "")]
trait Empty {
    async fn now() -> u64;
}

#[wallaby::service(package = demo)]
trait Unquoted {
    async fn now() -> u64;
}

#[wallaby::service(codec = "raw")]
trait Quoted {
    async fn now() -> u64;
}

#[wallaby::service(crate = "wallaby")]
trait NoPath {
    async fn now() -> u64;
}

#[wallaby::service(crate = wallaby, crate = wallaby)]
trait TwiceCrate {
    async fn now() -> u64;
}

fn main() {}
