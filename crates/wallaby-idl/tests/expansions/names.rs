//! Names that meet what the macro generates: raw identifiers, options, arguments, and types.

#[wallaby::service(package = "demo")]
pub trait HTTPFile {
    async fn r#type(r#match: u8) -> Client;
    async fn deadline(request: Vec<Client>, server: [Requests; SERVICE.len()]) -> Many<TYPE>;
    async fn metadata() -> [u8; deadline()];
    async fn getAttr(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) -> Server;
}
