//! Who claims to be somebody else, and who listens for what is not for him.

use anyhow::Result;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use wallaby::{CallId, RequestId};
use wallaby_bench::random::Random;
use wallaby_proto::wire::{Message, Ping, ReplyTo};

use super::ground::{self, Ground, many, many_method, request, step, token};
use super::line::Line;

/// Far beyond any call that an honest client has made.
const FAR: u64 = 1 << 40;

/// A hello with the id of an honest endpoint; then a request of a far later call, which says that all before are over, and
/// pings and aborts of its calls by a token that is not theirs. What is answered to these is counted.
pub(crate) async fn impersonate(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let victim = ground.nodes[random.below(ground.nodes.len())];
    let mut line = Line::dial(ground.server(&mut random), victim, None).await?;
    let sequence = FAR + random.between(0, 1 << 20);
    let mut late = request(victim, sequence, many(step(Duration::ZERO, 0))?);
    late.oldest = sequence;
    let frames = line.requests(many_method(), [late]);
    line.send(&frames).await?;
    for _ in 0..20 {
        let sequence = random.between(1, 5_000);
        let call = CallId {
            initiator: victim,
            sequence,
        };
        let ping = Ping {
            call,
            token: token(victim, sequence),
            request: RequestId::FIRST,
            abort: random.per_mille(500),
            children_from: 0,
            missing: vec![0],
            shows: random.per_mille(200),
        };
        line.send_message(Message::Ping(ping)).await?;
    }
    for _ in 0..2 {
        let heard = line.heard(Duration::from_millis(250)).await?;
        let stolen = heard.iter().filter(|message| match message {
            // What was asked about is not its own: nothing may be told.
            Message::Pong(pong) => pong.call.sequence < FAR && pong.progress.is_some(),
            other => other.call().sequence < FAR,
        });
        ground.count(super::STOLEN, stolen.count() as u64);
    }
    Ok(21)
}

/// The same word of calls that are over, in a request that is said to be handed on for an honest initiator.
pub(crate) async fn end_calls_of_others(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let victim = ground.nodes[random.below(ground.nodes.len())];
    let mut line = ground.stranger(&mut random).await?;
    let sequence = FAR + random.between(0, 1 << 20);
    let mut late = request(victim, sequence, many(step(Duration::ZERO, 0))?);
    late.oldest = sequence;
    late.reply_to = ReplyTo::Relay;
    late.depth = 1;
    let frames = line.requests(many_method(), [late]);
    line.send(&frames).await?;
    line.drain().await?;
    Ok(1)
}

/// Connects and waits for what others should get: a server without a way to an initiator must not pick somebody.
pub(crate) async fn eavesdrop(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    // A call that never was, so that the connection counts as one of an initiator.
    let node = line.link.sender;
    let own = request(node, 1, many(step(Duration::ZERO, 0))?);
    let frames = line.requests(many_method(), [own]);
    line.send(&frames).await?;
    for _ in 0..20 {
        let heard = line.heard(Duration::from_millis(250)).await?;
        let stolen = heard
            .iter()
            .filter(|message| message.call().initiator != node);
        ground.count(super::STOLEN, stolen.count() as u64);
    }
    Ok(1)
}

/// Bytes that are no protocol, frames that end in the middle, and frames that say what cannot be.
pub(crate) async fn garbage(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let server = ground.server(&mut random).clone();
    let len = random.between(1, 900) as usize;
    let mut noise: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    let kind = [
        0x02, 0x03, 0x04, 0x07, 0x09, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15,
    ];
    if random.per_mille(500)
        && let [first, second, third, fourth, ..] = &mut noise[..]
    {
        // A frame as it should be, but for what is in it.
        [*first, *second, *third] = [(len - 4) as u8, ((len - 4) >> 8) as u8, 0];
        *fourth = kind[random.below(kind.len())];
    }
    if let wallaby::Address::Udp(to) = server {
        let socket = super::line::socket(to).await?;
        socket.send(&noise).await?;
        socket.send(&super::datagrams::seal(noise)).await?;
        return Ok(2);
    }
    if random.per_mille(300) {
        let mut stream = super::line::connect(ground.doorstep(&mut random)).await?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &noise).await?;
        return Ok(1);
    }
    let mut line = Line::dial(&server, ground::node(&mut random), None).await?;
    let node = line.link.sender;
    let whole = line.requests(
        many_method(),
        [request(node, 1, Bytes::from(noise.clone()))],
    );
    let mut bytes = Vec::new();
    whole.iter().for_each(|frame| frame.put(&mut bytes));
    bytes.truncate(random.below(bytes.len()) + 1);
    if random.per_mille(500) {
        bytes = noise;
    }
    line.send_bytes(&bytes).await?;
    Ok(1)
}
