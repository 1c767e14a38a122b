//! Functions that clients bring: where servers get them from, who may bring any, how many a server keeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use wallaby::intercept::{Admission, Incoming};
use wallaby::{Code, DialPolicy, DurableId, Endpoint, One, Request, Status};
use wallaby_chain::{
    ChainCode, ChainEvent, ChainLimits, Chains, CodeLimits, Effort, Fault, Functions, Hash, Hop,
    Link, Merge, Module, Repository, Run, Runtime, State, Step, functions, pipe, start,
};
use wallaby_chain_guest as guest;

use crate::composition::{Primary, copying, store};
use crate::world::{Net, at, hosts, library, patience, status, texts, until, words};

/// Runs the functions of this file, whatever the code is; what it counts shows how servers treat code.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) loads: AtomicUsize,
    kept: AtomicUsize,
    most_kept: AtomicUsize,
    /// Where it ran for long.
    long: Mutex<Vec<ThreadId>>,
    /// Each run of a function but the first waits until the other end is dropped; how many it were.
    again: Mutex<Option<(usize, mpsc::Receiver<()>)>>,
    waits: AtomicUsize,
    /// Of functions that are held: what each was given, as they run.
    held: Mutex<Vec<String>>,
    /// How many have begun to be.
    holding: AtomicUsize,
    /// The first load waits until the other end is dropped.
    gate: Mutex<Option<mpsc::Receiver<()>>>,
}

pub(crate) struct Fake(pub(crate) Arc<Counts>);

struct Loaded(Arc<Counts>);

impl Runtime for Fake {
    fn load(&self, module: &[u8]) -> Result<Arc<dyn Module>, Status> {
        let counts = &self.0;
        counts.loads.fetch_add(1, Ordering::SeqCst);
        let gate = counts.gate.lock().expect("a lock").take();
        gate.map(|gate| gate.recv());
        match module {
            b"malformed" => return Err(Status::invalid_argument("it is malformed")),
            b"panic" => panic!("as it was told"),
            _ => {}
        }
        let kept = counts.kept.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most_kept.fetch_max(kept, Ordering::SeqCst);
        Ok(Arc::new(Loaded(Arc::clone(counts))))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Module for Loaded {
    fn check(&self, function: &str) -> Result<(), Status> {
        match function {
            "missing" => Err(Status::not_found("there is no such function")),
            _ => Ok(()),
        }
    }

    fn run(&self, function: &str, input: &Bytes, effort: Effort) -> Result<Vec<u8>, Fault> {
        Ok(match function {
            "count" => guest::run(count, input),
            "both" => guest::run(both, input),
            "join" => guest::run(join, input),
            "rescue" => guest::run(rescue, input),
            "long" if effort == Effort::Brief => return Err(Fault::Longer),
            "long" => {
                self.0
                    .long
                    .lock()
                    .expect("a lock")
                    .push(thread::current().id());
                guest::run(end, input)
            }
            "held" if effort == Effort::Brief => {
                self.0.holding.fetch_add(1, Ordering::SeqCst);
                return Err(Fault::Longer);
            }
            "held" => {
                let text = |_, answer: guest::Answer<'_>| {
                    self.0.held.lock().expect("a lock").push(answer.read()?);
                    end(guest::State::new(), answer)
                };
                let gate = self.0.gate.lock().expect("a lock").take();
                gate.map(|gate| gate.recv());
                guest::run(text, input)
            }
            "logs" => guest::run(logs, input),
            "nests" => guest::run(nests, input),
            "again" => {
                let mut again = self.0.again.lock().expect("a lock");
                if let Some((runs, gate)) = &mut *again {
                    *runs += 1;
                    if *runs > 1 {
                        self.0.waits.fetch_add(1, Ordering::SeqCst);
                        let _opened = gate.recv();
                    }
                }
                guest::run(end, input)
            }
            "garbage" => b"\xff\xff".to_vec(),
            "panic" => panic!("as it was told"),
            _ => guest::run(end, input),
        })
    }

    fn size(&self) -> usize {
        1000
    }
}

type Says = Result<guest::Step, guest::Error>;

fn end(_: guest::State, answer: guest::Answer<'_>) -> Says {
    Ok(guest::Step::End(answer.bytes().to_vec()))
}

fn logs(state: guest::State, answer: guest::Answer<'_>) -> Says {
    let text: &str = answer.read()?;
    let hop = guest::Hop::to(&state.get("shout")?, &(text,))?;
    guest::Step::from(hop).log("goes on")?.tell(&text)
}

/// A step in a step in a step, which no function of ours makes.
fn nests(_: guest::State, answer: guest::Answer<'_>) -> Says {
    let step = guest::Step::End(answer.bytes().to_vec()).log("inner")?;
    Ok(guest::Step::Saying(Box::new(guest::Saying {
        lines: vec!["outer".into()],
        told: Vec::new(),
        then: postcard::to_allocvec(&step).expect("it can be written"),
    })))
}

/// Goes on so many times, and then to a function of the server.
fn count(mut state: guest::State, answer: guest::Answer<'_>) -> Says {
    let (left, next): (u32, guest::Link) = (state.get("left")?, state.get("next")?);
    let hop = guest::Hop::to(&next, &(answer.read::<String>()?,))?;
    state.set("left", &left.saturating_sub(1))?;
    Ok(match left {
        0 => hop
            .then(guest::Function::Native("last".into()), state)
            .into(),
        _ => hop.then("count", state).into(),
    })
}

fn both(state: guest::State, answer: guest::Answer<'_>) -> Says {
    let (shout, text): (guest::Link, &str) = (state.get("shout")?, answer.read()?);
    let branches = [
        guest::Hop::to(&shout, &(text,))?,
        guest::Hop::to(&shout, &("b",))?,
    ];
    let merge = guest::Merge::at(&shout.server, "join", guest::State::new().with("by", &"+")?);
    Ok(guest::Step::split(branches, merge))
}

fn join(state: guest::State, results: Vec<guest::Answer<'_>>) -> Says {
    let texts: Result<Vec<&str>, _> = results.iter().map(guest::Answer::read).collect();
    guest::Step::end(&texts?.join(&state.get::<String>("by")?))
}

fn rescue(state: guest::State, exception: guest::Exception) -> Says {
    let link: guest::Link = state.get("shout")?;
    let text = format!(
        "{} after {} hosts",
        exception.message,
        exception.hosts.len()
    );
    Ok(guest::Hop::to(&link, &(text,))?.into())
}

/// A server that runs what anybody brings.
pub(crate) fn open(limits: CodeLimits) -> (Chains, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let limits = ChainLimits {
        code: limits,
        ..ChainLimits::default()
    };
    let last = |state: State, answer: wallaby_chain::Answer| {
        // What a function of code has written is of any type.
        assert_eq!(state.get::<u32>("left"), Ok(0));
        Step::end(&format!("{}?", answer.read::<String>()?))
    };
    let chains = Chains::new().function("last", last).limits(limits);
    (chains.code(Fake(Arc::clone(&counts)), |_| true), counts)
}

async fn server(limits: CodeLimits) -> (Endpoint, Arc<Counts>) {
    let (chains, counts) = open(limits);
    (Net::Tcp.serve(chains).await, counts)
}

pub(crate) fn code(number: u32) -> ChainCode {
    ChainCode::new(number.to_be_bytes())
}

/// What a chain of one link comes to: `shout`, and then this function on `a!`.
pub(crate) async fn ask(
    client: &Endpoint,
    server: &Endpoint,
    code: &ChainCode,
    function: &str,
) -> Result<String, wallaby::CallError> {
    let state = State::new().with("shout", &Link::to(at(server), &words::SHOUT));
    let first = Hop::to(at(server), &words::SHOUT, ("a".into(),));
    let first = first.then(code.function(function), state.expect("a link"));
    let chain = start::<String>(first).call(client.caller());
    chain.expect("it is small").await
}

#[tokio::test]
async fn code_travels_with_a_chain_and_is_loaded_once_by_each_server() {
    let (a, loads_a) = server(CodeLimits::default()).await;
    let (b, loads_b) = server(CodeLimits::default()).await;
    let client = Net::Tcp.client().await;
    for _ in 0..3 {
        let state = State::new()
            .with("left", &2u32)
            .and_then(|state| state.with("next", &Link::to(at(&b), &words::SHOUT)));
        let first = Hop::to(at(&a), &words::SHOUT, ("a".into(),));
        let first = first.then(code(1).function("count"), state.expect("small"));
        let answer = start::<String>(first).call(client.caller());
        assert_eq!(answer.expect("it is small").await, Ok("a!!!!?".into()));
    }
    for loads in [loads_a, loads_b] {
        assert_eq!(loads.loads.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn code_splits_merges_and_catches() {
    let ((a, _), client) = (server(CodeLimits::default()).await, Net::Tcp.client().await);
    let both = ask(&client, &a, &code(1), "both").await;
    assert_eq!(both, Ok("a!!+b!".into()));
    // The merging function of a chain that was split elsewhere, by a native function.
    let to = at(&a);
    let native = Chains::new().function("split", move |_, answer| {
        let branches = ["b", "c"].map(|text| Hop::to(&to, &words::SHOUT, (text.into(),)));
        let _: String = answer.read()?;
        let state = State::new().with("by", &"-".to_owned())?;
        Ok(Step::split(
            branches,
            Merge::at(&to, code(2).function("join"), state),
        ))
    });
    let b = Net::Tcp.serve(native).await;
    let first = Hop::to(at(&b), &words::SHOUT, ("a".into(),)).then("split", State::new());
    let merged = start::<String>(first).call(client.caller());
    assert_eq!(merged.expect("it is small").await, Ok("b!-c!".into()));
    // Somebody says no, and the function says what then.
    let state = State::new().with("shout", &Link::to(at(&a), &words::SHOUT));
    let chain = pipe(at(&b), &words::SHOUT, ("mail".into(),)).then(at(&b), &words::DENY);
    let chain = chain.catch(at(&a), code(3).function("rescue"), state.expect("a link"));
    let rescued = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(rescued, Ok("mail! is not for you after 2 hosts!".into()));
}

#[tokio::test]
async fn what_is_wrong_with_code_is_an_exception() {
    let (a, hanging) = Net::Tcp.serve_hanging(open(CodeLimits::default()).0).await;
    let client = Net::Tcp.client().await;
    for (module, function, expected, text) in [
        ("malformed", "end", Code::InvalidArgument, "it is malformed"),
        (
            "panic",
            "end",
            Code::Panicked,
            "what runs functions has panicked: as it was told",
        ),
        ("a", "missing", Code::NotFound, "there is no such function"),
        ("a", "garbage", Code::InvalidArgument, "cannot be read"),
        ("a", "nests", Code::InvalidArgument, "cannot be read"),
        (
            "a",
            "panic",
            Code::Panicked,
            "what runs functions has panicked: as it was told",
        ),
        (
            "a",
            "join",
            Code::InvalidArgument,
            "the function is for something else",
        ),
    ] {
        let code = ChainCode::new(module.as_bytes());
        let refused = status(ask(&client, &a, &code, function).await);
        assert_eq!(refused.code(), expected, "{refused}");
        assert!(refused.message().contains(text), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&a)]));
    }
    // What can be known before is known before the link runs.
    for (module, function) in [("malformed", "end"), ("a", "missing")] {
        let first = Hop::to(at(&a), &words::HANG, (String::new(),));
        let first = first.then(
            ChainCode::new(module.as_bytes()).function(function),
            State::new(),
        );
        let call = start::<String>(first).call(client.caller());
        status(call.expect("it is small").await);
    }
    assert_eq!(hanging.available_permits(), 0);
    assert_eq!(ask(&client, &a, &code(1), "end").await, Ok("a!".into()));
}

#[tokio::test]
async fn nobody_may_bring_code_unless_a_server_says_so() {
    let client = Net::Tcp.client().await;
    let counts = Arc::<Counts>::default();
    let guarded = || Chains::new().code(Fake(Arc::clone(&counts)), |_| false);
    let (none, guarded) = (
        Net::Tcp.serve(Chains::new()).await,
        Net::Tcp.serve(guarded()).await,
    );
    let hash = code(1).hash();
    for (server, expected, text) in [
        (
            &none,
            Code::Unimplemented,
            format!("code {hash} comes with a client: this server runs pipes"),
        ),
        (
            &guarded,
            Code::PermissionDenied,
            "may not bring code here".into(),
        ),
    ] {
        let refused = status(ask(&client, server, &code(1), "end").await);
        assert_eq!(refused.code(), expected);
        assert!(refused.message().contains(&text), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(server)]));
        // Chains without code are not asked about it, nor is code that runs elsewhere.
        let (other, _) = self::server(CodeLimits::default()).await;
        let first = Hop::to(at(&other), &words::SHOUT, ("a".into(),));
        let first = first.then(code(1).function("end"), State::new());
        let chain = start::<String>(first).then(at(server), &words::SHOUT);
        let answer = chain.call(client.caller()).expect("it is small").await;
        assert_eq!(answer, Ok("a!!".into()));
    }
    assert_eq!(counts.loads.load(Ordering::SeqCst), 0);
}

/// Code that waits below another function runs where that one ends: its server is asked, too, though nothing of it showed before.
#[tokio::test]
async fn code_further_down_the_stack_needs_permission_as_well() {
    let client = Net::Tcp.client().await;
    let counts = Arc::<Counts>::default();
    let guarded = copying().code(Fake(Arc::clone(&counts)), |_| false);
    let guarded = Net::Tcp.serve(guarded).await;
    let primary = Primary {
        backup: at(&guarded),
        catches: None,
    };
    let (chains, _) = open(CodeLimits::default());
    let outer = chains.add_to(Endpoint::builder().serve(store::service(primary)));
    let outer = Net::Tcp.bind(outer).await;
    let first = Hop::to(at(&outer), &store::PUT, ("a".into(),));
    let first = first.then(code(1).function("end"), State::new());
    let call = start::<String>(first).call(client.caller());
    let refused = status(call.expect("it is small").await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert_eq!(hosts(&refused), texts([&at(&outer), &at(&guarded)]));
    assert_eq!(counts.loads.load(Ordering::SeqCst), 0);
}

/// Code that a handler brings, or a function of the server, is the server's own: who has sent a chain without any need not be allowed
/// to bring it.
#[tokio::test]
async fn a_server_goes_on_with_code_of_its_own() {
    let client = Net::Tcp.client().await;
    let (b, _) = server(CodeLimits::default()).await;
    let to = at(&b);
    let own = wallaby::Service::new("test.Store").method(
        &store::PUT,
        move |request: Request<One<String>>, (text,): (String,)| {
            let hop = Hop::to(&to, &words::SHOUT, (text,));
            let chain = start::<String>(hop.then(code(1).function("end"), State::new()));
            async move { Ok(chain.forward(request)?.await?) }
        },
    );
    let to = at(&b);
    let brings = Chains::new().function("brings", move |_, answer| {
        let hop = Hop::to(&to, &words::SHOUT, (answer.read::<String>()?,));
        Ok(hop.then(code(1).function("end"), State::new()).into())
    });
    let a = brings
        .code(Fake(Arc::default()), |_| false)
        .add_to(Endpoint::builder().serve(own).serve(library()));
    let a = Net::Tcp.bind(a).await;
    let chain = pipe(at(&a), &store::PUT, ("a".into(),)).then(at(&b), &words::SHOUT);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("a!!".into()));
    let first = Hop::to(at(&a), &words::SHOUT, ("a".into(),)).then("brings", State::new());
    let chain = start::<String>(first);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("a!!".into()));
    // With code of the client in the same chain it is the client's.
    let first = Hop::to(at(&a), &store::PUT, ("a".into(),));
    let chain = start::<String>(first).then(at(&b), &words::SHOUT).catch(
        at(&b),
        code(2).function("rescue"),
        State::new(),
    );
    let refused = status(chain.call(client.caller()).expect("it is small").await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

/// Where code of its own is, the server says; what a client says of code that its chain does not need goes no further.
#[tokio::test]
async fn nobody_says_where_a_servers_own_code_is() {
    let (client, (b, _)) = (Net::Tcp.client().await, server(CodeLimits::default()).await);
    let to = at(&b);
    let brings = Chains::new().function("brings", move |_, answer| {
        let hop = Hop::to(&to, &words::SHOUT, (answer.read::<String>()?,));
        Ok(hop.then(code(1).function("end"), State::new()).into())
    });
    let a = Net::Tcp.serve(brings).await;
    // Unmarked, no hops, no path, no branches, one level: `brings`, without state; its code is said to be at `mem://x`.
    let bytes = [
        &b"wchn\x03\0\0\0\0\0\x01\0\x01\x06brings\0\x01"[..],
        code(1).hash().bytes(),
        b"\x01\x07mem://x",
    ]
    .concat();
    let shout = client.caller().at(at(&a)).continuation(bytes);
    let answer = shout.call(&words::SHOUT, ("a".to_owned(),)).await;
    assert_eq!(answer, Ok("a!!".into()));
}

/// An address at which a client says that code is, is dialled as those are that peers name, and is told nothing of the call.
#[tokio::test]
async fn where_a_client_says_that_code_is_the_dial_policy_is_asked() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let (repository, client) = (Repository::new(), Net::Tcp.client().await);
    let kept =
        Endpoint::builder()
            .serve(repository.service())
            .interceptor(move |request: &Incoming| {
                let told = request.metadata().iter().count();
                hears.lock().expect("a lock").push(told);
                Admission::Run
            });
    let kept = Net::Tcp.bind(kept).await;
    let glue = repository.keep(b"glue".to_vec()).expect("there is room");
    let glue = glue.at(at(&kept));
    let ask = async |server: &Endpoint| {
        let first = Hop::to(at(server), &words::SHOUT, ("a".into(),));
        let chain = start::<String>(first.then(glue.function("end"), State::new()));
        let caller = client.caller().metadata("secret", "7");
        chain.call(caller).expect("it is small").await
    };
    let strict = Endpoint::builder().dial_policy(DialPolicy::public());
    let (chains, _) = open(CodeLimits::default());
    let strict = Net::Tcp.bind(chains.add_to(strict.serve(library()))).await;
    let refused = status(ask(&strict).await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(
        refused.message().contains(&format!("from {}", at(&kept))),
        "{refused}"
    );
    assert_eq!(hosts(&refused), texts([&at(&strict)]));
    assert_eq!(strict.metrics().dials_forbidden, 1);
    assert_eq!(kept.metrics().connections_opened, 0);
    let (free, _) = server(CodeLimits::default()).await;
    assert_eq!(ask(&free).await, Ok("a!".into()));
    assert_eq!(*heard.lock().expect("a lock"), [0]);
}

#[tokio::test]
async fn servers_fetch_large_code_from_the_client_once() {
    let ((a, loads), client) = (server(CodeLimits::default()).await, Net::Tcp.client().await);
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    // Bytes that cannot be packed.
    let large: Vec<u8> = (0..4_000_u32)
        .flat_map(|number| Hash::of(&number.to_be_bytes()).bytes().to_owned())
        .collect();
    let large = repository.keep(large).expect("there is room");
    for _ in 0..3 {
        let code = large.clone().at(at(&client));
        assert_eq!(ask(&client, &a, &code, "end").await, Ok("a!".into()));
    }
    assert_eq!(client.metrics().requests_received, 1);
    assert_eq!(loads.loads.load(Ordering::SeqCst), 1);
    // It does not travel.
    let state = State::new();
    let first = Hop::to(at(&a), &words::SHOUT, ("a".into(),)).then(large.function("end"), state);
    let error = start::<String>(first)
        .call(client.caller())
        .expect_err("too large");
    assert!(
        matches!(error, wallaby_chain::ChainError::TooLarge(_)),
        "{error}"
    );
}

/// Who asks for a chain again under its durable name finds each hop under the same name, whatever its servers had to fetch.
#[tokio::test]
async fn a_hop_has_the_same_name_whether_its_code_was_there_or_not() {
    let ((a, loads), client) = (server(CodeLimits::default()).await, Net::Tcp.client().await);
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    let glue = repository.keep(b"glue".to_vec()).expect("there is room");
    let glue = glue.at(at(&client));
    let (heard, names) = mpsc::channel();
    let hears = move |request: &Incoming| {
        heard.send(request.durable_id()).expect("the test waits");
        Admission::Run
    };
    let b = Endpoint::builder().serve(library()).interceptor(hears);
    let b = Net::Tcp.bind(open(CodeLimits::default()).0.add_to(b)).await;
    let ask = || {
        let state = State::new()
            .with("left", &0u32)
            .and_then(|state| state.with("next", &Link::to(at(&b), &words::SHOUT)));
        let first = Hop::to(at(&a), &words::SHOUT, ("a".into(),));
        let first = first.then(glue.function("count"), state.expect("small"));
        let caller = client.caller().durable(DurableId::new(1, 7));
        start::<String>(first).call(caller).expect("it is small")
    };
    for _ in 0..2 {
        assert_eq!(ask().await, Ok("a!!?".into()));
    }
    assert_eq!(loads.loads.load(Ordering::SeqCst), 1, "once it was there");
    let names: Vec<_> = names.try_iter().map(|name| name.expect("one")).collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[0].key(), names[1].key());
}

/// A repository that is not one.
struct Bad;

#[wallaby::serve]
impl Functions for Bad {
    async fn upload(&self, _module: Vec<u8>) -> Hash {
        code(1).hash()
    }

    async fn fetch(&self, hash: Hash) -> Vec<u8> {
        if hash == code(9).hash() {
            std::future::pending::<()>().await;
        }
        b"something else".to_vec()
    }

    async fn list(&self, _after: Option<Hash>) -> Vec<(Hash, u64)> {
        Vec::new()
    }

    async fn delete(&self, _hash: Hash) -> bool {
        false
    }
}

#[tokio::test]
async fn a_repository_that_has_it_not_is_an_exception() {
    let limits = CodeLimits {
        fetch: Duration::from_millis(200),
        bytes: 1000,
        ..CodeLimits::default()
    };
    let ((a, _), client) = (server(limits).await, Net::Tcp.client().await);
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    let large = repository.keep(vec![7; 1001]).expect("there is room");
    let bad = Net::Tcp
        .bind(Endpoint::builder().serve(functions::service(Bad)))
        .await;
    let gone = at(&Net::Tcp.client().await);
    let plain = Net::Tcp.serve(Chains::new()).await;
    for (code, expected, text) in [
        (
            code(1).at(at(&client)),
            Code::NotFound,
            "there is no module",
        ),
        (
            code(1).at(at(&plain)),
            Code::Unimplemented,
            "could not be fetched from",
        ),
        (
            code(1).at(gone),
            Code::Unavailable,
            "could not be fetched from",
        ),
        (code(1).at(at(&bad)), Code::DataLoss, "is not what was sent"),
        (
            code(9).at(at(&bad)),
            Code::DeadlineExceeded,
            "could not be fetched from",
        ),
        (
            large.at(at(&client)),
            Code::ResourceExhausted,
            "has more than 1000 bytes",
        ),
    ] {
        let refused = status(patience(ask(&client, &a, &code, "end")).await);
        assert_eq!(refused.code(), expected, "{refused}");
        assert!(refused.message().contains(text), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&a)]));
    }
    // What is inside a chain's bytes may lie about its hash as well.
    let (one, two) = (code(1), code(2));
    let bytes = |hash: &Hash, packed: &[u8]| {
        let function = [&b"\x01\0\x02"[..], hash.bytes(), b"\x03end\0"].concat();
        let codes = [&[1], &hash.bytes()[..], &[0, packed.len() as u8], packed].concat();
        [b"wchn\x03\0\0\0\0\0", &function[..], &codes[..]].concat()
    };
    let shout = |bytes: Vec<u8>| {
        let client = client.caller().at(at(&a)).continuation(bytes);
        client.call(&words::SHOUT, ("a".to_owned(),))
    };
    let packed = [1, 4, 0, 0xfb, 0xff, 0, 0, 0, 2]; // four bytes as they are
    let lie = status(shout(bytes(&one.hash(), &packed)).await);
    assert_eq!(lie.code(), Code::DataLoss, "{lie}");
    let right = shout(bytes(&two.hash(), &packed)).await;
    assert!(right.is_ok(), "{right:?}");
    let cut = status(shout(bytes(&one.hash(), &packed[..6])).await);
    assert!(cut.message().contains("cannot be unpacked"), "{cut}");
    // What is small may become large.
    let bomb = ChainCode::new(vec![0; 20_000]);
    let refused = status(patience(ask(&client, &a, &bomb, "end")).await);
    assert!(
        refused.message().contains("has more than 1000 bytes"),
        "{refused}"
    );
}

/// However many there are, and one that is used again and again stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_functions_does_not_fill_a_server() {
    const KEPT: usize = 20;
    for limits in [
        CodeLimits {
            kept: KEPT,
            ..CodeLimits::default()
        },
        CodeLimits {
            kept_bytes: KEPT * 1000 + 999,
            ..CodeLimits::default()
        },
    ] {
        let ((a, counts), client) = (server(limits).await, Net::Tcp.client().await);
        let mut number = 1;
        while number < 5000 {
            let known = code(0);
            let known = ask(&client, &a, &known, "end");
            let batch = (number..number + 10).map(code).collect::<Vec<_>>();
            let flood = async {
                for code in &batch {
                    assert_eq!(ask(&client, &a, code, "end").await, Ok("a!".into()));
                }
            };
            let (known, ()) = tokio::join!(known, flood);
            assert_eq!(known, Ok("a!".into()));
            number += 10;
        }
        assert_eq!(
            counts.loads.load(Ordering::SeqCst),
            5001,
            "the known one is loaded once"
        );
        assert_eq!(counts.kept.load(Ordering::SeqCst), KEPT);
        let most = counts.most_kept.load(Ordering::SeqCst);
        assert!(most <= KEPT + 20, "{most} at once");
    }
}

/// A chain that is made again has what its link has come to, and its function has a turn of its own: others do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_function_that_runs_again_keeps_nobody_waiting() {
    let (chains, counts) = open(CodeLimits::default());
    let (a, gone) = (
        Net::Tcp.serve(chains).await,
        Net::Tcp.serve(Chains::new()).await,
    );
    gone.kill();
    let client = Net::Tcp.client().await;
    let (open, gate) = mpsc::channel();
    *counts.again.lock().expect("a lock") = Some((0, gate));
    let first = Hop::to(at(&a), &words::SHOUT, ("a".to_owned(),));
    let chain = start::<String>(first.then(code(1).function("again"), State::new()));
    let chain = chain.then(at(&gone), &words::SHOUT);
    let caller = client.caller();
    let running = chain.run(caller, wallaby_chain::Run::new().retries(1));
    let mut running = running.expect("it is small");
    let running = tokio::spawn(async move { running.answer().await });
    until(|| counts.waits.load(Ordering::SeqCst) == 1).await;
    let other = client
        .caller()
        .at(at(&a))
        .call(&words::SHOUT, ("b".to_owned(),));
    let other = tokio::time::timeout(Duration::from_secs(10), other).await;
    drop(open);
    assert_eq!(other.expect("nobody waits"), Ok("b!".into()));
    running
        .await
        .expect("no panic")
        .expect_err("nobody is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_are_limited_and_shared() {
    patience(async {
        let limits = CodeLimits {
            loading: 2,
            ..CodeLimits::default()
        };
        let ((a, counts), client) = (server(limits).await, Net::Tcp.client().await);
        let (open, gate) = mpsc::channel();
        *counts.gate.lock().expect("a lock") = Some(gate);
        let mut calls = JoinSet::new();
        for number in 1..=4 {
            let (client, address) = (client.clone(), at(&a));
            calls.spawn(async move {
                let first = Hop::to(address, &words::SHOUT, ("a".into(),));
                let first = first.then(code(number).function("end"), State::new());
                start::<String>(first)
                    .call(client.caller())
                    .expect("small")
                    .await
            });
        }
        // Two wait, and the others do not.
        for _ in 0..2 {
            let refused = status(calls.join_next().await.expect("four").expect("no panic"));
            assert_eq!(refused.code(), Code::ResourceExhausted);
            let text = "this server loads at most 2 functions at once";
            assert!(refused.message().starts_with(text), "{refused}");
        }
        drop(open);
        while let Some(answer) = calls.join_next().await {
            assert_eq!(answer.expect("no panic"), Ok("a!".into()));
        }
        assert_eq!(counts.loads.load(Ordering::SeqCst), 2);
        let seven = code(7);
        let same = || ask(&client, &a, &seven, "end");
        let (one, two, three) = tokio::join!(same(), same(), same());
        assert_eq!([one, two, three], [(); 3].map(|()| Ok("a!".into())));
        assert_eq!(counts.loads.load(Ordering::SeqCst), 3);
        // What has come to nothing makes room, however often.
        for _ in 0..5 {
            let refused = ask(&client, &a, &ChainCode::new(&b"malformed"[..]), "end").await;
            assert_eq!(status(refused).code(), Code::InvalidArgument);
        }
        assert_eq!(ask(&client, &a, &code(8), "end").await, Ok("a!".into()));
    })
    .await;
}

#[tokio::test]
async fn what_code_logs_and_tells_comes_to_who_has_started_the_chain() {
    let ((a, _), client) = (server(CodeLimits::default()).await, Net::Tcp.client().await);
    let state = State::new().with("shout", &Link::to(at(&a), &words::SHOUT));
    let first = Hop::to(at(&a), &words::SHOUT, ("a".into(),));
    let first = first.then(code(1).function("logs"), state.expect("a link"));
    let running = start::<String>(first).run(client.caller(), Run::new().lines().told());
    let mut running = running.expect("it is small");
    let (mut said, mut end) = (Vec::new(), None);
    while let Some(event) = running.next().await {
        match event.expect("no exception") {
            ChainEvent::Line(line) => said.push(line.text),
            ChainEvent::Told(told) => said.push(told.value.read().expect("text")),
            event => end = Some(event),
        }
    }
    assert_eq!(said, ["goes on", "a!"]);
    assert!(matches!(end, Some(ChainEvent::End(end)) if end == "a!!"));
}

#[tokio::test]
async fn a_function_that_takes_long_has_a_thread_of_its_own() {
    let ((a, counts), client) = (server(CodeLimits::default()).await, Net::Tcp.client().await);
    assert_eq!(ask(&client, &a, &code(1), "long").await, Ok("a!".into()));
    let long = counts.long.lock().expect("a lock").clone();
    assert_eq!(long.len(), 1);
    assert_ne!(long[0], thread::current().id());
}

/// Who has many functions that take long waits for those of others in turn, and not they for all of his.
#[tokio::test]
async fn functions_that_take_long_have_turns_by_who_has_started_their_chain() {
    patience(async {
        let (a, counts) = server(CodeLimits::default()).await;
        let begin = |client: &Endpoint, text: &str| {
            let first = Hop::to(at(&a), &words::SHOUT, (text.to_owned(),));
            let chain = start::<String>(first.then(code(1).function("held"), State::new()));
            chain.call(client.caller()).expect("it is small")
        };
        let (greedy, modest) = (Net::Tcp.client().await, Net::Tcp.client().await);
        assert_eq!(begin(&modest, "known").await, Ok("known!".into()));
        let (open, gate) = mpsc::channel();
        *counts.gate.lock().expect("a lock") = Some(gate);
        let many: Vec<_> = (0..6).map(|_| begin(&greedy, "greedy")).collect();
        until(|| counts.holding.load(Ordering::SeqCst) == 7).await;
        let one = begin(&modest, "modest");
        until(|| counts.holding.load(Ordering::SeqCst) == 8).await;
        // One that waits and is given up takes no turn.
        let mut many = many.into_iter();
        many.next_back()
            .expect("six")
            .stop()
            .await
            .expect("it is dropped");
        drop(open);
        assert_eq!(one.await, Ok("modest!".into()));
        for call in many {
            assert_eq!(call.await, Ok("greedy!".into()));
        }
        let order = counts.held.lock().expect("a lock").clone();
        let others = ["greedy!"; 3];
        let expected = [&["known!", "greedy!", "modest!"][..], &others, &["greedy!"]].concat();
        assert_eq!(order, expected);
    })
    .await;
}

/// Takes what begins so, and says that it was asked.
struct Only(&'static str);

impl Runtime for Only {
    fn takes(&self, module: &[u8]) -> bool {
        module.starts_with(self.0.as_bytes())
    }

    fn load(&self, _: &[u8]) -> Result<Arc<dyn Module>, Status> {
        Err(Status::not_found(self.0))
    }
}

#[test]
fn of_several_runtimes_the_first_that_takes_a_module_loads_it() {
    let all = (Only("a"), (Only("ab"), Only("b")));
    for (module, takes, who) in [
        ("a", true, "a"),
        ("ab", true, "a"),
        ("bc", true, "b"),
        ("c", false, "b"),
    ] {
        assert_eq!(all.takes(module.as_bytes()), takes, "{module}");
        let loaded = all
            .load(module.as_bytes())
            .err()
            .expect("nothing is loaded");
        assert_eq!(loaded.message(), who, "{module}");
    }
}
