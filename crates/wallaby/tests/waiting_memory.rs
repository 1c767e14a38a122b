//! What waits does not keep the memory alive that other messages arrived in: measured, by an allocator that counts. Apart from
//! other tests, whose memory it would count.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use wallaby_proto::connection::Charge;

use bytes::Bytes;
use common::raw::{Raw, hello, request, response};
use common::{Gate, Net, all, at, heap, load, patience, service, until};
use tokio::net::TcpListener;
use wallaby::{Address, CallId, Endpoint, ExecutorConfig, Many, NodeId, Request, Schedule};
use wallaby_proto::Token;
use wallaby_proto::carrier::Carrier;

/// The system's allocator, which also knows how much memory there is at the moment.
struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every request is handed to the system's allocator as it is; the counter is a plain number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> isize {
    HELD.load(Ordering::Relaxed)
}

/// What is dropped as soon as it has arrived: an answer of a call that nobody has made.
static BESIDE: [u8; 60_000] = [7; 60_000];
/// Messages of one byte, each with so much beside it.
const MESSAGES: u32 = 300;
/// What each of them may take, wherever that is: far less than what arrived with it.
const EACH: isize = 8 * 1024;

/// Sends it together with what was to be sent before.
async fn send_beside(raw: &mut Raw) {
    let node = raw.connection.peer().expect("a handshake").node;
    let call = CallId {
        initiator: node,
        sequence: 1 << 40,
    };
    raw.send_response(response(call, Some(Token::new(1)), &BESIDE))
        .await;
}

/// Requests that wait for a handler, and answers that wait for the application. One test, as memory is that of the process.
#[tokio::test]
async fn small_messages_that_wait_keep_nothing_of_what_came_with_them() {
    patience(async {
        requests_wait().await;
        answers_wait().await;
    })
    .await;
}

async fn requests_wait() {
    let gate = Gate::new();
    let pass = gate.clone();
    let slow = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (what,)| {
            let pass = pass.clone();
            async move {
                pass.pass().await;
                Ok(request.respond(what).await?)
            }
        },
    );
    let builder = Endpoint::builder().executor(ExecutorConfig {
        concurrency: 1,
        queue: 10_000,
        schedule: Schedule::Fifo,
    });
    let server = Net::tcp().bind(builder.serve(slow)).await;
    let mut raw = Raw::dial(&at(&server), hello(9)).await;
    let mut before = 0;
    for sequence in 1..=u64::from(MESSAGES) {
        let call = CallId {
            initiator: NodeId::new(9).expect("not zero"),
            sequence,
        };
        let mut sent = request(call, b"\x01x");
        sent.oldest = 1; // all of them live
        raw.send_request(sent, heap::MANY.definition()).await;
        send_beside(&mut raw).await;
        let seen = sequence as usize;
        until(|| server.load() == load(1, seen - 1)).await;
        if sequence == 20 {
            before = held();
        }
    }
    let each = (held() - before) / (MESSAGES - 20) as isize;
    assert!(each < EACH, "{each} bytes for each request that waits");
    gate.open(MESSAGES as usize);
    until(|| server.load().is_idle()).await;
}

async fn answers_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("it is bound"));
    let client = Endpoint::builder().bind().await;
    let client = client.expect("there is a runtime");
    let mut call = heap::at(&client, &address).many(Bytes::new());
    let mut server = Raw::accept(&listener, hello(7)).await;
    let request = server.request().await;
    let mut before = 0;
    for index in 0..MESSAGES {
        let mut answer = response(request.call, None, b"\x01x");
        answer.index = index;
        answer.last = index + 1 == MESSAGES;
        let sent = server.connection.send_response(&answer, Charge::Free);
        sent.expect("it is not too large");
        send_beside(&mut server).await;
        let dropped = u64::from(index) + 1;
        until(|| client.metrics().late_dropped == dropped).await;
        if index == 20 {
            before = held();
        }
    }
    let each = (held() - before) / (MESSAGES - 21) as isize;
    assert!(each < EACH, "{each} bytes for each answer that waits");
    assert_eq!(all(&mut call).await.len(), MESSAGES as usize);
}
