//! What all attacks have: whom they are aimed at, what they say, and what is counted of them.

use anyhow::Result;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wallaby::codec::{Codec, Postcard};
use wallaby::{Address, CallId, MethodDefinition, NodeId, RequestId};
use wallaby_bench::random::Random;
use wallaby_proto::Token;
use wallaby_proto::wire::{MessageOptions, MethodRef, PingSettings, ReplyTo, Request};

use super::line::Line;
use crate::plan::{Number, Spread, Step};
use crate::server::counter;

/// Whom the attacks are aimed at.
pub(crate) struct Ground {
    /// Where honest servers are reached by streams or datagrams.
    pub(crate) servers: Vec<Address>,
    /// Where they are asked to share memory.
    rings: Vec<Address>,
    /// Node ids of honest endpoints.
    pub(crate) nodes: Vec<NodeId>,
    /// Where nobody has asked for anything: what comes there is counted.
    pub(crate) victims: Vec<Address>,
    counted: Mutex<BTreeMap<String, u64>>,
}

impl Ground {
    pub(crate) fn new(
        servers: Vec<Address>,
        rings: Vec<Address>,
        nodes: Vec<NodeId>,
        victims: Vec<Address>,
    ) -> Self {
        Self {
            servers,
            rings,
            nodes,
            victims,
            counted: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) fn count(&self, what: &str, times: u64) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.entry(what.to_owned()).or_default() += times;
    }

    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.clone()
    }

    pub(crate) fn server(&self, random: &mut Random) -> &Address {
        &self.servers[random.below(self.servers.len())]
    }

    /// A server's address, of any kind that it listens at: where bytes come to before anything is agreed on.
    pub(crate) fn doorstep(&self, random: &mut Random) -> &Address {
        let all = self.servers.len() + self.rings.len();
        let (servers, rings) = (self.servers.iter(), self.rings.iter());
        let mut any = servers.chain(rings).skip(random.below(all));
        any.next().unwrap_or(&self.servers[0])
    }

    pub(crate) fn victim(&self, random: &mut Random) -> &Address {
        &self.victims[random.below(self.victims.len())]
    }

    /// A connection with one of the servers, of somebody whom nobody knows.
    pub(crate) async fn stranger(&self, random: &mut Random) -> Result<Line> {
        Line::dial(self.server(random), node(random), None).await
    }
}

pub(crate) fn node(random: &mut Random) -> NodeId {
    NodeId::new(random.between(1, u64::MAX - 1)).unwrap_or(NodeId::new(1).expect("not 0"))
}

/// What a handler of an honest server is asked to do by those who are not: nothing of it is written down.
pub(crate) fn step(hold: Duration, filler: usize) -> Step {
    let number = Number {
        client: Number::HOSTILE,
        incarnation: 0,
        call: 0,
        node: 0,
    };
    Step {
        id: number.pack(),
        server: 0,
        work_us: 0,
        answers: 0,
        answer_bytes: 0,
        then: Vec::new(),
        hold_ms: hold.as_millis() as u32,
        filler: vec![9; filler].into(),
    }
}

pub(crate) fn many(step: Step) -> Result<Bytes> {
    Ok(Postcard::encode(&(step,))?)
}

pub(crate) fn spread(spread: Spread) -> Result<Bytes> {
    Ok(Postcard::encode(&(spread,))?)
}

pub(crate) fn many_method() -> &'static MethodDefinition {
    counter::MANY.definition()
}

pub(crate) fn spread_method() -> &'static MethodDefinition {
    counter::SPREAD.definition()
}

/// The first request of a call of this node.
pub(crate) fn request(initiator: NodeId, sequence: u64, payload: Bytes) -> Request {
    Request {
        call: CallId {
            initiator,
            sequence,
        },
        token: token(initiator, sequence),
        id: RequestId::FIRST,
        depth: 0,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest: 0,
        traced: false,
        compressed: false,
        waited: Duration::ZERO,
        options: None,
        method: MethodRef::Number(0),
        payload,
    }
}

/// Any will do: a liar's calls have tokens of their own.
pub(crate) fn token(initiator: NodeId, sequence: u64) -> Token {
    Token::new(initiator.get() ^ sequence.rotate_left(17))
}

pub(crate) fn pings(period: Duration, timeout: Duration) -> Option<Box<MessageOptions>> {
    Some(Box::new(MessageOptions {
        ping: Some(PingSettings { period, timeout }),
        ..MessageOptions::default()
    }))
}
