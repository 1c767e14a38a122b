//! Where modules are kept.

use std::fs;
use std::path::PathBuf;

use wallaby::transport::Proven;
use wallaby::{Code as StatusCode, Endpoint};
use wallaby_chain::{Code, Hash, Repository, RepositoryLimits, functions};

use crate::world::{Net, at, status};

/// A folder that is not there yet, and is gone with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("wallaby-chain-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn small() -> RepositoryLimits {
    RepositoryLimits {
        modules: 3,
        module_bytes: 10,
        bytes: 20,
    }
}

#[tokio::test]
async fn who_may_manage_it_uploads_lists_and_deletes() {
    let repository = Repository::new()
        .manage(|request| matches!(request.identity().peer, Proven::LocalUser { .. }));
    let server = Net::Unix
        .bind(Endpoint::builder().serve(repository.service()))
        .await;
    let client = Net::Unix.client().await;
    let functions = functions::at(&client, at(&server));
    let mut hashes = Vec::new();
    for module in [&b"one"[..], b"two", b"one"] {
        let hash = functions.upload(module.to_vec()).await.expect("it may");
        assert_eq!(hash, Hash::of(module));
        assert_eq!(functions.fetch(hash).await, Ok(module.to_vec()));
        hashes.push(hash);
    }
    hashes.truncate(2);
    hashes.sort();
    let listed = hashes.iter().map(|hash| (*hash, 3)).collect::<Vec<_>>();
    assert_eq!(functions.list(None).await, Ok(listed.clone()));
    assert_eq!(
        functions.list(Some(hashes[0])).await,
        Ok(listed[1..].to_vec())
    );
    assert_eq!(functions.delete(hashes[0]).await, Ok(true));
    assert_eq!(functions.delete(hashes[0]).await, Ok(false));
    let gone = status(functions.fetch(hashes[0]).await);
    assert_eq!(gone.code(), StatusCode::NotFound);
    assert_eq!(gone.message(), format!("there is no module {}", hashes[0]));
}

#[tokio::test]
async fn others_fetch_only() {
    let repository = Repository::new();
    let kept = repository.keep(&b"one"[..]).expect("there is room");
    let server = Net::Tcp
        .bind(Endpoint::builder().serve(repository.service()))
        .await;
    let client = Net::Tcp.client().await;
    let functions = functions::at(&client, at(&server));
    for refused in [
        status(functions.upload(b"two".to_vec()).await),
        status(functions.list(None).await),
        status(functions.delete(kept.hash()).await),
    ] {
        assert_eq!(refused.code(), StatusCode::PermissionDenied);
        assert!(
            refused
                .message()
                .ends_with("may not manage this repository"),
            "{refused}"
        );
    }
    assert_eq!(functions.fetch(kept.hash()).await, Ok(b"one".to_vec()));
}

#[test]
fn it_keeps_no_more_than_its_limits_say() {
    let repository = Repository::new().limits(small());
    let refused = repository.keep(vec![0; 11]).expect_err("too large");
    assert_eq!(
        refused.message(),
        "a module of 11 bytes: at most 10 are allowed"
    );
    let first = repository.keep(vec![1; 10]).expect("there is room");
    repository.keep(vec![2; 10]).expect("there is room");
    for module in [vec![], vec![3]].into_iter().cycle().take(4) {
        let full = module.len() == 1;
        let kept = repository.keep(module);
        assert_eq!(kept.is_err(), full, "{kept:?}");
    }
    assert_eq!(repository.remove(first.hash()), Ok(true));
    repository.keep(vec![3]).expect("there is room again");
    let refused = repository.keep(vec![4]).expect_err("four modules");
    assert_eq!(refused.code(), StatusCode::ResourceExhausted);
    assert_eq!(
        refused.message(),
        "the repository is full: 3 modules, 20 bytes"
    );
}

#[test]
fn a_folder_survives_and_is_checked() {
    let folder = Folder::new("repository");
    let open = || Repository::in_folder(&folder.0, small());
    let (one, two) = {
        let repository = open().expect("it is made");
        let one = repository.keep(&b"one"[..]).expect("there is room");
        let two = repository.keep(&b"two"[..]).expect("there is room");
        (one.hash(), two.hash())
    };
    let repository = open().expect("it is there");
    assert_eq!(repository.module(one), Some((&b"one"[..]).into()));
    assert_eq!(repository.remove(one), Ok(true));
    fs::write(folder.0.join("notes.txt"), "no module").expect("it can be written");
    let repository = open().expect("it is there");
    assert_eq!(
        (repository.module(one), repository.module(two)),
        (None, Some((&b"two"[..]).into()))
    );
    let file = folder.0.join(format!("{two}.wasm"));
    fs::write(&file, "twO").expect("it can be written");
    let error = open().expect_err("it is not what its name says");
    let expected = format!("{}: it is not what its name says", file.display());
    assert_eq!(error.to_string(), expected);
    let large = [0; 11];
    fs::remove_file(file).expect("it is there");
    fs::write(
        folder.0.join(format!("{}.wasm", Code::new(large).hash())),
        large,
    )
    .expect("written");
    let error = open().expect_err("too large");
    assert!(
        error.to_string().ends_with("at most 10 are allowed"),
        "{error}"
    );
}
