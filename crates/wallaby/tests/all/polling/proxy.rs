//! A unix socket between a client and a server, which passes bytes on as a test says. Time only passes when a test says so.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use fastrand::Rng;
use wallaby::Address;
use wallaby::polling::{Endpoint, Event, Wait};

use super::world::{Link, World};

/// Rounds in which all are turned, before time passes.
const ROUNDS: usize = 8;

/// A path in the file system that nobody else has, and the file there is removed with it.
pub(crate) struct Path(PathBuf);

impl Path {
    pub(crate) fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("wallaby-polling-{}-{next}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn address(&self) -> Address {
        self.text().parse().expect("an address")
    }

    pub(crate) fn text(&self) -> String {
        format!("unix://{}", self.0.display())
    }

    /// Where shared memory is agreed on.
    pub(crate) fn shared(&self) -> String {
        format!("shm://{}", self.0.display())
    }

    pub(crate) fn file(&self) -> &std::path::Path {
        &self.0
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.0).expect("somebody listens");
        stream.set_nonblocking(true).expect("it can");
        stream
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // whoever listened there has removed it
    }
}

/// What a proxy does with bytes of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    /// Most bytes that it passes on in a round, of each connection.
    pub(crate) most: usize,
    /// How many of a million it damages.
    pub(crate) damaged: u64,
}

pub(crate) const FREE: Flow = Flow {
    most: usize::MAX,
    damaged: 0,
};

pub(crate) const STOPPED: Flow = Flow { most: 0, ..FREE };

pub(crate) struct Proxy {
    pub(crate) path: Path,
    listener: UnixListener,
    to: PathBuf,
    /// Client's end, what is under way there and back, server's end.
    pairs: Vec<(UnixStream, [VecDeque<u8>; 2], UnixStream)>,
    /// Towards the server, and back.
    pub(crate) flows: [Flow; 2],
    random: Rng,
}

impl Proxy {
    pub(crate) fn new(to: &Path, seed: u64) -> Self {
        let path = Path::new();
        let listener = UnixListener::bind(&path.0).expect("the path is free");
        listener.set_nonblocking(true).expect("it can");
        Self {
            path,
            listener,
            to: to.0.clone(),
            pairs: Vec::new(),
            flows: [FREE; 2],
            random: Rng::with_seed(seed),
        }
    }

    /// Passes on what it may.
    fn pass(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            let Ok(server) = UnixStream::connect(&self.to) else {
                continue; // nobody is there: the client's connection ends
            };
            for stream in [&client, &server] {
                stream.set_nonblocking(true).expect("it can");
            }
            self.pairs.push((client, Default::default(), server));
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.retain_mut(|(client, [there, back], server)| {
            self.carry(client, there, server, 0) && self.carry(server, back, client, 1)
        });
        self.pairs = pairs;
    }

    /// Whether the connection goes on.
    fn carry(
        &mut self,
        from: &mut UnixStream,
        bytes: &mut VecDeque<u8>,
        to: &mut UnixStream,
        direction: usize,
    ) -> bool {
        let Flow { most, damaged } = self.flows[direction];
        if most == 0 {
            return true;
        }
        let mut buffer = vec![0; most.min(1 << 16)];
        let open = match from.read(&mut buffer) {
            Ok(0) => false,
            Ok(read) => {
                for byte in &mut buffer[..read] {
                    if self.random.u64(..1_000_000) < damaged {
                        *byte ^= 1 << self.random.u8(..8);
                    }
                }
                bytes.extend(&buffer[..read]);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        while !bytes.is_empty() {
            match to.write(bytes.as_slices().0) {
                Ok(written) => drop(bytes.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        open
    }

    /// Ends all connections without a word.
    pub(crate) fn cut(&mut self) {
        self.pairs.clear();
    }
}

/// A world whose endpoints also have streams. These take no time; it passes when nothing is left to do.
pub(crate) struct Streams<'a> {
    pub(crate) world: &'a World,
    pub(crate) proxy: Option<&'a mut Proxy>,
    /// How much time passes at most between two rounds.
    pub(crate) pace: Duration,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(world: &'a World, proxy: Option<&'a mut Proxy>) -> Self {
        Self {
            world,
            proxy,
            pace: Duration::from_secs(1000),
        }
    }

    /// All turn for a while, and then time passes until one of them has something to do.
    pub(crate) fn step(&mut self, endpoints: &mut [&mut Endpoint<Link>]) {
        for _ in 0..ROUNDS {
            for endpoint in endpoints.iter_mut() {
                endpoint.turn(Wait::Not).expect("it cannot fail");
            }
            if let Some(proxy) = &mut self.proxy {
                proxy.pass();
            }
        }
        self.world.step(endpoints, self.pace);
    }

    /// Turns them until this one has an event, and takes it; `None` after so long.
    pub(crate) fn event(
        &mut self,
        endpoints: &mut [&mut Endpoint<Link>],
        whose: usize,
        within: Duration,
    ) -> Option<Event> {
        let end = self.world.now() + within;
        loop {
            if let Some(event) = endpoints[whose].next_event() {
                return Some(event);
            }
            if self.world.now() >= end {
                return None;
            }
            self.step(endpoints);
        }
    }

    /// All that comes of one call of the first: its answers, and how it ends.
    pub(crate) fn outcome(
        &mut self,
        endpoints: &mut [&mut Endpoint<Link>],
    ) -> (Vec<Result<bytes::Bytes, wallaby::CallError>>, Event) {
        let mut answers = Vec::new();
        loop {
            let event = self.event(endpoints, 0, Duration::from_secs(10_000));
            match event.expect("it ends") {
                Event::Answer(answer) => answers.push(answer.payload()),
                event => return (answers, event),
            }
        }
    }
}
