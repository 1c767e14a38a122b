//! Every position crashes while additions are under way: none is lost, none is done twice, and all that clients saw fits
//! one order.

use std::time::Instant;

use super::*;

struct Cluster {
    servers: BTreeMap<Address, Endpoint>,
    overseer: Endpoint,
    master: Address,
    name: String,
}

impl Cluster {
    async fn start(name: &str, replicas: usize) -> Self {
        let mut servers = BTreeMap::new();
        let mut order = Vec::new();
        for number in 0..replicas {
            let listen = format!("mem://chain-{name}-{number}");
            let endpoint = Endpoint::bind(&listen).await.unwrap();
            let address = Server::serve(&endpoint).unwrap();
            order.push(address.clone());
            servers.insert(address, endpoint);
        }
        let listen = format!("mem://chain-{name}-master");
        let overseer = Endpoint::bind(&listen).await.unwrap();
        let master = Overseer::serve(&overseer, order).await.unwrap();
        Self {
            servers,
            overseer,
            master,
            name: name.to_owned(),
        }
    }

    async fn client(&self, id: u64) -> Adder {
        let listen = format!("mem://chain-{}-client-{id}", self.name);
        let endpoint = Endpoint::bind(&listen).await.unwrap();
        Adder::new(&endpoint, &self.master, id).await.unwrap()
    }

    async fn chain(&self) -> Chain {
        let chain = master::at(&self.overseer, &self.master).chain();
        chain.await.unwrap()
    }

    fn crash(&self, replica: &Address) {
        self.servers[replica].kill();
    }
}

/// What a client did, when it began and ended, and the value that it saw.
struct Seen {
    is_addition: bool,
    begun: Instant,
    ended: Instant,
    value: i64,
}

/// Additions of 1 and reads of one counter have one order in which each sees what came before: an addition gives the next
/// number, a read the one that was given last. So additions give different numbers, what ended before another thing
/// began did not give more than that, and an addition not even as much.
fn assert_linearizable(mut seen: Vec<Seen>) {
    let mut given: Vec<i64> = seen
        .iter()
        .filter(|seen| seen.is_addition)
        .map(|seen| seen.value)
        .collect();
    given.sort();
    let all: Vec<i64> = (1..=given.len() as i64).collect();
    assert_eq!(given, all, "an addition was lost, or done twice");
    let mut ends: Vec<(Instant, i64)> = seen.iter().map(|seen| (seen.ended, seen.value)).collect();
    ends.sort();
    seen.sort_by_key(|seen| seen.begun);
    let (mut ends, mut most) = (ends.into_iter().peekable(), 0);
    for seen in seen {
        while let Some((_, value)) = ends.next_if(|(ended, _)| *ended < seen.begun) {
            most = most.max(value);
        }
        let fits = match seen.is_addition {
            true => seen.value > most,
            false => seen.value >= most,
        };
        assert!(fits, "{} was seen after {most}", seen.value);
    }
}

/// Clients add and read all the time, and after every 150 additions a replica crashes.
async fn crash_during_updates(name: &str, replicas: usize, positions: &[usize]) {
    const CLIENTS: u64 = 4;
    const ADDITIONS: u64 = 150;
    let cluster = Cluster::start(name, replicas).await;
    let (acknowledged, mut count) = tokio::sync::watch::channel(0);
    let acknowledged = Arc::new(acknowledged);
    let total = ADDITIONS * (positions.len() as u64 + 1);
    let mut clients = Vec::new();
    for id in 0..CLIENTS {
        let mut client = cluster.client(id).await;
        let acknowledged = Arc::clone(&acknowledged);
        clients.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            while *acknowledged.borrow() < total {
                for is_addition in [true, false] {
                    let begun = Instant::now();
                    let value = match is_addition {
                        true => client.add("visits", 1).await.unwrap(),
                        false => client.read("visits").await.unwrap(),
                    };
                    seen.push(Seen {
                        is_addition,
                        begun,
                        ended: Instant::now(),
                        value,
                    });
                }
                acknowledged.send_modify(|count| *count += 1);
            }
            seen
        }));
    }
    for (crashes, position) in positions.iter().enumerate() {
        let next = ADDITIONS * (crashes as u64 + 1);
        count.wait_for(|count| *count >= next).await.unwrap();
        let chain = cluster.chain().await;
        assert_eq!(chain.replicas.len(), replicas - crashes);
        cluster.crash(&chain.replicas[*position]);
    }
    let mut seen = Vec::new();
    for client in clients {
        seen.extend(client.await.unwrap());
    }
    assert_linearizable(seen);
    let chain = cluster.chain().await;
    assert_eq!(chain.replicas.len(), replicas - positions.len());
}

#[tokio::test]
async fn the_head_crashes_during_updates() {
    crash_during_updates("head", 4, &[0, 0]).await;
}

#[tokio::test]
async fn a_middle_crashes_during_updates() {
    crash_during_updates("middle", 4, &[1, 1]).await;
}

#[tokio::test]
async fn the_tail_crashes_during_updates() {
    crash_during_updates("tail", 4, &[3, 2]).await;
}

#[tokio::test]
async fn all_but_one_crash() {
    crash_during_updates("all", 4, &[1, 2, 0]).await;
}

#[tokio::test]
async fn two_crash_at_once() {
    let cluster = Cluster::start("two", 5).await;
    let mut client = cluster.client(1).await;
    for _ in 0..10 {
        client.add("visits", 1).await.unwrap();
    }
    let chain = cluster.chain().await;
    cluster.crash(&chain.replicas[0]);
    cluster.crash(&chain.replicas[2]);
    assert_eq!(client.add("visits", 1).await.unwrap(), 11);
    assert_eq!(client.read("visits").await.unwrap(), 11);
    for _ in 0..5 {
        client.add("visits", 1).await.unwrap();
    }
    assert_eq!(client.chain.replicas.len(), 3);
}

#[tokio::test]
async fn an_update_in_flight_reaches_the_tail_when_the_one_that_had_it_next_crashes() {
    let cluster = Cluster::start("flight", 3).await;
    let mut client = cluster.client(1).await;
    client.add("visits", 1).await.unwrap();
    let chain = cluster.chain().await;
    // The middle is gone before the head forwards: only the head has this one.
    cluster.crash(&chain.replicas[1]);
    let addition = Addition {
        client: 2,
        number: 1,
        counter: "visits".into(),
        amount: 1,
    };
    let head = client.client(&chain.replicas[0]);
    let lost = replica::within(head).add(chain.epoch, addition).await;
    assert!(lost.is_err(), "{lost:?}");
    // Nobody asks for it again; whoever finds the crash out brings it to the tail.
    assert_eq!(client.add("visits", 1).await.unwrap(), 3);
    assert_eq!(client.read("visits").await.unwrap(), 3);
}

#[tokio::test]
async fn an_addition_that_comes_again_is_not_done_again() {
    let cluster = Cluster::start("again", 3).await;
    let mut client = cluster.client(1).await;
    client.add("visits", 5).await.unwrap();
    let chain = cluster.chain().await;
    let add = |number| {
        let addition = Addition {
            client: 1,
            number,
            counter: "visits".into(),
            amount: 5,
        };
        replica::within(client.client(&chain.replicas[0])).add(chain.epoch, addition)
    };
    assert_eq!(add(1).await.unwrap(), Ok(5));
    assert_eq!(add(2).await.unwrap(), Ok(10));
    assert_eq!(add(1).await.unwrap(), Err(Refused::Old));
    assert_eq!(client.read("visits").await.unwrap(), 10);
}

fn alone() -> (Address, State) {
    let me: Address = "mem://alone".parse().unwrap();
    let chain = Chain {
        epoch: 1,
        replicas: vec![me.clone()],
    };
    let state = State {
        chain,
        is_ready: true,
        counters: Counters::default(),
        history: VecDeque::new(),
    };
    (me, state)
}

#[test]
fn an_addition_that_comes_again_keeps_its_place() {
    let (me, mut state) = alone();
    let addition = |client| Addition {
        client,
        number: 1,
        counter: "visits".into(),
        amount: 1,
    };
    let first = state.order(1, addition(1), &me).unwrap();
    let second = state.order(1, addition(2), &me).unwrap();
    assert_eq!((first.sequence, second.sequence), (1, 2));
    // Whoever has not seen the second one yet would else do this one in its place.
    assert_eq!(state.order(1, addition(1), &me).unwrap(), first);
    assert_eq!(state.order(2, addition(3), &me), Err(Refused::Epoch));
}

#[test]
fn who_lacks_much_gets_all() {
    let (_, mut state) = alone();
    let mut behind = Counters::default();
    for sequence in 1..=HISTORY as u64 + 10 {
        let addition = Addition {
            client: 1,
            number: sequence,
            counter: "visits".into(),
            amount: 1,
        };
        let update = Update {
            epoch: 1,
            sequence,
            addition,
        };
        if sequence <= 10 {
            behind.carry_out(&update);
        }
        state.carry_out(update);
    }
    assert!(matches!(state.missing(9), Missing::All(counters) if counters == state.counters));
    let Missing::Updates(updates) = state.missing(10) else {
        panic!("they are all kept");
    };
    assert_eq!(updates.len(), HISTORY);
    updates.iter().for_each(|update| behind.carry_out(update));
    assert_eq!(behind, state.counters);
}

#[tokio::test]
async fn clients_are_limited() {
    let cluster = Cluster::start("limited", 1).await;
    let endpoint = Endpoint::client().unwrap();
    for id in 0..=CLIENTS as u64 {
        let mut client = Adder::new(&endpoint, &cluster.master, id).await.unwrap();
        let added = client.add("visits", 1).await;
        match id < CLIENTS as u64 {
            true => drop(added.unwrap()),
            false => assert!(added.unwrap_err().to_string().contains("TooManyClients")),
        }
    }
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
