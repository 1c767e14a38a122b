//! What a seal covers: whoever changes it, or shows it elsewhere, is refused.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::seal::{ClusterKey, SealError, verify};
use wallaby_proto::wire::{
    Budgets, Message, MessageOptions, Metadata, PingSettings, ReplyTo, Request,
};
use wallaby_proto::{Address, CallId, DurableId, RequestId, Token};

use crate::protocol::limits::request;
use crate::protocol::samples::{alice, bob, carol, ipv4, ipv6, link, path};
use crate::protocol::vectors;

const METHOD: &str = "demo.Index/lookup";

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new(&[byte; 32]).expect("32 bytes")
}

fn sealed() -> Request {
    let mut request = Request {
        id: RequestId {
            path: path(&[0, 1]),
            hop: 2,
        },
        depth: 3,
        reply_to: ReplyTo::At(ipv4()),
        deadline: Some(Duration::from_secs(3)),
        ..request(10)
    };
    let mut options = MessageOptions {
        continuation: Some(Bytes::from_static(b"rest")),
        durable: Some(DurableId::new(1, 2)),
        ..MessageOptions::default()
    };
    options.metadata.insert("key", "value").expect("room");
    request.options = Some(Box::new(options));
    key(1).seal(&mut request, METHOD, bob(), None);
    request
}

/// A change to a request.
type Change = fn(&mut Request);

fn options(request: &mut Request) -> &mut MessageOptions {
    request.options.as_mut().expect("it is sealed")
}

#[test]
fn whatever_directs_messages_is_sealed() {
    let good = sealed();
    assert_eq!(verify(&[key(1)], &good, METHOD, bob(), None), Ok(()));
    let changes: [(&str, Change); 22] = [
        ("initiator", |request| request.call.initiator = carol()),
        ("sequence", |request| request.call.sequence += 1),
        ("token", |request| request.token = Token::new(1)),
        ("path", |request| request.id.path = path(&[0, 2])),
        ("hop", |request| request.id.hop += 1),
        ("depth", |request| request.depth -= 1),
        ("base", |request| request.base += 1),
        ("oldest", |request| request.oldest -= 1),
        ("address", |request| request.reply_to = ReplyTo::At(ipv6())),
        ("way", |request| request.reply_to = ReplyTo::Relay),
        ("deadline", |request| request.deadline = None),
        ("budgets", |request| {
            options(request).budgets = Some(Budgets::default());
        }),
        ("ping", |request| {
            let second = Duration::from_secs(1);
            options(request).ping = Some(PingSettings {
                period: second,
                timeout: second,
            });
        }),
        ("attempt", |request| options(request).attempt = 1),
        ("traced", |request| request.traced = true),
        ("payload", |request| {
            request.payload = request.payload.slice(1..)
        }),
        ("metadata", |request| {
            let metadata = &mut options(request).metadata;
            metadata.insert("key", "other").expect("room");
        }),
        ("no metadata", |request| {
            options(request).metadata = Metadata::default();
        }),
        ("binary metadata", |request| {
            let metadata = &mut options(request).metadata;
            metadata.insert_bin("key", vec![1]).expect("room");
        }),
        ("continuation", |request| {
            options(request).continuation = Some(Bytes::from_static(b"other"));
        }),
        ("durable id", |request| {
            options(request).durable = Some(DurableId::new(1, 3));
        }),
        ("body", |request| options(request).body = Some(0)),
    ];
    for (what, change) in changes {
        let mut changed = good.clone();
        change(&mut changed);
        let verdict = verify(&[key(1)], &changed, METHOD, bob(), None);
        assert_eq!(verdict, Err(SealError::Wrong), "{what}");
    }
    let other = verify(&[key(1)], &good, "demo.Index/remove", bob(), None);
    assert_eq!(other, Err(SealError::Wrong), "another method");
    // Elsewhere it is worth nothing, and without it there is nothing.
    let elsewhere = verify(&[key(1)], &good, METHOD, carol(), None);
    assert_eq!(elsewhere, Err(SealError::Wrong));
    let mut bare = good.clone();
    bare.options = None;
    assert_eq!(
        verify(&[key(1)], &bare, METHOD, bob(), None),
        Err(SealError::Missing)
    );
    for len in [0, 15, 17, 64] {
        let mut odd = good.clone();
        options(&mut odd).seal = Some(Bytes::from(vec![0; len]));
        assert_eq!(
            verify(&[key(1)], &odd, METHOD, bob(), None),
            Err(SealError::Wrong)
        );
    }
}

#[test]
fn every_bit_of_a_seal_counts() {
    let good = sealed();
    let seal = options(&mut good.clone()).seal.clone().expect("sealed");
    for bit in 0..128 {
        let mut bytes = seal.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut changed = good.clone();
        options(&mut changed).seal = Some(bytes.into());
        let verdict = verify(&[key(1)], &changed, METHOD, bob(), None);
        assert_eq!(verdict, Err(SealError::Wrong), "bit {bit}");
    }
}

/// Where the sender is the initiator, answers may go to the address of its handshake: another one is another request.
#[test]
fn the_address_of_the_handshake_is_sealed_for_direct_requests() {
    let mut direct = request(10);
    key(1).seal(&mut direct, METHOD, bob(), Some(&ipv4()));
    assert_eq!(
        verify(&[key(1)], &direct, METHOD, bob(), Some(&ipv4())),
        Ok(())
    );
    for other in [None, Some(ipv6())] {
        let verdict = verify(&[key(1)], &direct, METHOD, bob(), other.as_ref());
        assert_eq!(verdict, Err(SealError::Wrong));
    }
}

#[test]
fn keys_can_be_replaced_one_by_one() {
    let good = sealed();
    assert_eq!(
        verify(&[key(2), key(1)], &good, METHOD, bob(), None),
        Ok(())
    );
    assert_eq!(
        verify(&[key(2), key(3)], &good, METHOD, bob(), None),
        Err(SealError::Wrong)
    );
    assert_eq!(
        verify(&[], &good, METHOD, bob(), None),
        Err(SealError::Wrong)
    );
    // One that is listed twice is as good as once.
    assert_eq!(
        verify(&[key(1), key(1)], &good, METHOD, bob(), None),
        Ok(())
    );
}

#[test]
fn secrets_have_a_length_and_are_not_printed() {
    for len in [0, 15, 33, 1000] {
        let error = ClusterKey::new(&vec![1; len]).expect_err("a wrong length");
        assert_eq!(error.len, len);
    }
    let keys: Vec<_> = (16..=32)
        .map(|len| ClusterKey::new(&vec![7; len]).expect("a good length"))
        .collect();
    for (at, one) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(one), "every byte counts");
    }
    assert_eq!(format!("{:?}", keys[0]), "ClusterKey(..)");
}

/// What is written is what was sealed: deadlines are rounded on the wire, and the seal fits what is read.
#[test]
fn a_seal_survives_the_wire() {
    for micros in [1, 2047, 2049, 999_999, 59_999_999, u64::MAX] {
        let mut request = Request {
            call: CallId {
                initiator: alice(),
                sequence: 9,
            },
            oldest: 3,
            deadline: Some(Duration::from_micros(micros)),
            ..request(10)
        };
        let own: Address = ipv4();
        key(1).seal(&mut request, METHOD, bob(), Some(&own));
        let link = link(alice(), bob());
        let frame = vectors::frame(&Message::Request(request), link);
        let body = Bytes::copy_from_slice(&frame[4..]);
        let Ok(Message::Request(read)) = Message::decode(frame[3], body, link) else {
            panic!("legal bytes")
        };
        assert_eq!(verify(&[key(1)], &read, METHOD, bob(), Some(&own)), Ok(()));
    }
}
