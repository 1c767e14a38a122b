//! Calls of ONC RPC, one after the other: for counting the instructions and the system calls of client and server.
//!
//! `call_path CALLS FORM TRANSPORT BYTES` makes so many calls whose argument has so many bytes and whose answer has none. The
//! form is `blocking` or `tokio`, the transport `udp` or `tcp`. The server is in the same process, unless its address follows:
//! that of `call_path serve FORM TRANSPORT`, which says it.

use std::env::args;
use std::net::SocketAddr;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::spawn;
use wallaby_onc::blocking::{self, Pool};
use wallaby_onc::client::{TcpChannel, UdpChannel};
use wallaby_onc::{AcceptError, Caller, Channel, Procedure, Programs, Refusal, Service};
use wallaby_onc::{client, server, service};

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const TAKE: Procedure = Procedure {
    program: 0x2000_0bec,
    version: 1,
    number: 2,
};

/// What is generated for a procedure that takes opaque data and answers with nothing.
struct Take;

impl Service for Take {
    const PROGRAM: u32 = TAKE.program;
    const VERSION: u32 = TAKE.version;

    async fn handle(&self, _: &Caller, procedure: u32, arguments: Bytes) -> Result<Bytes, Refusal> {
        if procedure != TAKE.number {
            return Err(AcceptError::ProcedureUnavailable.into());
        }
        drop(service::arguments(arguments, |reader| reader.opaque(None))?);
        service::results(|_| Ok(()))
    }
}

async fn call(channel: impl Channel, argument: Vec<u8>, times: u32) -> Result {
    for _ in 0..times {
        let write = |writer: &mut wallaby_onc::xdr::Writer| writer.opaque(&argument, None);
        service::call(&channel, TAKE, write, |_| Ok(())).await?;
    }
    Ok(())
}

/// A server, which serves as long as it is kept.
#[expect(dead_code, reason = "kept, not used")]
enum Serving {
    Blocking(blocking::Server),
    Tokio(server::Server),
}

async fn serve(form: &str, transport: &str) -> Result<(Serving, SocketAddr)> {
    let (programs, anywhere) = (Programs::new().with(Take), ([127, 0, 0, 1], 0).into());
    if form == "blocking" {
        let server = blocking::Server::new(programs, blocking::ServerOptions::default())?;
        let address = match transport {
            "udp" => server.listen_udp(anywhere)?,
            _ => server.listen_tcp(anywhere)?,
        };
        return Ok((Serving::Blocking(server), address));
    }
    let server = server::Server::new(programs, server::Options::default());
    let address = match transport {
        "udp" => server.listen_udp(anywhere).await?,
        _ => server.listen_tcp(anywhere).await?,
    };
    Ok((Serving::Tokio(server), address))
}

fn run(form: &str, transport: &str, argument: Vec<u8>, times: u32, to: SocketAddr) -> Result {
    let pool = Pool::new(blocking::Options::default());
    match (form, transport) {
        ("blocking", "udp") => blocking::wait(call(pool.udp(to), argument, times)),
        ("blocking", _) => blocking::wait(call(pool.tcp(to), argument, times)),
        _ => Err("the form is blocking or tokio".into()),
    }
}

async fn run_on_tokio(transport: &str, argument: Vec<u8>, times: u32, to: SocketAddr) -> Result {
    let options = client::Options::default();
    // In tasks, as programs mostly call: what a runtime waits for itself costs more.
    match transport {
        "udp" => {
            spawn(call(
                UdpChannel::connect(to, options).await?,
                argument,
                times,
            ))
            .await?
        }
        _ => {
            spawn(call(
                TcpChannel::connect(to, options).await?,
                argument,
                times,
            ))
            .await?
        }
    }
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn main() -> Result {
    let usage = "usage: call_path CALLS blocking|tokio udp|tcp BYTES [ADDRESS], or call_path serve FORM TRANSPORT";
    let argument = |place| args().nth(place).ok_or(usage);
    let (calls, form, transport) = (argument(1)?, argument(2)?, argument(3)?);
    let runtime = runtime()?;
    if calls == "serve" {
        let (serving, address) = runtime.block_on(serve(&form, &transport))?;
        println!("{address}");
        runtime.block_on(std::future::pending::<()>());
        drop(serving);
        return Ok(());
    }
    let (times, bytes) = (calls.parse()?, vec![7; argument(4)?.parse()?]);
    let (serving, to) = match args().nth(5) {
        Some(address) => (None, address.parse()?),
        None => runtime
            .block_on(serve(&form, &transport))
            .map(|(server, address)| (Some(server), address))?,
    };
    match form.as_str() {
        "tokio" => runtime.block_on(run_on_tokio(&transport, bytes, times, to))?,
        _ => run(&form, &transport, bytes, times, to)?,
    }
    drop(serving);
    Ok(())
}
