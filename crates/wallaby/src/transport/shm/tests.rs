//! Connections over shared memory with honest peers and with others.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::memory::MemoryError;
use super::setup::{Verdict, answer, hello, send_hello};
use super::*;
use crate::transport::RING;

const LEAST: usize = *RING.start();

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wallaby-shm-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn path(&self) -> String {
        self.0.join("socket").to_str().expect("UTF-8").to_owned()
    }

    fn listen(&self) -> ShmListener {
        ShmListener::bind(self.path().as_ref()).expect("a free path")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The two ends that one side of a stream holds.
type Halves = (Box<dyn ReadHalf>, Box<dyn WriteHalf>);

fn halves(stream: Stream) -> Halves {
    (stream.reader, stream.writer)
}

async fn accept(listener: &mut ShmListener) -> Halves {
    match poll_fn(|cx| listener.poll_accept(cx)).await {
        Ok(Accepted::Open(stream)) => halves(stream),
        other => panic!("{other:?}"),
    }
}

/// Both ends of a connection.
async fn connect(capacity: usize) -> (Halves, Halves) {
    let folder = Folder::new();
    let mut listener = folder.listen();
    let path = folder.path();
    let (dialled, accepted) = tokio::join!(dial(&path, capacity), accept(&mut listener));
    (halves(dialled.expect("it listens")), accepted)
}

/// Fails a test that hangs, instead of waiting for ever.
async fn patience<T>(test: impl Future<Output = T>) -> T {
    let limited = tokio::time::timeout(Duration::from_secs(30), test).await;
    limited.expect("it hangs")
}

impl dyn ReadHalf {
    /// The next bytes, at most so many.
    async fn read(&mut self, most: usize) -> io::Result<BytesMut> {
        let mut input = BytesMut::with_capacity(most);
        patience(poll_fn(|cx| self.poll_read(cx, &mut input))).await?;
        Ok(input)
    }

    async fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let bytes = self.read(1000).await?;
            if bytes.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(&bytes);
        }
    }
}

impl dyn WriteHalf {
    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    patience(poll_fn(|cx| self.poll_writable(cx))).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn pattern(len: usize) -> Vec<u8> {
    let byte = |place: usize| (place.wrapping_mul(0x9e37_79b9) >> 24) as u8;
    (0..len).map(byte).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_more_than_a_ring_holds_passes_in_both_directions() {
    for capacity in [LEAST, 1 << 20] {
        let (here, there) = connect(capacity).await;
        let bytes = pattern(3_000_001);
        let echo = tokio::spawn(async move {
            let (mut reader, writer) = there;
            loop {
                let bytes = reader.read(3000).await.expect("an honest peer");
                if bytes.is_empty() {
                    return;
                }
                writer.write_all(&bytes).await.expect("an honest peer");
            }
        });
        let (mut reader, writer) = here;
        let receiving = async {
            let mut received = Vec::new();
            while received.len() < bytes.len() {
                let bytes = reader.read(5000).await.expect("an honest peer");
                assert!(!bytes.is_empty(), "{} bytes came", received.len());
                received.extend_from_slice(&bytes);
            }
            received
        };
        let (received, written) = tokio::join!(receiving, writer.write_all(&bytes));
        written.expect("an honest peer");
        assert!(received == bytes);
        drop((reader, writer));
        echo.await.expect("it saw the end");
    }
}

#[tokio::test]
async fn what_was_written_before_the_end_arrives() {
    let ((mut reader, writer), there) = connect(LEAST).await;
    writer.write_all(b"first").await.expect("it lives");
    there
        .1
        .write_all(b"the last words")
        .await
        .expect("it lives");
    drop(there);
    let words = reader.read_all().await.expect("an honest peer");
    assert_eq!(words, b"the last words");
    let error = writer.try_write(b"more").expect_err("nobody is there");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    poll_fn(|cx| writer.poll_writable(cx))
        .await
        .expect("to see that");
}

#[tokio::test]
async fn a_shutdown_ends_both_directions() {
    let ((mut reader, writer), (mut there, back)) = connect(LEAST).await;
    let (waited, ()) = tokio::join!(reader.read(10), async {
        tokio::task::yield_now().await;
        writer.try_write(b"bye").expect("room");
        writer.shutdown();
        writer.shutdown();
    });
    assert_eq!(waited.expect("the end")[..], [0_u8; 0]);
    assert_eq!(there.read_all().await.expect("the end"), b"bye");
    let error = back.try_write(b"wait").expect_err("it has ended");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn who_waits_for_room_is_woken_by_room_and_by_the_end() {
    let ((_reader, writer), (mut there, back)) = connect(LEAST).await;
    for _ in 0..3 {
        while writer.try_write(&[7; 1000]).is_ok() {}
        let waits = poll_fn(|cx| writer.poll_writable(cx));
        let (ready, read) = tokio::join!(waits, there.read(10));
        assert_eq!(read.expect("an honest peer").len(), 10);
        ready.expect("an honest peer");
    }
    while writer.try_write(&[7; 1000]).is_ok() {}
    let waits = poll_fn(|cx| writer.poll_writable(cx));
    let (ready, ()) = tokio::join!(waits, async { drop((there, back)) });
    ready.expect("it is to be seen by writing");
    let error = writer.try_write(b"more").expect_err("nobody is there");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

/// What somebody sends who dials.
struct Hello {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Hello {
    /// As it should be.
    fn right() -> Self {
        let (_, file) = Memory::create(ring::size(LEAST)).expect("memory");
        Self::with(file)
    }

    fn with(file: OwnedFd) -> Self {
        let bell = || setup::new_bell().expect("a bell");
        Self {
            bytes: hello(LEAST).to_vec(),
            descriptors: vec![file, bell(), bell()],
        }
    }

    fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            ..Self::right()
        }
    }

    fn capacity(capacity: usize) -> Self {
        Self::of(&hello(capacity))
    }

    async fn send(&self, stream: &mut UnixStream) {
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        if descriptors.is_empty() {
            stream.write_all(&self.bytes).await.expect("it listens");
        } else {
            send_hello(&stream, &self.bytes, &descriptors).expect("it listens");
        }
    }
}

use super::memory::Memory;

fn file(seals: SealFlags, bytes: usize) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file");
    rustix::fs::ftruncate(&file, bytes as u64).expect("a size");
    rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
    file
}

/// Everything as it should be, but that both bells are this.
fn with_bells(bell: &OwnedFd) -> Hello {
    let mut hello = Hello::right();
    for place in &mut hello.descriptors[1..] {
        *place = bell.try_clone().expect("a descriptor");
    }
    hello
}

/// It is readable for ever, and who writes to it is killed.
fn closed_socket() -> OwnedFd {
    let (kept, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
    kept.into()
}

/// As above.
fn closed_pipe() -> OwnedFd {
    let (kept, _) = std::io::pipe().expect("a pipe");
    kept.into()
}

#[tokio::test]
async fn who_begins_otherwise_is_refused_and_others_are_served() {
    let folder = Folder::new();
    let mut listener = folder.listen();
    let size = ring::size(LEAST);
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let mut future = hello(LEAST);
    future[7] += 1;
    let mut more = Hello::right();
    more.descriptors.push(setup::new_bell().expect("a bell"));
    let mut fewer = Hello::right();
    fewer.descriptors.pop();
    let mut none = Hello::right();
    none.descriptors.clear();
    let mut turned = Hello::right();
    turned.descriptors.reverse();
    let cases = [
        (Hello::of(b"GET / HTTP/1.1\r\n\r\n"), Verdict::Malformed),
        (Hello::of(&[0; 12]), Verdict::Malformed),
        (Hello::of(&hello(LEAST)[..11]), Verdict::Malformed),
        (Hello::of(&future), Verdict::Version),
        (none, Verdict::Malformed),
        (fewer, Verdict::Malformed),
        (more, Verdict::Malformed),
        (turned, Verdict::Malformed),
        (with_bells(&closed_pipe()), Verdict::Malformed),
        (with_bells(&closed_socket()), Verdict::Malformed),
        (with_bells(&file(sealed, size)), Verdict::Malformed),
        (Hello::capacity(0), Verdict::Capacity),
        (Hello::capacity(LEAST / 2), Verdict::Capacity),
        (Hello::capacity(LEAST + 1), Verdict::Capacity),
        (Hello::capacity(RING.end() * 2), Verdict::Capacity),
        (Hello::capacity(2 * LEAST), Verdict::Memory),
        (Hello::with(file(SealFlags::empty(), size)), Verdict::Memory),
        (Hello::with(file(SealFlags::SHRINK, size)), Verdict::Memory),
        (Hello::with(file(sealed, size - 1)), Verdict::Memory),
        (Hello::with(file(sealed, 0)), Verdict::Memory),
        (
            Hello::with(file(sealed | SealFlags::SEAL, size)),
            Verdict::Memory,
        ),
    ];
    for (number, (hello, expected)) in cases.into_iter().enumerate() {
        let mut stream = UnixStream::connect(folder.path())
            .await
            .expect("it listens");
        hello.send(&mut stream).await;
        let mut received = Vec::new();
        let refused = async {
            let _ = stream.read_to_end(&mut received).await; // some leave bytes that nobody reads
        };
        tokio::select! {
            () = patience(refused) => {}
            _ = accept(&mut listener) => panic!("case {number} is accepted"),
        }
        assert_eq!(received, answer(expected), "case {number}");
    }
    drop(
        UnixStream::connect(folder.path())
            .await
            .expect("it listens"),
    );
    let path = folder.path();
    let (dialled, accepted) = tokio::join!(dial(&path, LEAST), accept(&mut listener));
    let ((_, writer), (mut reader, _)) = (halves(dialled.expect("it still listens")), accepted);
    writer.write_all(b"hello").await.expect("it lives");
    assert_eq!(
        reader.read(10).await.expect("an honest peer")[..],
        *b"hello"
    );
}

#[tokio::test]
async fn who_says_nothing_is_given_up() {
    let (_silent, stream) = UnixStream::pair().expect("sockets");
    assert!(set_up(stream, Duration::ZERO).await.is_none());
    let (silent, stream) = UnixStream::pair().expect("sockets");
    drop(silent);
    let ended = set_up(stream, Duration::from_secs(60)).await;
    assert!(matches!(ended, Some(Err(SetupError::Ended))), "{ended:?}");
}

#[tokio::test]
async fn strangers_that_say_nothing_are_few_at_a_time() {
    let folder = Folder::new();
    let mut listener = folder.listen();
    let mut strangers = Vec::new();
    for _ in 0..SETUPS {
        strangers.push(UnixStream::connect(folder.path()).await.expect("room"));
    }
    let path = folder.path();
    let mut dialling = std::pin::pin!(dial(&path, LEAST));
    poll_fn(|cx| {
        assert!(listener.poll_accept(cx).is_pending());
        assert_eq!(listener.setups.len(), SETUPS);
        assert!(dialling.as_mut().poll(cx).is_pending());
        assert!(listener.poll_accept(cx).is_pending());
        assert_eq!(listener.setups.len(), SETUPS, "one more has to wait");
        Poll::Ready(())
    })
    .await;
    drop(strangers);
    let (dialled, _) = tokio::join!(dialling, accept(&mut listener));
    dialled.expect("their places are free");
}

#[tokio::test]
async fn an_acceptor_that_answers_otherwise_is_an_error() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.path()).expect("a free path");
    let mut future = answer(Verdict::Version);
    future[7] += 1;
    let mut unknown = answer(Verdict::Failed);
    unknown[9] += 1;
    let cases = [
        (&b""[..], "ended"),
        (b"wb-shm", "ended"),
        (&[0; 10], "otherwise"),
        (b"HTTP/1.1 200 OK", "otherwise"),
        (&future, "version 2 "),
        (&unknown, "refused"),
        (&answer(Verdict::Malformed), "understand"),
        (&answer(Verdict::Memory), "memory is not"),
        (&answer(Verdict::Capacity), "size"),
        (&answer(Verdict::OtherUser), "another user"),
    ];
    for (bytes, expected) in cases {
        let path = folder.path();
        let (dialled, ()) = tokio::join!(dial(&path, LEAST), async {
            let (mut stream, _) = listener.accept().await.expect("somebody dials");
            // It may have given up already.
            let _ = stream.write_all(bytes).await;
        });
        let error = dialled.expect_err("no way to begin").to_string();
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
}

/// Who dials does all as it should until the connection is open.
async fn liar() -> (Liar, Halves) {
    let folder = Folder::new();
    let mut listener = folder.listen();
    let path = folder.path();
    let (agreed, accepted) = tokio::join!(offer(&path, LEAST), accept(&mut listener));
    let (agreed, life) = agreed.expect("it listens");
    (Liar { agreed, life }, accepted)
}

/// What somebody has who may write anything anywhere.
struct Liar {
    agreed: Agreed,
    life: UnixStream,
}

impl Liar {
    fn lie(&self, word: usize, number: u64) {
        self.agreed.memory[word].store(number, Ordering::Release);
        rustix::io::write(&self.agreed.peer_bell, &1u64.to_ne_bytes()).expect("a bell");
    }
}

/// Where the acceptor finds the tail of what it reads, and the head of what it writes.
const TAIL: usize = 0;
const HEAD: usize = 4 * 16 + 16;

#[tokio::test]
async fn numbers_that_cannot_be_are_an_error_for_who_waits() {
    let (liar, (mut reader, _writer)) = liar().await;
    let (read, ()) = tokio::join!(reader.read(10), async {
        tokio::task::yield_now().await;
        liar.lie(TAIL, LEAST as u64 + 1);
    });
    let error = read.expect_err("too much");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let typed = error.get_ref().expect("why").downcast_ref::<ring::Broken>();
    assert!(typed.is_some(), "{error:?}");
    let message = "the peer broke the shared memory: 4097 bytes cannot be in a ring of 4096";
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn numbers_that_cannot_be_are_an_error_for_who_writes() {
    let (liar, (_reader, writer)) = liar().await;
    while writer.try_write(&[7; 1000]).is_ok() {}
    let (writable, ()) = tokio::join!(poll_fn(|cx| writer.poll_writable(cx)), async {
        tokio::task::yield_now().await;
        liar.lie(HEAD, LEAST as u64 + 1);
    });
    let error = writable.expect_err("more than was written");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    // It has ended, whatever the peer says then.
    liar.lie(HEAD, LEAST as u64);
    let error = writer.try_write(b"more").expect_err("it has ended");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    let ended = rustix::net::recv(&liar.life, &mut [0; 1], RecvFlags::empty());
    assert_eq!(ended, Ok((0, 0)), "the peer is told");
}

#[tokio::test]
async fn who_rings_for_nothing_is_waited_for_and_who_ends_is_noticed() {
    let (liar, (mut reader, writer)) = liar().await;
    let (read, ()) = tokio::join!(reader.read_all(), async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
            liar.lie(2 * 16, 0); // nobody is waiting, it claims
        }
        drop(liar);
    });
    assert_eq!(read.expect("the end"), b"");
    assert!(writer.try_write(b"more").is_err());
}

#[tokio::test]
async fn bytes_beside_the_memory_are_an_error() {
    let (liar, (mut reader, _writer)) = self::liar().await;
    assert_eq!(liar.life.try_write(b"psst").expect("room"), 4);
    let error = reader.read(10).await.expect_err("not for this");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);

    // Whoever of the two hears of it, it ends for both.
    let (liar, (mut reader, writer)) = self::liar().await;
    while writer.try_write(&[7; 1000]).is_ok() {}
    assert_eq!(liar.life.try_write(b"p").expect("room"), 1);
    let waits = patience(poll_fn(|cx| writer.poll_writable(cx)));
    let error = waits.await.expect_err("not for this");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(reader.read_all().await.expect("the end"), b"");
    assert!(writer.try_write(b"more").is_err());
}

#[tokio::test]
async fn a_bell_that_cannot_be_rung_is_its_owners_affair() {
    let (mut liar, (mut reader, writer)) = liar().await;
    // Full: whoever rings it once more would have to wait, were it not for its mode.
    let full = (u64::MAX - 1).to_ne_bytes();
    rustix::io::write(&liar.agreed.bell, &full).expect("a bell");
    liar.agreed.memory[4 * 16 + 2 * 16].store(1, Ordering::Relaxed);
    writer.try_write(b"are you there?").expect("room");
    assert_eq!(liar.agreed.memory[4 * 16].load(Ordering::Acquire), 14);
    liar.agreed.peer_bell = setup::new_bell().expect("another one");
    drop(liar);
    assert_eq!(reader.read_all().await.expect("the end"), b"");
}

/// A bell is heard and rung by two processes that share its mode.
#[tokio::test]
async fn a_bell_whose_mode_is_to_wait_makes_nobody_wait() {
    let folder = Folder::new();
    let mut listener = folder.listen();
    let (memory, file) = Memory::create(ring::size(LEAST)).expect("memory");
    let mut hello = Hello::with(file);
    let flags = rustix::event::EventfdFlags::empty();
    let bell = rustix::event::eventfd(0, flags).expect("a bell");
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).expect("room");
    hello.descriptors[1] = bell;
    let mut stream = UnixStream::connect(folder.path())
        .await
        .expect("it listens");
    hello.send(&mut stream).await;
    let (_reader, writer) = patience(accept(&mut listener)).await;
    memory[4 * 16 + 2 * 16].store(1, Ordering::Relaxed);
    assert_eq!(writer.try_write(b"are you there?").expect("room"), 14);
}

#[tokio::test]
async fn only_its_user_may_connect_to_a_socket() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let _listener = folder.listen();
    let file = std::fs::metadata(folder.path()).expect("a file");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

/// Runs as a user without any rights; `None` where this user cannot become another one.
fn as_nobody<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    const NOBODY: libc::c_long = 65534;
    let run = || {
        // SAFETY: takes numbers. As a plain system call it is for this thread alone, which ends soon.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        (result == 0).then(run)
    };
    thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}

#[tokio::test]
async fn processes_of_other_users_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let mut listener = folder.listen();
    let allow = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), mode).expect("it is ours");
    };
    let dial_as_nobody = || {
        as_nobody(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build();
            let dialled = runtime
                .expect("a runtime")
                .block_on(dial(&folder.path(), LEAST));
            dialled.expect_err("another user's")
        })
    };
    allow(0o600);
    let Some(error) = dial_as_nobody() else {
        println!("skipped: only root can become somebody else");
        return;
    };
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");

    // Who dials finds out by itself; who does not care is refused.
    allow(0o666);
    let error = dial_as_nobody().expect("as before").to_string();
    assert!(error.contains("user 0's, not user 65534's"), "{error}");
    let stream = as_nobody(|| std::os::unix::net::UnixStream::connect(folder.path()));
    let stream = stream.expect("as before").expect("the file permits it");
    stream.set_nonblocking(true).expect("a mode");
    let mut stream = UnixStream::from_std(stream).expect("a runtime");
    Hello::right().send(&mut stream).await;
    let mut received = Vec::new();
    tokio::select! {
        _ = stream.read_to_end(&mut received) => {}
        _ = accept(&mut listener) => panic!("another user's"),
    }
    assert_eq!(received, answer(Verdict::OtherUser));
}

#[test]
fn errors_say_what_is_wrong() {
    let wrong = MemoryError::WrongSize {
        actual: 3,
        expected: 4,
    };
    let error = SetupError::from(wrong).to_string();
    assert!(error.contains("it has 3 bytes, not 4"), "{error}");
}
