//! The peers that Wallaby is compared with.

use crate::on_nats::Nats;
use crate::on_onc::Onc;
use crate::on_tarpc::Tarpc;
use crate::on_tonic::Tonic;
use crate::{on_nats, program};
use std::process::Command;
use wallaby_bench::Own;
use wallaby_bench::stack::Stack;
use wallaby_bench::tirpc;

/// A system that is measured beside Wallaby, perhaps in several ways.
#[derive(Debug)]
pub struct Peer {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is measured, and how it is configured.
    pub about: &'static str,
    /// What has to be installed, and which Debian packages have it; empty if cargo fetches all of it.
    pub needs: &'static str,
    stacks: &'static [&'static dyn Stack],
    version: fn() -> Option<String>,
}

impl Peer {
    /// The ways in which it is measured; empty if something is missing, which [`Peer::notice`] says.
    pub fn stacks(&self) -> &'static [&'static dyn Stack] {
        match self.version() {
            Some(_) => self.stacks,
            None => &[],
        }
    }

    /// Its version; none: it is not there.
    pub fn version(&self) -> Option<String> {
        (!self.stacks.is_empty()).then_some(())?;
        (self.version)()
    }

    /// What is missing and how it is installed, if anything is.
    pub fn notice(&self) -> Option<String> {
        let Self { name, needs, .. } = self;
        self.stacks().is_empty().then(|| {
            format!("{name} is skipped: it needs {needs}; 'scripts/setup.sh peers' installs that")
        })
    }
}

/// All of them.
pub static PEERS: &[Peer] = &[
    Peer {
        name: "tonic",
        about: "gRPC in Rust: defaults, on the current-thread runtime (tonic) and on the multi-thread one (tonic-threads)",
        needs: "",
        stacks: &[&Tonic::CurrentThread, &Tonic::MultiThread],
        version: || Some(format!("tonic {}", env!("VERSION_tonic"))),
    },
    Peer {
        name: "tarpc",
        about: "RPC by a Rust trait: TCP, bincode, defaults, current-thread runtime",
        needs: "",
        stacks: &[&Tarpc],
        version: || Some(format!("tarpc {}", env!("VERSION_tarpc"))),
    },
    Peer {
        name: "capnp",
        about: "Cap'n Proto RPC in Rust: two-party connections over buffered streams, current-thread runtime",
        needs: "the compiler capnp when this program is built (Debian: capnproto)",
        stacks: CAPNP,
        version: || Some(format!("capnp-rpc {}", env!("VERSION_capnp_rpc"))),
    },
    Peer {
        name: "nats",
        about: "a nats-server with defaults between client and servers; nats-forward keeps the reply subject",
        needs: "the program nats-server (Debian: nats-server)",
        stacks: &[&Nats],
        version: nats_version,
    },
    Peer {
        name: "onc",
        about: "ONC RPC by libtirpc over UDP and TCP: svc_run, a handle for each server; calls under way are threads",
        needs: "libtirpc's headers and a C compiler (Debian: libtirpc-dev, gcc, pkg-config)",
        stacks: &[&Onc],
        version: tirpc::version,
    },
    Peer {
        name: "thrift",
        about: "Thrift in C++: threaded server, buffered transports, binary protocol; calls under way share a connection",
        needs: "Thrift's compiler, library and a C++ compiler when this program is built \
                (Debian: thrift-compiler, libthrift-dev, libboost-dev, g++, pkg-config)",
        stacks: THRIFT,
        version: || Some(format!("Thrift {}", option_env!("VERSION_thrift")?)),
    },
];

#[cfg(have_capnp)]
const CAPNP: &[&dyn Stack] = &[&crate::on_capnp::CapnProto];
#[cfg(not(have_capnp))]
const CAPNP: &[&dyn Stack] = &[];

#[cfg(have_thrift)]
const THRIFT: &[&dyn Stack] = &[&crate::on_thrift::Thrift];
#[cfg(not(have_thrift))]
const THRIFT: &[&dyn Stack] = &[];

fn nats_version() -> Option<String> {
    let output = Command::new(program::find(on_nats::SERVER)?)
        .arg("--version")
        .output()
        .ok()?;
    let server = String::from_utf8(output.stdout)
        .ok()?
        .trim()
        .replace(": v", " ");
    Some(format!(
        "{server}, async-nats {}",
        env!("VERSION_async_nats")
    ))
}

/// Everything that this program can run a server of: Wallaby and the floors, and all peers.
pub fn all_stacks() -> Vec<&'static dyn Stack> {
    let peers = PEERS.iter().flat_map(|peer| peer.stacks);
    Own::ALL.iter().chain(peers).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_says_what_it_needs() {
        let missing = Peer {
            name: "some",
            about: "",
            needs: "its compiler (Debian: some-compiler)",
            stacks: &[],
            version: || Some("1".into()),
        };
        assert_eq!(missing.version(), None);
        let notice = missing.notice().unwrap();
        for part in ["some is skipped", "some-compiler", "scripts/setup.sh peers"] {
            assert!(notice.contains(part), "{notice}");
        }
        let there = Peer {
            stacks: &[&Tarpc],
            ..missing
        };
        assert_eq!((there.notice(), there.stacks().len()), (None, 1));
    }
}
