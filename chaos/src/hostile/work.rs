//! Who makes others work: initiators without number, calls that hang, trees that grow.

use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use wallaby_bench::random::Random;
use wallaby_proto::connection::ConnectionLimits;
use wallaby_proto::wire::{Budgets, MessageOptions, ReplyTo};

use super::ground::{self, Ground, many, many_method, pings, request, spread, spread_method, step};
use super::line::Line;
use super::wire::{self, Frame};
use crate::moment;
use crate::plan::{Spread, Step};

/// Requests that come from another initiator each.
pub(crate) async fn initiators(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let payload = many(step(Duration::ZERO, 0))?;
    let mut sent = 0;
    for _ in 0..50 {
        let requests: Vec<_> = (0..20)
            .map(|_| {
                let mut request = request(ground::node(&mut random), 1, payload.clone());
                request.reply_to = ReplyTo::Relay;
                request.depth = 1;
                request
            })
            .collect();
        sent += requests.len() as u64;
        let frames = line.requests(many_method(), requests);
        line.send(&frames).await?;
        line.drain().await?;
    }
    Ok(sent)
}

/// Calls of one client that hang, and say that they may do so for minutes.
pub(crate) async fn hang(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let payload = many(step(Duration::from_secs(300), 0))?;
    let mut sent = 0;
    for _ in 0..60 {
        let requests: Vec<_> = (sent + 1..=sent + 100)
            .map(|call| {
                let mut request = request(node, call, payload.clone());
                request.deadline = Some(Duration::from_secs(600));
                request.options = pings(Duration::from_secs(60), Duration::from_secs(300));
                request
            })
            .collect();
        sent += requests.len() as u64;
        let frames = line.requests(many_method(), requests);
        line.send(&frames).await?;
        line.drain().await?;
    }
    line.listen(Duration::from_secs(1)).await?;
    Ok(sent)
}

/// Calls of one client that take a tenth of a second each, as many as go.
pub(crate) async fn crowd(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let payload = many(step(Duration::from_millis(100), 0))?;
    let mut sent = 0;
    for _ in 0..20 {
        let requests: Vec<_> = (sent + 1..=sent + 200)
            .map(|call| request(node, call, payload.clone()))
            .collect();
        sent += requests.len() as u64;
        let frames = line.requests(many_method(), requests);
        line.send(&frames).await?;
        line.drain().await?;
    }
    Ok(sent)
}

/// Calls that each want more answers than they take, and then credit for nothing, as fast as it goes.
pub(crate) async fn crumbs(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let node = ground::node(&mut random);
    let limits = ConnectionLimits {
        call: 1,
        ..ConnectionLimits::default()
    };
    let hello = wire::hello_of(node, None, limits);
    let mut line = Line::dial_by(ground.server(&mut random), node, &hello).await?;
    let payload = many(Step {
        answers: 3,
        ..step(Duration::ZERO, 0)
    })?;
    let calls: Vec<_> = (1..=200)
        .map(|call| request(node, call, payload.clone()))
        .collect();
    for some in calls.chunks(50) {
        let frames = line.requests(many_method(), some.iter().cloned());
        line.send(&frames).await?;
        line.drain().await?;
    }
    let nothing: Vec<_> = calls[..100]
        .iter()
        .map(|request| Frame::call_credit(request.call, 0))
        .collect();
    for _ in 0..100 {
        line.send(&nothing).await?;
        line.drain().await?;
        ground.count("credit for nothing", nothing.len() as u64);
    }
    Ok(calls.len() as u64)
}

/// Requests whose initiator asks every moment, or never.
pub(crate) async fn ping_settings(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let payload = many(step(Duration::from_secs(1), 0))?;
    let zero = Duration::ZERO;
    let settings = [
        (zero, zero),
        (zero, Duration::from_secs(1)),
        (Duration::from_micros(1), Duration::from_micros(1)),
        (Duration::MAX / 2, Duration::MAX / 2),
    ];
    let requests: Vec<_> = (1..=8)
        .map(|call| {
            let (period, timeout) = settings[random.below(settings.len())];
            let mut request = request(node, call, payload.clone());
            request.options = pings(period, timeout);
            request.deadline = Some(if call % 2 == 0 {
                zero
            } else {
                Duration::from_secs(2)
            });
            request
        })
        .collect();
    let frames = line.requests(many_method(), requests);
    line.send(&frames).await?;
    line.drain().await?;
    Ok(8)
}

/// A tree that grows by four at each hop, with two seconds to do so, and with all the budgets that can be stated.
pub(crate) async fn bomb(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let deadline = Duration::from_secs(2);
    let tree = Spread {
        until: moment::now() + deadline.as_nanos() as u64,
        ..Spread::of(4, 12)
    };
    let mut request = request(node, 1, spread(tree)?);
    request.deadline = Some(deadline);
    request.options = Some(Box::new(MessageOptions {
        budgets: Some(Budgets {
            requests: u32::MAX,
            responses: u32::MAX,
            bytes: u64::MAX,
            depth: u32::MAX,
        }),
        ..MessageOptions::default()
    }));
    let frames = line.requests(spread_method(), [request]);
    line.send(&frames).await?;
    for _ in 0..10 {
        line.listen(Duration::from_millis(300)).await?;
    }
    Ok(1)
}

/// The same by who states nothing.
pub(crate) async fn silent_bomb(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let node = line.link.sender;
    let request = request(node, 1, spread(Spread::of(3, 30))?);
    let frames = line.requests(spread_method(), [request]);
    line.send(&frames).await?;
    for _ in 0..10 {
        line.listen(Duration::from_millis(300)).await?;
    }
    Ok(1)
}
