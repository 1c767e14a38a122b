//! Where modules are kept.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use tokio::task::JoinSet;
use wallaby::transport::Proven;
use wallaby::{Code, Endpoint, Status};
use wallaby_chain::{Backing, ChainCode, Hash, Repository, RepositoryLimits, functions};

use crate::world::{Net, at, patience, status, until};

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
    assert_eq!(gone.code(), Code::NotFound);
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
        assert_eq!(refused.code(), Code::PermissionDenied);
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
    assert_eq!(refused.code(), Code::ResourceExhausted);
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
        folder
            .0
            .join(format!("{}.wasm", ChainCode::new(large).hash())),
        large,
    )
    .expect("written");
    let error = open().expect_err("too large");
    assert!(
        error.to_string().ends_with("at most 10 are allowed"),
        "{error}"
    );
}

/// What several repositories share.
#[derive(Default)]
struct Shelf {
    modules: Mutex<BTreeMap<Hash, Bytes>>,
    /// Nobody gets anything meanwhile.
    closed: Mutex<bool>,
    opened: Condvar,
    asked: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Shared(Arc<Shelf>);

impl Backing for Shared {
    fn get(&self, hash: Hash) -> Result<Option<Bytes>, Status> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        let closed = self.0.closed.lock().expect("a lock");
        let opened = self.0.opened.wait_while(closed, |closed| *closed);
        drop(opened.expect("a lock"));
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        Ok(self.0.modules.lock().expect("a lock").get(&hash).cloned())
    }

    fn put(&self, hash: Hash, module: &Bytes) -> Result<(), Status> {
        let mut modules = self.0.modules.lock().expect("a lock");
        modules.insert(hash, module.clone());
        Ok(())
    }

    fn remove(&self, hash: Hash) -> Result<bool, Status> {
        let mut modules = self.0.modules.lock().expect("a lock");
        Ok(modules.remove(&hash).is_some())
    }

    fn list(&self, after: Option<Hash>, most: usize) -> Result<Vec<(Hash, u64)>, Status> {
        let modules = self.0.modules.lock().expect("a lock");
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = modules.range((behind, Bound::Unbounded)).take(most);
        Ok(listed
            .map(|(hash, module)| (*hash, module.len() as u64))
            .collect())
    }
}

#[tokio::test]
async fn repositories_share_what_keeps_their_modules() {
    let shelf = Arc::<Shelf>::default();
    let [one, two] = [(); 2].map(|()| {
        let backed = Repository::backed(Shared(Arc::clone(&shelf)));
        backed.limits(small()).manage(|_| true)
    });
    let server = Net::Tcp
        .bind(Endpoint::builder().serve(two.service()))
        .await;
    let client = Net::Tcp.client().await;
    let functions = functions::at(&client, at(&server));
    let hash = one.keep(&b"one"[..]).expect("there is room").hash();
    assert_eq!(two.module(hash), None);
    for _ in 0..2 {
        assert_eq!(functions.fetch(hash).await, Ok(b"one".to_vec()));
    }
    let asked = || shelf.asked.load(Ordering::SeqCst);
    assert_eq!(asked(), 1, "it is in memory then");
    assert_eq!(functions.list(None).await, Ok(vec![(hash, 3)]));
    assert_eq!(functions.list(Some(hash)).await, Ok(Vec::new()));

    // The limits are those of all together.
    two.keep(vec![1; 10]).expect("there is room");
    let full = one.keep(vec![2; 10]).expect_err("23 bytes");
    assert_eq!(
        full.message(),
        "the repository is full: 3 modules, 20 bytes"
    );
    one.keep(&b"one"[..]).expect("it is there");
    assert_eq!(functions.delete(hash).await, Ok(true));
    assert_eq!(functions.delete(hash).await, Ok(false));
    let gone = status(functions.fetch(hash).await);
    assert_eq!(gone.code(), Code::NotFound);
    one.keep(&b"one"[..]).expect("it is kept again");
    assert_eq!(functions.fetch(hash).await, Ok(b"one".to_vec()));

    // Memory has no more than they say, whatever others keep there.
    for number in 0..5 {
        let module = vec![number; 9];
        let hash = Hash::of(&module);
        let kept = Shared(Arc::clone(&shelf)).put(hash, &module.clone().into());
        kept.expect("it is kept");
        assert_eq!(functions.fetch(hash).await, Ok(module.clone()));
        assert_eq!(two.module(hash), Some(module.into()));
        let known = (0..5).filter(|number| {
            let hash = Hash::of(&[*number; 9]);
            two.module(hash).is_some()
        });
        assert!((1..=2).contains(&known.count()), "20 bytes at most");
    }
    // A hash that something else is kept by.
    let wrong = Hash::of(b"another");
    let kept = Shared(Arc::clone(&shelf)).put(wrong, &Bytes::from_static(b"something"));
    kept.expect("it is kept");
    for _ in 0..2 {
        let lost = status(functions.fetch(wrong).await);
        assert_eq!(lost.code(), Code::DataLoss);
        assert!(lost.message().contains(&wrong.to_string()), "{lost}");
    }
}

#[tokio::test]
async fn a_flood_of_unknown_hashes_keeps_few_threads() {
    patience(async {
        let shelf = Arc::<Shelf>::default();
        *shelf.closed.lock().expect("a lock") = true;
        let repository = Repository::backed(Shared(Arc::clone(&shelf)));
        let known = repository.keep(&b"one"[..]).expect("there is room");
        let server = Net::Tcp
            .bind(Endpoint::builder().serve(repository.service()))
            .await;
        let client = Net::Tcp.client().await;
        let functions = functions::at(&client, at(&server));
        let mut calls = JoinSet::new();
        for number in 0..100u8 {
            let call = functions.fetch(Hash::of(&[number]));
            calls.spawn(async move { call.await });
        }
        for _ in 0..28 {
            let answer = calls.join_next().await.expect("there are more");
            let refused = status(answer.expect("no panic"));
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        }
        until(|| shelf.now.load(Ordering::SeqCst) == 8).await;
        // What is in memory is there for all.
        assert_eq!(functions.fetch(known.hash()).await, Ok(b"one".to_vec()));
        *shelf.closed.lock().expect("a lock") = false;
        shelf.opened.notify_all();
        while let Some(answer) = calls.join_next().await {
            let gone = status(answer.expect("no panic"));
            assert_eq!(gone.code(), Code::NotFound, "{gone}");
        }
        assert_eq!(shelf.most.load(Ordering::SeqCst), 8);
    })
    .await;
}
