//! An answer is a type that both ends know.

#[wallaby::service]
trait Index {
    async fn opaque() -> impl Clone;
    async fn borrowed() -> &'static str;
    async fn untyped() -> Many;
    async fn pairs() -> wallaby::Many<u8, u8>;
    async fn constant() -> One<3>;
}

fn main() {}
