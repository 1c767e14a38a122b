//! Servers that know nothing of each other, and what a client does with them: by a chain, and by calls.

use super::PAYLOAD;
use crate::fleet::folder;
use anyhow::{Context, Result, ensure};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;
use tokio::runtime::Runtime;
use wallaby::transport::Proven;
use wallaby::{Address, Budgets, Endpoint, One, Request, Status};
use wallaby_chain::{Chain, ChainCode, Chains, Hop, State, pipe, start};
use wallaby_chain_script::{ScriptLimits, Scripts};
use wallaby_program::scratch::Scratch;

/// What an operation is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    /// A call for each link.
    Calls,
    /// A chain without code.
    Pipe,
    /// A chain whose function the servers have, with so many bytes of state.
    Native { state: usize },
    /// A chain whose function the client brings along, as a script.
    Script,
    /// Calls of two links, the second of which has its work done at a third server by a call.
    CallsApart,
    /// The same by a chain.
    Apart,
    /// The same, but the second link answers with a chain of its own, which becomes a part of the client's.
    Composed,
}

impl Does {
    /// The messages that follow one another.
    pub(super) fn messages(self, links: usize) -> u32 {
        let messages = match self {
            Self::Calls | Self::CallsApart => 2 * links,
            Self::Apart => links + 2,
            Self::Pipe | Self::Native { .. } | Self::Script | Self::Composed => links + 1,
        };
        u32::try_from(messages).unwrap_or(u32::MAX)
    }

    pub(super) fn servers(self, links: usize) -> usize {
        links
    }

    /// Bytes of state besides what it is to do.
    pub(super) fn state(self) -> usize {
        match self {
            Self::Native { state } => state,
            _ => 0,
        }
    }
}

#[wallaby::service(package = "bench")]
pub(crate) trait Link {
    /// Answers with what it is given.
    async fn pass(bytes: Vec<u8>) -> Vec<u8>;
    /// The same, after another server has answered it.
    async fn pass_apart(bytes: Vec<u8>) -> Vec<u8>;
    /// The same by a chain of its own.
    async fn pass_on(bytes: Vec<u8>) -> Vec<u8>;
}

/// A server, and who it has its work done by.
struct Server {
    other: Option<Address>,
}

#[wallaby::serve]
impl Link for Server {
    async fn pass(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn pass_apart(
        &self,
        request: Request<One<Vec<u8>>>,
        bytes: Vec<u8>,
    ) -> Result<(), Status> {
        let other = self.other()?;
        let answer = request.call().at(other).call(&link::PASS, (bytes,)).await?;
        Ok(request.respond(answer).await?)
    }

    async fn pass_on(&self, request: Request<One<Vec<u8>>>, bytes: Vec<u8>) -> Result<(), Status> {
        Ok(pipe(self.other()?, &link::PASS, (bytes,))
            .forward(request)?
            .await?)
    }
}

impl Server {
    fn other(&self) -> Result<&Address, Status> {
        self.other
            .as_ref()
            .ok_or_else(|| Status::unavailable("there is no other server"))
    }
}

/// As the function that servers have.
const CODE: &str = "// wallaby: rhai 1
fn pass(state, bytes) {
    if state.left == 0 { return end(bytes); }
    state.left -= 1;
    next(state[`to${state.left}`], [bytes], \"pass\", state)
}
";

fn functions() -> Result<Chains> {
    let chains = Chains::new().function("pass", |state, bytes| {
        let bytes: Vec<u8> = bytes.read()?;
        let mut left: Vec<Address> = state.get("left")?;
        match left.pop() {
            None => wallaby_chain::Step::end(&bytes),
            Some(next) => {
                let hop = Hop::to(next, &link::PASS, (bytes,));
                Ok(hop.then("pass", State::new().with("left", &left)?).into())
            }
        }
    });
    let runtime = Scripts::new(ScriptLimits::default());
    #[cfg(feature = "wasm")]
    let runtime = (
        runtime,
        wallaby_chain_wasm::WebAssembly::new(Default::default())?,
    );
    Ok(chains.code(runtime, |request| {
        matches!(request.identity().peer, Proven::LocalUser { .. })
    }))
}

/// Endpoints at links.
pub(super) struct World {
    pub(super) runtime: Rc<Runtime>,
    client: Endpoint,
    /// Somebody else's.
    pub(super) stranger: Endpoint,
    pub(super) servers: Vec<Endpoint>,
    _folder: Scratch,
}

impl World {
    pub(super) fn start(
        runtime: &Rc<Runtime>,
        servers: usize,
        link: (Duration, Option<NonZeroU64>),
        most: Option<Budgets>,
    ) -> Result<Rc<Self>> {
        let folder = folder()?;
        let builder = || wallaby_link::emulate(Endpoint::builder(), link.0, link.1);
        let bind = |name: usize, builder: wallaby::Builder| {
            let at = format!("unix://{}/{name}", folder.path().display());
            Ok::<_, anyhow::Error>(runtime.block_on(builder.listen(&at).bind())?)
        };
        // The last one first: each but that one has the one after it do its work.
        let mut all: Vec<Endpoint> = Vec::new();
        for number in 0..servers {
            let other = all.last().and_then(Endpoint::address).cloned();
            let mut server = builder()?.serve(link::service(Server { other }));
            if let Some(most) = most {
                server = server.max_budgets(most);
            }
            all.push(bind(number, functions()?.add_to(server))?);
        }
        all.reverse();
        Ok(Rc::new(Self {
            client: bind(servers, builder()?)?,
            stranger: bind(servers + 1, builder()?)?,
            runtime: Rc::clone(runtime),
            servers: all,
            _folder: folder,
        }))
    }

    /// An operation, which runs all endpoints while it waits.
    pub(super) fn operation(
        self: &Rc<Self>,
        does: Does,
        links: usize,
    ) -> Result<impl FnMut() -> Result<()> + use<>> {
        let world = Rc::clone(self);
        let addresses = self.servers.iter().take(links).map(Endpoint::address);
        let at: Option<Vec<Address>> = addresses.map(Option::<&Address>::cloned).collect();
        let at = at.context("a server does not listen")?;
        Ok(move || {
            let sent = vec![7; PAYLOAD];
            let came = world.runtime.block_on(world.go(does, &at, sent.clone()))?;
            ensure!(came == sent, "it came back as something else");
            Ok(())
        })
    }

    async fn go(&self, does: Does, at: &[Address], bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (first, rest) = at.split_first().context("a chain has a link")?;
        let chain = match does {
            Does::Calls => {
                return self
                    .call(at.iter().map(|at| (at, &link::PASS)), bytes)
                    .await;
            }
            Does::CallsApart => {
                let links = at.iter().zip([&link::PASS, &link::PASS_APART]);
                return self.call(links, bytes).await;
            }
            Does::Pipe => {
                let chain = pipe(first, &link::PASS, (bytes,));
                rest.iter()
                    .fold(chain, |chain, at| chain.then(at, &link::PASS))
            }
            Does::Apart => second(at, bytes, &link::PASS_APART)?,
            Does::Composed => second(at, bytes, &link::PASS_ON)?,
            Does::Native { state } => {
                let left: Vec<Address> = rest.iter().rev().cloned().collect();
                let state = State::new()
                    .with("left", &left)?
                    .with("burden", &vec![7_u8; state])?;
                start(Hop::to(first, &link::PASS, (bytes,)).then("pass", state))
            }
            Does::Script => {
                let mut state = State::new().with("left", &(rest.len() as u64))?;
                for (number, at) in rest.iter().rev().enumerate() {
                    state = state.link(&format!("to{number}"), at, &link::PASS)?;
                }
                let function = ChainCode::new(CODE).function("pass");
                start(Hop::to(first, &link::PASS, (bytes,)).then(function, state))
            }
        };
        Ok(chain.call(self.client.caller())?.await?)
    }

    async fn call<'a>(
        &self,
        links: impl Iterator<Item = (&'a Address, &'static Pass)>,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>> {
        for (at, method) in links {
            bytes = self.client.caller().at(at).call(method, (bytes,)).await?;
        }
        Ok(bytes)
    }
}

type Pass = wallaby::Method<(Vec<u8>,), One<Vec<u8>>>;

/// The first server, and then the second one by this method.
fn second(at: &[Address], bytes: Vec<u8>, method: &'static Pass) -> Result<Chain<Vec<u8>>> {
    let [first, second, ..] = at else {
        anyhow::bail!("a server is missing");
    };
    Ok(pipe(first, &link::PASS, (bytes,)).then(second, method))
}
