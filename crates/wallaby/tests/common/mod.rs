//! What these tests share: endpoints on every transport, and two services whose handlers are closures.

#![allow(
    dead_code,
    unused_macros,
    missing_docs,
    reason = "each test program uses a part of it"
)]

pub(crate) mod bodies;
pub(crate) mod lines;
pub(crate) mod process;
pub(crate) mod raw;
#[macro_use]
pub(crate) mod suite;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use wallaby::transport::Transport;
use wallaby::{Address, Builder, Call, CallError, Endpoint, Failure, Many, Service, Status};

/// Text in, text out.
#[wallaby::service(package = "test")]
pub(crate) trait Work {
    async fn many(what: String) -> Many<String>;
    async fn one(what: String) -> String;
}

/// Bytes in, bytes out, without a codec that would look at each.
#[wallaby::service(package = "test", codec = wallaby::codec::Raw)]
pub(crate) trait Heap {
    async fn many(what: Bytes) -> Many<Bytes>;
    async fn one(what: Bytes) -> Bytes;
}

/// Addresses of one transport, for one test.
pub(crate) struct Net {
    scheme: Scheme,
    number: u64,
    next: AtomicU64,
}

enum Scheme {
    Mem,
    Tcp,
    Udp,
    Unix(PathBuf),
    Shm(PathBuf),
    /// A transport from outside, and an address of its scheme for a folder and a number.
    Foreign(Arc<dyn Transport>, PathBuf, fn(&Path, u64) -> String),
}

impl Net {
    pub(crate) fn mem() -> Self {
        Self::new(Scheme::Mem)
    }

    pub(crate) fn tcp() -> Self {
        Self::new(Scheme::Tcp)
    }

    pub(crate) fn udp() -> Self {
        Self::new(Scheme::Udp)
    }

    pub(crate) fn unix() -> Self {
        let mut net = Self::new(Scheme::Mem);
        net.scheme = Scheme::Unix(net.make_folder());
        net
    }

    pub(crate) fn shm() -> Self {
        let mut net = Self::new(Scheme::Mem);
        net.scheme = Scheme::Shm(net.make_folder());
        net
    }

    /// A transport from outside, and what its addresses are.
    pub(crate) fn foreign(
        transport: Arc<dyn Transport>,
        address: fn(&Path, u64) -> String,
    ) -> Self {
        let mut net = Self::new(Scheme::Mem);
        net.scheme = Scheme::Foreign(transport, net.make_folder(), address);
        net
    }

    fn make_folder(&self) -> PathBuf {
        let folder = format!("wallaby-test-{}-{}", std::process::id(), self.number);
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    fn new(scheme: Scheme) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            scheme,
            number,
            next: AtomicU64::new(0),
        }
    }

    /// Where its sockets are.
    pub(crate) fn folder(&self) -> &Path {
        match &self.scheme {
            Scheme::Unix(folder) | Scheme::Shm(folder) | Scheme::Foreign(_, folder, _) => folder,
            Scheme::Mem | Scheme::Tcp | Scheme::Udp => panic!("it has none"),
        }
    }

    /// Where to listen: a new address each time.
    pub(crate) fn address(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.scheme {
            Scheme::Mem => format!("mem://test-{}-{next}", self.number),
            Scheme::Tcp => "tcp://127.0.0.1:0".into(),
            Scheme::Udp => "udp://127.0.0.1:0".into(),
            Scheme::Unix(folder) => format!("unix://{}/{next}", folder.display()),
            Scheme::Shm(folder) => format!("shm://{}/{next}", folder.display()),
            Scheme::Foreign(_, folder, address) => address(folder, next),
        }
    }

    /// An endpoint that listens and serves this.
    pub(crate) async fn serve(&self, service: Service) -> Endpoint {
        self.bind(Endpoint::builder().serve(service)).await
    }

    /// An endpoint that listens.
    pub(crate) async fn endpoint(&self) -> Endpoint {
        self.bind(Endpoint::builder()).await
    }

    pub(crate) async fn bind(&self, builder: Builder) -> Endpoint {
        let endpoint = self.with(builder).listen(&self.address()).bind().await;
        endpoint.expect("the address is free")
    }

    /// An endpoint that does not listen, and can dial all others.
    pub(crate) async fn client(&self) -> Endpoint {
        let client = self.with(Endpoint::builder()).bind().await;
        client.expect("there is a runtime")
    }

    /// With the transport, if it comes from outside.
    pub(crate) fn with(&self, builder: Builder) -> Builder {
        match &self.scheme {
            Scheme::Foreign(transport, ..) => builder.transport(Arc::clone(transport)),
            _ => builder,
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Scheme::Unix(folder) | Scheme::Shm(folder) | Scheme::Foreign(_, folder, _) =
            &self.scheme
        {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Where an endpoint listens.
pub(crate) fn at(endpoint: &Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

pub(crate) fn client() -> Endpoint {
    Endpoint::client().expect("there is a runtime")
}

/// A service without methods yet.
pub(crate) fn service() -> Service {
    Service::new("test")
}

/// Fails a test that hangs, instead of waiting for ever.
pub(crate) async fn patience<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    let result = tokio::time::timeout(limit, test).await;
    result.expect("the test hangs")
}

/// Yields until something that other tasks bring about is so; fails a test for which it never is.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "what the test waits for does not come about"
        );
        tokio::task::yield_now().await;
    }
}

/// All that a call yields.
pub(crate) async fn all<T: Send + 'static, C>(
    call: &mut Call<Many<T>, C>,
) -> Vec<Result<T, CallError>>
where
    C: wallaby::codec::Codec<T>,
{
    let mut all = Vec::new();
    while let Some(item) = call.next().await {
        all.push(item);
    }
    all
}

/// All answers in order of their value, and all statuses.
pub(crate) async fn sorted(call: &mut Call<Many<String>>) -> (Vec<String>, Vec<Status>) {
    let (mut answers, mut statuses) = (Vec::new(), Vec::new());
    for item in all(call).await {
        match item {
            Ok(answer) => answers.push(answer),
            Err(CallError::Status(status)) => statuses.push(status),
            Err(other) => panic!("neither an answer nor a status: {other}"),
        }
    }
    answers.sort();
    (answers, statuses)
}

/// So many handlers run, and so many requests wait.
pub(crate) fn load(running: usize, waiting: usize) -> wallaby::Load {
    wallaby::Load { running, waiting }
}

pub(crate) fn status<T: std::fmt::Debug>(item: Result<T, CallError>) -> Status {
    let error = item.expect_err("a status");
    error
        .status()
        .unwrap_or_else(|| panic!("not a status: {error}"))
        .clone()
}

pub(crate) fn failure<T: std::fmt::Debug>(item: Result<T, CallError>) -> Failure {
    let error = item.expect_err("a failure");
    error
        .failure()
        .unwrap_or_else(|| panic!("not a failure: {error}"))
        .clone()
}

/// Lets through as many as it was opened for.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn open(&self, times: usize) {
        self.0.add_permits(times);
    }

    pub(crate) async fn pass(&self) {
        self.0.acquire().await.expect("never closed").forget();
    }
}

/// Runs each of these tests over every transport.
macro_rules! over_every_transport {
    ($($test:ident),+ $(,)?) => {
        over_every_stream!($($test),+);
        mod over_udp { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $crate::common::patience(super::$test($crate::common::Net::udp())).await;
            }
        )+ }
    };
}

/// Runs each of these tests over every transport that carries messages of any size.
macro_rules! over_every_stream {
    ($($test:ident),+ $(,)?) => { $(
        mod $test {
            #[tokio::test]
            async fn over_mem() {
                $crate::common::patience(super::$test($crate::common::Net::mem())).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn over_tcp() {
                $crate::common::patience(super::$test($crate::common::Net::tcp())).await;
            }
            #[tokio::test]
            async fn over_unix() {
                $crate::common::patience(super::$test($crate::common::Net::unix())).await;
            }
            #[cfg(target_os = "linux")]
            #[tokio::test]
            async fn over_shm() {
                $crate::common::patience(super::$test($crate::common::Net::shm())).await;
            }
        }
    )+ };
}
