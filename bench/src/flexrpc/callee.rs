//! The servers: each takes an argument and answers with nothing.

use super::{Caller, floor, on_onc, on_polling, on_tirpc, on_wallaby};
use crate::fleet::{Fleet, ServerConfig};
use crate::stack::{Own, Stack};
use crate::tirpc;
use anyhow::Result;

/// What a call is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Callee {
    /// Bare loops on blocking sockets.
    Floor,
    /// libtirpc.
    Tirpc,
    /// wallaby-onc on tokio.
    Onc,
    /// Wallaby's own protocol, on tokio.
    Wallaby,
    /// Wallaby's own protocol, by the polling driver.
    Polling,
}

impl Callee {
    const OF_THIS_BENCHMARK: [Self; 3] = [Self::Floor, Self::Tirpc, Self::Onc];

    /// By which a server's process finds it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Floor => "flexrpc-floor",
            Self::Tirpc => "flexrpc-libtirpc",
            Self::Onc => "flexrpc-onc",
            Self::Wallaby => Own::Wallaby.name(),
            Self::Polling => Own::WallabyPolling.name(),
        }
    }

    /// Its name in result rows of single calls.
    pub(super) fn system(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Tirpc => "libtirpc",
            Self::Onc => "wallaby-onc",
            Self::Wallaby => "wallaby",
            Self::Polling => "wallaby-polling",
        }
    }

    pub(super) fn connect(
        self,
        mut fleet: Fleet,
        config: &ServerConfig,
    ) -> Result<Box<dyn Caller>> {
        fleet.connect(None)?;
        Ok(match self {
            Self::Floor => Box::new(floor::Floor::connect(fleet, config)?),
            Self::Tirpc => Box::new(on_tirpc::Tirpc::connect(fleet, config)?),
            Self::Onc => Box::new(on_onc::Onc::connect(fleet, config)?),
            Self::Wallaby => Box::new(on_wallaby::Wallaby::connect(fleet, config)?),
            Self::Polling => Box::new(on_polling::Polling::connect(fleet, config)?),
        })
    }
}

/// Runs the server of this benchmark that a configuration names, until its client has gone; none: it is no such server's.
pub(crate) fn serve(config: &ServerConfig) -> Option<Result<()>> {
    let named = |callee: &Callee| callee.name() == config.stack;
    let callee = Callee::OF_THIS_BENCHMARK.into_iter().find(named)?;
    Some(match callee {
        Callee::Tirpc => tirpc::serve(config, on_tirpc::BUFFER),
        Callee::Onc => on_onc::serve(config),
        Callee::Floor | Callee::Wallaby | Callee::Polling => floor::serve(config),
    })
}
