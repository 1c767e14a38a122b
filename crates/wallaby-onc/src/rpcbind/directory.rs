//! The table of an rpcbind: which program is where.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::client::Mapping;
use super::registration::addresses;
use super::statistics::Counting;
use super::{PROGRAM, netid, parse, service, universal_address};
use crate::auth::Principal;
use crate::peer::{Origin, Peer};
use crate::server::Server;
use crate::service::Programs;

/// Who may remove everything.
const SUPERUSER: &str = "superuser";

/// What a directory takes up and allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryOptions {
    /// Programs, versions and networks that may be registered, together; 4,096.
    pub max_mappings: usize,
    /// Whose calls are passed on to programs here.
    pub forward: Forward,
    /// Calls that are passed on at a time; 64. More fail.
    pub max_forwarded: usize,
    /// How long a call that is passed on may take; 5 s.
    pub forward_timeout: Duration,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self {
            max_mappings: 4096,
            forward: Forward::Local,
            max_forwarded: 64,
            forward_timeout: Duration::from_secs(5),
        }
    }
}

/// Whose calls an rpcbind passes on to programs of its machine (`CALLIT`, `BCAST`, `INDIRECT`). To those programs, they
/// come from this machine, whoever called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// Nobody's.
    Nobody,
    /// Those of callers on this machine.
    Local,
    /// Everybody's, as those who look for programs by broadcast need it.
    Everybody,
}

/// An rpcbind: serve [`programs`](Self::programs), and it can be registered with and asked, in versions 2, 3 and 4.
///
/// Programs are registered and forgotten only from this machine, and forgotten only by the user who registered them, or by
/// the superuser. Over TCP and UDP the system does not tell users: who has a port below 1024 counts as the superuser.
#[derive(Debug, Clone)]
pub struct Directory(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: DirectoryOptions,
    pub(super) forwarded: Semaphore,
    table: Mutex<BTreeMap<Key, Entry>>,
    counting: Mutex<Counting>,
}

/// Program, version, network id.
type Key = (u32, u32, &'static str);

#[derive(Debug, Clone)]
struct Entry {
    at: Peer,
    owner: String,
}

impl Directory {
    /// One in which nothing is registered.
    #[must_use]
    pub fn new(options: DirectoryOptions) -> Self {
        let forwarded = options.max_forwarded.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            options,
            forwarded: Semaphore::new(forwarded),
            table: Mutex::default(),
            counting: Mutex::new(Counting::new()),
        }))
    }

    /// Its versions 2, 3 and 4, to be served.
    #[must_use]
    pub fn programs(&self) -> Programs {
        service::programs(&self.0)
    }

    /// Registers the server of this directory in it.
    pub fn add_itself(&self, server: &Server) {
        for (program, version) in server.programs().served() {
            for at in addresses(server) {
                self.0.insert(program, version, at, SUPERUSER.to_owned());
            }
        }
    }

    /// All that is registered, in order.
    #[must_use]
    pub fn mappings(&self) -> Vec<Mapping> {
        self.0.mappings()
    }
}

impl Shared {
    pub(super) fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, program: u32, version: u32, at: Peer, owner: String) -> bool {
        let mut table = self.table();
        let key = (program, version, netid(&at));
        if let Some(entry) = table.get(&key) {
            return entry.at == at;
        }
        if table.len() >= self.options.max_mappings {
            return false;
        }
        table.insert(key, Entry { at, owner });
        true
    }

    /// Registers a program for a caller of this machine.
    pub(super) fn set(&self, caller: &Principal, program: u32, version: u32, at: Peer) -> bool {
        program != PROGRAM && self.insert(program, version, at, owner(caller))
    }

    /// Forgets a program for a caller of this machine: at these networks. As rpcbind has it, it is well if nothing is
    /// there, and `false` if something is there that stays.
    pub(super) fn unset(
        &self,
        caller: &Principal,
        program: u32,
        version: u32,
        is_meant: impl Fn(&str) -> bool,
    ) -> bool {
        if program == PROGRAM {
            return false;
        }
        let who = owner(caller);
        let mut is_refused = false;
        self.table().retain(|key, entry| {
            let is_it = (key.0, key.1) == (program, version) && is_meant(key.2);
            let is_own = who == SUPERUSER || who == entry.owner;
            is_refused |= is_it && !is_own;
            !(is_it && is_own)
        });
        !is_refused
    }

    /// Where a program is at this network. In another version, if that is allowed and there is no such one.
    pub(super) fn find(
        &self,
        program: u32,
        version: u32,
        netid: &str,
        any_version: bool,
    ) -> Option<Peer> {
        let table = self.table();
        let of_program = table
            .range((program, 0, "")..)
            .take_while(|(key, _)| key.0 == program);
        let mut latest = None;
        for (key, entry) in of_program.filter(|(key, _)| key.2 == netid) {
            if key.1 == version {
                return Some(entry.at.clone());
            }
            latest = Some(entry.at.clone());
        }
        latest.filter(|_| any_version)
    }

    /// Where a program is at all networks.
    pub(super) fn find_all(&self, program: u32, version: u32) -> Vec<Peer> {
        let table = self.table();
        let all = table
            .iter()
            .filter(|(key, _)| (key.0, key.1) == (program, version));
        all.map(|(_, entry)| entry.at.clone()).collect()
    }

    pub(super) fn mappings(&self) -> Vec<Mapping> {
        let table = self.table();
        let all = table.iter().map(|(key, entry)| Mapping {
            program: key.0,
            version: key.1,
            netid: key.2.to_owned(),
            address: universal_address(&entry.at),
            owner: entry.owner.clone(),
        });
        all.collect()
    }
}

/// Who registers something, as far as the system tells.
fn owner(caller: &Principal) -> String {
    let Some(origin) = &caller.origin else {
        return SUPERUSER.to_owned();
    };
    match (origin.uid, origin.peer.socket_address()) {
        (Some(0), _) => SUPERUSER.to_owned(),
        (Some(uid), _) => uid.to_string(),
        (None, Some(address)) if address.port() < 1024 => SUPERUSER.to_owned(),
        (None, _) => "unknown".to_owned(),
    }
}

/// Whether a caller is of this machine. Calls that come from no socket are.
pub(super) fn is_local(caller: &Principal) -> bool {
    let origin = caller.origin.as_ref();
    origin.is_none_or(|origin| origin.peer.is_local())
}

/// The network over which a caller asks. Over a unix socket, the one that it names, if it names one.
pub(super) fn asked_netid<'a>(caller: &Principal, named: &'a str) -> &'a str {
    match caller.origin.as_ref().map(|origin| netid(&origin.peer)) {
        None => named,
        Some("local") if !named.is_empty() => named,
        Some(netid) => netid,
    }
}

/// An address as a caller can use it: that of a program which listens everywhere becomes the one that the caller called.
pub(super) fn merged(at: &Peer, origin: Option<&Origin>) -> Peer {
    let merge = |address: &SocketAddr| {
        if !address.ip().is_unspecified() {
            return *address;
        }
        let called = origin.and_then(|origin| origin.local.socket_address());
        let called = called.map(|called| called.ip().to_canonical());
        let ip = called.filter(|ip| ip.is_ipv4() == address.is_ipv4());
        let loopback = match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        };
        SocketAddr::new(ip.unwrap_or(loopback), address.port())
    };
    match at {
        Peer::Tcp(address) => Peer::Tcp(merge(address)),
        Peer::Udp(address) => Peer::Udp(merge(address)),
        Peer::Unix(_) => at.clone(),
    }
}

/// The address that a mapping is about, if it is one that can be registered.
pub(super) fn registrable(netid: &str, address: &str) -> Option<Peer> {
    parse(netid, address).filter(|peer| {
        let port = peer.socket_address().map(|address| address.port());
        port != Some(0)
    })
}
