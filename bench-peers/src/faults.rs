//! What a caller reads when something breaks, and how soon: tonic's words beside Wallaby's, for the same faults of the same
//! processes, with the defaults of both.
//!
//! A front server asks three shards. Each takes two seconds, and it is the middle one that something happens to after one. With
//! tonic the front calls the shards and hands on the first error that one of them is; with Wallaby it delegates to them.

mod on_tonic;
mod on_wallaby;
mod process;

use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tokio::time::timeout;

use self::process::Tree;

/// How long it is waited for a word: what comes later, or never, is told as nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// What happens to the middle shard, or to the call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Hangs,
    Killed,
    Stopped,
    ShutDown,
    ShutDownBefore,
    GivenUp,
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::Hangs, "one shard hangs; the call has 3 s"),
    (Fault::Killed, "one shard is killed"),
    (Fault::Stopped, "one shard is stopped (SIGSTOP)"),
    (
        Fault::ShutDown,
        "one shard is shut down properly while it works",
    ),
    (Fault::ShutDownBefore, "the same; a call that comes later"),
    (
        Fault::GivenUp,
        "the call is given up; one shard goes on all the same",
    ),
];

impl Fault {
    /// What the middle shard is asked to do.
    fn asks_for(self) -> &'static str {
        match self {
            Self::Hangs => "hang",
            Self::GivenUp => "block",
            _ => "work",
        }
    }

    fn deadline(self) -> Option<Duration> {
        (self == Self::Hangs).then_some(Duration::from_secs(3))
    }

    /// Does it.
    fn happen(self, tree: &mut Tree) -> Result<()> {
        match self {
            Self::Hangs | Self::GivenUp => Ok(()),
            Self::Killed => tree.shards[1].kill(),
            Self::Stopped => tree.shards[1].freeze(),
            Self::ShutDown | Self::ShutDownBefore => tree.shards[1].shut_down(),
        }
    }
}

/// Which system.
#[derive(Debug, Clone, Copy)]
enum System {
    Tonic,
    Wallaby,
}

impl System {
    const ALL: [Self; 2] = [Self::Tonic, Self::Wallaby];

    fn name(self) -> &'static str {
        match self {
            Self::Tonic => "tonic",
            Self::Wallaby => "wallaby",
        }
    }

    fn named(name: &str) -> Result<Self> {
        let system = Self::ALL.into_iter().find(|system| system.name() == name);
        system.with_context(|| format!("there is no system {name:?}"))
    }

    /// What its caller reads, and after how long: from the fault on, or from the call's beginning where that is the fault.
    async fn read(self, fault: Fault) -> Result<(String, Duration)> {
        let mut tree = Tree::start(self.name())?;
        if fault == Fault::ShutDownBefore {
            // The front has connections to all shards.
            self.call(&tree.front.address, Fault::ShutDown, Instant::now())
                .await?;
            fault.happen(&mut tree)?;
            tree.shards[1].wait_for_end()?;
            return self.call(&tree.front.address, fault, Instant::now()).await;
        }
        let (begun, front) = (Instant::now(), tree.front.address.clone());
        let (call, harm) = tokio::join!(self.call(&front, fault, begun), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fault.happen(&mut tree)?;
            Ok::<_, anyhow::Error>(Instant::now())
        });
        let ((text, after), harmed) = (call?, harm?);
        let from = match fault {
            Fault::Hangs => Duration::ZERO,
            _ => harmed - begun,
        };
        Ok((text, after.saturating_sub(from)))
    }

    async fn call(self, front: &str, fault: Fault, begun: Instant) -> Result<(String, Duration)> {
        let read = async {
            match self {
                Self::Tonic => on_tonic::call(front, fault).await,
                Self::Wallaby => on_wallaby::call(front, fault).await,
            }
        };
        let text = match timeout(PATIENCE, read).await {
            Ok(text) => text?,
            Err(_) => format!("nothing for {PATIENCE:?}"),
        };
        Ok((text, begun.elapsed()))
    }
}

/// The table of all faults, as Markdown.
///
/// # Errors
///
/// If processes cannot be started or harmed.
pub fn table() -> Result<String> {
    let runtime = crate::calls::multi_thread()?;
    let mut table = String::from(
        "| fault | with tonic | after | with Wallaby | after |\n|---|---|---|---|---|\n",
    );
    for (fault, about) in FAULTS {
        write!(table, "| {about} |")?;
        for system in System::ALL {
            let (text, after) = runtime.block_on(system.read(fault))?;
            write!(
                table,
                " {} | {} ms |",
                text.replace('|', "\\|"),
                after.as_millis()
            )?;
        }
        table.push('\n');
    }
    Ok(table)
}

/// Is a server of [`table`]: `SYSTEM shard`, or `SYSTEM front SHARD...`.
///
/// # Errors
///
/// If the arguments are others, or it cannot listen.
pub fn serve(arguments: &[String]) -> Result<()> {
    let [system, role, shards @ ..] = arguments else {
        bail!("expected SYSTEM ROLE [SHARD...], got {arguments:?}");
    };
    let shards = (role == "front").then_some(shards);
    let runtime = crate::calls::multi_thread()?;
    let served = match System::named(system)? {
        System::Tonic => runtime.block_on(on_tonic::serve(shards)),
        System::Wallaby => runtime.block_on(on_wallaby::serve(shards)),
    };
    runtime.shutdown_background(); // handlers that block are not waited for
    served
}
