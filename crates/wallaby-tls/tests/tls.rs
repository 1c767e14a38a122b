//! Endpoints over TLS: the suite of every transport, whom they trust, and what each side is told when they do not.

#[path = "../../wallaby/tests/common/mod.rs"]
#[macro_use]
mod common;
mod certificates;

use std::sync::Arc;
use std::time::Duration;

use certificates::{Authority, Folder};
use common::{Gate, Net, at, patience, service, sorted, until, work};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wallaby::transport::{Identity, Name, Proven};
use wallaby::{
    Address, Code, ConnectError, DialPolicy, Endpoint, Many, OtherAddress, Request, Service, Status,
};
use wallaby_tls::{Certificate, Tls, TlsError};

transport_suite!(over_tls, {
    let folder = Folder::new();
    Authority::new("root").issue(&folder, &["localhost"]);
    // Read already: nothing is read again if the files are gone.
    Net::foreign(folder.mutual(), |_, _| "tls://localhost:0".into())
});

/// Who may call, as the handler sees the peer.
fn guarded(name: &'static str) -> Service {
    service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| async move {
            let identity = request.identity().clone();
            if !identity.names().contains(&Name::Dns(name.into())) {
                return Err(Status::new(
                    Code::PermissionDenied,
                    format!("not for {identity}"),
                ));
            }
            Ok(request.respond(format!("{what} for {identity}")).await?)
        },
    )
}

async fn listen(tls: Arc<Tls>, service: Service) -> Endpoint {
    let builder = Endpoint::builder().transport(tls).serve(service);
    let endpoint = builder.listen("tls://localhost:0").bind().await;
    endpoint.expect("any port is free")
}

async fn client(tls: Arc<Tls>) -> Endpoint {
    let builder = Endpoint::builder().transport(tls).bind().await;
    builder.expect("there is a runtime")
}

fn port(endpoint: &Endpoint) -> u16 {
    let Address::Other(other) = at(endpoint) else {
        panic!("not over TLS")
    };
    let (host, port) = other.text().rsplit_once(':').expect("host and port");
    assert_eq!(host, "localhost", "others verify by the name");
    port.parse().expect("a number")
}

/// What a dial fails with, whichever side found out.
fn reason(error: ConnectError) -> String {
    match error {
        ConnectError::Rejected { reason, .. } | ConnectError::Closed { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_policy_by_name_decides_at_the_handler() {
    let (root, ours, theirs) = (Authority::new("root"), Folder::new(), Folder::new());
    root.issue(&ours, &["localhost", "front.example"]);
    root.issue(&theirs, &["back.example"]);
    let server = listen(ours.mutual(), guarded("front.example")).await;
    for (folder, allowed) in [(&ours, true), (&theirs, false)] {
        let client = client(folder.mutual()).await;
        let mut call = work::at(&client, at(&server)).many("answer".into());
        let (answers, statuses) = patience(sorted(&mut call)).await;
        if allowed {
            assert_eq!(answers, ["answer for localhost, front.example"]);
        } else {
            assert_eq!(statuses[0].code(), Code::PermissionDenied);
            assert!(
                statuses[0].message().contains("not for back.example"),
                "{}",
                statuses[0]
            );
        }
    }
}

#[tokio::test]
async fn without_mutual_authentication_only_the_server_is_proven() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let who = service().method(&work::MANY, |request: Request<Many<_>>, (_,)| async move {
        let Identity {
            peer,
            encrypted,
            address,
            ..
        } = request.identity();
        assert_eq!((peer, encrypted), (&Proven::Nothing, &true));
        assert!(address.is_some_and(|address| address.ip().is_loopback()));
        Ok(request.respond("somebody".into()).await?)
    });
    let tls = Tls::builder().certificate_files(folder.chain(), folder.key());
    let server = listen(tls.build().expect("they are there"), who).await;
    let roots = Tls::builder().roots_file(folder.roots()).build();
    let client = client(roots.expect("they are there")).await;
    let mut call = work::at(&client, at(&server)).many(String::new());
    assert_eq!(patience(sorted(&mut call)).await.0, ["somebody"]);
    // The server has no roots: it can dial nobody.
    let error = server.connect(at(&server)).await.expect_err("no roots");
    assert!(error.to_string().contains("no roots"), "{error}");
}

/// The dialler finds out: the reason is its own, and the acceptor counts what it was told.
#[tokio::test]
async fn a_server_that_is_not_trusted_is_named() {
    let (root, other) = (Authority::new("root"), Authority::new("other"));
    let (good, wrong_root, expired, wrong_name) =
        (Folder::new(), Folder::new(), Folder::new(), Folder::new());
    root.issue(&good, &["localhost"]);
    other.issue(&wrong_root, &["localhost"]);
    root.issue_expired(&expired, &["localhost"]);
    root.issue(&wrong_name, &["elsewhere.example"]);
    for (folder, why) in [
        (&wrong_root, "UnknownIssuer"),
        (&expired, "expired"),
        (&wrong_name, "localhost"),
    ] {
        let tls = Tls::builder().certificate_files(folder.chain(), folder.key());
        let server = listen(tls.build().expect("they are there"), service()).await;
        let client = client(good.mutual()).await;
        let error = patience(client.connect(at(&server))).await;
        let error = error.expect_err("it is not trusted");
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        patience(until(|| server.metrics().accepts_failed == 1)).await;
        assert_eq!(server.metrics().connections_opened, 0);
    }
}

/// The acceptor finds out: the dialler is told by an alert.
#[tokio::test]
async fn a_client_that_is_not_trusted_is_told_why() {
    let (root, other) = (Authority::new("root"), Authority::new("other"));
    let (good, wrong_root, expired) = (Folder::new(), Folder::new(), Folder::new());
    root.issue(&good, &["localhost"]);
    other.issue(&wrong_root, &["localhost"]);
    root.issue_expired(&expired, &["localhost"]);
    let anonymous = Tls::builder().roots_file(good.roots()).build();
    let with = |folder: &Folder| {
        let tls = Tls::builder().roots_file(good.roots());
        tls.certificate_files(folder.chain(), folder.key()).build()
    };
    for (tls, why) in [
        (anonymous, "CertificateRequired"),
        (with(&wrong_root), "UnknownCA"),
        (with(&expired), "CertificateExpired"),
    ] {
        let server = listen(good.mutual(), service()).await;
        let client = client(tls.expect("they are there")).await;
        let error = patience(client.connect(at(&server))).await;
        let reason = reason(error.expect_err("it is not trusted"));
        assert!(reason.contains(why), "{reason}");
        patience(until(|| server.metrics().accepts_failed == 1)).await;
        assert_eq!(server.metrics().connections_opened, 0);
    }
}

#[tokio::test]
async fn certificates_and_roots_are_replaced_while_connections_live() {
    let (old, new, folder) = (Authority::new("old"), Authority::new("new"), Folder::new());
    old.issue(&folder, &["localhost", "first.example"]);
    let server = listen(folder.mutual(), guarded("first.example")).await;
    let before = client(folder.mutual()).await;
    let ask = async |client: &Endpoint| {
        let mut call = work::at(client, at(&server)).many("x".into());
        patience(sorted(&mut call)).await
    };
    assert_eq!(ask(&before).await.0, ["x for localhost, first.example"]);
    // A key that is not the certificate's, as for a moment while both are replaced: the last ones go on.
    std::fs::write(folder.key(), new.key()).expect("it can be written");
    let meanwhile = client(Arc::clone(&before_tls(&old))).await;
    assert_eq!(ask(&meanwhile).await.0, ["x for localhost, first.example"]);
    // Other certificates of other roots: who has only the old ones is a stranger now.
    new.issue(&folder, &["localhost", "second.example"]);
    let error = patience(client(before_tls(&old)).await.connect(at(&server))).await;
    assert!(reason(error.expect_err("replaced")).contains("UnknownIssuer"));
    let after = client(folder.mutual()).await;
    assert!(ask(&after).await.1[0].message().contains("second.example"));
    // The connection that was open before goes on with what it has proven.
    assert_eq!(ask(&before).await.0, ["x for localhost, first.example"]);
    assert_eq!(before.metrics().connections_opened, 1);
}

/// With a certificate of this authority, in files that are gone.
fn before_tls(authority: &Authority) -> Arc<Tls> {
    let folder = Folder::new();
    authority.issue(&folder, &["localhost", "first.example"]);
    folder.mutual()
}

/// What is wrong with a file may pass without a trace in it: the mode of a file, or the descriptors of this process.
#[tokio::test]
async fn roots_and_certificates_may_come_from_memory() {
    let (a, b) = (Authority::new("a"), Authority::new("b"));
    let (of_a, of_b) = (Folder::new(), Folder::new());
    a.issue(&of_a, &["localhost", "a.example"]);
    b.issue(&of_b, &["localhost", "b.example"]);
    let read = |path| std::fs::read(path).expect("it is there");
    let tls = Tls::builder()
        .trust(&read(of_a.roots()))
        .trust(&read(of_b.roots()))
        .certificate(&read(of_a.chain()), &read(of_a.key()))
        .mutual();
    let in_memory = tls.build().expect("all is there");
    let server = listen(Arc::clone(&in_memory), guarded("b.example")).await;
    // A file and memory go together.
    let with_file = Tls::builder().trust(&read(of_a.roots()));
    let with_file = with_file.roots_file(of_b.roots());
    let with_file = with_file
        .certificate_files(of_b.chain(), of_b.key())
        .build();
    for (tls, name, allowed) in [
        (in_memory, "a.example", false),
        (with_file.expect("all is there"), "b.example", true),
        (of_a.mutual(), "a.example", false),
    ] {
        let client = client(tls).await;
        let mut call = work::at(&client, at(&server)).many("x".into());
        let (answers, statuses) = patience(sorted(&mut call)).await;
        assert_eq!(
            (answers.len(), statuses.len()),
            (usize::from(allowed), usize::from(!allowed))
        );
        let told = answers
            .into_iter()
            .chain(statuses.iter().map(Status::to_string));
        assert!(told.last().is_some_and(|told| told.contains(name)));
    }
    let stranger = patience(client(of_b.mutual()).await.connect(at(&server))).await;
    assert!(reason(stranger.expect_err("it does not trust a")).contains("UnknownIssuer"));
}

#[tokio::test]
async fn a_reading_that_failed_is_tried_again() {
    let (old, new, folder) = (Authority::new("old"), Authority::new("new"), Folder::new());
    old.issue(&folder, &["localhost", "first.example"]);
    let server = listen(folder.mutual(), service()).await;
    let (stranger, friend) = (before_tls(&old), before_tls(&new));
    new.issue(&folder, &["localhost", "second.example"]);
    let roots = std::fs::read(folder.roots()).expect("they are there");
    let write = |pem: &[u8]| {
        let mut file = std::fs::File::options();
        let mut file = file.write(true).open(folder.roots()).expect("a file");
        std::io::Write::write_all(&mut file, pem).expect("it can be written");
        file.set_modified(std::time::UNIX_EPOCH).expect("a time");
    };
    write(&b"?".repeat(roots.len()));
    let connect = async |tls: &Arc<Tls>| {
        let client = client(Arc::clone(tls)).await;
        patience(client.connect(at(&server))).await.map(drop)
    };
    connect(&stranger).await.expect("the last ones go on");
    write(&roots);
    patience(async { while connect(&friend).await.is_err() {} }).await;
    connect(&stranger).await.expect_err("replaced");
}

#[tokio::test]
async fn a_function_gives_certificates() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    let name = Arc::new(std::sync::Mutex::new("first.example"));
    let given = Arc::clone(&name);
    root.issue(&folder, &["localhost"]);
    let (chain, key) = (root.clone(), folder.roots());
    let give = move || {
        let name = *given.lock().expect("no panic");
        let (chain, key) = chain.sign(&["localhost", name], false);
        Certificate::from_pem(chain.as_bytes(), key.as_bytes())
    };
    let tls = Tls::builder().roots_file(key).certificate_by(give).mutual();
    let tls = tls.build().expect("it gives one");
    let server = listen(Arc::clone(&tls), guarded("second.example")).await;
    for (now, answers) in [("first.example", 0), ("second.example", 1)] {
        *name.lock().expect("no panic") = now;
        let client = client(Arc::clone(&tls)).await;
        let mut call = work::at(&client, at(&server)).many("x".into());
        assert_eq!(patience(sorted(&mut call)).await.0.len(), answers);
    }
}

#[tokio::test]
async fn garbage_and_half_handshakes_hold_up_nobody() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let builder = Endpoint::builder().dial_timeout(Duration::from_millis(500));
    let builder = builder
        .transport(folder.mutual())
        .serve(guarded("localhost"));
    let server = builder.listen("tls://localhost:0").bind().await;
    let server = server.expect("any port is free");
    let connect = || TcpStream::connect(("localhost", port(&server)));
    // Nothing; a record that says it is long; no TLS at all; a hello of Wallaby's own.
    let beginnings: [&[u8]; 4] = [
        b"",
        b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x20\x00\x00\x01wallaby",
    ];
    let mut raw = Vec::new();
    for bytes in beginnings {
        let mut stream = connect().await.expect("it listens");
        stream.write_all(bytes).await.expect("it takes them");
        raw.push(stream);
    }
    let client = client(folder.mutual()).await;
    let mut call = work::at(&client, at(&server)).many("x".into());
    assert_eq!(patience(sorted(&mut call)).await.0.len(), 1);
    for mut stream in raw {
        let mut told = Vec::new();
        let _ = patience(stream.read_to_end(&mut told)).await;
        assert!(told.len() < 100, "an alert at most");
    }
    patience(until(|| server.metrics().accepts_failed == 4)).await;
    assert_eq!(server.metrics().connections_opened, 1);
}

#[tokio::test]
async fn delegations_and_answers_go_over_tls_to_servers_that_see_each_other() {
    let (root, a, b) = (Authority::new("root"), Folder::new(), Folder::new());
    root.issue(&a, &["localhost", "a.example"]);
    root.issue(&b, &["localhost", "b.example"]);
    let last = listen(b.mutual(), guarded("a.example")).await;
    let next = at(&last);
    let onward = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, work::many(what)).await?) }
        },
    );
    let first = listen(a.mutual(), onward).await;
    let initiator = listen(b.mutual(), service()).await;
    let mut call = work::at(&initiator, at(&first)).many("x".into());
    let (answers, statuses) = patience(sorted(&mut call)).await;
    assert_eq!(
        (answers, statuses),
        (vec!["x for localhost, a.example".to_owned()], vec![])
    );
}

/// Behind a name is an IP address, and what holds for those that peers have named holds for that one.
#[tokio::test]
async fn where_the_name_of_a_peer_leads_is_limited() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let last = Endpoint::builder()
        .transport(folder.mutual())
        .serve(guarded("localhost"))
        .dial_policy(DialPolicy::default().rate(1, 1)) // the name, and not what it leads to
        .listen("tls://localhost:0");
    let last = last.bind().await.expect("any port is free");
    let next = at(&last);
    let onward = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, work::many(what)).await?) }
        },
    );
    let first = listen(folder.mutual(), onward).await;
    let initiator = listen(folder.mutual(), service()).await;
    let mut call = work::at(&initiator, at(&first)).many("x".into());
    let (answers, _) = patience(sorted(&mut call)).await;
    assert_eq!(answers, ["x for localhost"], "by a relay");
    assert_ne!(last.metrics().dials_held, 0);
}

/// Who dialled what is told would else reach itself.
#[tokio::test]
async fn who_listens_at_all_addresses_tells_one_that_others_can_dial() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    for any in ["tls://0.0.0.0:0", "tls://[::]:0"] {
        let server = Endpoint::builder().transport(folder.mutual()).listen(any);
        let server = server.bind().await.expect("any port is free");
        let told = server.address().map(ToString::to_string);
        let networks = std::net::UdpSocket::bind("0.0.0.0:0").expect("a free port");
        let has_networks = networks.connect("192.0.2.1:9").is_ok();
        assert_eq!(told.is_some(), has_networks, "{told:?}");
        let is_any = |told: String| told.contains("//0.0.0.0:") || told.contains("//[::]:");
        assert!(!told.is_some_and(is_any));
    }
}

#[tokio::test]
async fn a_name_is_no_way_around_what_is_never_dialled() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let nowhere: Address = "tls://localhost:0".parse().expect("an address");
    let error = patience(client(folder.mutual()).await.connect(nowhere)).await;
    let error = error.expect_err("nobody is at port 0");
    assert!(error.to_string().contains("may be dialled"), "{error}");
}

#[tokio::test]
async fn a_connection_that_breaks_is_no_orderly_end() {
    let (root, folder, gate) = (Authority::new("root"), Folder::new(), Gate::new());
    root.issue(&folder, &["localhost"]);
    let entered = gate.clone();
    let mute = service().method(
        &work::MANY,
        move |request: Request<Many<String>>, (_,): (String,)| {
            let entered = entered.clone();
            async move {
                entered.open(1);
                request.cancelled().await;
                Ok(())
            }
        },
    );
    let server = listen(folder.mutual(), mute).await;
    // Somebody in between who ends both connections after a while.
    let between = tokio::net::TcpListener::bind("localhost:0")
        .await
        .expect("a port");
    let through = between.local_addr().expect("it has one").port();
    let target = port(&server);
    let cut = Gate::new();
    let cutting = cut.clone();
    let relay = tokio::spawn(async move {
        let (mut here, _) = between.accept().await.expect("somebody dials");
        let mut there = TcpStream::connect(("localhost", target))
            .await
            .expect("it listens");
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
            () = cutting.pass() => {}
        }
    });
    let client = client(folder.mutual()).await;
    let address = OtherAddress::new("tls", &format!("localhost:{through}")).expect("an address");
    let mut call = work::at(&client, Address::Other(address)).many(String::new());
    let cuts = async {
        gate.pass().await;
        cut.open(1);
    };
    let (item, ()) = patience(async { tokio::join!(call.next(), cuts) }).await;
    item.expect("an end that is no answer")
        .expect_err("the call is lost");
    relay.await.expect("no panic");
}

/// A client that can do nothing newer than TLS 1.2.
fn dial_by_1_2(folder: &Folder, port: u16) -> std::io::Result<()> {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    let root = CertificateDer::from_pem_file(folder.roots()).expect("a certificate");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).expect("it is usable");
    let mut socket = std::net::TcpStream::connect(("localhost", port))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_1_2_is_spoken_only_if_asked_for() {
    let (root, folder) = (Authority::new("root"), Arc::new(Folder::new()));
    root.issue(&folder, &["localhost"]);
    for allowed in [false, true] {
        let tls = Tls::builder().certificate_files(folder.chain(), folder.key());
        let tls = if allowed { tls.allow_tls12() } else { tls };
        let server = listen(tls.build().expect("they are there"), service()).await;
        let (folder, port) = (Arc::clone(&folder), port(&server));
        let dialled = tokio::task::spawn_blocking(move || dial_by_1_2(&folder, port));
        let result = patience(dialled).await.expect("no panic");
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        if let Err(error) = result {
            assert!(error.to_string().contains("ProtocolVersion"), "{error}");
        }
    }
}

#[test]
fn what_cannot_be_used_is_said_when_it_is_built() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let missing = Tls::builder().roots_file("/nonexistent/ca.pem").build();
    let missing = missing.expect_err("there is no file");
    assert!(matches!(missing, TlsError::File { .. }));
    assert_eq!(missing.code(), Code::NotFound);
    let empty = Tls::builder().roots_file(folder.key()).build();
    assert!(matches!(empty, Err(TlsError::Unreadable { .. })));
    let empty = Tls::builder().roots_file(folder.roots()).trust(b"").build();
    assert!(matches!(empty, Err(TlsError::Unreadable { .. })));
    let others = Tls::builder()
        .certificate_files(folder.chain(), folder.roots())
        .build();
    assert!(matches!(others, Err(TlsError::Unreadable { .. })));
    assert!(matches!(
        Tls::builder().mutual().build(),
        Err(TlsError::NoRoots)
    ));
    let half = Tls::builder().roots_file(folder.roots()).mutual().build();
    assert!(matches!(half, Err(TlsError::NoCertificate)));
    std::fs::write(folder.key(), root.key()).expect("it can be written");
    let mixed = Tls::builder()
        .certificate_files(folder.chain(), folder.key())
        .build();
    assert!(matches!(mixed, Err(TlsError::Unusable(_))));
}

#[tokio::test]
async fn addresses_without_a_port_say_so() {
    let (root, folder) = (Authority::new("root"), Folder::new());
    root.issue(&folder, &["localhost"]);
    let client = client(folder.mutual()).await;
    for text in ["tls://localhost", "tls://localhost:http", "tls://..:1"] {
        let to: Address = text.parse().expect("an address");
        assert!(patience(client.connect(to)).await.is_err(), "{text}");
    }
}
