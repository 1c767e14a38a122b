//! Programs that know the framework by another name: from the module the same path leads to it.

#[framework::service(package = "demo", crate = self::facade::rpc)]
trait Index {
    async fn lookup(word: String, rows: Streaming<Row>) -> u64;
    async fn load(body: Body) -> ::wallaby::Many<u64>;
}

#[framework::serve(crate = self::facade::rpc)]
impl Index for MyIndex {
    async fn lookup(&self, word: String, rows: Streaming<Row>) -> u64 {
        ::wallaby::number()
    }

    fn load(&self, request: Request<Many<u64>>, body: Body) -> Result<(), Status> {
        self.load_from(body)
    }
}
