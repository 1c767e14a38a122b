//! How many bytes the protocol adds to a payload, over the golden vectors.
//!
//! The design counts everything but the frame's length (3 bytes), the method number and the payload.

use wallaby_proto::wire::{Message, MethodRef};

use crate::protocol::samples::{self, Sample};
use crate::protocol::vectors::frame;

/// Bytes of the header as the design counts them, the frame's kind included.
pub(crate) fn header(name: &str) -> usize {
    let sample = samples::all()
        .into_iter()
        .find(|sample| sample.name == name);
    let Sample { link, message, .. } = sample.unwrap_or_else(|| panic!("a sample named {name}"));
    let (method, payload) = match &message {
        Message::Request(request) => {
            assert_eq!(
                request.method,
                MethodRef::Number(5),
                "a method number of one byte"
            );
            (1, request.payload.len())
        }
        Message::Response(response) => (0, response.payload.len()),
        _ => (0, 0),
    };
    frame(&message, link).len() - 3 - method - payload
}

#[test]
fn one_hop_takes_at_most_sixteen_bytes() {
    assert_eq!(header("request-direct"), 11);
    assert_eq!(header("request-direct-first"), 15);
    assert_eq!(header("request-direct-oldest"), 12);
    assert_eq!(header("request-direct-deadline"), 13);
    assert_eq!(header("request-direct-deadline-oldest"), 16);
    assert_eq!(header("response-direct"), 6);
    assert_eq!(header("response-direct-more"), 7);
}

#[test]
fn a_delegated_request_over_ipv4_takes_at_most_forty_and_fifty_with_a_manifest() {
    assert_eq!(header("request-delegated-ipv4"), 40);
    assert_eq!(header("request-delegated-ipv4-manifest"), 43);
    assert_eq!(header("request-continued"), 40);
}

#[test]
fn an_ipv6_address_adds_twelve_bytes() {
    assert_eq!(
        header("request-delegated-ipv6"),
        header("request-delegated-ipv4") + 12
    );
}

#[test]
fn a_folded_path_adds_at_most_sixteen_bytes_wherever_one_stands() {
    assert!(header("request-delegated-folded") <= 40 + 16);
    // Two of them: the request's own, and the owner's, which a folded path does not tell.
    assert!(header("request-delegated-folded-manifest") <= 50 + 16 + 16);
}

#[test]
fn an_answer_from_deep_in_the_tree_takes_at_most_twenty() {
    assert_eq!(header("response-delegated"), 17);
    assert_eq!(header("response-delegated-manifest"), 21);
    assert_eq!(header("end-null"), 8);
}
