//! What messages, addresses and names say about themselves, to who asks.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use wallaby_proto::connection::Features;
use wallaby_proto::id::stable_hash;
use wallaby_proto::wire::{MAX_METADATA, Message, MessageOptions, Metadata, MetadataError};
use wallaby_proto::{Address, Token};

use crate::protocol::samples::{all, response, token};

#[test]
fn a_message_tells_the_token_that_it_shows() {
    let mut shown = HashSet::new();
    for sample in all() {
        let Message::Response(_) = sample.message else {
            continue;
        };
        shown.insert(sample.message.token());
    }
    assert_eq!(shown, HashSet::from([None, Some(token())]));
    let mut other = response(&[0]);
    other.token = Some(Token::new(5));
    assert_eq!(Message::Response(other).token(), Some(Token::new(5)));
}

#[test]
fn features_contain_what_they_have() {
    let (none, one, two) = (Features(0), Features(0b01), Features(0b11));
    assert!(two.contains(one) && two.contains(two) && two.contains(none));
    assert!(none.contains(none) && !none.contains(one) && !one.contains(two));
    assert!(!Features(0b10).contains(one));
}

#[test]
fn metadata_are_found_by_their_keys() {
    let mut metadata = Metadata::default();
    metadata.insert("tenant", "seven").expect("room");
    metadata.insert("zone", "north").expect("room");
    metadata.insert("tenant", "eight").expect("room");
    assert_eq!(metadata.get("tenant"), Some("eight"));
    assert_eq!(metadata.get("zone"), Some("north"));
    assert_eq!(metadata.get("xyzzy"), None);
    assert_eq!(metadata.iter().count(), 2);
}

#[test]
fn metadata_have_a_limit_to_the_byte() {
    let mut metadata = Metadata::default();
    let half = MAX_METADATA / 2;
    metadata.insert("a", "x".repeat(half - 1)).expect("room");
    let error = metadata.insert("b", "x".repeat(half)).expect_err("a byte");
    let size = MAX_METADATA + 1;
    assert_eq!(error, MetadataError::TooLarge { size });
    metadata.insert("b", "x".repeat(half - 1)).expect("room");
    metadata
        .insert("a", "y".repeat(half - 1))
        .expect("in its place");
    metadata.insert("c", "").expect_err("nothing is left");
}

#[test]
fn options_are_empty_until_one_is_set() {
    let mut options = MessageOptions::default();
    assert!(options.is_empty());
    options.metadata.insert("a", "b").expect("room");
    assert!(!options.is_empty());
}

#[test]
fn addresses_that_differ_hash_differently() {
    let state = BuildHasherDefault::<DefaultHasher>::default();
    let mut hashes = HashSet::new();
    let mut texts = Vec::new();
    for scheme in ["tcp", "udp"] {
        for host in ["10.0.0.1", "10.0.0.2", "138.0.0.1", "[::1]", "[fe80::1]"] {
            for port in [1, 2, 3, 256, 65_535] {
                texts.push(format!("{scheme}://{host}:{port}"));
            }
        }
    }
    for scheme in ["unix", "mem", "shm", "tls", "quic"] {
        texts.extend(["/a", "/b"].map(|name| format!("{scheme}://{name}")));
    }
    for text in &texts {
        let address: Address = text.parse().expect(text);
        let again: Address = text.parse().expect(text);
        assert_eq!(state.hash_one(&address), state.hash_one(&again));
        assert!(hashes.insert(state.hash_one(&address)), "{text}");
    }
}

#[test]
fn a_stable_hash_is_the_same_for_ever() {
    assert_eq!(stable_hash(b""), 0x1e92_4b9d_7377_00d7);
    assert_ne!(stable_hash(b"a"), stable_hash(b"b"));
}
