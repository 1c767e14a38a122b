//! Streams that follow requests: of items, of bytes, with a codec, and of a type that the module hides.

#[wallaby::service(package = "demo")]
pub trait Store {
    /// Loads rows.
    async fn load(table: String, rows: Streaming<Row>) -> u64;
    async fn copy(rows: wallaby::Streaming<Client>) -> Many<Client>;
    async fn put(name: String, content: Body);
}

#[wallaby::service(package = "demo", codec = self::codec::Plain)]
trait Blobs {
    #[cfg(unix)]
    async fn join(blobs: Streaming<super::Blob>) -> wallaby::One<u8>;
    async fn body(body: Body<u8>) -> Body;
}
