//! The attribute before the `impl` was forgotten.

use wallaby::Status;

#[wallaby::service]
trait Index {
    async fn count(word: String) -> u64;
}

struct Empty;

impl Index for Empty {
    async fn count(&self, word: String) -> Result<u64, Status> {
        Ok(word.len() as u64)
    }
}

fn main() {}
