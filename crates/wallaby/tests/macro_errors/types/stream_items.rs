//! A stream has the items of its service, at the caller and in the handler.

use wallaby::{Status, Streaming};

#[wallaby::service]
trait Meter {
    async fn sum(from: u64, values: Streaming<u64>) -> u64;
}

struct Words;

#[wallaby::serve]
impl Meter for Words {
    async fn sum(&self, from: u64, mut values: Streaming<String>) -> Result<u64, Status> {
        while let Some(value) = values.next().await {
            drop(value?);
        }
        Ok(from)
    }
}

fn sum(client: &meter::Client) {
    let _call = client.sum(1, wallaby::items(["a", "b"]));
    let _call = client.sum(1, vec![1_u64, 2]);
    let _target = meter::sum(1, 2);
}

fn main() {}
