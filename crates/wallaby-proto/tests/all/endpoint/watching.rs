//! Calls that last: that they are watched, and end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::endpoint::{CallOptions, Outcome};
use wallaby_proto::error::Failure;
use wallaby_proto::wire::PingSettings;

use super::world::{World, at};

/// All that was sent has ended, and its connection, too, when one more request is sent. Its server is silent.
#[test]
fn a_request_that_is_sent_when_nothing_else_is_missing_is_watched_as_others() {
    let mut world = World::new(3);
    let method = Arc::clone(&world.method);
    let mut options = CallOptions::default();
    options.ping = Some(PingSettings {
        period: Duration::from_millis(100),
        timeout: Duration::from_secs(1),
    });
    let call = world.endpoint(0).begin(&options).expect("room");
    for server in [1, 2] {
        let endpoint = world.endpoint(0);
        let sent = endpoint.send(call, &at(server), &method, Bytes::new());
        sent.expect("it is sent");
        world.turn_all();
        let (key, _) = world.hosts[server].runs.remove(0);
        if server == 1 {
            let endpoint = world.endpoint(server);
            endpoint.respond(key, Bytes::new()).expect("it is sent");
            endpoint.returned(key, Ok(()));
            world.turn_all();
            world.cut(server);
            world.turn_all();
        } else {
            world.endpoint(server).put_aside(key);
            world.endpoint(server).returned(key, Ok(()));
        }
    }
    world.endpoint(0).close_call(call);
    // The second server says nothing any more.
    for turn in 1..60 {
        let now = Duration::from_millis(50) * turn;
        let endpoint = world.endpoint(0);
        endpoint.set_time(now);
        if endpoint.poll_timeout().is_some_and(|due| due <= now) {
            endpoint.handle_timeout();
        }
        world.turn(&[0]);
    }
    let [(ended, Outcome::Failed(failure))] = &world.hosts[0].ended[..] else {
        panic!("{:?}", world.hosts[0].ended);
    };
    assert_eq!(*ended, call);
    assert!(matches!(*failure, Failure::Lost(_)), "{failure}");
}
