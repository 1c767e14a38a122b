//! Strangers: what they make an endpoint send to others, and what they take up of its room.

mod common;

use std::time::{Duration, Instant};

use common::raw::{Raw, hello, request};
use common::{Net, at, patience, service, until, work};
use tokio::net::{TcpListener, UdpSocket};
use wallaby::{Address, CallId, DialPolicy, Endpoint, NodeId, One, Request};
use wallaby_proto::wire::ReplyTo;

async fn echo(net: &Net, builder: wallaby::Builder) -> Endpoint {
    let echo = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    net.bind(builder.serve(echo)).await
}

/// A call of an initiator that does not exist, said to be reached at this address.
fn aimed(initiator: u64, at: &Address) -> wallaby_proto::wire::Request {
    let call = CallId {
        initiator: NodeId::new(initiator).expect("not zero"),
        sequence: 1,
    };
    wallaby_proto::wire::Request {
        reply_to: ReplyTo::At(at.clone()),
        depth: 1,
        ..request(call, b"\x01x")
    }
}

/// How many times something may have happened that happens once a second.
fn seconds(begun: Instant) -> u64 {
    begun.elapsed().as_secs() + 1
}

/// Requests of initiators that do not exist name one address: who is there is dialled once a second, not once a request.
#[tokio::test]
async fn an_address_is_dialled_once_a_second_however_many_initiators_are_said_to_be_there() {
    patience(async {
        let victim = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let door = Address::Tcp(victim.local_addr().expect("it is bound"));
        let (mut dials, begun) = (0, Instant::now());
        let server = echo(&Net::tcp(), Endpoint::builder()).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        const REQUESTS: u64 = 2000;
        for initiator in 1..=REQUESTS {
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
            if let Ok(accepted) = tokio::time::timeout(Duration::ZERO, victim.accept()).await {
                drop(accepted.expect("it listens"));
                dials += 1;
            }
        }
        // All answers go back the way that the requests came.
        for _ in 0..REQUESTS {
            stranger.response().await;
        }
        while let Ok(accepted) = tokio::time::timeout(Duration::ZERO, victim.accept()).await {
            drop(accepted.expect("it listens"));
            dials += 1;
        }
        let most = seconds(begun);
        assert!((1..=most).contains(&dials), "{dials} dials, not {most}");
        assert!(server.metrics().dials_held > 0);
    })
    .await;
}

/// The same over UDP: what arrives at the address is less than what made the server send it.
#[tokio::test]
async fn a_server_is_no_amplifier_of_datagrams() {
    patience(async {
        let victim = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let door = Address::Udp(victim.local_addr().expect("it is bound"));
        let begun = Instant::now();
        let server = echo(&Net::tcp(), Endpoint::builder()).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        const REQUESTS: u64 = 500;
        for initiator in 1..=REQUESTS {
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
        }
        for _ in 0..REQUESTS {
            stranger.response().await;
        }
        let (mut datagrams, mut bytes, mut buffer) = (0, 0, [0; 2000]);
        while let Ok(len) = victim.try_recv(&mut buffer) {
            datagrams += 1;
            bytes += len;
            assert_eq!(buffer[0], 1, "an ask");
            assert!(len <= 80, "an ask of {len} bytes");
        }
        assert!((1..=3 * seconds(begun)).contains(&datagrams), "{datagrams}");
        let caused = server.metrics().bytes_received as usize;
        assert!(bytes < caused, "{bytes} bytes for {caused}");
    })
    .await;
}

/// Many addresses, each named once: they share a rate.
#[tokio::test]
async fn all_addresses_that_peers_name_share_a_rate() {
    patience(async {
        let begun = Instant::now();
        let builder = Endpoint::builder().dial_policy(DialPolicy::default().rate(1, 10));
        let server = echo(&Net::tcp(), builder).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        let mut victims = Vec::new();
        for initiator in 1..=50 {
            let victim = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let door = Address::Tcp(victim.local_addr().expect("it is bound"));
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
            victims.push(victim);
        }
        let most = 10 + seconds(begun);
        until(|| server.metrics().dials_held >= 50 - most).await;
        let held = server.metrics().dials_held;
        assert!(held <= 40, "{held} were held back");
    })
    .await;
}
