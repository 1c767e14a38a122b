//! A plan through the server half: what the initiator will get, each message with its share of the call.

use std::collections::HashSet;

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::server::{Inherited, Outbound, ServerHalf};
use wallaby_proto::wire::{LinkEnds, Message, MethodRef, ReplyTo, Request};
use wallaby_proto::{Address, CallId, Code, Path, RequestId, Status, Token};

use super::plan::{Act, Finale, Plan};
use super::weights::Share;
use crate::protocol::samples::{alice, bob, carol};
use crate::protocol::vectors::kind;

/// All that a tree makes its servers send to the initiator.
pub(super) struct Run {
    pub(super) call: CallId,
    pub(super) token: Token,
    pub(super) arrivals: Vec<Arrival>,
    /// Branches in the tree.
    pub(super) branches: usize,
    /// Requests in the tree.
    pub(super) requests: usize,
}

/// One message for the initiator.
pub(super) struct Arrival {
    pub(super) message: Message,
    pub(super) share: Share,
    /// Which initial request it comes from.
    pub(super) root: usize,
}

/// A request on its way to a server.
struct Pending<'a> {
    request: Request,
    plan: &'a Plan,
    share: Share,
    root: usize,
}

impl Run {
    /// Runs the trees of a call's initial requests to their ends.
    pub(super) fn of(roots: &[Plan], token: Token) -> Self {
        let call = CallId {
            initiator: alice(),
            sequence: 77,
        };
        let run = Self {
            call,
            token,
            arrivals: Vec::new(),
            branches: roots.len(),
            requests: 0,
        };
        let mut pending: Vec<Pending<'_>> = Vec::new();
        for ((root, plan), share) in roots.iter().enumerate().zip(Share::ALL.split(roots.len())) {
            let request = run.initial(root as u32);
            pending.push(Pending {
                request,
                plan,
                share,
                root,
            });
        }
        run.finish(pending)
    }

    fn finish(mut self, mut pending: Vec<Pending<'_>>) -> Self {
        while let Some(next) = pending.pop() {
            self.requests += 1;
            let (root, share) = (next.root, next.share);
            let mut request = next.request;
            let outputs = handle(&mut request, next.plan);
            assert!(
                !outputs.is_empty(),
                "a request sends something, if only its end"
            );
            let shares = share.split(outputs.len());
            for (output, share) in outputs.into_iter().zip(shares) {
                match output {
                    Outbound::Response(response) => {
                        self.arrive(Message::Response(response), share, root)
                    }
                    Outbound::End(end) => self.arrive(Message::End(end), share, root),
                    Outbound::Request(delegated) => {
                        self.branches += usize::from(delegated.id.hop == 0);
                        let (plan, request) = delegated.into_request(
                            self.call,
                            self.token,
                            MethodRef::Number(0),
                            inherited(),
                        );
                        let Message::Request(request) =
                            travel(Message::Request(request), bob(), carol())
                        else {
                            panic!("it was a request")
                        };
                        pending.push(Pending {
                            request,
                            plan,
                            share,
                            root,
                        });
                    }
                }
            }
        }
        self.check();
        self
    }

    fn arrive(&mut self, message: Message, share: Share, root: usize) {
        let message = travel(message, carol(), alice());
        self.arrivals.push(Arrival {
            message,
            share,
            root,
        });
    }

    fn initial(&self, index: u32) -> Request {
        let path = Path::ROOT.child(index, self.call, self.token);
        let request = Request {
            call: self.call,
            token: self.token,
            id: RequestId { path, hop: 0 },
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: self.call.sequence,
            traced: false,
            compressed: false,
            waited: std::time::Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::new(),
        };
        let Message::Request(request) = travel(Message::Request(request), alice(), bob()) else {
            panic!("it was a request")
        };
        request
    }

    /// What holds of any tree, whatever the order of its messages.
    fn check(&self) {
        let mut responses = HashSet::new();
        let mut reports = HashSet::new();
        for Arrival { message, .. } in &self.arrivals {
            let (id, own, manifest) = match message {
                Message::Response(response) => {
                    let id = (response.request.path, response.index);
                    assert!(responses.insert(id), "two responses are {id:?}");
                    (response.request, response.last, response.manifest)
                }
                Message::End(end) => (end.request, true, end.manifest),
                other => panic!("{other:?} is not for the initiator"),
            };
            let carried = manifest.map(|manifest| manifest.owner);
            for owner in own.then_some(id.path).into_iter().chain(carried) {
                assert!(reports.insert(owner), "branch {owner} reported twice");
            }
        }
        assert_eq!(reports.len(), self.branches, "every branch reports once");
    }
}

/// What a handler with this plan makes its request send.
fn handle<'a>(request: &mut Request, plan: &'a Plan) -> Vec<Outbound<&'a Plan>> {
    let mut server = ServerHalf::new(request);
    let mut outputs: Vec<Outbound<&Plan>> = Vec::new();
    for act in &plan.acts {
        match act {
            Act::Reply => outputs.extend(server.reply(Bytes::new())),
            Act::Delegate(plan) => outputs.extend(server.delegate(plan, Bytes::new())),
            Act::Flush => outputs.extend(server.flush()),
        }
    }
    match &plan.finale {
        Finale::Finish => outputs.push(server.finish(None)),
        Finale::Respond => outputs.extend(server.respond(Bytes::new(), None)),
        Finale::Forward(plan) => outputs.extend(server.forward(plan, Bytes::new(), None)),
        Finale::Fail => outputs.push(server.fail(&Status::new(Code::Internal, "planned"), None)),
    }
    assert!(server.has_ended() && server.flush().is_none());
    outputs
}

fn inherited() -> Inherited {
    let address = Address::Mem("alice".into());
    Inherited {
        reply_to: ReplyTo::At(address),
        deadline: None,
        oldest: 1,
        options: None,
    }
}

/// The message as its receiver reads it.
fn travel(
    message: Message,
    sender: wallaby_proto::NodeId,
    receiver: wallaby_proto::NodeId,
) -> Message {
    let link = LinkEnds::new(sender, receiver);
    let mut body = BytesMut::new();
    message.encode(&mut body, link);
    Message::decode(kind(&message), body.freeze(), link).expect("what was written is read")
}
