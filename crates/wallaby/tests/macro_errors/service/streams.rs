//! A method has one stream, which is its last argument; its answers are any number.

#[wallaby::service]
trait Store {
    async fn first(rows: Streaming<u64>, table: String);
    async fn both(content: Body, rows: Streaming<u64>);
    async fn untyped(rows: Streaming);
    async fn coded(rows: wallaby::Streaming<u64, Raw>);
    async fn answers() -> Streaming<u64>;
}

fn main() {}
