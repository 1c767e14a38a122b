//! Servers as processes of their own: this very program, started again.
//!
//! A server says its address when it serves, and ends with who started it. Its part of the scene it gets by calls.

use crate::server::Server;
use anyhow::Context;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::child::{Cluster, Parent, this_program};

/// Where servers and clients listen.
pub const LOCAL: &str = "tcp://127.0.0.1:0";

/// Starts so many servers; what each sends is delayed by `link_delay`, to emulate a network.
///
/// # Errors
///
/// If one of them does not come up; what is wrong it says on standard error.
pub async fn start(servers: u16, link_delay: Duration) -> anyhow::Result<Cluster<Address>> {
    let link_us = link_delay.as_micros().to_string();
    let program = |number| {
        let mut command = this_program()?;
        command.args(["serve", "--link-us", &link_us]);
        Ok((format!("server {number}"), command))
    };
    Cluster::start((1..=servers).map(program), |line| Ok(line.parse()?)).await
}

/// One such process, until who started it wants it to end.
///
/// # Errors
///
/// If it cannot listen.
pub async fn serve(link_delay: Duration) -> anyhow::Result<()> {
    let endpoint = Server::endpoint(LOCAL, link_delay).await?;
    Server::serve(&endpoint)?;
    println!("{}", endpoint.address().context("it does not listen")?);
    Parent::of_this().gone().await;
    endpoint.close();
    Ok(())
}
