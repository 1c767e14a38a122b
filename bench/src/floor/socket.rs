//! TCP and unix streams behind one type, connected so that both ends know who the other is.

use crate::fleet::{ServerConfig, Transport};
use crate::plan::CLIENT;
use anyhow::{Context, Result, bail, ensure};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// A connected stream. One thread may read it while another writes.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server and says who connects: a server, or [`CLIENT`], which waits for a [`WELCOME`].
    pub(crate) fn connect(transport: Transport, address: &str, who: u8) -> Result<Self> {
        let stream = match transport {
            Transport::Tcp => TcpStream::connect(address).map(Self::Tcp),
            Transport::Unix => UnixStream::connect(address).map(Self::Unix),
            Transport::Udp | Transport::Shm => bail!("{transport} has no sockets with connections"),
        };
        let stream = stream.with_context(|| format!("can't connect to {address}"))?;
        stream.hurry()?;
        stream.write_all(&[who])?;
        if who == CLIENT {
            // Another server's message must not arrive before the server knows whom to answer.
            stream.limit_reads(Some(INTRODUCTION))?;
            let mut welcome = [0];
            let count = stream
                .read(&mut welcome)
                .context("a server does not answer")?;
            ensure!(count == 1, "a server closed its connection");
            stream.limit_reads(None)?;
        }
        Ok(stream)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => { stream }.read(buffer),
            Self::Unix(stream) => { stream }.read(buffer),
        }
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => { stream }.write_all(bytes),
            Self::Unix(stream) => { stream }.write_all(bytes),
        }
    }

    /// Writes as much as fits now.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => { stream }.write(bytes),
            Self::Unix(stream) => { stream }.write(bytes),
        }
    }

    /// From now on nothing waits here.
    pub(crate) fn stop_blocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Ends the connection: whoever waits for it is woken.
    pub(crate) fn shut_down(&self) {
        // It may already be closed, which is as good.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn hurry(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }

    fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(limit),
            Self::Unix(stream) => stream.set_read_timeout(limit),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Where a server is connected to.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) fn bind(config: &ServerConfig) -> Result<Self> {
        Ok(match config.transport {
            Transport::Tcp => Self::Tcp(TcpListener::bind("127.0.0.1:0")?),
            Transport::Unix => {
                let path = config.socket();
                let listener = UnixListener::bind(&path);
                Self::Unix(listener.with_context(|| format!("can't listen at {}", path.display()))?)
            }
            transport @ (Transport::Udp | Transport::Shm) => {
                bail!("{transport} has no sockets with connections")
            }
        })
    }

    pub(crate) fn address(&self) -> Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().context("a socket without a path")?;
                path.to_str()
                    .context("the folder for sockets is not UTF-8")?
                    .to_owned()
            }
        })
    }

    /// Waits for the next connection; yields whether it is the client's.
    pub(crate) fn accept(&self) -> Result<(Stream, bool)> {
        let stream = match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        };
        stream.hurry()?;
        stream.limit_reads(Some(INTRODUCTION))?;
        let mut who = [0];
        if stream.read(&mut who)? == 0 {
            bail!("a connection ended before it said whose it is");
        }
        stream.limit_reads(None)?;
        Ok((stream, who == [CLIENT]))
    }
}

/// What a server says to its client when it is ready to answer it.
pub(crate) const WELCOME: [u8; 1] = [1];

/// Who connects says at once who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);
