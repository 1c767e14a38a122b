//! One operation on the real machines of `wallaby-proto`: what the client and the servers send, and when it is complete.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::server::{Inherited, Outbound, ServerHalf};
use wallaby_proto::wire::{Budgets, LinkEnds, Message, MethodRef, ReplyTo, Request};
use wallaby_proto::{Address, CallId, NodeId, Token};

use crate::tree::{Form, Tree};

/// A message of an operation.
#[derive(Debug)]
pub(super) struct Letter {
    /// The request of the tree that it is, or that sent it.
    pub(super) request: usize,
    /// Whether it is for the client.
    pub(super) answer: bool,
    pub(super) message: Message,
}

/// The client's side of an operation.
#[derive(Debug)]
pub(super) struct Operation {
    form: Form,
    /// Its calls, with their first sequence: one, or one for each request.
    calls: Vec<Option<Initiator>>,
    first: u64,
    token: Token,
    open: usize,
    payload: Bytes,
}

impl Operation {
    pub(super) fn new(form: Form, tree: &Tree, first: u64, payload: Bytes) -> Self {
        let calls = match form {
            Form::Multihop => 1,
            Form::Calls => tree.nodes().len(),
        };
        Self {
            form,
            calls: (0..calls).map(|_| None).collect(),
            first,
            token: Token::new(first | 1 << 63),
            open: calls,
            payload,
        }
    }

    /// How many calls one operation makes.
    pub(super) fn calls(form: Form, tree: &Tree) -> u64 {
        match form {
            Form::Multihop => 1,
            Form::Calls => tree.nodes().len() as u64,
        }
    }

    /// What the client sends first.
    pub(super) fn begin(&mut self, tree: &Tree) -> Result<Vec<Letter>> {
        let roots: Vec<usize> = tree.roots().collect();
        match self.form {
            Form::Multihop => self.call(0, &roots),
            Form::Calls => self.call_each(&roots),
        }
    }

    /// What the client sends because of a message; `None` if all is done.
    pub(super) fn take(&mut self, letter: &Letter, tree: &Tree) -> Result<Option<Vec<Letter>>> {
        let index = match self.form {
            Form::Multihop => 0,
            Form::Calls => letter.request,
        };
        let slot = self.calls.get_mut(index).context("no such call")?;
        let call = slot.as_mut().context("an answer to nothing")?;
        match &letter.message {
            Message::Response(response) => drop(call.handle_response(response)?),
            Message::End(end) => call.handle_end(end)?,
            other => bail!("the client does not expect {other:?}"),
        }
        if !call.is_complete() {
            return Ok(Some(Vec::new()));
        }
        let received = call.responses().0;
        let expected = match self.form {
            Form::Multihop => tree.answers() as u64,
            Form::Calls => 1,
        };
        ensure!(
            received == expected,
            "{received} answers instead of {expected}"
        );
        *slot = None;
        self.open -= 1;
        let next = match self.form {
            Form::Multihop => Vec::new(),
            Form::Calls => self.call_each(&tree.nodes()[index].children)?,
        };
        Ok((self.open > 0).then_some(next))
    }

    fn call_each(&mut self, requests: &[usize]) -> Result<Vec<Letter>> {
        let mut letters = Vec::with_capacity(requests.len());
        for &request in requests {
            letters.append(&mut self.call(request, &[request])?);
        }
        Ok(letters)
    }

    fn call(&mut self, index: usize, requests: &[usize]) -> Result<Vec<Letter>> {
        let call = CallId {
            initiator: client(),
            sequence: self.first + index as u64,
        };
        let mut initiator = Initiator::new(call, self.token, Budgets::default());
        let mut letters = Vec::with_capacity(requests.len());
        for &request in requests {
            let id = initiator.send()?;
            let message = Message::Request(Request {
                call,
                token: self.token,
                id,
                depth: 0,
                base: 0,
                reply_to: ReplyTo::Peer,
                manifest: None,
                deadline: None,
                oldest: self.first,
                traced: false,
                compressed: false,
                waited: std::time::Duration::ZERO,
                options: None,
                method: MethodRef::Number(0),
                payload: self.payload.clone(),
            });
            letters.push(Letter {
                request,
                answer: false,
                message,
            });
        }
        initiator.close();
        self.calls[index] = Some(initiator);
        Ok(letters)
    }
}

/// What a server sends that handles a request of the tree.
pub(super) fn serve(
    form: Form,
    tree: &Tree,
    index: usize,
    mut request: Request,
) -> Result<Vec<Letter>> {
    let (call, token, oldest) = (request.call, request.token, request.oldest);
    let payload = request.payload.clone();
    let mut server = ServerHalf::new(&mut request);
    let node = tree.nodes().get(index).context("no such request")?;
    let mut sent = Vec::with_capacity(node.children.len() + 1);
    match (form, &node.children[..]) {
        (Form::Calls, _) | (_, []) => sent.extend(server.respond(payload, None)),
        (_, [child]) if !node.answers => sent.extend(server.forward(*child, payload, None)),
        (_, children) => {
            if node.answers {
                sent.extend(server.reply(payload.clone()));
            }
            for &child in children {
                sent.extend(server.delegate(child, payload.clone()));
            }
            sent.push(server.finish(None));
        }
    }
    let letter = |outbound| {
        Ok(match outbound {
            Outbound::Response(response) => Letter {
                request: index,
                answer: true,
                message: Message::Response(response),
            },
            Outbound::End(end) => Letter {
                request: index,
                answer: true,
                message: Message::End(end),
            },
            Outbound::Request(delegated) => {
                let inherited = Inherited {
                    reply_to: ReplyTo::At(ADDRESS.parse::<Address>()?),
                    deadline: None,
                    oldest,
                    options: None,
                };
                let method = MethodRef::Number(0);
                let (child, request) = delegated.into_request(call, token, method, inherited);
                Letter {
                    request: child,
                    answer: false,
                    message: Message::Request(request),
                }
            }
        })
    };
    sent.into_iter().map(letter).collect()
}

/// The bytes that a message takes up on a wire, all headers included.
pub(super) fn size(message: &Message, bytes: &mut BytesMut) -> usize {
    bytes.clear();
    message.encode(bytes, LinkEnds::new(client(), client()));
    FRAME + bytes.len()
}

fn client() -> NodeId {
    NodeId::new(CLIENT).expect("it is not 0")
}

const CLIENT: u64 = 1;
/// What servers are told to answer to: as long as addresses are.
const ADDRESS: &str = "udp://10.10.100.100:40000";
/// In front of and behind the body of a message: its own frame, UDP, IPv4, Ethernet with preamble and gap.
const FRAME: usize = 4 + 8 + 20 + 38;
