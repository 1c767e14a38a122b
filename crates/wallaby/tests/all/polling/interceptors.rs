//! Code of the application's sees the initial requests of its calls. In virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use wallaby::polling::{CallOptions, Endpoint, Event, RetryPolicy};
use wallaby::{CallInterceptor, Code, Failure, Outgoing, Status};

use super::alone::{LONG, outcome, work};
use super::world::{Link, World};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Puts a credential into what is sent, refuses what says so, and tells how it ended.
struct Stamp(Log);

impl CallInterceptor for Stamp {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        self.0.add(format!("{} leaves", outgoing.method.name()));
        let log = self.0.clone();
        outgoing.on_end(move |end| log.add(format!("ended: {:?}", end.code())));
        let metadata = &mut Arc::make_mut(&mut outgoing.options).metadata;
        metadata.insert("password", "secret").expect("it is short");
        match metadata.get("refuse") {
            Some(_) => Err(Status::new(Code::Unauthenticated, "no token yet")),
            None => Ok(()),
        }
    }
}

type Passwords = Rc<RefCell<Vec<Option<String>>>>;

/// The password of each request, as the server has got it.
fn serve_seeing(server: &mut Endpoint<Link>) -> Passwords {
    let seen = Passwords::default();
    let tell = seen.clone();
    let serve = server.serve(&work::ONE, move |mut request, (what,)| {
        let password = request.raw().metadata().get("password");
        tell.borrow_mut().push(password.map(str::to_owned));
        Ok(request.respond(&what)?)
    });
    serve.expect("no other has its name");
    seen
}

fn refusing() -> CallOptions {
    let mut options = CallOptions::default();
    let inserted = options.metadata.insert("refuse", "yes");
    inserted.expect("it is short");
    options
}

#[test]
fn an_interceptor_sees_each_call_and_how_it_ends() {
    let (world, log) = (World::new(64), Log::default());
    let stamped = Endpoint::builder().call_interceptor(Stamp(log.clone()));
    let (mut client, mut server) = (world.bind(stamped), world.bind(Endpoint::builder()));
    let (seen, at) = (serve_seeing(&mut server), server.address());
    let options = CallOptions::default();
    for how in ["call", "call_again", "multicast"] {
        let target = work::one("hop".into());
        let policy = RetryPolicy::default();
        let sent = match how {
            "call" => client.call(at.clone(), target, &options),
            "call_again" => client.call_again(at.clone(), target, &options, &policy),
            _ => client.multicast([at.clone()], target, &options).remove(0),
        };
        sent.expect("it is sent");
        let (answers, end) = outcome(&world, &mut [&mut client, &mut server]);
        assert_eq!(answers, [Ok("hop".to_owned())], "{how}");
        assert!(
            matches!(end, Event::Complete { statuses: 0, .. }),
            "{end:?}"
        );
        assert_eq!(seen.take(), [Some("secret".to_owned())], "{how}");
        assert_eq!(log.take(), ["test.Work/one leaves", "ended: None"], "{how}");
    }
    let call = client.begin(&options).expect("there is room");
    let (method, payload) = (work::ONE.definition(), b"\x03hop"[..].into());
    let sent = client.send(call, at, method, payload);
    sent.expect("it is sent");
    client.close_call(call);
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("hop".to_owned())]);
    assert_eq!(seen.take(), [Some("secret".to_owned())]);
}

#[test]
fn a_request_that_an_interceptor_refuses_does_not_leave() {
    let (world, log) = (World::new(65), Log::default());
    let stamped = Endpoint::builder().call_interceptor(Stamp(log.clone()));
    let (mut client, mut server) = (world.bind(stamped), world.bind(Endpoint::builder()));
    let (seen, at) = (serve_seeing(&mut server), server.address());
    let refused = |failure: &Failure| matches!(failure, Failure::Intercepted { .. });
    let said = ["test.Work/one leaves", "ended: Some(Unauthenticated)"];

    let failed = client.call(at.clone(), work::one("hop".into()), &refusing());
    assert!(failed.is_err_and(|failure| refused(&failure)));
    assert_eq!(log.take(), said);
    assert_eq!(client.sizes().calls, 0);
    let metrics = client.metrics();
    assert_eq!((metrics.calls_failed, metrics.calls_aborted), (1, 0));

    let call = client.begin(&refusing()).expect("there is room");
    let method = work::ONE.definition();
    let failed = client.send(call, at.clone(), method, b"\x03hop"[..].into());
    assert!(failed.is_err_and(|failure| refused(&failure)));
    let target = work::one("hop".into());
    let sent = client.call_again(at, target, &refusing(), &RetryPolicy::default());
    let again = sent.expect("how it ends is told by an event");
    for expected in [again.key(), call] {
        let event = world.event(&mut [&mut client, &mut server], 0, LONG);
        assert!(
            matches!(&event, Some(Event::Failed { call, failure }) if *call == expected && refused(failure)),
            "{event:?}"
        );
        log.take();
    }
    assert!(seen.borrow().is_empty());
}

#[test]
fn an_interceptor_sees_calls_on_behalf_of_requests() {
    let (world, log) = (World::new(66), Log::default());
    let stamped = Endpoint::builder().call_interceptor(Stamp(log.clone()));
    let (mut client, mut server) = (world.bind(Endpoint::builder()), world.bind(stamped));
    let mut next = world.bind(Endpoint::builder());
    let (seen, to) = (serve_seeing(&mut next), next.address());
    let serve = server.serve(&work::ONE, move |mut request, (what,)| {
        let (target, options) = (work::one(what.clone()), CallOptions::default());
        request.raw().call(to.clone(), target, &options)?;
        Ok(request.respond(&what)?)
    });
    serve.expect("no other has its name");
    let target = work::one("hop".into());
    let sent = client.call(server.address(), target, &CallOptions::default());
    sent.expect("it is sent");
    let all = &mut [&mut client, &mut server, &mut next];
    let (_, end) = outcome(&world, all);
    assert!(matches!(end, Event::Complete { .. }), "{end:?}");
    while seen.borrow().is_empty() {
        world.step(all, LONG);
    }
    assert_eq!(seen.take(), [Some("secret".to_owned())]);
    assert_eq!(
        log.take().first().map(String::as_str),
        Some("test.Work/one leaves")
    );
}
