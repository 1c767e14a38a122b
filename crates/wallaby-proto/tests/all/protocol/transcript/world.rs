//! Some endpoints with connections between them, on which one call runs.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::server::{Delegated, Inherited, Outbound, ServerHalf};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event};
use wallaby_proto::wire::{Budgets, LinkEnds, Message, MethodRef, ReplyTo, Request};
use wallaby_proto::{Address, CallId, Code, Facts, Manifest, NodeId, RequestId, Status, Token};

use crate::protocol::pair::{Pair, hello, method};
use crate::protocol::vectors::frame;

/// All that takes part in a transcript.
#[derive(Default)]
pub(super) struct World {
    nodes: Vec<String>,
    initiator: Option<Initiator>,
    /// By the two ends, the one that dialled first.
    connections: BTreeMap<(usize, usize), Pair>,
    handlers: BTreeMap<(usize, RequestId), ServerHalf<usize>>,
    /// Who sent to whom and has not arrived yet, in order.
    under_way: VecDeque<(usize, usize)>,
    log: Vec<String>,
}

impl World {
    /// Does what a command says and tells what that causes.
    pub(super) fn act(&mut self, words: &[&str]) -> Vec<String> {
        match words {
            ["nodes", names @ ..] => self.begin(names),
            ["send", server, word] => self.send_initial(server, word),
            ["close"] => {
                self.initiator().close();
                self.tell_state();
            }
            ["deliver"] => {
                while let Some((from, to)) = self.under_way.pop_front() {
                    self.deliver(from, to);
                }
            }
            ["deliver", from, to] => {
                let link = (self.node(from), self.node(to));
                let before = self.under_way.len();
                self.under_way.retain(|other| *other != link);
                assert!(self.under_way.len() < before, "nothing is under way there");
                self.deliver(link.0, link.1);
            }
            [node, request, act @ ..] => self.handle(node, request, act),
            _ => panic!("no such command: {words:?}"),
        }
        std::mem::take(&mut self.log)
    }

    /// A transcript ends with a complete call.
    pub(super) fn check_end(&mut self) {
        assert!(self.under_way.is_empty(), "everything is delivered");
        assert!(self.initiator().is_complete(), "the call is complete");
    }

    fn begin(&mut self, names: &[&str]) {
        self.nodes = names.iter().map(|name| (*name).to_owned()).collect();
        let call = CallId {
            initiator: id(0),
            sequence: 1,
        };
        self.initiator = Some(Initiator::new(call, token(), Budgets::default()));
    }

    fn send_initial(&mut self, server: &str, word: &str) {
        let server = self.node(server);
        let initiator = self.initiator();
        let request = Request {
            call: initiator.call(),
            token: token(),
            id: initiator.send().expect("within the budget"),
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: 1,
            traced: false,
            compressed: false,
            waited: std::time::Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: word.to_owned().into(),
        };
        self.send(0, server, Message::Request(request));
    }

    fn handle(&mut self, node: &str, request: &str, act: &[&str]) {
        let node = self.node(node);
        let mut handlers = self.handlers.iter_mut();
        let found = handlers.find(|((at, id), _)| *at == node && id.to_string() == request);
        let (_, server) = found.unwrap_or_else(|| panic!("no handler of {request} there"));
        let nodes = &self.nodes;
        let to = |name: &str| nodes.iter().position(|node| node == name).expect("a node");
        let bytes = |word: &str| Bytes::from(word.to_owned());
        let mut sent: Vec<Outbound<usize>> = Vec::new();
        match act {
            ["reply", word] => sent.extend(server.reply(bytes(word))),
            ["delegate", server_name, word] => {
                sent.extend(server.delegate(to(server_name), bytes(word)))
            }
            ["flush"] => sent.extend(server.flush()),
            ["finish"] => sent.push(server.finish(None)),
            ["respond", word] => sent.extend(server.respond(bytes(word), None)),
            ["forward", server_name, word] => {
                sent.extend(server.forward(to(server_name), bytes(word), None));
            }
            ["fail"] => sent.push(server.fail(&Status::new(Code::NotFound, "none"), None)),
            _ => panic!("no such act: {act:?}"),
        }
        let (id, ended) = (server.id(), server.has_ended());
        let holds_back = matches!(act[0], "reply" | "delegate");
        for message in sent {
            self.send_outbound(node, id, message);
        }
        if holds_back {
            self.tell(node, "holds it back: it may be the last");
        }
        if ended {
            self.handlers.remove(&(node, id));
            self.tell(node, &format!("request {id} has ended"));
        }
    }

    fn send_outbound(&mut self, from: usize, request: RequestId, message: Outbound<usize>) {
        // Only an answer over the connection that the request came on shows no token.
        let direct = request.path.parent().is_some_and(|path| path.is_root()) && request.hop == 0;
        match message {
            Outbound::Response(mut response) => {
                response.token = response.token.filter(|_| !direct);
                self.send(from, 0, Message::Response(response));
            }
            Outbound::End(mut end) => {
                end.token = end.token.filter(|_| !direct);
                self.send(from, 0, Message::End(end));
            }
            Outbound::Request(delegated) => {
                let (to, request) = onward(delegated, self.initiator().call());
                self.send(from, to, Message::Request(request));
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let link = LinkEnds::new(id(from), id(to));
        let bytes = frame(&message, link).len();
        let text = format!("{:60} {bytes:3} bytes", describe(&message));
        self.log.push(format!(
            "{:16} {text}",
            format!("{} -> {}", self.nodes[from], self.nodes[to])
        ));
        let (connection, _) = self.ends(from, to);
        let sent = match message {
            Message::Request(mut request) => connection.send_request(&mut request, &method()),
            Message::Response(response) => connection.send_response(&response, Charge::Counted),
            message => connection.send_control(message),
        };
        sent.expect("an open connection, and credit");
        self.under_way.push_back((from, to));
    }

    /// The connection of two nodes, as the first sees it, and whether that one dialled; opened when first used.
    fn ends(
        &mut self,
        from: usize,
        to: usize,
    ) -> (&mut wallaby_proto::connection::Connection, bool) {
        if self.connections.contains_key(&(to, from)) {
            let pair = self.connections.get_mut(&(to, from)).expect("just seen");
            return (&mut pair.bob, false);
        }
        let pair = self.connections.entry((from, to)).or_insert_with(|| {
            let mut pair = Pair::closed(
                hello(id(from), ConnectionLimits::default()),
                hello(id(to), ConnectionLimits::default()),
            );
            pair.carry_to_bob(usize::MAX).expect("a hello");
            pair.carry_to_alice(usize::MAX).expect("a hello");
            pair
        });
        (&mut pair.alice, true)
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let (_, dialled) = self.ends(from, to);
        let pair = self
            .connections
            .get_mut(&if dialled { (from, to) } else { (to, from) })
            .expect("it is open");
        let events = if dialled {
            pair.carry_to_bob(usize::MAX)
        } else {
            pair.carry_to_alice(usize::MAX)
        };
        for event in events.expect("legal bytes") {
            match event {
                Event::Message(message) => self.arrive(to, message),
                Event::Method(number, method) => {
                    self.tell(
                        to,
                        &format!("learns that method {number} is {}", method.name()),
                    );
                }
                event => panic!("{event:?} was not expected"),
            }
        }
    }

    fn arrive(&mut self, at: usize, message: Message) {
        let what = describe(&message);
        match message {
            Message::Request(mut request) => {
                self.tell(at, &format!("handles {what}"));
                let server = ServerHalf::new(&mut request);
                self.handlers.insert((at, server.id()), server);
            }
            Message::Response(response) => {
                let arrival = self
                    .initiator()
                    .handle_response(&response)
                    .expect("as the protocol says");
                self.tell(at, &format!("gets {what}: {arrival:?}"));
                self.tell_state();
            }
            Message::End(end) => {
                self.initiator()
                    .handle_end(&end)
                    .expect("as the protocol says");
                self.tell(at, &format!("gets {what}"));
                self.tell_state();
            }
            other => panic!("{other:?} was not expected"),
        }
    }

    /// What the initiator knows now.
    fn tell_state(&mut self) {
        let initiator = self.initiator();
        let (responses, statuses) = initiator.responses();
        let mut missing: Vec<String> = initiator
            .missing()
            .map(|request| request.to_string())
            .collect();
        if !initiator.is_closed() {
            missing.push("what else it sends".to_owned());
        }
        let got = match statuses {
            0 => format!("{responses} responses"),
            _ => format!("{responses} responses, {statuses} of them statuses"),
        };
        let text = match initiator.is_complete() {
            true => format!("COMPLETE with {got}"),
            false => format!("has {got}; waits for {}", missing.join(", ")),
        };
        self.tell(0, &text);
    }

    fn tell(&mut self, node: usize, text: &str) {
        self.log.push(format!("    {}: {text}", self.nodes[node]));
    }

    fn initiator(&mut self) -> &mut Initiator {
        self.initiator.as_mut().expect("the nodes are named first")
    }

    fn node(&self, name: &str) -> usize {
        self.nodes
            .iter()
            .position(|node| node == name)
            .unwrap_or_else(|| panic!("no node {name}"))
    }
}

fn id(node: usize) -> NodeId {
    NodeId::new(node as u64 + 1).expect("not zero")
}

fn token() -> Token {
    Token::new(42)
}

fn onward(delegated: Delegated<usize>, call: CallId) -> (usize, Request) {
    let reply_to = ReplyTo::At(
        "tcp://10.0.0.1:4000"
            .parse::<Address>()
            .expect("an address"),
    );
    let inherited = Inherited {
        reply_to,
        deadline: None,
        oldest: 1,
        options: None,
    };
    delegated.into_request(call, token(), MethodRef::Number(0), inherited)
}

fn describe(message: &Message) -> String {
    match message {
        Message::Request(request) => {
            let base = if request.base > 0 {
                format!(" base {}", request.base)
            } else {
                String::new()
            };
            let text = String::from_utf8_lossy(&request.payload);
            format!(
                "request {}{base} {text:?}{}",
                request.id,
                carried(request.manifest)
            )
        }
        Message::Response(response) => {
            let last = if response.last { " last" } else { "" };
            let text = match response.status {
                true => format!(
                    "status {}",
                    Status::from_payload(&response.payload).expect("a status")
                ),
                false => format!("{:?}", String::from_utf8_lossy(&response.payload)),
            };
            format!(
                "response {}[{}]{last} {text}{}",
                response.request,
                response.index,
                carried(response.manifest)
            )
        }
        Message::End(end) => format!(
            "end of {} {}{}",
            end.request,
            facts(end.facts),
            carried(end.manifest)
        ),
        other => format!("{other:?}"),
    }
}

fn carried(manifest: Option<Manifest>) -> String {
    manifest.map_or_else(String::new, |manifest| {
        format!(
            " with manifest {} {}",
            manifest.owner,
            facts(manifest.facts)
        )
    })
}

/// Requests and responses sent.
fn facts(facts: Facts) -> String {
    format!("({}, {})", facts.requests, facts.responses)
}
