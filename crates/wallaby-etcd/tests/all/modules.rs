//! Modules of chains that several machines share.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use wallaby::{Address, Code, Endpoint, Status};
use wallaby_chain::{Hash, Repository, RepositoryLimits, functions};
use wallaby_etcd::Etcd;

use crate::{Running, free_port};

async fn serve(repository: &Repository) -> (Endpoint, Address) {
    let builder = Endpoint::builder().serve(repository.service());
    let server = builder.listen("tcp://127.0.0.1:0").bind().await;
    let server = server.expect("a port is free");
    let address = server.address().expect("it listens").clone();
    (server, address)
}

/// It takes a moment until an etcd listens.
async fn kept(repository: &Repository, module: &'static [u8]) -> Hash {
    loop {
        let repository = repository.clone();
        let kept = tokio::task::spawn_blocking(move || repository.keep(module)).await;
        match kept.expect("no panic") {
            Ok(code) => return code.hash(),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
}

fn status<T: std::fmt::Debug>(answer: Result<T, wallaby::CallError>) -> Status {
    let error = answer.expect_err("a status");
    error.status().expect("a status").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repositories_on_several_machines_share_modules() {
    let folder = tempfile::tempdir().expect("a folder");
    let member = format!("http://127.0.0.1:{}", free_port());
    let Some(running) = Running::start(folder.path(), &member, free_port()) else {
        return;
    };
    let etcd = Etcd::new([&member]).expect("one member").prefix("test");
    let limits = RepositoryLimits {
        module_bytes: 2 << 20,
        ..RepositoryLimits::default()
    };
    let [one, two, three] = [(); 3].map(|()| {
        let backed = Repository::backed(etcd.modules());
        backed.limits(limits.clone()).manage(|_| true)
    });
    let mut hashes = [
        kept(&one, b"one").await,
        kept(&one, b"two").await,
        kept(&one, b"three").await,
    ];
    hashes.sort();
    let (_server, at) = serve(&two).await;
    let client = Endpoint::client().expect("there is a runtime");
    let functions = functions::at(&client, at);
    let first = Hash::of(b"one");
    assert_eq!(functions.fetch(first).await, Ok(b"one".to_vec()));
    let size = |hash: &Hash| if *hash == Hash::of(b"three") { 5 } else { 3 };
    let all: Vec<_> = hashes.iter().map(|hash| (*hash, size(hash))).collect();
    assert_eq!(functions.list(None).await, Ok(all.clone()));
    assert_eq!(functions.list(Some(hashes[0])).await, Ok(all[1..].to_vec()));
    assert_eq!(functions.list(Some(hashes[2])).await, Ok(Vec::new()));
    let large = status(functions.upload(vec![7; (1 << 20) + 1]).await);
    assert_eq!(large.code(), Code::ResourceExhausted);
    let text = "a module of 1048577 bytes: etcd takes at most 1048576";
    assert_eq!(large.message(), text);
    let most = vec![7; 1 << 20];
    let hash = functions.upload(most.clone()).await.expect("it is kept");
    let (_third, at) = serve(&three).await;
    let others = functions::at(&client, at);
    assert!(others.fetch(hash).await == Ok(most), "it is the same");

    // What one deletes, those have who were asked for it before.
    assert_eq!(others.delete(first).await, Ok(true));
    assert_eq!(others.delete(first).await, Ok(false));
    assert_eq!(functions.fetch(first).await, Ok(b"one".to_vec()));
    let gone = status(others.fetch(first).await);
    assert_eq!(gone.code(), Code::NotFound);

    // Whoever writes to etcd cannot make a module of something else.
    let key = BASE64_STANDARD.encode(format!("test/%modules/{first}/3"));
    let value = BASE64_STANDARD.encode("two");
    let request = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
    let written = ureq::post(format!("{member}/v3/kv/put")).send(&request);
    written.expect("it is written");
    let lost = status(others.fetch(first).await);
    assert_eq!(lost.code(), Code::DataLoss);

    // Without it, what was asked for before is still there.
    drop(running);
    assert_eq!(functions.fetch(first).await, Ok(b"one".to_vec()));
    let away = status(others.fetch(Hash::of(b"two")).await);
    assert_eq!(away.code(), Code::Unavailable);
    assert_eq!(
        away.message(),
        "the etcd of the repository cannot be reached"
    );
}
