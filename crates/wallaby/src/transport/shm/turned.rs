//! A connection over shared memory for who looks at it by themselves: nothing here waits.
//!
//! While it is *awake*, its owner looks at the rings, and the peer need not ring. Before the owner sleeps it says so
//! ([`Connection::rest`]): then the peer rings the bell, for which the owner waits by whatever tells of each ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::ring::{self, Broken, Consumer, Producer};
use super::setup::{self, Agreed, Offer};
use crate::transport::connecting;

/// A connection, or one that is being set up.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The socket over which the memory came.
    life: OwnedFd,
    state: HandshakeState,
    /// The peer has ended, or this side has.
    gone: bool,
}

#[derive(Debug)]
enum HandshakeState {
    /// This side has dialled.
    Dialled(Offer),
    /// Somebody else has.
    Accepted,
    Open(Rings),
}

#[derive(Debug)]
struct Rings {
    producer: Producer,
    consumer: Consumer,
    /// Rung by the peer.
    bell: OwnedFd,
    /// Rings at the peer.
    peer_bell: OwnedFd,
    /// What the peer has done that cannot be.
    broken: Option<Broken>,
}

/// What there is to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Something is to be read, or to be learnt by reading: an end, or an error.
    pub(crate) readable: bool,
    /// The same of writing.
    pub(crate) writable: bool,
}

impl Found {
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Listens at a path, to which only this user may connect; nonblocking.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    setup::listen(path)
}

impl Connection {
    /// Begins a connection to who listens at this path, with rings of this capacity.
    pub(crate) fn dial(path: &Path, capacity: usize) -> io::Result<Self> {
        let (life, _) = connecting::unix(path)?; // a unix socket is connected at once, or never
        let offer = Offer::send(&life, capacity)?;
        Ok(Self::new(life, HandshakeState::Dialled(offer)))
    }

    /// Somebody has connected, who is to offer memory.
    pub(crate) fn accepted(socket: OwnedFd) -> Self {
        Self::new(socket, HandshakeState::Accepted)
    }

    fn new(life: OwnedFd, state: HandshakeState) -> Self {
        Self {
            life,
            state,
            gone: false,
        }
    }

    /// What can be read when its set-up can go on, and later when the peer has ended.
    pub(crate) fn life(&self) -> RawFd {
        self.life.as_raw_fd()
    }

    /// What can be read when the peer has rung; it need not be read, but told of each time. None before it is open.
    pub(crate) fn bell(&self) -> Option<RawFd> {
        match &self.state {
            HandshakeState::Open(rings) => Some(rings.bell.as_raw_fd()),
            HandshakeState::Dialled(_) | HandshakeState::Accepted => None,
        }
    }

    /// Goes on with the set-up, or looks whether the peer has ended: to be called when its [life](Self::life) can be read.
    /// Whether it is open from now on.
    ///
    /// # Errors
    ///
    /// If the two do not share memory, or the peer talks beside it.
    pub(crate) fn attend(&mut self) -> io::Result<bool> {
        let agreed = match &mut self.state {
            HandshakeState::Dialled(offer) => offer.answered(&self.life)?,
            HandshakeState::Accepted => setup::accept(&self.life)?,
            HandshakeState::Open(_) => return self.look_for_end().map(|()| false),
        };
        let Some(agreed) = agreed else {
            return Ok(false);
        };
        self.state = HandshakeState::Open(Rings::new(agreed));
        Ok(true)
    }

    fn look_for_end(&mut self) -> io::Result<()> {
        match rustix::net::recv(&self.life, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => {
                self.gone = true;
                Ok(())
            }
            Ok(_) => {
                let what = "the peer talks beside the shared memory";
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends what is there, as far as it fits the spare room of `input`; zero bytes mean that nothing more comes.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing is there, `InvalidData` if the peer has written what cannot be.
    pub(crate) fn read(&mut self, input: &mut BytesMut) -> io::Result<usize> {
        let HandshakeState::Open(rings) = &mut self.state else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let read = match rings.broken {
            None => rings.consumer.read(input),
            Some(broken) => Err(broken),
        };
        match read {
            Ok(0) if self.gone => Ok(0),
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Ok(read) => {
                rings.consumer.withdraw();
                if rings.consumer.wakes_writer() {
                    rings.ring();
                }
                Ok(read)
            }
            Err(broken) => {
                self.shut_down(); // who has lied once is not asked again
                Err(io::Error::new(io::ErrorKind::InvalidData, broken))
            }
        }
    }

    /// Writes as much as fits now.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing fits, `BrokenPipe` if the peer takes nothing more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let HandshakeState::Open(rings) = &mut self.state else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if self.gone || rings.broken.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = match rings.producer.write(bytes) {
            Ok(written) => written,
            Err(broken) => {
                rings.broken = Some(broken); // which is told by reading
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        };
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if rings.producer.wakes_reader() {
            rings.ring();
        }
        Ok(written)
    }

    /// What there is to do, of what is awaited.
    pub(crate) fn look(&mut self, awaited: Found) -> Found {
        let HandshakeState::Open(rings) = &mut self.state else {
            return Found::default();
        };
        let ended = self.gone || rings.broken.is_some();
        let full = |rings: &mut Rings| rings.note(|rings| rings.producer.room()) == Some(0);
        let empty = |rings: &mut Rings| rings.note(|rings| rings.consumer.is_empty()) == Some(true);
        let writable = awaited.writable && (ended || !full(rings));
        let readable = awaited.readable && (ended || !empty(rings));
        // A lie that was found while room was looked for is an end, too.
        let readable = readable || rings.broken.is_some();
        Found { readable, writable }
    }

    /// Its owner is about to sleep and awaits this: from now on the peer rings. Whether there is nothing to do at the last
    /// look; if there is, the owner stays awake.
    pub(crate) fn rest(&mut self, awaited: Found) -> bool {
        let HandshakeState::Open(rings) = &mut self.state else {
            return true;
        };
        if awaited.readable {
            rings.consumer.announce();
        }
        if awaited.writable {
            rings.producer.announce();
        }
        if self.look(awaited).is_nothing() {
            return true;
        }
        self.wake();
        false
    }

    /// Its owner looks at the rings again. Who has rung has taken back that it was to ring.
    pub(crate) fn wake(&mut self) {
        if let HandshakeState::Open(rings) = &mut self.state {
            rings.consumer.withdraw();
            rings.producer.withdraw();
        }
    }

    /// Ends it in both directions; what was written still arrives.
    pub(crate) fn shut_down(&mut self) {
        self.gone = true;
        // An error means that the peer was faster.
        let _ = rustix::net::shutdown(&self.life, Shutdown::Both);
    }
}

impl Rings {
    fn new(agreed: Agreed) -> Self {
        let (producer, consumer) = ring::ends(agreed.memory, agreed.capacity, agreed.side);
        Self {
            producer,
            consumer,
            bell: agreed.bell,
            peer_bell: agreed.peer_bell,
            broken: None,
        }
    }

    /// Wakes the peer.
    fn ring(&self) {
        // A bell that cannot be rung any more has not been heard for 2^64 times, or is none: its owner's affair.
        let _ = rustix::io::write(&self.peer_bell, &1u64.to_ne_bytes());
    }

    /// What is found in the memory; none if that cannot be, which is kept.
    fn note<T>(&mut self, look: impl FnOnce(&mut Self) -> Result<T, Broken>) -> Option<T> {
        match look(self) {
            Ok(found) => Some(found),
            Err(broken) => {
                self.broken = Some(broken);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use wallaby_proto::connection::MethodDefinition;

    use crate::polling::{CallOptions, Endpoint, Event, Wait};
    use crate::transport::RING;

    const LEAST: usize = *RING.start();

    const READ: Found = Found {
        readable: true,
        writable: false,
    };
    const WRITE: Found = Found {
        readable: false,
        writable: true,
    };

    /// Where the acceptor finds the tail of what it reads, whether it waits for that, and the head of what it writes.
    const TAIL: usize = 0;
    const WAITS: usize = 2 * 16;
    const HEAD: usize = 4 * 16 + 16;

    /// Somebody who may write anything anywhere, and whoever has accepted that.
    fn liar() -> (Agreed, UnixStream, Connection) {
        let (there, here) = UnixStream::pair().expect("sockets");
        let mut connection = Connection::accepted(here.into());
        assert!(!connection.attend().expect("nothing was said"));
        let mut offer = Offer::send(&there, LEAST).expect("room");
        assert!(offer.answered(&there).expect("no answer").is_none());
        assert!(connection.attend().expect("as it should be"));
        let agreed = offer.answered(&there).expect("it agrees");
        (agreed.expect("an answer"), there, connection)
    }

    fn pair() -> (Connection, Connection) {
        let (agreed, life, accepted) = liar();
        let dialled = Connection::new(life.into(), HandshakeState::Open(Rings::new(agreed)));
        (dialled, accepted)
    }

    fn read(connection: &mut Connection) -> io::Result<BytesMut> {
        let mut input = BytesMut::with_capacity(LEAST);
        connection.read(&mut input)?;
        Ok(input)
    }

    fn fill(connection: &mut Connection) {
        while connection.write(&[7; 1000]).is_ok() {}
    }

    /// How often it was rung since the last look.
    fn rung(connection: &Connection) -> u64 {
        let HandshakeState::Open(rings) = &connection.state else {
            panic!("it is not open")
        };
        let mut times = [0; 8];
        match rustix::io::read(&rings.bell, &mut times) {
            Ok(_) => u64::from_ne_bytes(times),
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                0
            }
        }
    }

    #[test]
    fn who_is_awake_is_not_rung_and_who_rests_is_once() {
        let (mut here, mut there) = pair();
        assert_eq!(here.write(b"one").expect("room"), 3);
        assert_eq!(rung(&there), 0);
        assert_eq!(there.look(READ), READ);
        assert_eq!(read(&mut there).expect("honest")[..], *b"one");
        assert!(there.look(READ).is_nothing());

        assert!(there.rest(READ));
        here.write(b"two").expect("room");
        here.write(b"three").expect("room");
        assert_eq!(rung(&there), 1, "it is awake from then on");
        there.wake();
        assert!(!there.rest(READ), "there is something");
        here.write(b"four").expect("room");
        assert_eq!(rung(&there), 0);
        assert_eq!(read(&mut there).expect("honest")[..], *b"twothreefour");
        let nothing = read(&mut there).expect_err("it was all");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);

        fill(&mut here);
        let full = here.write(b"more").expect_err("full");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(here.rest(WRITE));
        read(&mut there).expect("honest");
        assert_eq!(rung(&here), 1);
        assert_eq!(here.look(WRITE), WRITE);
    }

    #[test]
    fn who_was_rung_for_nothing_says_anew_that_it_rests() {
        let (liar, _life, mut connection) = liar();
        assert!(connection.rest(READ));
        liar.memory[WAITS].store(0, Ordering::Relaxed); // nobody is waiting, it claims
        connection.wake();
        assert!(connection.rest(READ));
        assert_eq!(liar.memory[WAITS].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_was_written_before_the_end_is_read() {
        let (mut here, mut there) = pair();
        here.write(b"the last words").expect("room");
        drop(here);
        assert!(!there.attend().expect("an end is no error"));
        assert!(!there.rest(READ), "there is an end to be read");
        assert_eq!(read(&mut there).expect("honest")[..], *b"the last words");
        assert_eq!(there.look(READ), READ);
        assert!(read(&mut there).expect("the end").is_empty());
        let error = there.write(b"more").expect_err("nobody is there");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // Who waits for room learns it, too.
        let (here, mut there) = pair();
        fill(&mut there);
        assert!(there.rest(WRITE));
        drop(here);
        there.attend().expect("an end is no error");
        assert_eq!(there.look(WRITE), WRITE);
    }

    #[test]
    fn numbers_that_cannot_be_are_an_error_for_who_reads() {
        let (liar, life, mut connection) = liar();
        liar.memory[TAIL].store(LEAST as u64 + 1, Ordering::Release);
        assert_eq!(connection.look(READ), READ);
        for _ in 0..2 {
            let error = read(&mut connection).expect_err("too much");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let message =
                "the peer broke the shared memory: 4097 bytes cannot be in a ring of 4096";
            assert_eq!(error.to_string(), message);
            // It has ended, whatever the peer says then.
            liar.memory[TAIL].store(3, Ordering::Release);
        }
        let ended = rustix::net::recv(&life, &mut [0; 1], RecvFlags::DONTWAIT);
        assert_eq!(ended, Ok((0, 0)), "the peer is told");
    }

    #[test]
    fn numbers_that_cannot_be_are_an_error_for_who_writes() {
        // Found by writing, or by looking for room.
        for looks in [false, true] {
            let (liar, _life, mut connection) = liar();
            fill(&mut connection);
            liar.memory[HEAD].store(LEAST as u64 + 1, Ordering::Release);
            if looks {
                assert!(!connection.rest(WRITE));
                assert!(connection.look(WRITE).readable);
            }
            for _ in 0..2 {
                let error = connection.write(&[7; 1000]).expect_err("a lie");
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                liar.memory[HEAD].store(0, Ordering::Release);
            }
            assert!(connection.look(READ).readable);
            let error = read(&mut connection).expect_err("a lie");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn bytes_beside_the_memory_are_an_error() {
        let (_liar, life, mut connection) = liar();
        rustix::net::send(&life, b"psst", rustix::net::SendFlags::empty()).expect("room");
        let error = connection.attend().expect_err("not for this");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// The same numbers for each seed.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// A file's name that nobody else has.
    struct Path(PathBuf);

    impl Drop for Path {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0); // who listened there has removed it
        }
    }

    /// Whatever peers write into the memory ends their connections at most.
    #[test]
    fn an_endpoint_survives_all_that_its_peers_write() {
        let seed = 3;
        println!("seed {seed}");
        let mut state = seed;
        let name = format!("wallaby-turned-{}", std::process::id());
        let path = Path(std::env::temp_dir().join(name));
        let address = format!("shm://{}", path.0.display());
        let mut endpoint = Endpoint::bind(&address).expect("a free path");
        let mut ended = 0;
        for _ in 0..200 {
            let life = UnixStream::connect(&path.0).expect("it listens");
            let mut offer = Offer::send(&life, LEAST).expect("room");
            let liar = loop {
                endpoint.turn(Wait::Not).expect("the system lives");
                if let Some(agreed) = offer.answered(&life).expect("it agrees") {
                    break agreed;
                }
            };
            for _ in 0..20 {
                let word = match random(&mut state) % 2 {
                    0 => random(&mut state) as usize % 8 * 16,
                    _ => random(&mut state) as usize % liar.memory.len(),
                };
                let lie = match random(&mut state) % 2 {
                    0 => random(&mut state),
                    _ => random(&mut state) % LEAST as u64,
                };
                liar.memory[word].store(lie, Ordering::Relaxed);
                endpoint.turn(Wait::Not).expect("the system lives");
            }
            ended += u64::from(endpoint.sizes().connections == 0);
            drop((liar, life));
            while endpoint.sizes().connections > 0 {
                endpoint.turn(Wait::Forever).expect("the system lives");
            }
        }
        assert!(ended > 100, "{ended} noticed");
        assert!(endpoint.metrics().connections_broken >= ended);
        let client = Endpoint::builder().bind(&format!("{address}-client"));
        let mut client = client.expect("a free path");
        let method = MethodDefinition::new("none", "raw", 1, 1).expect("short enough");
        let (method, nothing) = (Arc::new(method), bytes::Bytes::new());
        let options = CallOptions::default();
        let sent = client.call_raw(endpoint.address(), &method, nothing, &options);
        sent.expect("it is sent");
        let answer = loop {
            client.turn(Wait::Not).expect("the system lives");
            endpoint.turn(Wait::Not).expect("the system lives");
            if let Some(event) = client.next_event() {
                break event;
            }
        };
        assert!(matches!(answer, Event::Answer(_)), "{answer:?}");
    }
}
