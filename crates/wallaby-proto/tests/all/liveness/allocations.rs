//! Remembering a request of one hop allocates nothing of its own: a node of an ordered map for several of them, once the tables
//! have grown. What a large one took is given back.

use std::time::Duration;

use wallaby_proto::call::records::{Judgement, OutputMark, RecordLimits, Records, Remembered};
use wallaby_proto::call::server::{Outbound, ServerHalf};
use wallaby_proto::wire::Request;

use crate::counting::{ALLOCATIONS, BYTES};
use crate::liveness::shelf::{HOME, Handled, Shelf, home, ping, request};

#[test]
fn remembering_a_request_of_one_hop_allocates_nothing_of_its_own() {
    let mut records = Records::new(RecordLimits::default());
    let mut before = 0;
    for sequence in 1..=4000_u64 {
        if sequence == 2001 {
            before = ALLOCATIONS.get(); // tables have grown by now
        }
        let now = Duration::from_micros(10 * sequence);
        // A thousand calls live at a time.
        let mut request = Request {
            oldest: sequence.saturating_sub(1000).max(1),
            ..request(sequence, "0")
        };
        let Judgement::Accepted(ticket) = records.admit(&request, home(), now) else {
            panic!("it is new")
        };
        let mut server: ServerHalf<()> = ServerHalf::new(&mut request);
        for message in server.respond("hop".into(), None) {
            let Outbound::Response(response) = message else {
                panic!("a response")
            };
            let output = OutputMark {
                conn: HOME,
                mark: sequence,
            };
            records.response_released(ticket, &response, Some(output), now);
        }
    }
    let allocations = ALLOCATIONS.get() - before;
    assert!(allocations <= 2000 / 5, "{allocations} for 2000 requests");
    assert_eq!(records.remembered().calls, 1001);
}

/// Each slot of the table in turn is that of a request which delegates often, and of which many others are asked about.
#[test]
fn what_requests_took_is_given_back_when_they_are_forgotten() {
    let mut shelf = Shelf::new();
    let slots = 50;
    let mut before = 0;
    for round in 0..=slots {
        let first = 1_000 * (round + 1);
        // Those that run take the slots before.
        let running: Vec<Handled> = (1..=round)
            .map(|number| shelf.accept(request(first + number, "0")))
            .collect();
        let mut large = shelf.accept(request(first, "0"));
        let sent: Vec<Outbound<u64>> = (0..1_000)
            .filter_map(|_| large.server.delegate(7, "work".into()))
            .collect();
        shelf.release(large.ticket, sent, 0);
        for child in 0..200 {
            let now = shelf.time();
            let asked = ping(first, &format!("0.{child}"));
            assert!(
                shelf
                    .records
                    .relay_target(&asked, crate::liveness::shelf::home(), now)
                    .is_some()
            );
        }
        for mut handled in running.into_iter().chain([large]) {
            let sent = handled.server.finish(None);
            shelf.release(handled.ticket, [sent], 0);
        }
        shelf.actions();
        shelf.until(shelf.now + 10_000);
        assert_eq!(shelf.records.remembered(), Remembered::default());
        if round == 0 {
            before = BYTES.get();
        }
    }
    let more = BYTES.get() - before;
    assert!(more < slots as usize * 4_096, "{more} bytes");
}
