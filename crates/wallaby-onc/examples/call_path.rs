//! Calls of ONC RPC, one after the other: for counting the instructions and the system calls of client and server.
//!
//! `call_path CALLS TRANSPORT BYTES` makes so many calls whose argument has so many bytes and whose answer has none. The
//! transport is `udp` or `tcp`. The server is in the same process, unless its address follows: that of
//! `call_path serve TRANSPORT`, which says it.

use std::env::args;
use std::net::SocketAddr;

use bytes::Bytes;
use tokio::runtime::Builder;
use tokio::spawn;
use wallaby_onc::client::{TcpChannel, UdpChannel};
use wallaby_onc::server::Server;
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

async fn serve(transport: &str) -> Result<(Server, SocketAddr)> {
    let server = Server::new(Programs::new().with(Take), server::Options::default());
    let anywhere = ([127, 0, 0, 1], 0).into();
    let address = match transport {
        "udp" => server.listen_udp(anywhere).await?,
        _ => server.listen_tcp(anywhere).await?,
    };
    Ok((server, address))
}

async fn run(transport: &str, argument: Vec<u8>, times: u32, to: SocketAddr) -> Result {
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

fn main() -> Result {
    let usage = "usage: call_path CALLS udp|tcp BYTES [ADDRESS], or call_path serve udp|tcp";
    let argument = |place| args().nth(place).ok_or(usage);
    let (calls, transport) = (argument(1)?, argument(2)?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if calls == "serve" {
        let (serving, address) = runtime.block_on(serve(&transport))?;
        println!("{address}");
        runtime.block_on(std::future::pending::<()>());
        drop(serving);
        return Ok(());
    }
    let (times, bytes) = (calls.parse()?, vec![7; argument(3)?.parse()?]);
    let (serving, to) = match args().nth(4) {
        Some(address) => (None, address.parse()?),
        None => runtime
            .block_on(serve(&transport))
            .map(|(server, address)| (Some(server), address))?,
    };
    runtime.block_on(run(&transport, bytes, times, to))?;
    drop(serving);
    Ok(())
}
