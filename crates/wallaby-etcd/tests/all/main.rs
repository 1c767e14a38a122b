//! With a real etcd, where the program `etcd` is installed (Debian: `etcd-server`).

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use wallaby::{Address, Client, Endpoint, Servers};
use wallaby_etcd::{Etcd, EtcdError};

const PATIENCE: Duration = Duration::from_secs(60);

const LIFE: Duration = Duration::from_secs(3);

#[wallaby::service(package = "test")]
trait Name {
    async fn name() -> String;
}

struct Named(&'static str);

#[wallaby::serve]
impl Name for Named {
    async fn name(&self) -> String {
        self.0.to_owned()
    }
}

/// An etcd of its own, which ends with this.
struct Running(Child);

impl Running {
    /// `None` if there is no such program here.
    fn start(folder: &Path, client: u16, peer: u16) -> Option<Self> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let started = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder)
            .args([
                "--listen-client-urls",
                &url(client),
                "--advertise-client-urls",
                &url(client),
            ])
            .args([
                "--listen-peer-urls",
                &url(peer),
                "--initial-advertise-peer-urls",
                &url(peer),
            ])
            .args(["--initial-cluster", &format!("default={}", url(peer))])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                eprintln!("NOT TESTED with a real etcd, as it cannot be started: {error}");
                None
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it has ended");
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn serve(name: &'static str) -> (Endpoint, Address) {
    let builder = Endpoint::builder().serve(name::service(Named(name)));
    let server = builder
        .listen("tcp://127.0.0.1:0")
        .bind()
        .await
        .expect("a port is free");
    let address = server.address().expect("it listens").clone();
    (server, address)
}

fn addresses(servers: &Servers) -> Vec<Address> {
    let mut addresses: Vec<_> = servers
        .list()
        .into_iter()
        .map(|(address, _)| address)
        .collect();
    addresses.sort_by_key(ToString::to_string);
    addresses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_there_is_called_and_who_leaves_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (client_port, peer_port) = (free_port(), free_port());
    let Some(running) = Running::start(&folder.path().join("one"), client_port, peer_port) else {
        return;
    };
    // The first member is not there.
    let members = [
        "http://127.0.0.1:1".to_owned(),
        format!("http://127.0.0.1:{client_port}"),
    ];
    let etcd = Etcd::new(members).expect("two members");
    let ((_a, at_a), (_b, at_b)) = (serve("a").await, serve("b").await);
    let a = loop {
        // It takes a moment until it listens.
        match etcd.register("name", &at_a, LIFE).await {
            Ok(a) => break a,
            Err(EtcdError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(a.key(), format!("wallaby/name/{at_a}"));
    let other = etcd
        .clone()
        .prefix("other")
        .register("name", &at_b, LIFE)
        .await;
    let nobody = Servers::watch(etcd.servers("nobody")).await;
    assert!(nobody.is_err(), "nobody serves that");

    let servers = Servers::watch(etcd.servers("name")).await.expect("one");
    assert_eq!(addresses(&servers), from_ref(&at_a));
    let client = Endpoint::client().expect("there is a runtime");
    let client = name::within(Client::among(&client, &servers));
    assert_eq!(client.name().await, Ok("a".into()));

    let mut both = [at_a.clone(), at_b.clone()];
    both.sort_by_key(ToString::to_string);
    let b = etcd.register("name", &at_b, LIFE).await.expect("it runs");
    until("both are known", || addresses(&servers) == both).await;
    drop(a);
    until("one is known", || addresses(&servers) == from_ref(&at_b)).await;
    assert_eq!(client.name().await, Ok("b".into()));

    // An etcd that has forgotten all is told again who is there.
    drop(running);
    let again = Running::start(&folder.path().join("two"), client_port, peer_port);
    let _again = again.expect("it has run before");
    let found = loop {
        match Servers::watch(etcd.servers("name")).await {
            Ok(found) => break found,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(addresses(&found), from_ref(&at_b));
    assert_eq!(
        client.name().await,
        Ok("b".into()),
        "the last list has held"
    );
    drop((b, other));
}
