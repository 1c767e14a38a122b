//! Files copied from one server of NFS to another, many parts at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::ValueEnum;
use tokio::task::JoinSet;
use wallaby::Caller;
use wallaby_chain::{ChainCode, Hop, Link, State, start_by};
use wallaby_onc::endpoint::XdrCodec;

use crate::nfs::{Export, Failed, NfsFh3, Patience, Place, methods, written};

/// The function that makes a `WRITE` of what `READ` has answered, which servers are brought along: `write` of
/// `crates/wallaby-chain-guest/examples/copy.rs`.
pub(crate) const FUNCTIONS: &[u8] = include_bytes!("copy.wasm");

/// Bytes that are read and written at a time.
pub(crate) const PART: u32 = 16 << 10;

/// How a file comes from one server to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Through this client, which reads here and writes there
    Calls,
    /// Straight from server to server
    Chain,
}

/// Copies files.
#[derive(Clone, Debug)]
pub(crate) struct Copier {
    pub(crate) caller: Caller,
    pub(crate) functions: ChainCode,
    pub(crate) by: By,
    /// Parts under way at a time.
    pub(crate) window: usize,
    pub(crate) patience: Patience,
}

/// What was copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    /// Of all the time, that of reading and writing alone.
    pub(crate) moving: Duration,
}

/// A file that is being copied.
#[derive(Clone, Debug)]
struct Copy {
    copier: Copier,
    from: Export,
    source: NfsFh3,
    to: Export,
    target: NfsFh3,
    bytes: u64,
}

impl Copier {
    /// Copies a file. It has its name when all of it is there: before that, and after a failure, what has that name is as it was.
    ///
    /// # Errors
    ///
    /// Which server has failed, and how; or that the file has changed meanwhile.
    pub(crate) async fn copy(
        &self,
        (from, source): (&Export, &str),
        (to, target): (&Export, &str),
    ) -> anyhow::Result<Copied> {
        let part = format!(".{target}.{:016x}.part", fastrand::u64(..));
        let copied = self.copy_to(&part, (from, source), (to, target)).await;
        if copied.is_err() {
            to.remove(&part).await;
        }
        copied
    }

    async fn copy_to(
        &self,
        part: &str,
        (from, source): (&Export, &str),
        (to, target): (&Export, &str),
    ) -> anyhow::Result<Copied> {
        let ((file, before), created) =
            tokio::try_join!(from.find(source), to.create(part, 0o644))?;
        let copy = Copy {
            copier: self.clone(),
            from: from.clone(),
            source: file,
            to: to.clone(),
            target: created,
            bytes: before.size,
        };
        let begun = Instant::now();
        copy.move_all().await?;
        let moving = begun.elapsed();
        let after = from.known(&copy.source).await?;
        ensure!(
            (before.size, &before.mtime) == (after.size, &after.mtime),
            "{}: {source} has changed while it was copied",
            from.server()
        );
        to.rename(&copy.target, part, target).await?;
        Ok(Copied {
            bytes: before.size,
            moving,
        })
    }
}

impl Copy {
    /// All parts, of which some are under way at a time. What fails first ends the others.
    async fn move_all(&self) -> anyhow::Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..self
            .copier
            .window
            .min(self.bytes.div_ceil(PART.into()) as usize)
        {
            let (copy, next) = (self.clone(), Arc::clone(&next));
            workers.spawn(async move {
                loop {
                    let offset = next.fetch_add(PART.into(), Ordering::Relaxed);
                    let left = copy.bytes.saturating_sub(offset);
                    if left == 0 {
                        return anyhow::Ok(());
                    }
                    copy.move_part(offset, left.min(PART.into()) as u32).await?;
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            done??;
        }
        Ok(())
    }

    /// One part, in several steps where a server reads or writes less than it is asked to.
    async fn move_part(&self, mut offset: u64, mut count: u32) -> anyhow::Result<()> {
        while count > 0 {
            let file = &self.source;
            let place = Place {
                file,
                offset,
                count,
            };
            let moved = match self.copier.by {
                By::Calls => self.by_calls(place).await?,
                By::Chain => self.by_chain(place).await?,
            };
            if moved == 0 || moved > count {
                bail!("{}: {moved} of {count} bytes written", self.to.server());
            }
            (offset, count) = (offset + u64::from(moved), count - moved);
        }
        Ok(())
    }

    async fn by_calls(&self, place: Place<'_>) -> anyhow::Result<u32> {
        let patience = self.copier.patience;
        let data = patience.wait_for(|| self.from.read(place)).await;
        let data = data.map_err(|failed| self.from.told(failed, "READ"))?;
        ensure!(
            !data.is_empty(),
            "{}: the file has become shorter",
            self.from.server()
        );
        let write = || self.to.write(&self.target, place.offset, data.clone());
        let written = patience.wait_for(write).await;
        written.map_err(|failed| self.to.told(failed, "WRITE"))
    }

    async fn by_chain(&self, place: Place<'_>) -> anyhow::Result<u32> {
        let state = State::new()
            .with("to", &Link::to(self.to.server(), &methods::NFSPROC3_WRITE))?
            .with("file", &self.target.data.to_vec())?
            .with("offset", &place.offset)?;
        let chain = || async {
            let read = methods::Nfsproc3ReadArguments(place.read());
            let read = Hop::to(self.from.server(), &methods::NFSPROC3_READ, read);
            let write = self.copier.functions.function("write");
            let chain =
                start_by::<methods::Nfsproc3WriteResult, XdrCodec>(read.then(write, state.clone()));
            let call = chain
                .call(self.copier.caller.clone())
                .map_err(Failed::Chain)?;
            written(call.await?.0)
        };
        let written = self.copier.patience.wait_for(chain).await;
        written.map_err(|failed| self.to.told(failed, "READ and WRITE"))
    }
}
