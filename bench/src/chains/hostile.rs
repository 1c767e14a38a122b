//! Chains of somebody else that do harm, by code that they bring.

use super::world::{World, link};
use anyhow::{Context, Result};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use wallaby::{Budgets, CallError, Caller, Endpoint};
use wallaby_chain::{Chain, ChainCode, Hop, State, start};

/// So many are under way at a time.
const AT_ONCE: usize = 4;

/// What servers that strangers reach let a request lead to (`docs/security.md`).
pub(super) const MOST: Budgets = Budgets {
    requests: 1000,
    responses: 10_000,
    bytes: 64 << 20,
    depth: 64,
};

/// As scripts: what is beside their function `run`, and that function.
const SCRIPTS: [(&str, &str); 5] = [
    (
        "splits",
        "fn again(state, results) {
            state.depth -= 1;
            if state.depth > 0 { end(0) } else { run(state, results) }
        }
        fn run(state, bytes) {
            if state.depth == 3 { return end(0); }
            state.depth += 1;
            let branch = next(state.at, [state.bytes], \"run\", state);
            split([branch, branch, branch, branch], merge(state.at, \"again\", state))
        }",
    ),
    ("script-loop", "fn run(state, bytes) { loop { } }"),
    (
        "script-memory",
        "fn run(state, bytes) {
            let all = [];
            all.pad(1000, 0);
            let text = \"x\";
            text.pad(60000, 'x');
            for place in 0..1000 { all[place] = text + place; }
        }",
    ),
    (
        "script-recursion",
        "fn run(state, bytes) { run(state, bytes) }",
    ),
    (
        "script-output",
        "fn run(state, bytes) {
            let text = \"x\";
            text.pad(60000, 'x');
            loop { print(text); }
        }",
    ),
];

/// The same as modules: what their function does.
#[cfg(feature = "wasm")]
const MODULES: [(&str, &str); 4] = [
    ("wasm-loop", "(loop (br 0)) (unreachable)"),
    (
        "wasm-memory",
        "(loop (drop (memory.grow (i32.const 1))) (br 0)) (unreachable)",
    ),
    ("wasm-recursion", "(call $run (local.get 0) (local.get 1))"),
    (
        "wasm-output",
        "(drop (memory.grow (i32.const 63))) (i64.const 0x200000)",
    ),
];

/// All of them, by their names.
pub(super) fn all() -> Result<Vec<(&'static str, ChainCode)>> {
    let script =
        |(name, text): (_, &str)| (name, ChainCode::new(format!("// wallaby: rhai 1\n{text}")));
    #[cfg_attr(not(feature = "wasm"), expect(unused_mut))]
    let mut all: Vec<_> = SCRIPTS.map(script).into();
    #[cfg(feature = "wasm")]
    for (name, body) in MODULES {
        all.push((name, ChainCode::new(super::functions::module_of(body)?)));
    }
    Ok(all)
}

/// Chains that are begun again and again while other chains are measured.
pub(super) struct Hostile {
    world: Rc<World>,
    chain: Chain<()>,
    running: JoinSet<()>,
}

impl Hostile {
    /// At the first server.
    pub(super) fn new(world: &Rc<World>, code: ChainCode) -> Result<Self> {
        let at = world.servers.first().and_then(Endpoint::address);
        let at = at.context("a server does not listen")?;
        let bytes = vec![7_u8; super::PAYLOAD];
        let state = State::new()
            .link("at", at, &link::PASS)?
            .with("bytes", &bytes)?
            .with("depth", &0_u64)?;
        let first = Hop::to(at, &link::PASS, (bytes,));
        Ok(Self {
            world: Rc::clone(world),
            chain: start(first.then(code.function("run"), state)),
            running: JoinSet::new(),
        })
    }

    /// From now on, and until [`Hostile::end`].
    pub(super) fn begin(&mut self) {
        for _ in 0..AT_ONCE {
            let (chain, stranger) = (self.chain.clone(), self.world.stranger.caller());
            let again = async move { while once(&chain, &stranger).await.is_some() {} };
            self.running.spawn_on(again, self.world.runtime.handle());
        }
    }

    /// The next one to be measured is alone.
    pub(super) fn end(&mut self) {
        self.running.abort_all();
        let rest = || {
            self.world
                .servers
                .iter()
                .all(|server| server.load().is_idle())
        };
        let end = Instant::now() + PATIENCE;
        self.world.runtime.block_on(async {
            while self.running.join_next().await.is_some() {}
            while !rest() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

/// How one of them ends; none if it is not even sent.
async fn once(chain: &Chain<()>, stranger: &Caller) -> Option<Result<(), CallError>> {
    Some(chain.clone().call(stranger.clone()).ok()?.await)
}

const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use wallaby_chain::Limit;

    #[test]
    fn each_is_ended_by_a_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = Rc::new(runtime.unwrap());
        let world = World::start(&runtime, 1, (Duration::ZERO, None), None).unwrap();
        // What never stops splitting comes to fewer requests sooner.
        let budgets = Budgets {
            requests: 500,
            ..Budgets::default()
        };
        let stranger = world.stranger.caller().budgets(budgets);
        let expected = [
            ("splits", Limit::Budget),
            ("script-loop", Limit::Instructions),
            ("script-memory", Limit::Memory),
            ("script-recursion", Limit::Stack),
            ("script-output", Limit::Output),
            ("wasm-loop", Limit::Instructions),
            ("wasm-memory", Limit::Memory),
            ("wasm-recursion", Limit::Stack),
            ("wasm-output", Limit::Output),
        ];
        for (name, code) in all().unwrap() {
            let chain = Hostile::new(&world, code).unwrap().chain;
            let ended = runtime.block_on(once(&chain, &stranger));
            let error = ended.unwrap().unwrap_err();
            let limit = error.status().and_then(Limit::of);
            let limit = limit.unwrap_or_else(|| panic!("{name}: {error}"));
            // On a slow machine the time of a script is over first.
            let is_slow = limit == Limit::Time && name.starts_with("script");
            assert!(
                is_slow || expected.contains(&(name, limit)),
                "{name}: {error}"
            );
        }
    }
}
