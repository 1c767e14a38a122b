//! Operations in virtual time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use wallaby_proto::wire::Message;

use super::costs::{MessageCosts, micros};
use super::host::{Host, Turn};
use super::operation::{Letter, Operation, serve, size};
use super::{Costs, Load, Network, Prediction, Setting};
use crate::random::Random;
use crate::tree::{Form, Tree};

/// All operations of a prediction.
pub(super) struct Run<'run> {
    tree: &'run Tree,
    form: Form,
    costs: MessageCosts,
    network: Network,
    setting: &'run Setting,
    hosts: Vec<Host>,
    events: BinaryHeap<Event>,
    order: u64,
    random: Random,
    live: BTreeMap<u64, Live>,
    begun: usize,
    sequence: u64,
    payload: Bytes,
    bytes: BytesMut,
    counted: Counted,
}

/// An operation under way.
struct Live {
    operation: Operation,
    client: usize,
    /// The host of each request.
    route: Vec<usize>,
    begun: Duration,
    number: usize,
}

/// What is told of all operations.
#[derive(Default)]
struct Counted {
    latencies: Vec<Duration>,
    messages: u64,
    client_messages: u64,
    bytes: u64,
    client_cpu: Duration,
    /// When the first one that counts was over, what all were busy for until then, and the same of the last one.
    first: Option<(Duration, Duration)>,
    last: (Duration, Duration),
}

struct Event {
    at: Duration,
    /// What was scheduled first happens first.
    order: u64,
    what: What,
}

enum What {
    /// An operation begins at this host.
    Begin(usize),
    /// A message's last byte reaches a host's card, if nothing is in its way.
    AtCard(Travelling),
    /// It is there.
    Arrived(Travelling),
}

struct Travelling {
    operation: u64,
    to: usize,
    serialised: Duration,
    letter: Letter,
}

impl<'run> Run<'run> {
    pub(super) fn new(tree: &'run Tree, form: Form, costs: &Costs, setting: &'run Setting) -> Self {
        Self {
            tree,
            form,
            costs: costs.of(form),
            network: costs.network,
            setting,
            // The last one is the client, if it is no server.
            hosts: vec![Host::default(); setting.servers + 1],
            events: BinaryHeap::new(),
            order: 0,
            random: Random::new(setting.seed),
            live: BTreeMap::new(),
            begun: 0,
            sequence: 1,
            payload: vec![0x5a; setting.payload].into(),
            bytes: BytesMut::new(),
            counted: Counted::default(),
        }
    }

    pub(super) fn predict(mut self) -> Result<Prediction> {
        match self.setting.load {
            Load::One => self.begin_at(Duration::ZERO, self.setting.servers),
            Load::PerSecond(_) => self.begin_some_time(Duration::ZERO),
            Load::UnderWay(count) => {
                for host in (0..self.setting.servers).flat_map(|host| vec![host; count]) {
                    // All at once would be a crowd that no load of many clients is.
                    let pause = self.random.pause(1e5);
                    self.begin_at(pause, host);
                }
            }
        }
        while self.counted.latencies.len() < self.setting.operations {
            let event = self
                .events
                .pop()
                .context("an operation is never complete")?;
            match event.what {
                What::Begin(host) => self.begin(event.at, host)?,
                What::AtCard(travelling) => {
                    let host = &mut self.hosts[travelling.to];
                    let at = host.receive(event.at, travelling.serialised);
                    self.schedule(at, What::Arrived(travelling));
                }
                What::Arrived(travelling) => self.arrived(event.at, travelling)?,
            }
        }
        Ok(self.summary())
    }

    fn begin(&mut self, now: Duration, client: usize) -> Result<()> {
        let (number, first) = (self.begun, self.sequence);
        self.begun += 1;
        self.sequence += Operation::calls(self.form, self.tree);
        let mut operation = Operation::new(self.form, self.tree, first, self.payload.clone());
        let letters = operation.begin(self.tree)?;
        let route = self.route(client);
        let live = Live {
            operation,
            client,
            route,
            begun: now,
            number,
        };
        self.live.insert(first, live);
        // The application was not asleep, for it begins something.
        let mut turn = self.hosts[client].begin(now, false, self.costs);
        self.send(first, client, letters, &mut turn)?;
        self.end(client, turn, number >= self.warm_up());
        if let Load::PerSecond(_) = self.setting.load {
            self.begin_some_time(now);
        }
        Ok(())
    }

    /// A message is there: it is handled.
    fn arrived(&mut self, now: Duration, travelling: Travelling) -> Result<()> {
        let Travelling {
            operation,
            to,
            letter,
            ..
        } = travelling;
        let mut turn = self.hosts[to].begin(now, true, self.costs);
        turn.receive();
        if !letter.answer {
            let Message::Request(request) = letter.message else {
                anyhow::bail!("a server gets nothing but requests");
            };
            if request.depth > 0 {
                turn.pass_on();
            }
            let sent = serve(self.form, self.tree, letter.request, request)?;
            self.send(operation, to, sent, &mut turn)?;
            self.end(to, turn, false);
            return Ok(());
        }
        self.count_at_client(operation);
        let counts = self.counts(operation);
        let live = self.live.get_mut(&operation).context("no such operation")?;
        let next = live.operation.take(&letter, self.tree)?;
        match next {
            Some(letters) => self.send(operation, to, letters, &mut turn)?,
            None => self.complete(operation, turn.now)?,
        }
        self.end(to, turn, counts);
        Ok(())
    }

    fn complete(&mut self, operation: u64, now: Duration) -> Result<()> {
        let live = self.live.remove(&operation).context("it is complete")?;
        if live.number >= self.warm_up() {
            self.counted.latencies.push(now - live.begun);
            let busy = self.hosts.iter().map(|host| host.busy).sum();
            self.counted.first.get_or_insert((now, busy));
            self.counted.last = (now, busy);
        }
        match self.setting.load {
            Load::One => self.begin_at(now + REST, live.client),
            Load::UnderWay(_) => self.begin_at(now, live.client),
            Load::PerSecond(_) => {}
        }
        Ok(())
    }

    fn send(
        &mut self,
        operation: u64,
        from: usize,
        letters: Vec<Letter>,
        turn: &mut Turn,
    ) -> Result<()> {
        for letter in letters {
            let live = self.live.get(&operation).context("it is under way")?;
            let to = match letter.answer {
                true => live.client,
                false => live.route[letter.request],
            };
            let at_client = from == live.client;
            if at_client && (self.form == Form::Calls || !letter.answer) {
                turn.call();
            }
            turn.send();
            let bytes = size(&letter.message, &mut self.bytes);
            let serialised = micros(bytes as f64 * 8.0 / (self.network.gigabits_per_s * 1e3));
            let sent = self.hosts[from].send(turn.now, serialised);
            if live.number >= self.warm_up() {
                self.counted.messages += 1;
                self.counted.bytes += bytes as u64;
            }
            if at_client {
                self.count_at_client(operation);
            }
            let travelling = Travelling {
                operation,
                to,
                serialised,
                letter,
            };
            self.schedule(sent + self.way(from, to), What::AtCard(travelling));
        }
        Ok(())
    }

    /// The host has done what it was at; whether that was a client's work which counts.
    fn end(&mut self, host: usize, turn: Turn, counts: bool) {
        let before = self.hosts[host].busy;
        self.hosts[host].end(turn);
        if counts {
            self.counted.client_cpu += self.hosts[host].busy - before;
        }
    }

    fn count_at_client(&mut self, operation: u64) {
        if self.counts(operation) {
            self.counted.client_messages += 1;
        }
    }

    fn counts(&self, operation: u64) -> bool {
        let live = self.live.get(&operation);
        live.is_some_and(|live| live.number >= self.warm_up())
    }

    fn way(&self, from: usize, to: usize) -> Duration {
        let site = |host: usize| host % self.network.sites;
        micros(match site(from) == site(to) {
            true => self.network.one_way_us,
            false => self.network.between_sites_us,
        })
    }

    /// A server for each request: not the client, nor who sends it.
    fn route(&mut self, client: usize) -> Vec<usize> {
        let mut route: Vec<usize> = Vec::with_capacity(self.tree.nodes().len());
        for node in self.tree.nodes() {
            let above = node.parent.map_or(client, |parent| route[parent]);
            let server = loop {
                let server = self.random.below(self.setting.servers);
                if server != client && server != above {
                    break server;
                }
            };
            route.push(server);
        }
        route
    }

    fn begin_some_time(&mut self, now: Duration) {
        if let Load::PerSecond(rate) = self.setting.load {
            let host = self.random.below(self.setting.servers);
            let pause = self.random.pause(rate);
            self.begin_at(now + pause, host);
        }
    }

    fn begin_at(&mut self, at: Duration, host: usize) {
        self.schedule(at, What::Begin(host));
    }

    fn schedule(&mut self, at: Duration, what: What) {
        self.order += 1;
        let order = self.order;
        self.events.push(Event { at, order, what });
    }

    /// Operations that do not count.
    fn warm_up(&self) -> usize {
        self.setting.operations / 10
    }

    fn summary(mut self) -> Prediction {
        self.counted.latencies.sort_unstable();
        let latencies = &self.counted.latencies;
        let quantile = |part: usize| {
            let place = (latencies.len() * part).div_ceil(100).max(1);
            latencies[place - 1]
        };
        let counted = latencies.len() as f64;
        // Those under way at the end have sent some of theirs, too.
        let begun = (self.begun - self.warm_up()).max(1) as f64;
        let (first, last) = (self.counted.first.unwrap_or_default(), self.counted.last);
        let between = (counted - 1.0).max(1.0);
        let time = (last.0 - first.0).as_secs_f64();
        let each = |count: u64| match self.setting.load {
            Load::One => count as f64 / counted,
            Load::PerSecond(_) | Load::UnderWay(_) => count as f64 / begun,
        };
        Prediction {
            p50: quantile(50),
            p99: quantile(99),
            messages: each(self.counted.messages),
            client_messages: each(self.counted.client_messages),
            bytes: each(self.counted.bytes),
            client_cpu: self.counted.client_cpu.div_f64(counted),
            cpu: (last.1 - first.1).div_f64(between),
            per_second: between / time.max(f64::MIN_POSITIVE),
        }
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap yields the greatest: that is the earliest.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Event {}

/// Between two operations of one client: longer than anything needs afterwards.
const REST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::predict;
    use crate::tree::{Query, Shape};

    fn setting(load: Load) -> Setting {
        Setting {
            servers: 20,
            payload: 100,
            load,
            operations: 200,
            seed: 1,
        }
    }

    fn unit_costs() -> Costs {
        let each = MessageCosts {
            send_us: 1.0,
            receive_us: 1.0,
            ..MessageCosts::default()
        };
        Costs {
            name: "unit".into(),
            source: "none".into(),
            multihop: each,
            calls: each,
            network: Network::of_one_site(3.0, 1e6),
        }
    }

    #[test]
    fn a_chain_takes_what_its_messages_take() {
        for servers in [1, 2, 10] {
            let tree = Shape::Chain { servers }.tree();
            for form in [Form::Multihop, Form::Calls] {
                let one = predict(&tree, form, &unit_costs(), &setting(Load::One)).unwrap();
                let expected = 5.0 * tree.depth(form) as f64;
                let deviation = one.p50.as_secs_f64() * 1e6 - expected;
                // The wire is quick, but not infinitely so.
                assert!(
                    (0.0..0.1).contains(&deviation),
                    "{servers} {form:?}: {one:?}"
                );
                assert_eq!(one.messages, tree.messages(form) as f64);
                assert_eq!(one.client_messages, tree.client_messages(form) as f64);
            }
        }
    }

    /// Table 6.3, by the real protocol: no other message is needed to say that a query is complete.
    #[test]
    fn queries_take_the_published_messages_on_the_real_machines() {
        for query in Query::ALL {
            let tree = Shape::Query(query).tree();
            for form in [Form::Multihop, Form::Calls] {
                let one = predict(&tree, form, &unit_costs(), &setting(Load::One)).unwrap();
                assert_eq!(one.messages, tree.messages(form) as f64, "{query:?}");
                assert_eq!(
                    one.client_messages,
                    tree.client_messages(form) as f64,
                    "{query:?}"
                );
                let cpu = one.cpu.as_secs_f64() * 1e6;
                let expected = 2.0 * one.messages; // each is sent and received
                assert!((cpu - expected).abs() < 0.01 * expected, "{query:?}: {cpu}");
            }
        }
    }

    #[test]
    fn cores_that_are_busy_all_the_time_do_no_more() {
        let tree = Shape::Query(Query::Is2).tree();
        let setting = Setting {
            operations: 1_500,
            ..setting(Load::UnderWay(8))
        };
        let most = predict(&tree, Form::Calls, &unit_costs(), &setting).unwrap();
        // 82 messages, each of 2 µs, on 20 cores.
        let limit = 20.0 / (82.0 * 2e-6);
        assert!(
            (0.8..=1.02).contains(&(most.per_second / limit)),
            "{most:?}"
        );
    }

    #[test]
    fn a_load_is_done_and_latency_grows_with_it() {
        let tree = Shape::Query(Query::Is7).tree();
        let at = |rate: f64| {
            let setting = Setting {
                operations: 4_000,
                ..setting(Load::PerSecond(rate))
            };
            predict(&tree, Form::Multihop, &unit_costs(), &setting).unwrap()
        };
        let (low, high) = (at(1_000.0), at(140_000.0));
        for (seen, rate) in [(&low, 1_000.0), (&high, 140_000.0)] {
            let done = seen.per_second / rate;
            assert!((0.9..1.1).contains(&done), "{seen:?}");
        }
        assert!(high.p99 > low.p99, "{low:?} {high:?}");
    }

    #[test]
    fn the_same_seed_predicts_the_same() {
        let tree = Shape::Ray { bounces: 4 }.tree();
        let run = |seed| {
            let setting = Setting {
                seed,
                ..setting(Load::PerSecond(50_000.0))
            };
            predict(&tree, Form::Multihop, &unit_costs(), &setting).unwrap()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn what_cannot_be_predicted_is_refused() {
        let tree = Shape::Chain { servers: 2 }.tree();
        let refused =
            |setting: Setting| predict(&tree, Form::Calls, &unit_costs(), &setting).is_err();
        assert!(refused(Setting {
            servers: 2,
            ..setting(Load::One)
        }));
        assert!(refused(Setting {
            operations: 0,
            ..setting(Load::One)
        }));
        assert!(refused(setting(Load::PerSecond(0.0))));
        assert!(refused(setting(Load::UnderWay(0))));
        let mut costs = unit_costs();
        costs.network.gigabits_per_s = 0.0;
        assert!(predict(&tree, Form::Calls, &costs, &setting(Load::One)).is_err());
    }
}
