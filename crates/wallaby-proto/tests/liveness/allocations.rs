//! Remembering a request of one hop allocates nothing, once the tables have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use wallaby_proto::call::records::{Admission, Output, RecordLimits, Records};
use wallaby_proto::call::server::{Outbound, Server};
use wallaby_proto::wire::Request;

use crate::shelf::{HOME, home, request};

/// The system's allocator, counting what this thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn remembering_a_request_of_one_hop_allocates_nothing() {
    let mut records = Records::new(RecordLimits::default(), [9; 16]);
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
        let Admission::Accepted(ticket) = records.admit(&request, home(), now) else {
            panic!("it is new")
        };
        let mut server: Server<()> = Server::new(&mut request);
        for message in server.respond("hop".into(), None) {
            let Outbound::Response(response) = message else {
                panic!("a response")
            };
            let output = Output {
                session: HOME,
                mark: sequence,
            };
            records.response_released(ticket, &response, Some(output), now);
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(records.remembered().calls, 1001);
}
