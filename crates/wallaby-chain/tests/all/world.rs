//! Services that know nothing of chains, and endpoints that serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wallaby::{Address, Builder, CallError, Endpoint, Many, One, Request, Service, Status};
use wallaby_chain::Chains;

/// What the services can do.
#[wallaby::service(package = "test")]
pub(crate) trait Words {
    async fn shout(text: String) -> String;
    async fn length(text: String) -> u64;
    async fn repeat(times: u64) -> String;
    async fn each(text: String) -> Many<String>;
    async fn deny(text: String) -> String;
    async fn hang(text: String) -> String;
}

/// They do it. Who hangs says so first, and goes on never.
pub(crate) struct Library {
    pub(crate) hanging: Arc<Semaphore>,
}

#[wallaby::serve]
impl Words for Library {
    async fn shout(&self, text: String) -> String {
        format!("{text}!")
    }

    async fn length(&self, text: String) -> u64 {
        text.len() as u64
    }

    async fn repeat(&self, times: u64) -> String {
        "x".repeat(usize::try_from(times).expect("small"))
    }

    async fn each(&self, request: Request<Many<String>>, text: String) -> Result<(), Status> {
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            request.reply(word.to_owned()).await?;
        }
        Ok(())
    }

    async fn deny(&self, text: String) -> Result<String, Status> {
        match &*text {
            "panic" => panic!("as it was told"),
            _ => Err(Status::permission_denied(format!("{text} is not for you"))),
        }
    }

    async fn hang(&self, request: Request<One<String>>, _text: String) -> Result<(), Status> {
        self.hanging.add_permits(1);
        let _dropped = Dropped(&self.hanging);
        request.cancelled().await;
        Ok(())
    }
}

/// Tells that a handler is gone.
struct Dropped<'a>(&'a Semaphore);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// Where the endpoints of a test listen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Net {
    Mem,
    Tcp,
    Unix,
}

pub(crate) fn library() -> Service {
    hanging().0
}

/// The same, and who hears what hangs there.
pub(crate) fn hanging() -> (Service, Arc<Semaphore>) {
    let hanging = Arc::new(Semaphore::new(0));
    let heard = Arc::clone(&hanging);
    (words::service(Library { hanging }), heard)
}

impl Net {
    pub(crate) fn address(self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Mem => format!("mem://wallaby-chain-{number}"),
            Self::Tcp => "tcp://127.0.0.1:0".into(),
            Self::Unix => {
                let process = std::process::id();
                let file = format!("wallaby-chain-{process}-{number}");
                format!("unix://{}", std::env::temp_dir().join(file).display())
            }
        }
    }

    pub(crate) async fn bind(self, builder: Builder) -> Endpoint {
        let bound = builder.listen(&self.address()).bind().await;
        bound.expect("the address is free")
    }

    /// A library whose methods are links.
    pub(crate) async fn serve(self, chains: Chains) -> Endpoint {
        self.bind(chains.add_to(Endpoint::builder().serve(library())))
            .await
    }

    /// The same, and who hears what hangs there.
    pub(crate) async fn serve_hanging(self, chains: Chains) -> (Endpoint, Arc<Semaphore>) {
        let (service, hanging) = hanging();
        let endpoint = self
            .bind(chains.add_to(Endpoint::builder().serve(service)))
            .await;
        (endpoint, hanging)
    }

    pub(crate) async fn client(self) -> Endpoint {
        self.bind(Endpoint::builder()).await
    }
}

pub(crate) fn at(endpoint: &Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

/// The status with which a call has ended.
pub(crate) fn status<T: std::fmt::Debug>(answer: Result<T, CallError>) -> Status {
    let error = answer.expect_err("an error");
    error
        .status()
        .unwrap_or_else(|| panic!("no status: {error}"))
        .clone()
}

/// The hosts that an exception names.
pub(crate) fn hosts(status: &Status) -> Vec<String> {
    wallaby_chain::hosts(status)
        .iter()
        .map(ToString::to_string)
        .collect()
}

pub(crate) fn texts<const N: usize>(addresses: [&Address; N]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

/// Waits for what other tasks bring about.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(120), "it does not come about");
        tokio::task::yield_now().await;
    }
}

/// A test that hangs fails.
pub(crate) async fn patience<T>(test: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(Duration::from_secs(60), test).await;
    result.expect("the test hangs")
}
