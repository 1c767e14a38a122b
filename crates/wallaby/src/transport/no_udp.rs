//! In place of UDP sockets on systems for which there are none yet: to make one is an error, so nothing else is ever called.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::Transports;

/// A socket that nobody can have.
#[derive(Debug)]
pub(crate) struct Socket(Infallible);

/// What would be sent through it.
#[derive(Debug)]
pub(crate) struct Outbox(Infallible);

/// What would be received.
pub(crate) struct Inbox;

impl Socket {
    pub(crate) fn bind(_: SocketAddr, _: &Transports) -> io::Result<Self> {
        let why = "udp: works on Linux only; use tcp:";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    pub(crate) fn towards(to: SocketAddr, transports: &Transports) -> io::Result<Self> {
        Self::bind(to, transports)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        match self.0 {}
    }

    pub(crate) fn outbox(&self) -> Outbox {
        match self.0 {}
    }

    pub(crate) fn poll_receive(&self, _: &mut Context<'_>, _: &mut Inbox) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    pub(crate) fn send_all(&self, _: &mut Outbox) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    pub(crate) fn take_unreachable(&self) -> Option<SocketAddr> {
        match self.0 {}
    }
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_full(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        match self.0 {}
    }

    pub(crate) fn push(&mut self, _: SocketAddr, _: usize) {
        match self.0 {}
    }
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn take(&mut self, _: impl FnMut(SocketAddr, Bytes)) {}
}
