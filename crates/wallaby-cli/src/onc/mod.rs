//! `wallaby onc`: interface files of ONC RPC, and where its programs are.

mod ask;
mod generate;
mod rpcbind;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Onc {
    /// Compile an interface file (.x) to Rust: types, clients and servers for the crate wallaby-onc
    Gen(generate::Gen),
    /// Be the rpcbind of this machine, where programs register and clients find them
    Rpcbind(rpcbind::Rpcbind),
    /// List the programs that are registered at a machine
    List(ask::List),
    /// Call procedure 0 of a program, which does nothing: is it there, and how fast?
    Ping(ask::Ping),
}

impl Onc {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Gen(generate) => generate.run(),
            Self::Rpcbind(rpcbind) => rpcbind.run(),
            Self::List(list) => list.run(),
            Self::Ping(ping) => ping.run(),
        }
    }
}
