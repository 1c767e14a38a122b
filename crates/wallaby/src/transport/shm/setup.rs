//! How two processes come to share memory: once, over a unix socket.
//!
//! The dialler makes everything, so that strangers cannot make a server allocate anything. It sends its hello with three
//! descriptors, and the acceptor answers with a verdict:
//!
//! ```text
//! hello    magic (6 bytes)  version (u16)  capacity of a ring in bytes (u32)     12 bytes
//!          with: the memory, the bell that the dialler hears, the bell that the acceptor hears
//! answer   magic (6 bytes)  version (u16)  verdict (u16)                         10 bytes
//! ```
//!
//! Both processes must be the same user's. Descriptors are more than bytes: who gets one can be made to wait by it, and a
//! bell that somebody else has filled makes who rings it wait. Processes of one user can stop each other anyway.
//!
//! Nothing here waits: whoever drives a set-up calls again when the socket can be read.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use thiserror::Error;

use super::memory::{Memory, MemoryError};
use super::ring::{self, Side};

/// What both sides have when they agree, besides the socket: it says nothing more, but ends when the peer does.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) side: Side,
    pub(super) memory: Memory,
    pub(super) capacity: usize,
    /// Rung by the peer.
    pub(super) bell: OwnedFd,
    /// Rings at the peer.
    pub(super) peer_bell: OwnedFd,
}

/// What a dialler has offered, until it is answered.
#[derive(Debug)]
pub(super) struct Offer {
    /// Until it is known whether they agree.
    agreed: Option<Agreed>,
    /// The memory's.
    file: OwnedFd,
    answer: [u8; ANSWER],
    /// Bytes of the answer that have come.
    filled: usize,
}

/// Why two processes do not share memory.
#[derive(Debug, Error)]
pub(super) enum SetupError {
    #[error("{0}")]
    System(io::Error),
    #[error("the other process ended the set-up of shared memory")]
    Ended,
    #[error(
        "the other process is user {theirs}'s, not user {ours}'s: shm: connects those of one user"
    )]
    OtherUser { theirs: u32, ours: u32 },
    #[error("this is not how the set-up of shared memory begins: {what}")]
    Malformed { what: &'static str },
    #[error("version {theirs} of shared memory is not known here: this is version {VERSION}")]
    Version { theirs: u16 },
    #[error("rings of {capacity} bytes are not possible")]
    Capacity { capacity: u32 },
    #[error("the memory that was sent cannot be shared: {0}")]
    Memory(#[from] MemoryError),
    #[error("the other process refused to share memory: {0}")]
    Refused(Verdict),
}

/// An acceptor's answer, and its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[repr(u16)]
pub(super) enum Verdict {
    #[error("it does not")]
    Accepted = 0,
    #[error("it does not understand what was sent")]
    Malformed = 1,
    #[error("it has another version")]
    Version = 2,
    #[error("it does not take rings of this size")]
    Capacity = 3,
    #[error("the memory is not as it must be")]
    Memory = 4,
    #[error("this process is another user's")]
    OtherUser = 5,
    #[error("something failed there")]
    Failed = 6,
}

const MAGIC: [u8; 6] = *b"wb-shm";
const VERSION: u16 = 1;
const HELLO: usize = 12;
const ANSWER: usize = 10;

/// The memory and two bells.
const DESCRIPTORS: usize = 3;

/// What the system calls a bell.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// Strangers that wait until they are accepted; the system may take fewer.
const BACKLOG: i32 = 1024;

/// Listens at a path that only this user may connect to, whatever the umask is; nonblocking.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has a name: its file never has another mode.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl Offer {
    /// Offers rings of this capacity each over a new connection.
    pub(super) fn send(socket: impl AsFd, capacity: usize) -> Result<Self, SetupError> {
        check_user(&socket)?;
        let (memory, file) = Memory::create(ring::size(capacity))?;
        let (bell, peer_bell) = (new_bell()?, new_bell()?);
        let descriptors = [file.as_fd(), bell.as_fd(), peer_bell.as_fd()];
        match send_hello(&socket, &hello(capacity), &descriptors).map_err(SetupError::from) {
            Ok(()) | Err(SetupError::Ended) => {} // who has ended it already may have said why
            Err(error) => return Err(error),
        }
        Ok(Self {
            agreed: Some(Agreed {
                side: Side::Dialler,
                memory,
                capacity,
                bell,
                peer_bell,
            }),
            file,
            answer: [0; ANSWER],
            filled: 0,
        })
    }

    /// What they agree on, once; `None` while the answer is not there.
    pub(super) fn answered(&mut self, socket: impl AsFd) -> Result<Option<Agreed>, SetupError> {
        while self.filled < ANSWER {
            let rest = &mut self.answer[self.filled..];
            match rustix::net::recv(&socket, rest, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(SetupError::Ended),
                Ok((_, read)) => self.filled += read,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        check_answer(&self.answer)?;
        Memory::fix(&self.file)?;
        Ok(self.agreed.take())
    }
}

/// Takes what somebody offers who has connected; `None` while nothing has come.
pub(super) fn accept(socket: impl AsFd) -> Result<Option<Agreed>, SetupError> {
    let result = take_hello(&socket);
    let verdict = match &result {
        Ok(Some(_)) => Verdict::Accepted,
        Ok(None) => return Ok(None),
        Err(error) => error.verdict(),
    };
    // There is room for so little; an error means that the dialler has gone.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::send(&socket, &answer(verdict), flags);
    let agreed = result?;
    sent.map_err(io::Error::from)?;
    Ok(agreed)
}

fn take_hello(socket: impl AsFd) -> Result<Option<Agreed>, SetupError> {
    check_user(&socket)?;
    let (bytes, descriptors) = match receive_hello(&socket) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    };
    let capacity = read_hello(&bytes)?;
    let Ok([file, dialler_bell, acceptor_bell]) = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
    else {
        return Err(SetupError::Malformed {
            what: "it comes with the memory and two bells",
        });
    };
    for bell in [&dialler_bell, &acceptor_bell] {
        check_bell(bell)?;
    }
    let memory = Memory::adopt(&file, ring::size(capacity))?;
    Memory::fix(&file)?;
    Ok(Some(Agreed {
        side: Side::Acceptor,
        memory,
        capacity,
        bell: acceptor_bell,
        peer_bell: dialler_bell,
    }))
}

fn check_user(socket: impl AsFd) -> Result<(), SetupError> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(io::Error::from)?;
    let theirs = peer.uid.as_raw();
    let ours = rustix::process::geteuid().as_raw();
    if theirs != ours {
        return Err(SetupError::OtherUser { theirs, ours });
    }
    Ok(())
}

/// A descriptor that is readable when it was rung.
pub(super) fn new_bell() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Anything else could be readable for ever, or make wait or kill who writes to it.
fn check_bell(bell: &OwnedFd) -> Result<(), SetupError> {
    let file = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_raw_fd()))?;
    if file != Path::new(EVENTFD) {
        return Err(SetupError::Malformed {
            what: "a bell is an eventfd",
        });
    }
    let flags = rustix::fs::fcntl_getfl(bell).map_err(io::Error::from)?;
    Ok(rustix::fs::fcntl_setfl(bell, flags | OFlags::NONBLOCK).map_err(io::Error::from)?)
}

pub(super) fn hello(capacity: usize) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..6].copy_from_slice(&MAGIC);
    hello[6..8].copy_from_slice(&VERSION.to_be_bytes());
    hello[8..].copy_from_slice(&(capacity as u32).to_be_bytes());
    hello
}

/// The capacity of a ring.
fn read_hello(hello: &[u8]) -> Result<usize, SetupError> {
    let hello = <[u8; HELLO]>::try_from(hello).map_err(|_| match hello.len() {
        0 => SetupError::Ended,
        _ => SetupError::Malformed {
            what: "a hello has 12 bytes",
        },
    })?;
    let [magic @ .., v0, v1, c0, c1, c2, c3] = hello;
    if magic != MAGIC {
        return Err(SetupError::Malformed {
            what: "a hello begins otherwise",
        });
    }
    let theirs = u16::from_be_bytes([v0, v1]);
    if theirs != VERSION {
        return Err(SetupError::Version { theirs });
    }
    let capacity = u32::from_be_bytes([c0, c1, c2, c3]);
    if !ring::is_possible(capacity as usize) {
        return Err(SetupError::Capacity { capacity });
    }
    Ok(capacity as usize)
}

pub(super) fn answer(verdict: Verdict) -> [u8; ANSWER] {
    let mut answer = [0; ANSWER];
    answer[..6].copy_from_slice(&MAGIC);
    answer[6..8].copy_from_slice(&VERSION.to_be_bytes());
    answer[8..].copy_from_slice(&(verdict as u16).to_be_bytes());
    answer
}

fn check_answer(answer: &[u8; ANSWER]) -> Result<(), SetupError> {
    let [magic @ .., v0, v1, verdict0, verdict1] = *answer;
    if magic != MAGIC {
        return Err(SetupError::Malformed {
            what: "an answer begins otherwise",
        });
    }
    let verdict = match u16::from_be_bytes([verdict0, verdict1]) {
        0 => return Ok(()),
        1 => Verdict::Malformed,
        2 => {
            let theirs = u16::from_be_bytes([v0, v1]);
            return Err(SetupError::Version { theirs });
        }
        3 => Verdict::Capacity,
        4 => Verdict::Memory,
        5 => Verdict::OtherUser,
        _ => Verdict::Failed,
    };
    Err(SetupError::Refused(verdict))
}

impl From<io::Error> for SetupError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Ended,
            _ => Self::System(error),
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> Self {
        let kind = match &error {
            SetupError::System(_) | SetupError::Refused(_) => io::ErrorKind::Other,
            SetupError::Ended => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        match error {
            SetupError::System(error) => error,
            other => Self::new(kind, other),
        }
    }
}

impl SetupError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::OtherUser { .. } => Verdict::OtherUser,
            Self::Malformed { .. } => Verdict::Malformed,
            Self::Version { .. } => Verdict::Version,
            Self::Capacity { .. } => Verdict::Capacity,
            Self::Memory(_) => Verdict::Memory,
            Self::System(_) | Self::Ended | Self::Refused(_) => Verdict::Failed,
        }
    }
}

/// Sends a hello; descriptors go with its first byte.
pub(super) fn send_hello(
    socket: impl AsFd,
    hello: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let hello = [IoSlice::new(hello)];
    // A new socket has room for so little.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &hello, &mut control, flags)?;
    Ok(())
}

/// The bytes that came, no more than a hello has, and the descriptors with them.
fn receive_hello(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0; HELLO];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        descriptors.clear(); // there were more than belong to a hello, so none are known for what they are
    }
    Ok((bytes[..received.bytes].to_vec(), descriptors))
}
