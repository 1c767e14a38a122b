//! A program of ONC RPC from its interface file: server and client in one process. To be found by others, it registers with
//! rpcbind where there is one.
//!
//! `quota.rs` is what `wallaby onc gen quota.x --out quota.rs` writes; a package of its own would let its `build.rs` do that.

use std::error::Error;

use wallaby_onc::auth::AuthSys;
use wallaby_onc::client::{self, TcpChannel, UdpChannel};
use wallaby_onc::rpcbind::{Registration, Rpcbind};
use wallaby_onc::server::{self, Server};
use wallaby_onc::{Credential, Principal, Programs, Refusal};

#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod interface {
    include!("quota.rs");
}

use interface::quota::quota_1;
use interface::{Answer, Question, Status};

/// The server: the procedures of a version, as a trait.
struct Quotas;

impl quota_1::Server for Quotas {
    async fn ask(&self, caller: &Principal, question: Question) -> Result<Answer, Refusal> {
        let who = match &caller.identity {
            Credential::Sys(user) => format!("user {} of {}", user.uid, user.machine_name),
            _ => "somebody".to_owned(),
        };
        println!("{who} asks for user {} at {}", question.user, question.path);
        Ok(match question.user {
            0 => Answer::Default(Status::NoQuota),
            _ => Answer::Ok(4711),
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let programs = Programs::new().with(quota_1::Service(Quotas));
    let server = Server::new(programs, server::ServerOptions::default());
    let udp = server.listen_udp("127.0.0.1:0".parse()?).await?;
    let tcp = server.listen_tcp("127.0.0.1:0".parse()?).await?;
    let registration = match Rpcbind::local().await {
        Ok(rpcbind) => Some(Registration::new(&server, rpcbind).await?),
        Err(error) => {
            println!("no rpcbind here, nobody else will find us: {error}");
            None
        }
    };

    let options = client::ClientOptions::default();
    let over_udp = quota_1::Client(UdpChannel::connect(udp, options.clone()).await?);
    let user = AuthSys::of_this_process()?.credential()?;
    let over_tcp = TcpChannel::connect(tcp, options.credential(user)).await?;
    let over_tcp = quota_1::Client(over_tcp);
    for user in [0, 1000] {
        let question = Question {
            path: "/home".into(),
            user,
        };
        println!("over UDP: {:?}", over_udp.ask(&question).await?);
        println!("over TCP: {:?}", over_tcp.ask(&question).await?);
    }

    if let Some(registration) = registration {
        registration.unregister().await?;
    }
    server.shutdown().await;
    Ok(())
}
