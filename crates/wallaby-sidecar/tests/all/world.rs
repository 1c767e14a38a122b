//! What the tests share: a sidecar, who calls it, and servers that know nothing of it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use wallaby::{Address, CallError, Client, Endpoint, Health, health};
use wallaby_sidecar::{Config, Sidecar};

pub(crate) async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    let within = Duration::from_secs(60);
    timeout(within, what).await.expect("it is done by now")
}

/// A sidecar, and a client of it.
pub(crate) struct World {
    pub(crate) sidecar: Sidecar,
    pub(crate) client: Endpoint,
}

impl World {
    /// A sidecar that is told this besides where it listens.
    pub(crate) async fn new(config: &str) -> Self {
        let config = format!("listen = [\"tcp://127.0.0.1:0\"]\nhealth_every = \"20ms\"\n{config}");
        let sidecar = Sidecar::start(Config::parse(&config).unwrap())
            .await
            .unwrap();
        let client = Endpoint::bind("tcp://127.0.0.1:0").await.unwrap();
        Self { sidecar, client }
    }

    pub(crate) fn at(&self) -> &Address {
        self.sidecar.endpoint().address().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.client, self.at())
    }

    /// Waits until this is said of the health of a service.
    pub(crate) async fn until(&self, service: &str, wanted: Health) {
        let mut told = self.client().call(&health::WATCH, (service.to_owned(),));
        while let Some(state) = soon(told.next()).await {
            if state.unwrap() == wanted {
                return;
            }
        }
        panic!("the sidecar has ended");
    }
}

/// The message of what a call has failed with.
pub(crate) fn message<T: std::fmt::Debug>(failed: Result<T, CallError>) -> String {
    let error = failed.unwrap_err();
    error.status().unwrap().message().to_owned()
}

/// A program that serves, and is killed when this is dropped.
pub(crate) struct Program(Child);

impl Program {
    /// Python's own server of files, which says its port.
    pub(crate) async fn python(folder: &std::path::Path, port: u16) -> (Self, u16) {
        let mut program = Command::new("python3")
            .args([
                "-u",
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                "--protocol",
                "HTTP/1.1",
            ])
            .arg("--directory")
            .arg(folder)
            .arg(port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("there is a python3");
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let line = soon(lines.next_line())
            .await
            .unwrap()
            .expect("it says its port");
        let port = line.split(" port ").nth(1).unwrap();
        let port = port.split(' ').next().unwrap().parse().unwrap();
        (Self(program), port)
    }

    pub(crate) async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// A server that answers whatever it is asked with bytes that the test has chosen, one request a connection.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) at: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    /// So many may be answered.
    pub(crate) answers: Arc<Semaphore>,
    /// So many have arrived, and so many have given up before they were answered.
    pub(crate) arrived: Arc<Semaphore>,
    pub(crate) given_up: Arc<Semaphore>,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Raw {
    /// One that answers so, and at once if it may.
    pub(crate) async fn new(answer: impl Into<Vec<u8>>, at_once: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let raw = Self {
            at: listener.local_addr().unwrap(),
            seen: Arc::default(),
            answers: Arc::new(Semaphore::new(if at_once { 1_000_000 } else { 0 })),
            arrived: Arc::new(Semaphore::new(0)),
            given_up: Arc::new(Semaphore::new(0)),
            connections: Arc::default(),
        };
        let (server, answer) = (raw.clone(), Arc::new(answer.into()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                server.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(server.clone().serve(stream, Arc::clone(&answer)));
            }
        });
        raw
    }

    async fn serve(self, mut stream: TcpStream, answer: Arc<Vec<u8>>) {
        let Some(request) = read_request(&mut stream).await else {
            return; // somebody has looked whether it is there
        };
        self.seen.lock().unwrap().push(request);
        self.arrived.add_permits(1);
        let mut byte = [0];
        tokio::select! {
            may = self.answers.acquire() => may.unwrap().forget(),
            _ = stream.read(&mut byte) => {
                self.given_up.add_permits(1);
                return;
            }
        }
        let _ = stream.write_all(&answer).await;
    }

    /// The one request that it has seen.
    pub(crate) fn only(&self) -> String {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }
}

/// A request up to the end of its body, if there is one.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1);
            let length = length.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
            if body.len() >= length {
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// An answer with these headers and this body.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    )
}
