//! Who names addresses that are not his: what comes there is counted.

use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use wallaby::Address;
use wallaby_bench::random::Random;
use wallaby_proto::wire::ReplyTo;

use super::ground::{self, Ground, many, many_method, request, step};

/// Requests of initiators that nobody knows, who are said to be reached where nobody has asked for anything.
pub(crate) async fn reflect(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let mut line = ground.stranger(&mut random).await?;
    let payload = many(step(Duration::ZERO, 0))?;
    let mut sent = 0;
    for _ in 0..50 {
        let requests: Vec<_> = (0..4)
            .map(|_| {
                let mut request = request(ground::node(&mut random), 1, payload.clone());
                request.reply_to = ReplyTo::At(ground.victim(&mut random).clone());
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

/// Many hellos that name such an address, and a call each, whose connection ends before the answer.
pub(crate) async fn call_back(ground: Arc<Ground>, mut random: Random) -> Result<u64> {
    let payload = many(step(Duration::from_millis(50), 0))?;
    let server = ground.server(&mut random).clone();
    for _ in 0..10 {
        let victim = ground.victim(&mut random).clone();
        let node = ground::node(&mut random);
        let mut line = super::line::Line::dial(&server, node, Some(victim)).await?;
        let own = request(node, 1, payload.clone());
        let frames = line.requests(many_method(), [own]);
        line.send(&frames).await?;
    }
    Ok(10)
}

/// Listens where nobody has asked for anything, at one UDP and one TCP port; says nothing and counts.
pub(crate) async fn victims(ip: &str) -> Result<(Vec<Address>, UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind((ip, 0)).await?;
    let tcp = TcpListener::bind((ip, 0)).await?;
    let addresses = vec![
        Address::Udp(udp.local_addr()?),
        Address::Tcp(tcp.local_addr()?),
    ];
    Ok((addresses, udp, tcp))
}

pub(crate) async fn count_datagrams(ground: Arc<Ground>, socket: UdpSocket) {
    let mut buffer = vec![0; 65_536];
    loop {
        if let Ok(len) = socket.recv(&mut buffer).await {
            ground.count(super::VICTIM_BYTES, len as u64);
        }
    }
}

/// Who connects is not answered.
pub(crate) async fn count_dials(ground: Arc<Ground>, listener: TcpListener) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            ground.count(super::VICTIM_DIALS, 1);
            drop(stream);
        }
    }
}
