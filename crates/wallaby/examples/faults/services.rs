//! A library: an index, and shelves that it asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wallaby::{Address, Many, One, Request, Status};

/// How a shelf ends a search, after its first two answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum How {
    /// Two seconds later, with a third.
    Work,
    /// Never.
    Hang,
    /// With a status.
    Refuse,
    /// With a panic.
    Panic,
    /// The same, without a word before.
    Mute,
}

#[wallaby::service(package = "library")]
pub(crate) trait Index {
    /// All shelves look; the middle one ends so, and has so many milliseconds if that is said.
    async fn lookup(how: How, limit_ms: Option<u64>) -> Many<String>;
}

#[wallaby::service(package = "library")]
pub(crate) trait Shelf {
    async fn find(how: How) -> Many<String>;
    async fn read(volume: u32) -> String;
    /// Answers late.
    async fn count() -> String;
    async fn add(volume: Vec<u8>) -> String;
    /// Does not answer.
    async fn forget() -> String;
    /// Blocks a thread for a minute.
    async fn sort() -> Many<String>;
}

/// What another version of the program takes for a shelf.
pub(crate) mod other {
    #[wallaby::service(package = "library")]
    pub(crate) trait Shelf {
        async fn read(volume: String) -> String;
        async fn borrow(volume: u32) -> String;
    }
}

/// Knows who has what.
pub(crate) struct MyIndex {
    pub(crate) shelves: Vec<Address>,
}

#[wallaby::serve]
impl Index for MyIndex {
    async fn lookup(
        &self,
        request: Request<Many<String>>,
        how: How,
        limit_ms: Option<u64>,
    ) -> Result<(), Status> {
        for (number, address) in self.shelves.iter().enumerate() {
            let how = if number == 1 { how } else { How::Work };
            let mut to_shelf = request.delegate(address, shelf::find(how));
            if let (1, Some(limit)) = (number, limit_ms) {
                to_shelf = to_shelf.deadline(Duration::from_millis(limit));
            }
            to_shelf.await?;
        }
        Ok(())
    }
}

pub(crate) struct MyShelf;

#[wallaby::serve]
impl Shelf for MyShelf {
    async fn find(&self, request: Request<Many<String>>, how: How) -> Result<(), Status> {
        if !matches!(how, How::Mute) {
            request.reply("volume 1".into()).await?;
            request.reply("volume 2".into()).await?;
            request.flush().await;
        }
        match how {
            How::Work => {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok(request.respond("volume 3".into()).await?)
            }
            How::Hang | How::Mute => std::future::pending().await,
            How::Refuse => Err(Status::failed_precondition("the shelf is being sorted")),
            How::Panic => panic!("volume 3 has no page 7"),
        }
    }

    async fn read(&self, volume: u32) -> Result<String, Status> {
        match volume {
            0 => Err(Status::not_found("no volume 0")),
            volume => Ok(format!("volume {volume}")),
        }
    }

    async fn count(&self) -> String {
        tokio::time::sleep(Duration::from_secs(1)).await;
        "3 volumes".into()
    }

    async fn add(&self, volume: Vec<u8>) -> String {
        format!("{} bytes", volume.len())
    }

    async fn forget(&self, request: Request<One<String>>) -> Result<(), Status> {
        drop(request);
        Ok(())
    }

    fn sort(&self, request: Request<Many<String>>) -> Result<(), Status> {
        request.blocking_reply("it begins".into())?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
}
