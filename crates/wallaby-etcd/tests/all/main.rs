//! With a real etcd, where the program `etcd` is installed (Debian: `etcd-server`).

mod modules;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use wallaby::{Address, Client, Endpoint, Servers};
use wallaby_etcd::{Etcd, EtcdError, Lease};

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
    fn start(folder: &Path, client: &str, peer: u16) -> Option<Self> {
        Self::start_with(folder, client, peer, &[])
    }

    fn start_with(folder: &Path, client: &str, peer: u16, options: &[&str]) -> Option<Self> {
        let peer = format!("http://127.0.0.1:{peer}");
        let started = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder)
            .args(["--listen-client-urls", client])
            .args(["--advertise-client-urls", client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                // Not by a macro, whose output a test that passes would keep to itself.
                let why = format!(
                    "etcd: a real one is NOT tested: it cannot be started: {error} (Debian: etcd-server)\n"
                );
                std::io::stderr()
                    .write_all(why.as_bytes())
                    .expect("it is open");
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

/// It takes a moment until an etcd listens.
async fn registered(etcd: &Etcd, server: &Address) -> Lease {
    loop {
        match etcd.register("name", server, LIFE).await {
            Ok(registration) => return registration,
            Err(EtcdError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
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
    let peer_port = free_port();
    let member = format!("http://127.0.0.1:{}", free_port());
    let Some(running) = Running::start(&folder.path().join("one"), &member, peer_port) else {
        return;
    };
    // The first member is not there.
    let etcd = Etcd::new(["http://127.0.0.1:1", &member]).expect("two members");
    let ((_a, at_a), (_b, at_b)) = (serve("a").await, serve("b").await);
    let a = registered(&etcd, &at_a).await;
    assert_eq!(a.key(), format!("wallaby/name/{at_a}"));
    let other = etcd
        .clone()
        .prefix("other")
        .register("name", &at_b, LIFE)
        .await;
    let below = etcd.register("name/100%", &at_b, LIFE).await;
    let below = below.expect("it runs");
    assert_eq!(below.key(), format!("wallaby/name%2F100%25/{at_b}"));
    let found = Servers::watch(etcd.servers("name/100%")).await;
    assert_eq!(addresses(&found.expect("one")), from_ref(&at_b));
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
    let again = Running::start(&folder.path().join("two"), &member, peer_port);
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
    drop((b, other, below));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_removed_is_written_down_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let member = format!("http://127.0.0.1:{}", free_port());
    let Some(_running) = Running::start(folder.path(), &member, free_port()) else {
        return;
    };
    let (_server, at) = serve("a").await;
    let etcd = Etcd::new([&member]).expect("one member");
    let registration = registered(&etcd, &at).await;
    let ask = |path: &str| {
        let key = BASE64_STANDARD.encode(registration.key());
        let request = format!(r#"{{"key":"{key}"}}"#);
        let answer = ureq::post(format!("{member}/v3/kv/{path}")).send(&request);
        let mut body = answer.expect("it runs").into_body();
        body.read_to_string().expect("a text")
    };
    let one = r#""count":"1""#;
    assert!(ask("range").contains(one));
    assert!(ask("deleterange").contains(r#""deleted":"1""#));
    until("it is there again", || ask("range").contains(one)).await;
}

/// Certificates by one authority, as PEM: of the authority, and for a name with its key.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    fn names(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name = DistinguishedName::new(); // etcd takes no common name beside a password
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_with_tls_and_passwords_knows_who_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let (chain, key) = authority.names("127.0.0.1");
    let trusted = &authority.pem;
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it is written");
        path.to_str().expect("a plain path").to_owned()
    };
    let (at_chain, at_key) = (file("chain.pem", &chain), file("key.pem", &key));
    let at_authority = file("authority.pem", trusted);
    let member = format!("https://127.0.0.1:{}", free_port());
    let options = [
        "--cert-file",
        &at_chain,
        "--key-file",
        &at_key,
        "--client-cert-auth",
        "--trusted-ca-file",
        &at_authority,
    ];
    let data = folder.path().join("data");
    let peer_port = free_port();
    let Some(running) = Running::start_with(&data, &member, peer_port, &options) else {
        return;
    };
    let (_server, at) = serve("a").await;

    let with_certificate = || {
        Etcd::builder([&member])
            .trust(trusted.as_bytes())
            .certificate(chain.as_bytes(), key.as_bytes())
    };
    let etcd = with_certificate().build().expect("all is there");
    drop(registered(&etcd, &at).await);
    let nobody = Etcd::builder([&member]).trust(trusted.as_bytes()).build();
    let refused = nobody.expect("it is one").register("name", &at, LIFE).await;
    assert!(
        matches!(refused, Err(EtcdError::Unreachable { .. })),
        "{refused:?}"
    );
    let other = Authority::new().pem;
    let strange = Etcd::builder([&member]).trust(other.as_bytes()).build();
    let refused = strange
        .expect("it is one")
        .register("name", &at, LIFE)
        .await;
    assert!(
        matches!(refused, Err(EtcdError::Unreachable { .. })),
        "{refused:?}"
    );

    // From now on it wants to know users.
    let etcdctl = |path: &str, request: &str| {
        let url = format!("{member}/v3/auth/{path}");
        let client = ClientCert::new_with_certs(
            &[Certificate::from_pem(chain.as_bytes()).expect("a certificate")],
            PrivateKey::from_pem(key.as_bytes()).expect("a key"),
        );
        let authority = Certificate::from_pem(trusted.as_bytes()).expect("a certificate");
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(rustls::crypto::ring::default_provider().into())
            .root_certs(RootCerts::new_with_certs(&[authority]))
            .client_cert(Some(client));
        let agent: Agent = Agent::config_builder()
            .tls_config(tls.build())
            .build()
            .into();
        let _answer = agent.post(url).send(request).expect("etcd has done it");
    };
    etcdctl("role/add", r#"{"name":"root"}"#);
    etcdctl("user/add", r#"{"name":"root","password":"open sesame"}"#);
    etcdctl("user/grant", r#"{"user":"root","role":"root"}"#);
    etcdctl("enable", "{}");
    let nobody = etcd.register("name", &at, LIFE).await;
    assert!(
        matches!(nobody, Err(EtcdError::Refused { .. })),
        "{nobody:?}"
    );
    let wrong = with_certificate().password("root", "sesame").build();
    let wrong = wrong.expect("it is one").register("name", &at, LIFE).await;
    let Err(EtcdError::Refused { what, .. }) = wrong else {
        panic!("{wrong:?}")
    };
    assert_eq!(what, "for a token of its user");
    let root = with_certificate().password("root", "open sesame").build();
    let root = root.expect("it is one");
    drop(registered(&root, &at).await);

    // One that was started again does not know the tokens that it has given.
    drop(running);
    let again = Running::start_with(&data, &member, peer_port, &options);
    let _again = again.expect("it has run before");
    let _registration = registered(&root, &at).await;
    let servers = Servers::watch(root.servers("name")).await.expect("one");
    assert_eq!(addresses(&servers), from_ref(&at));
}

/// Tokens of the kind JWT say of which state of users and roles they are, and are void when these have changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_void_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, [b'k'; 40]).expect("it is written");
    let key = key.to_str().expect("a plain path");
    let tokens = format!("jwt,sign-method=HS256,ttl=10m,priv-key={key}");
    let options = ["--auth-token", &tokens, "--bcrypt-cost", "4"];
    let member = format!("http://127.0.0.1:{}", free_port());
    let data = folder.path().join("data");
    let Some(_running) = Running::start_with(&data, &member, free_port(), &options) else {
        return;
    };
    let (_server, at) = serve("a").await;
    drop(registered(&Etcd::new([&member]).expect("one member"), &at).await);
    let etcdctl = |path: &str, token: &str, request: &str| {
        let mut post = ureq::post(format!("{member}/v3/auth/{path}"));
        if !token.is_empty() {
            post = post.header("Authorization", token);
        }
        let answer = post.send(request).expect("etcd has done it");
        let text = answer.into_body().read_to_string().expect("a text");
        serde_json::from_str::<serde_json::Value>(&text).expect("an answer")
    };
    etcdctl("role/add", "", r#"{"name":"root"}"#);
    let user = r#"{"name":"root","password":"open sesame"}"#;
    etcdctl("user/add", "", user);
    etcdctl("user/grant", "", r#"{"user":"root","role":"root"}"#);
    etcdctl("enable", "", "{}");
    let root = Etcd::builder([&member]).password("root", "open sesame");
    let root = root.build().expect("it is one");
    let registration = root.register("name", &at, LIFE).await.expect("known");

    let token = etcdctl("authenticate", "", user);
    let token = token["token"].as_str().expect("a token");
    etcdctl("user/add", token, r#"{"name":"a","password":"b"}"#);
    let servers = Servers::watch(root.servers("name")).await;
    assert_eq!(addresses(&servers.expect("known again")), from_ref(&at));
    drop(registration);
}

#[test]
fn what_tls_lacks_is_told_before_anything_is_sent() {
    let nothing: [&str; 0] = [];
    assert_eq!(Etcd::new(nothing).map(drop), Err(EtcdError::NoMember));
    let told = |etcd: Result<Etcd, EtcdError>| match etcd {
        Err(EtcdError::Tls(why)) => why,
        other => panic!("{other:?}"),
    };
    let _in_capitals = told(Etcd::new(["HTTPS://127.0.0.1:1"]));
    let why = told(Etcd::new(["https://127.0.0.1:1"]));
    assert!(
        why.contains("no authority is trusted to name https://127.0.0.1:1"),
        "{why}"
    );
    let authority = Authority::new();
    let ((chain, _), (_, key)) = (authority.names("a"), authority.names("b"));
    let etcd = || Etcd::builder(["https://127.0.0.1:1"]).trust(authority.pem.as_bytes());
    let why = told(etcd().certificate(chain.as_bytes(), key.as_bytes()).build());
    assert!(why.starts_with("the certificate with this key"), "{why}");
    let why = told(etcd().certificate(chain.as_bytes(), b"no key").build());
    assert!(why.starts_with("the key cannot be used"), "{why}");
    let shown = format!("{:?}", etcd().password("root", "open sesame"));
    assert!(!shown.contains("sesame"), "{shown}");
}
