//! Chains that are split and merged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use wallaby::codec::Postcard;
use wallaby::intercept::{Admission, Incoming};
use wallaby::{Address, Call, CallId, Code, Endpoint, Heartbeats, MethodDefinition, One, Status};
use wallaby_chain::{Chain, ChainLimits, Chained, Chains, Hop, Merge, State, Step, start};
use wallaby_proto::wire::MessageOptions;

use crate::raw::{Raw, hello, request};
use crate::world::{Net, at, hosts, library, patience, status, texts, until, words};

/// Each word of what was said goes to the next server, side by side; `@` in a word splits it again. At the merge host they are
/// joined.
fn splitting() -> Chains {
    Chains::new()
        .function("split", |state, answer| {
            split(&state, &answer.read::<String>()?, ' ')
        })
        .function("again", |state, answer| {
            split(&state, &answer.read::<String>()?, '@')
        })
        .merging("join", |state, answers| {
            let words: Result<Vec<String>, Status> =
                answers.iter().map(wallaby_chain::Answer::read).collect();
            let joined = words?.join("+");
            match state.get::<bool>("ends")? {
                true => Step::end(&format!("({joined})")),
                false => {
                    Ok(Hop::to(state.get::<Address>("merge")?, &words::SHOUT, (joined,)).into())
                }
            }
        })
        .catching("caught", |_, exception| {
            Step::end(&format!("{}: {}", exception.chain(), exception.message()))
        })
}

fn split(state: &State, text: &str, by: char) -> Result<Step, Status> {
    let (next, merge): (Address, Address) = (state.get("next")?, state.get("merge")?);
    let branch = |word: &str| {
        let words = (word.to_owned(),);
        match word {
            "deny" => Hop::to(&next, &words::DENY, words),
            "hang" => Hop::to(&next, &words::HANG, words),
            _ if word.contains('@') => {
                Hop::to(&next, &words::SHOUT, words).then("again", state.clone())
            }
            _ => Hop::to(&next, &words::SHOUT, words),
        }
    };
    let branches: Vec<Hop> = text.split(by).map(branch).collect();
    Ok(Step::split(
        branches,
        Merge::at(&merge, "join", state.clone()),
    ))
}

struct Three {
    first: Endpoint,
    next: Endpoint,
    merge: Endpoint,
    client: Endpoint,
}

impl Three {
    async fn new(net: Net, limits: ChainLimits) -> Self {
        Self {
            first: net.serve(splitting()).await,
            next: net.serve(splitting()).await,
            merge: net.serve(splitting().limits(limits)).await,
            client: net.client().await,
        }
    }

    fn chain(&self, text: &str, ends: bool) -> Chain<String> {
        self.chain_by([&self.next, &self.merge], text, ends)
    }

    /// Its branches go to the first of these, and are merged at the second.
    fn chain_by(&self, [next, merge]: [&Endpoint; 2], text: &str, ends: bool) -> Chain<String> {
        let state = State::new()
            .with("next", &at(next))
            .and_then(|state| state.with("merge", &at(merge)))
            .and_then(|state| state.with("ends", &ends))
            .expect("it can be written");
        let first = Hop::to(at(&self.first), &words::SHOUT, (text.to_owned(),));
        start(first.then("split", state))
    }

    fn call(&self, text: &str) -> Call<One<String>, Chained<Postcard>> {
        let chain = self.chain(text, true);
        chain.call(self.client.caller()).expect("it is small")
    }

    /// The merge host has room again, soon. On a slow machine a branch may be late once more.
    async fn eventually(&self, text: &str, expected: &str) {
        let passes = [
            Code::ResourceExhausted,
            Code::DeadlineExceeded,
            Code::Aborted,
        ];
        loop {
            match self.call(text).await {
                Err(error) if passes.contains(&error.code()) => {}
                answer => return assert_eq!(answer, Ok(expected.into())),
            }
        }
    }
}

#[tokio::test]
async fn branches_run_side_by_side_and_are_merged_in_their_order() {
    patience(async {
        for net in [Net::Tcp, Net::Unix] {
            let three = Three::new(net, ChainLimits::default()).await;
            for _ in 0..20 {
                let mut call = three.call("a b c");
                assert_eq!(
                    call.answer().await,
                    Ok("(a!+b!+c!!)".into()),
                    "over {net:?}"
                );
                assert!(call.next().await.is_none(), "one answer, and no status");
            }
            // One message to the first, three to the next one, three to the merge host, and one answer.
            assert_eq!(three.merge.metrics().requests_received, 60);
            assert_eq!(three.client.metrics().statuses_received, 0);
            // What was merged may go on.
            let chain = three.chain("a b", false);
            let answer = chain
                .call(three.client.caller())
                .expect("it is small")
                .await;
            assert_eq!(answer, Ok("a!+b!!!".into()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_branch_may_be_split_again() {
    patience(async {
        let three = Three::new(Net::Tcp, ChainLimits::default()).await;
        let answer = three.call("a b@c d").await;
        assert_eq!(answer, Ok("(a!+(b!+c!!)+d!!)".into()));
    })
    .await;
}

/// A connection has credit for 1 MiB. Those that have arrived take none of it, or the others would never come.
#[tokio::test]
async fn branches_may_be_larger_than_what_a_connection_has_credit_for() {
    patience(async {
        let word = "x".repeat(60_000);
        let text = vec![&*word; 20].join(" ");
        let expected = format!("({}!!)", text.replace(' ', "!+"));
        for net in [Net::Mem, Net::Tcp] {
            let three = Three::new(net, ChainLimits::default()).await;
            let own = [&three.merge, &three.merge];
            let answer = three.chain_by(own, &text, true).call(three.client.caller());
            let answer = answer.expect("it is small").await;
            assert!(answer.as_ref() == Ok(&expected), "{:?}", answer.err());
            // Each has a part of its branches there, and waits for the rest of them.
            let calls: Vec<_> = (0..2).map(|_| three.call(&text)).collect();
            for call in calls {
                let answer = call.await;
                assert!(answer.as_ref() == Ok(&expected), "{:?}", answer.err());
            }
        }
    })
    .await;
}

/// Which branch it was shows in its number, and the call ends though others hang.
#[tokio::test]
async fn an_exception_of_a_branch_is_the_callers() {
    patience(async {
        let three = Three::new(Net::Tcp, ChainLimits::default()).await;
        let status = status(three.call("a b deny hang x").await);
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(
            status
                .message()
                .starts_with("deny is not for you [chain 1.3: "),
            "{status}"
        );
        assert_eq!(hosts(&status), texts([&at(&three.first), &at(&three.next)]));
        until(|| three.next.load().is_idle() && three.merge.load().is_idle()).await;
    })
    .await;
}

/// Who catches it is asked once, whatever becomes of how many branches.
#[tokio::test]
async fn exceptions_of_branches_are_caught_once() {
    patience(async {
        let three = Three::new(Net::Tcp, ChainLimits::default()).await;
        let chain = three.chain("a deny deny x", true);
        let chain = chain.catch(at(&three.first), "caught", State::new());
        let mut call = chain.call(three.client.caller()).expect("it is small");
        assert_eq!(call.answer().await, Ok("1.2: deny is not for you".into()));
        assert!(call.next().await.is_none(), "one answer, and no status");
    })
    .await;
}

/// Those that have come to their end are shown to live by who waits with them for the others.
#[tokio::test]
async fn heartbeats_come_of_each_branch_and_of_those_that_wait_to_be_merged() {
    patience(async {
        let three = Three::new(Net::Tcp, ChainLimits::default()).await;
        let heartbeats = Heartbeats {
            every: Duration::from_millis(200),
            timeout: Duration::from_secs(10),
            ..Heartbeats::default()
        };
        let caller = three.client.caller();
        let caller = caller.ping(Duration::from_millis(10), Duration::from_secs(10));
        let chain = three.chain("a hang x", true);
        let call = chain.call(caller.heartbeats(heartbeats));
        let call = call.expect("it is small");
        until(|| three.merge.metrics().requests_received == 2).await;
        // For longer than until who is silent is asked.
        until(|| three.client.metrics().messages_received >= 75).await;
        let sent = three.client.metrics().messages_sent;
        assert_eq!(sent, 1, "the first link, and no ping");
        assert_eq!(call.outcome(), None);
        call.stop().await.expect("they are told to stop");
        until(|| three.next.load().is_idle() && three.merge.load().is_idle()).await;
    })
    .await;
}

/// A server that has room for one merge has it again when the call is given up.
#[tokio::test]
async fn what_was_merged_in_part_is_dropped_with_its_call() {
    patience(async {
        let limits = ChainLimits {
            merges: 1,
            ..ChainLimits::default()
        };
        let three = Three::new(Net::Tcp, limits).await;
        let call = three.call("a hang x");
        until(|| three.merge.metrics().requests_received == 2).await;
        let refused = status(three.call("a b").await);
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(
            refused
                .message()
                .starts_with("this server has at most 1 merges at once"),
            "{refused}"
        );
        assert_eq!(hosts(&refused).len(), 3);
        call.stop().await.expect("they are dropped");
        three.eventually("a b", "(a!+b!!)").await;
    })
    .await;
}

#[tokio::test]
async fn a_branch_that_does_not_come_in_time_ends_the_merge() {
    patience(async {
        let merge_wait = Duration::from_millis(100);
        let limits = ChainLimits {
            merge_wait,
            merges: 1,
            ..ChainLimits::default()
        };
        let three = Three::new(Net::Tcp, limits).await;
        let late = status(three.call("a hang x").await);
        assert!(
            [Code::DeadlineExceeded, Code::Aborted].contains(&late.code()),
            "{late}"
        );
        assert_eq!(late.server(), Some(&at(&three.merge)));
        three.eventually("a b", "(a!+b!!)").await;
    })
    .await;
}

#[tokio::test]
async fn splits_and_what_merges_keep_have_limits() {
    patience(async {
        let few = ChainLimits {
            branches: 2,
            ..ChainLimits::default()
        };
        let three = Three::new(Net::Tcp, few).await;
        assert_eq!(three.call("a b").await, Ok("(a!+b!!)".into()));
        let refused = status(three.call("a b c").await);
        assert!(
            refused
                .message()
                .starts_with("3 branches: this server merges at most 2"),
            "{refused}"
        );
        let many = vec!["x"; 65].join(" ");
        let refused = status(three.call(&many).await);
        let text = "a split into 65 branches: at least 1 and at most 64 are allowed";
        assert!(refused.message().starts_with(text), "{refused}");
        let small = ChainLimits {
            merge_bytes: 12_000,
            ..ChainLimits::default()
        };
        let three = Three::new(Net::Tcp, small).await;
        let long = "x".repeat(5000);
        assert_eq!(
            three.call(&format!("{long} b")).await,
            Ok(format!("({long}!+b!!)"))
        );
        let mut call = three.call(&format!("{long} {long}"));
        let refused = status(call.answer().await);
        assert!(
            refused
                .message()
                .starts_with("this server keeps at most 12000 bytes for merges"),
            "{refused}"
        );
        // What it has kept for that one it keeps no more.
        call.stop().await.expect("they are dropped");
        three
            .eventually(&format!("{long} b"), &format!("({long}!+b!!)"))
            .await;
    })
    .await;
}

/// Who knows the ids of a client's calls, and guesses the rest of what its branches say, has merges of its own all the same.
#[tokio::test]
async fn a_stranger_who_uses_the_id_of_a_call_is_not_merged_with_it() {
    patience(async {
        let mut three = Three::new(Net::Tcp, ChainLimits::default()).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let looks = move |request: &Incoming| {
            let continuation = request.continuation().expect("a link");
            let seen = (request.call_id(), continuation);
            sees.lock().expect("a lock").push(seen);
            Admission::Run
        };
        let next = splitting().add_to(Endpoint::builder().serve(library()));
        three.next = Net::Tcp.bind(next.interceptor(looks)).await;
        assert_eq!(three.call("a b").await, Ok("(a!+b!!)".into()));
        let (call, branch) = seen.lock().expect("a lock")[0].clone();
        // The same in the next call, by somebody else who says that it is the same client.
        let call = CallId {
            sequence: call.sequence + 1,
            ..call
        };
        let mut stranger = Raw::dial(&at(&three.merge), hello(call.initiator.get())).await;
        let mut forged = request(call, b"\x06forged");
        forged.options = Some(Box::new(MessageOptions {
            continuation: Some(branch),
            ..MessageOptions::default()
        }));
        let merge = MethodDefinition::new("wallaby.Chains/merge", "raw", 0, 0).expect("a name");
        stranger.send_request(forged, &merge).await;
        until(|| three.merge.metrics().requests_received == 3).await;
        assert_eq!(three.call("a b").await, Ok("(a!+b!!)".into()));
        let last = seen.lock().expect("a lock").last().map(|(call, _)| *call);
        assert_eq!(last, Some(call), "it was this one");
    })
    .await;
}

/// Functions that split without end come to a limit before they fill a server, and the chains of others go on meanwhile.
#[tokio::test]
async fn splits_inside_each_other_have_a_limit() {
    patience(async {
        for (limits, most) in [
            (ChainLimits::default(), 8),
            (
                ChainLimits {
                    splits: 2,
                    ..ChainLimits::default()
                },
                2,
            ),
        ] {
            let dividing = Chains::new()
                .function("divide", |state, answer| {
                    let (at, _): (Address, String) = (state.get("at")?, answer.read()?);
                    let branches = ["a", "b"].map(|text| {
                        let hop = Hop::to(&at, &words::SHOUT, (text.to_owned(),));
                        hop.then("divide", state.clone())
                    });
                    Ok(Step::split(branches, Merge::at(&at, "join", State::new())))
                })
                .merging("join", |_, _| Step::end(&String::new()));
            let server = Net::Tcp.serve(dividing.limits(limits)).await;
            let client = Net::Tcp.client().await;
            let state = State::new().with("at", &at(&server)).expect("an address");
            let first = Hop::to(at(&server), &words::SHOUT, ("a".to_owned(),));
            let chain = start::<String>(first.then("divide", state));
            let endless = async {
                let ended = chain.call(client.caller()).expect("it is small").await;
                let ended = status(ended);
                assert_eq!(ended.code(), Code::ResourceExhausted, "{ended}");
                let text = format!(
                    "{} splits inside each other: at most {most} are allowed",
                    most + 1
                );
                assert!(ended.message().starts_with(&text), "{ended}");
                // The first link, and one for each split.
                assert_eq!(hosts(&ended).len(), most + 1, "{ended}");
            };
            let other = Net::Tcp.client().await;
            let others = async {
                for _ in 0..20 {
                    let first = Hop::to(at(&server), &words::SHOUT, ("a".to_owned(),));
                    let chain = start::<String>(first).call(other.caller());
                    assert_eq!(chain.expect("it is small").await, Ok("a!".into()));
                }
            };
            tokio::join!(endless, others);
        }
    })
    .await;
}
