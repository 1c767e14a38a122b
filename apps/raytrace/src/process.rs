//! Servers as processes of their own: this very program, started again.
//!
//! A server says its address when it serves, and ends with who started it. Its part of the scene it gets by calls.

use crate::server::Server;
use anyhow::Context;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::child::{Child, Parent, this_program};

/// Where servers and clients listen.
pub const LOCAL: &str = "tcp://127.0.0.1:0";

/// Servers as processes. They end with [`end`](Self::end), with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    children: Vec<Child>,
    addresses: Vec<Address>,
}

impl Processes {
    /// Starts so many servers; what each sends is delayed by `link_delay`, to emulate a network.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(servers: u16, link_delay: Duration) -> anyhow::Result<Self> {
        let (mut children, mut addresses) = (Vec::new(), Vec::new());
        let link_us = link_delay.as_micros().to_string();
        for number in 1..=servers {
            let mut command = this_program()?;
            command.args(["serve", "--link-us", &link_us]);
            children.push(Child::start(format!("server {number}"), &mut command)?);
        }
        for child in &mut children {
            let line = child.line().await?;
            let address = line.parse();
            addresses.push(address.with_context(|| format!("'{line}' is no address"))?);
        }
        Ok(Self {
            children,
            addresses,
        })
    }

    /// Where they are, in the order of their numbers.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Ends all servers.
    pub async fn end(self) {
        for child in self.children {
            child.end().await;
        }
    }
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
