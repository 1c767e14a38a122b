//! Commands that ask endpoints that run: what they serve, a call, whether they take work, how much they have to do.

mod call;
mod following;
mod health;
mod list;
#[cfg(feature = "proto")]
mod messages;
mod top;
mod types;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use wallaby::reflection::{METHODS, MethodDescription};
use wallaby::{Address, Budgets, CallError, Caller, Client, Code, Endpoint};
use wallaby_tls::Tls;

pub(crate) use self::call::Call;
pub(crate) use self::health::Health;
pub(crate) use self::list::List;
pub(crate) use self::top::Top;
#[cfg(feature = "chain")]
pub(crate) use self::types::{Types, raw};

/// So many names are told to who has a wrong one.
const MOST_NAMES: usize = 20;

/// Of arguments.
const NO_JSON: &str = "this is no JSON: a text has quotes of its own, as '\"hop\"'";

/// So much a server may tell of its methods and their types, which are kept until all of them are there.
const MOST_TOLD: Budgets = Budgets {
    requests: 64,
    responses: 1 << 14,
    bytes: 64 << 20,
    depth: 16,
};

/// Whom to ask, and how.
#[derive(Debug, Args)]
pub(crate) struct Asking {
    /// The server, as tcp://HOST:PORT, udp://HOST:PORT, tls://HOST:PORT, unix:///PATH or shm:///PATH
    address: Address,
    #[command(flatten)]
    way: Way,
}

/// How somebody is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct Way {
    /// How long a call may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    deadline: Duration,
    /// Something that the server is told beside the arguments, perhaps a credential
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// For tls: the certificates that are trusted, in PEM
    #[arg(long, value_name = "FILE")]
    roots: Option<PathBuf>,
    /// For tls: the certificate that is shown, with those that lead to its root, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["key", "roots"])]
    certificate: Option<PathBuf>,
    /// For tls: the key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// `KEY=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

impl Way {
    /// Who asks these.
    pub(crate) async fn endpoint(&self, addresses: &[Address]) -> anyhow::Result<Endpoint> {
        let mut builder = Endpoint::builder();
        if let Some(roots) = &self.roots {
            let mut tls = Tls::builder().roots_file(roots);
            if let (Some(certificate), Some(key)) = (&self.certificate, &self.key) {
                tls = tls.certificate_files(certificate, key);
            }
            builder = builder.transport(tls.build()?);
        } else if addresses.iter().any(|address| address.scheme() == "tls") {
            bail!("whom to trust? --roots says in which file the certificates are");
        }
        Ok(builder.bind().await?)
    }

    pub(crate) fn client(&self, endpoint: &Endpoint, address: &Address) -> Client {
        self.caller(endpoint).at(address)
    }

    /// Who makes calls so, wherever to.
    pub(crate) fn caller(&self, endpoint: &Endpoint) -> Caller {
        let caller = endpoint.caller().deadline(self.deadline);
        let metadata = self.metadata.iter();
        metadata.fold(caller, |caller, (key, value)| caller.metadata(key, value))
    }
}

impl Asking {
    #[cfg(feature = "chain")]
    pub(crate) fn new(address: Address, way: Way) -> Self {
        Self { address, way }
    }

    async fn client(&self) -> anyhow::Result<Client> {
        let endpoint = self
            .way
            .endpoint(std::slice::from_ref(&self.address))
            .await?;
        Ok(self.way.client(&endpoint, &self.address))
    }

    /// The methods whose names begin so, in order.
    async fn methods(
        &self,
        client: &Client,
        prefix: &str,
    ) -> anyhow::Result<Vec<MethodDescription>> {
        let client = client.clone().budgets(MOST_TOLD);
        let mut told = client.call(&METHODS, (prefix.to_owned(),));
        let mut methods = Vec::new();
        while let Some(text) = told.next().await {
            let text = text.map_err(|error| self.explain(error))?;
            let method = MethodDescription::parse(&text).with_context(|| {
                format!("{} describes its methods in other words", self.address)
            })?;
            methods.push(method);
        }
        methods.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(methods)
    }

    /// Why there are no methods.
    fn explain(&self, error: CallError) -> anyhow::Error {
        let address = &self.address;
        match error.code() {
            Code::Unimplemented => anyhow::anyhow!(
                "{address} does not tell what it serves: reflection is switched off there, or it has none"
            ),
            _ => anyhow::Error::new(error).context(format!("cannot ask {address} what it serves")),
        }
    }

    /// The method of this name.
    pub(crate) async fn method(
        &self,
        client: &Client,
        name: &str,
    ) -> anyhow::Result<MethodDescription> {
        let methods = self.methods(client, name).await?;
        if let Some(method) = methods.into_iter().find(|method| method.name == name) {
            return Ok(method);
        }
        let others = self.methods(client, "").await?;
        let names: Vec<&str> = (others.iter().map(|method| method.name.as_str()))
            .filter(|name| !is_own(name))
            .take(MOST_NAMES)
            .collect();
        match names.is_empty() {
            true => bail!("{} serves no methods", self.address),
            false => bail!(
                "{} has no method {name}; it has {}",
                self.address,
                names.join(", ")
            ),
        }
    }
}

/// Tells whether a method is one of Wallaby's own.
fn is_own(name: &str) -> bool {
    name.starts_with("wallaby.")
}

/// Runs what waits for sockets.
pub(crate) fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.enable_all().build()?.block_on(work)
}
