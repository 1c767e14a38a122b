//! Who makes others keep things: requests beyond the window, large messages that never become whole, pongs that nobody reads.

use anyhow::{Result, bail};
use std::sync::Arc;
use std::time::Duration;
use wallaby::{Address, CallId, RequestId};
use wallaby_bench::random::Random;
use wallaby_proto::wire::{Message, Ping, Response};

use super::ground::{self, Ground, many, many_method, request, spread, spread_method, step, token};
use super::line::Line;
use super::wire::{Frame, kind};
use crate::plan::Spread;

/// Requests that fill the window twice, without waiting for credit. Their handlers hang.
pub(crate) async fn overdraw(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let is_udp = matches!(ground.servers[0], Address::Udp(_));
    let (count, size) = if is_udp { (8_000, 900) } else { (160, 60_000) };
    let payload = many(step(Duration::from_secs(5), size))?;
    let mut sent = 0;
    while sent < count {
        let batch = if is_udp { 100 } else { 8 };
        let calls = sent + 1..=(sent + batch).min(count);
        let requests: Vec<_> = calls
            .map(|call| request(node, call, payload.clone()))
            .collect();
        sent += requests.len() as u64;
        let frames = line.requests(many_method(), requests);
        line.send(&frames).await?;
        if is_udp {
            line.drain().await?; // else nobody has room for more datagrams
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(sent)
}

/// Small requests whose handlers hang, each in the company of answers that nobody waits for: what is kept of a read buffer
/// should be what is kept of the request.
pub(crate) async fn sparse(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let (node, server) = (line.link.sender, line.link.receiver);
    let payload = many(step(Duration::from_secs(5), 0))?;
    for call in 1..=1_000 {
        let mut frames = line.requests(many_method(), [request(node, call, payload.clone())]);
        for index in 0..4 {
            let sequence = (call << 8) + index;
            let answer = Response {
                call: CallId {
                    initiator: server,
                    sequence,
                },
                distance: 0,
                token: None,
                request: RequestId::FIRST,
                index: 0,
                last: true,
                manifest: None,
                status: false,
                compressed: false,
                options: None,
                payload: FILLER.into(),
            };
            frames.push(Frame::of(&Message::Response(answer), line.link));
        }
        line.send(&frames).await?;
        if call % 10 == 0 {
            line.drain().await?;
        }
    }
    Ok(1_000)
}

const FILLER: &[u8] = &[3; 30_000];

/// Large messages on several connections at a time, four megabytes of each, and then four bytes every second.
pub(crate) async fn trickle(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    if let Address::Udp(_) = ground.servers[0] {
        return pieces(ground, random).await;
    }
    let mut line = ground.stranger(&mut random).await?;
    let (streams, chunk) = (4, [5; 32 << 10]);
    for stream in 0..streams {
        line.send(&[Frame::first_part(stream, 16 << 20, kind::REQUEST, &chunk)])
            .await?;
        for _ in 0..127 {
            line.send(&[Frame::next_part(stream, &chunk)]).await?;
        }
    }
    ground.count("large messages begun", streams);
    for _ in 0..TURNS.as_secs() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for stream in 0..streams {
            line.send(&[Frame::next_part(stream, &chunk[..4])]).await?;
        }
    }
    ground.count(super::UNSTOPPED, 1);
    Ok(streams)
}

/// Over UDP: the first byte of eight messages of 128 KiB, and no more.
async fn pieces(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    for _ in 0..8 {
        line.send_piece(128 << 10).await?;
    }
    for _ in 0..10 {
        line.listen(Duration::from_millis(250)).await?; // acknowledges, so that the session lives
    }
    Ok(8)
}

/// A request with many children, asked about as fast as it goes by who never reads what is answered.
pub(crate) async fn deaf(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let wide = Spread {
        hold_ms: LONG.as_millis() as u32,
        ..Spread::of(200, 1)
    };
    let mut own = request(node, 1, spread(wide)?);
    own.deadline = Some(LONG);
    let frames = line.requests(spread_method(), [own.clone()]);
    line.send(&frames).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ping = Ping {
        call: own.call,
        token: token(node, 1),
        request: RequestId::FIRST,
        abort: false,
        children_from: 0,
        missing: Vec::new(),
        shows: false,
    };
    let frame = Frame::of(&Message::Ping(ping), line.link);
    let batch = vec![frame; 100];
    for _ in 0..LONG.as_millis() / 25 {
        // An error is what should come: it is read from no more, and then cut off.
        line.send(&batch).await?;
        ground.count("pings of who never reads", batch.len() as u64);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    // Over UDP nobody is told that a session has ended.
    if !matches!(ground.servers[0], Address::Udp(_)) {
        ground.count(super::UNSTOPPED, 1);
    }
    Ok(1)
}

/// Says who it is by halves, or asks for sessions that stay silent.
pub(crate) async fn half_handshakes(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let server = ground.server(&mut random).clone();
    let (mut streams, mut lines) = (Vec::new(), Vec::new());
    let mut refused = None;
    for _ in 0..HALVES {
        if let Address::Udp(_) = server {
            // A session without a message.
            match Line::dial(&server, ground::node(&mut random), None).await {
                Ok(line) => lines.push(line),
                Err(error) => refused = Some(error),
            }
            continue;
        }
        match super::line::connect(ground.doorstep(&mut random)).await {
            Ok(mut stream) => {
                let hello = super::wire::hello(ground::node(&mut random), None);
                let half = random.below(hello.len());
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &hello[..half]).await;
                streams.push(stream);
            }
            Err(error) => refused = Some(error),
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    match refused {
        Some(error) if streams.is_empty() && lines.is_empty() => bail!(error),
        _ => Ok((streams.len() + lines.len()) as u64),
    }
}

/// Who goes on for so long has not been stopped: longer than silence may last, with some patience.
const LONG: Duration = Duration::from_secs(25);

/// Who never finishes a message may wait for six periods of 10 s, and may then have a turn, which lasts two more if nothing comes.
const TURNS: Duration = Duration::from_secs(120);
/// At a time, of one volley.
const HALVES: usize = 100;
