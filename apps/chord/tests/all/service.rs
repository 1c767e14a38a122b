//! Nodes on endpoints of this process, and rounds that the test drives.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::census::problems;
use fastrand::Rng;
use std::sync::Arc;
use wallaby::{Address, Endpoint};
use wallaby_chord::client::{Client, Form, LookupError};
use wallaby_chord::host::Host;
use wallaby_chord::id::RingId;
use wallaby_chord::message::{Ask, Lookup, Miss, Peer, Refusal, Wish};
use wallaby_chord::node::{Config, Tables};
use wallaby_chord::process::members;
use wallaby_chord::store::{Key, Store};

struct Cluster {
    hosts: Vec<(Endpoint, Arc<Host>)>,
    client: Client,
}

impl Cluster {
    /// So many endpoints, whose ring begins with so many nodes.
    async fn start(name: &str, hosts: usize, nodes: u64, config: Config) -> Self {
        let mut running = Vec::new();
        for number in 0..hosts {
            let listen = format!("mem://chord-{name}-{number}");
            let endpoint = Endpoint::bind(&listen).await.unwrap();
            let address = endpoint.address().unwrap().clone();
            let host = Host::serve(&endpoint, address, config.clone()).unwrap();
            running.push((endpoint, host));
        }
        let addresses = running.iter().map(|(_, host)| host.address().clone());
        let addresses: Vec<Address> = addresses.collect();
        for (_, host) in &running {
            host.settle(&members(&addresses, nodes, 5));
        }
        let endpoint = Endpoint::bind(&format!("mem://chord-{name}-client"))
            .await
            .unwrap();
        let client = Client::new(endpoint, &addresses, 9);
        Self {
            hosts: running,
            client,
        }
    }

    async fn rounds(&self, rounds: u32) {
        for _ in 0..rounds {
            for (_, host) in &self.hosts {
                host.round().await;
            }
        }
    }

    fn tables(&self) -> Vec<Tables> {
        let hosts = self.hosts.iter();
        hosts.flat_map(|(_, host)| host.tables()).collect()
    }

    /// An endpoint and all its nodes are gone.
    fn stop(&mut self, address: &Address) {
        self.hosts.retain(|(endpoint, host)| {
            let stays = host.address() != address;
            if !stays {
                endpoint.kill();
            }
            stays
        });
    }

    async fn value(&self, key: &str, form: Form) -> Option<String> {
        let found = self.client.get(key, form).await.unwrap().found;
        found.value.map(|value| String::from_utf8(value).unwrap())
    }
}

#[tokio::test]
async fn delegation_and_iteration_find_the_same() {
    let cluster = Cluster::start("same", 4, 200, Config::default()).await;
    let nodes = cluster.tables().into_iter().map(|node| node.peer);
    let mut nodes: Vec<Peer> = nodes.collect();
    nodes.sort();
    let mut chance = Rng::with_seed(1);
    // The same start for both: clients of one seed.
    let client = |seed| {
        let hosts: Vec<Address> = cluster
            .hosts
            .iter()
            .map(|(_, host)| host.address().clone())
            .collect();
        Client::new(cluster.client.endpoint().clone(), &hosts, seed).traced()
    };
    for seed in 0..100 {
        let id = RingId(chance.u64(..));
        let delegated = client(seed).owner(id, Form::Delegation).await.unwrap();
        let iterated = client(seed).owner(id, Form::Iteration).await.unwrap();
        assert_eq!(
            delegated.found, iterated.found,
            "the same owner by the same way"
        );
        let at = nodes.partition_point(|peer| peer.id < id);
        assert_eq!(delegated.found.owner, nodes[at % nodes.len()]);
        // One call, a hop for each node of the trail: who forwards is done with it.
        let trace = delegated.trace.unwrap();
        assert_eq!(trace.hops.len() as u32, delegated.found.hops + 1);
        let servers: Vec<_> = trace
            .hops
            .iter()
            .map(|hop| hop.server.clone().unwrap())
            .collect();
        let trail: Vec<_> = delegated
            .found
            .trail
            .unwrap()
            .into_iter()
            .map(|peer| peer.host)
            .collect();
        assert_eq!(servers, trail);
    }
}

#[tokio::test]
async fn values_outlive_the_endpoint_of_their_owner() {
    let mut cluster = Cluster::start("outlive", 4, 80, Config::default()).await;
    for number in 0..40 {
        let (key, value) = (format!("key {number}"), format!("value {number}"));
        let put = cluster.client.put(&key, value.into()).await.unwrap();
        assert!(put.found.copies >= 4);
    }
    let owner = cluster
        .client
        .get("key 0", Form::Delegation)
        .await
        .unwrap()
        .found
        .owner;
    cluster.stop(&owner.host);
    // Right away, without a round: clients find another way.
    for number in 0..40 {
        let form = [Form::Delegation, Form::Iteration][number % 2];
        let value = cluster.value(&format!("key {number}"), form).await;
        assert_eq!(value, Some(format!("value {number}")));
    }
    cluster.client.put("key 0", b"new".to_vec()).await.unwrap();
    // And when the ring has healed, another one.
    cluster.rounds(30).await;
    assert_eq!(problems(&cluster.tables()), []);
    let owner = cluster
        .client
        .get("key 0", Form::Delegation)
        .await
        .unwrap()
        .found
        .owner;
    cluster.stop(&owner.host);
    for number in 1..40 {
        let value = cluster
            .value(&format!("key {number}"), Form::Delegation)
            .await;
        assert_eq!(value, Some(format!("value {number}")));
    }
    assert_eq!(
        cluster.value("key 0", Form::Delegation).await.unwrap(),
        "new"
    );
    assert_eq!(cluster.value("no such key", Form::Delegation).await, None);
}

#[tokio::test]
async fn nodes_join_leave_and_come_back() {
    let cluster = Cluster::start("come", 3, 12, Config::default()).await;
    for number in 0..30 {
        cluster
            .client
            .put(&format!("key {number}"), b"v".to_vec())
            .await
            .unwrap();
    }
    let at = |host: usize| &cluster.hosts[host].1;
    let new: Vec<RingId> = (0..6).map(|number| RingId::of_node(77, number)).collect();
    for (number, id) in new.iter().enumerate() {
        let contact = Some(cluster.hosts[0].1.address().clone());
        assert_eq!(at(number % 3).join(*id, contact), Ok(()));
    }
    let twice = at(0).join(new[0], None);
    assert_eq!(twice, Err(Refusal::Taken(new[0])));
    cluster.rounds(20).await;
    assert_eq!(cluster.tables().len(), 18);
    assert_eq!(problems(&cluster.tables()), []);

    at(0).leave(new[0]).unwrap();
    at(1).crash(new[1]).unwrap();
    // The same place again, while others still take the former node for alive.
    at(1).join(new[1], None).unwrap();
    let gone = at(2).crash(new[0]);
    assert!(matches!(&gone, Err(Refusal::Gone(_))), "{gone:?}");
    cluster.rounds(30).await;
    let tables = cluster.tables();
    assert_eq!(tables.len(), 17);
    assert!(tables.iter().all(|node| node.serving));
    assert_eq!(problems(&tables), []);
    for number in 0..30 {
        let value = cluster
            .value(&format!("key {number}"), Form::Iteration)
            .await;
        assert_eq!(value.as_deref(), Some("v"));
    }
}

#[tokio::test]
async fn limits_are_told() {
    let config = Config {
        keys: 3,
        entry_bytes: 100,
        hop_limit: 2,
        ..Config::default()
    };
    let small = Cluster::start("limits", 1, 1, config.clone()).await;
    for number in 0..3 {
        small
            .client
            .put(&format!("key {number}"), Vec::new())
            .await
            .unwrap();
    }
    let full = small.client.put("one more", Vec::new()).await;
    assert_eq!(
        full.unwrap_err(),
        LookupError::Refused(Refusal::Full { limit: 3 })
    );
    let large = small.client.put("large", vec![0; 100]).await;
    let refusal = Refusal::TooLarge {
        size: 105,
        limit: 100,
    };
    assert_eq!(large.unwrap_err(), LookupError::Refused(refusal));

    // Copies are checked like puts, and keys where they come in.
    let ring = || {
        let address = small.hosts[0].1.address();
        wallaby_chord::service::ring::at(small.client.endpoint(), address)
    };
    let key = Key::new("key 0");
    let entry = Store::new(1).put(&key, vec![0; 200], 1, 0).unwrap();
    let node = small.tables()[0].peer.id;
    let entries = vec![(key.clone(), entry)];
    let kept = ring().ask(node, Ask::Keep { entries }).await.unwrap();
    let refusal = Refusal::TooLarge {
        size: 205,
        limit: 100,
    };
    assert_eq!(kept, Err(refusal));
    let elsewhere = Lookup::new(RingId(1), node, Wish::Get(key.clone()));
    let refusal = Refusal::Misplaced(key.id);
    assert_eq!(ring().find(elsewhere).await.unwrap(), Err(refusal));

    // A ring of 500 nodes cannot be crossed in two hops from everywhere.
    let wide = Cluster::start("wide", 2, 500, config).await;
    let mut limited = 0;
    for number in 0..20u64 {
        let id = RingId::of_node(1, number);
        let lookup = Lookup::new(id, RingId(0), Wish::Owner);
        let at =
            wallaby_chord::service::ring::at(wide.client.endpoint(), wide.hosts[0].1.address());
        match at.find(lookup).await.unwrap() {
            Ok(found) => assert!(found.hops <= 2),
            Err(Refusal::TooManyHops { limit: 2 }) => limited += 1,
            Err(refusal) => panic!("{refusal}"),
        }
    }
    assert!(limited > 5, "{limited}");
}

#[tokio::test]
async fn a_ring_that_is_gone_is_an_error() {
    let mut cluster = Cluster::start("gone", 1, 3, Config::default()).await;
    let address = cluster.hosts[0].1.address().clone();
    cluster.stop(&address);
    let client = cluster.client.clone().attempts(3);
    let error = client.get("key", Form::Delegation).await.unwrap_err();
    let last = Miss::Lost(Some(address));
    assert_eq!(error, LookupError::Failed { attempts: 3, last });
}
