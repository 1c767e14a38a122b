//! All forms of handlers.

#[wallaby::serve]
impl Index for MyIndex {
    /// Answers through its request.
    async fn lookup(&self, request: Request<Many<Document>>, word: String) -> Result<(), Status> {
        request.reply(self.find(&word)).await
    }

    async fn forget(&self, request: Request<One<()>>, (from, to): (u64, u64)) {
        request.respond(()).await.ok();
    }

    async fn size(&self) -> u64 {
        self.words.len()
    }

    async fn first(self: &Arc<Self>, mut word: String, _: u8, _unused: u8) -> Result<Document, Status> {
        word.push('.');
        self.find(&word)
    }

    async fn clear(&self) {
        self.words.clear();
    }

    fn scan(&self, pattern: String) -> Result<u64, Status> {
        self.read(&pattern)
    }

    fn copy(&self, request: wallaby::Request<Many<Document>, Raw>) -> Result<(), Status> {
        self.copy_to(request)
    }

    fn sync(self: &std::sync::Arc<Self>, request: Request<One<()>>) {
        self.flush(request);
    }
}
