//! Answers bypass the proxy, the fewest outstanding get the next, and backends go and come.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const PICTURE: usize = 8 << 10;

struct Cluster {
    endpoint: Endpoint,
    address: Address,
    proxy: Proxy,
    client: Endpoint,
    backends: Vec<(Endpoint, Address)>,
    name: String,
}

impl Cluster {
    async fn start(name: &str) -> Self {
        let bind = |what: &str| {
            let listen = format!("mem://balance-{name}-{what}");
            async move { Endpoint::bind(&listen).await.unwrap() }
        };
        let (endpoint, client) = (bind("proxy").await, bind("client").await);
        Self {
            address: endpoint.address().unwrap().clone(),
            proxy: Proxy::serve(&endpoint).unwrap(),
            endpoint,
            client,
            backends: Vec::new(),
            name: name.to_owned(),
        }
    }

    /// A new backend; it is in the pool when this returns.
    async fn add(&mut self, takes: Takes) {
        let number = self.backends.len();
        let listen = format!("mem://balance-{}-{number}", self.name);
        let backend = Endpoint::bind(&listen).await.unwrap();
        let address = Worker::serve(&backend, PICTURE, takes).unwrap();
        self.join(&address).await.unwrap();
        self.backends.push((backend, address.clone()));
        let mut size = self.proxy.size.subscribe();
        let is_in = |_: &usize| self.proxy.pool().backends.contains_key(&address);
        size.wait_for(is_in).await.unwrap();
    }

    async fn join(&self, backend: &Address) -> Result<(), wallaby::CallError> {
        let balancer = balancer::at(&self.client, &self.address);
        balancer.join(backend.clone()).await
    }

    async fn render(&self, pages: u32) {
        let client = patient(&self.client, &self.address);
        render_all(&client, pages).await.unwrap();
    }

    /// Requests that each backend has had, the one for its reports left out.
    fn shares(&self) -> Vec<u64> {
        let backends = self.backends.iter();
        backends
            .map(|(backend, _)| backend.metrics().requests_received - 1)
            .collect()
    }
}

/// A backend that takes no time.
fn at_once() -> Takes {
    Box::new(|| Box::pin(std::future::ready(())))
}

#[tokio::test]
async fn answers_do_not_pass_through_the_proxy() {
    const PAGES: u32 = 200;
    let mut cluster = Cluster::start("bypass").await;
    for _ in 0..3 {
        cluster.add(at_once()).await;
    }
    cluster.render(30).await;
    let (before, client_before) = (cluster.endpoint.metrics(), cluster.client.metrics());
    cluster.render(PAGES).await;
    let (after, client_after) = (cluster.endpoint.metrics(), cluster.client.metrics());

    let pages = u64::from(PAGES);
    assert_eq!(
        client_after.responses_received - client_before.responses_received,
        pages
    );
    assert!(client_after.bytes_received - client_before.bytes_received > pages * PICTURE as u64);
    // A request in and a request out for each page, and at most a report for each.
    assert_eq!(after.requests_received - before.requests_received, pages);
    let received = after.messages_received - before.messages_received;
    let sent = after.messages_sent - before.messages_sent;
    assert!(
        (pages..=2 * pages + 20).contains(&received),
        "{received} received"
    );
    assert!((pages..=pages + pages / 2).contains(&sent), "{sent} sent");
    let bytes = after.bytes_received + after.bytes_sent - before.bytes_received - before.bytes_sent;
    assert!(bytes < pages * 400, "{bytes} bytes at the proxy");
    assert_eq!(after.relayed, 0);
}

#[tokio::test]
async fn the_fewest_outstanding_get_the_next() {
    let mut cluster = Cluster::start("fewest").await;
    for turns in [400, 0, 0] {
        // While a slow backend waits for its turn, all others have theirs.
        let takes = move || -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            })
        };
        cluster.add(Box::new(takes)).await;
    }
    cluster.render(600).await;
    let shares = cluster.shares();
    assert_eq!(shares.iter().sum::<u64>(), 600);
    // Taking turns, it would be 200 for each.
    assert!(shares[0] < 140, "{shares:?}");
    assert!(shares[1].abs_diff(shares[2]) < 200, "{shares:?}");
}

#[tokio::test]
async fn a_burst_is_spread_before_any_report_comes() {
    let mut cluster = Cluster::start("burst").await;
    for _ in 0..4 {
        cluster.add(at_once()).await;
    }
    let mut pool = cluster.proxy.pool();
    let mut chosen = BTreeMap::new();
    for _ in 0..40 {
        *chosen.entry(pool.choose().unwrap()).or_insert(0) += 1;
    }
    assert!(
        chosen.len() == 4 && chosen.values().all(|times| *times == 10),
        "{chosen:?}"
    );
}

#[tokio::test]
async fn a_backend_that_dies_is_taken_out_and_a_new_one_in() {
    let mut cluster = Cluster::start("dies").await;
    let dies_at = Arc::new((AtomicU64::new(0), watch::Sender::new(false)));
    for number in 0..3 {
        let dies_at = Arc::clone(&dies_at);
        cluster
            .add(Box::new(move || {
                // The first backend never answers its 50th request, nor any later one.
                let never = number == 0 && dies_at.0.fetch_add(1, Ordering::Relaxed) >= 50;
                if never {
                    dies_at.1.send_replace(true);
                }
                Box::pin(async move {
                    if never {
                        std::future::pending::<()>().await;
                    }
                })
            }))
            .await;
    }
    let dying = cluster.backends[0].0.clone();
    let mut is_time = dies_at.1.subscribe();
    let death = tokio::spawn(async move {
        is_time.wait_for(|is_time| *is_time).await.unwrap();
        dying.kill();
    });
    // None fails: clients make those again that were there.
    cluster.render(600).await;
    death.await.unwrap();
    let mut size = cluster.proxy.size.subscribe();
    size.wait_for(|size| *size == 2).await.unwrap();
    let requests = cluster.endpoint.metrics().calls_failed;
    cluster.render(100).await;
    assert_eq!(
        cluster.endpoint.metrics().calls_failed,
        requests,
        "nobody asks who is gone"
    );

    cluster.add(at_once()).await;
    assert_eq!(*cluster.proxy.size.borrow(), 3);
    cluster.render(300).await;
    assert!(cluster.shares()[3] > 50, "{:?}", cluster.shares());
}

#[tokio::test]
async fn without_backends_requests_are_refused() {
    let cluster = Cluster::start("none").await;
    let refused = renderer::at(&cluster.client, &cluster.address)
        .render(1)
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.status().unwrap().code(), Code::Unavailable);
    assert!(
        refused.to_string().contains("there is no backend"),
        "{refused}"
    );
}

#[tokio::test]
async fn backends_are_limited() {
    let cluster = Cluster::start("limited").await;
    for number in 0..MOST {
        // Nobody is there: they are waited for until that is found out.
        cluster
            .proxy
            .pool()
            .named
            .insert(format!("mem://nobody-{number}").parse().unwrap());
    }
    let refused = cluster.join(&"mem://one-more".parse().unwrap()).await;
    assert_eq!(
        refused.unwrap_err().status().unwrap().code(),
        Code::ResourceExhausted
    );
}

#[test]
fn what_never_arrived_is_not_outstanding_for_ever() {
    let mut backend = Backend::default();
    let mut learn = |forwarded, received, finished| {
        backend.forwarded = forwarded;
        backend.learn(Report { received, finished });
        backend.outstanding()
    };
    assert_eq!(learn(10, 6, 4), 6, "four are on their way");
    assert_eq!(learn(12, 8, 8), 2, "of the ten, two never came");
    assert_eq!(learn(12, 10, 10), 0);
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
