//! `wallaby-mail`: web mail of six kinds of servers, which know each other by their services only. Mails go from the storage to the
//! advertisements by a chain (RPC Chains, NSDI 2009, sections 4.2 and 5.4).
//!
//! To see how to build with chains, read [`mail`]: `MailServer::advertised` has both forms side by side.
//!
//! | part | what it is |
//! |---|---|
//! | [`services`] | what the servers offer each other |
//! | [`auth`], [`secret`], [`sessions`] | who users are: passwords, sessions, who tries too often |
//! | [`storage`], [`letter`], [`files`] | mails as files; a mail as people read it; files that are whole |
//! | [`ads`], [`book`] | advertisements, address books |
//! | [`mail`] | the mail server, which asks the others |
//! | [`web`], [`http`], [`page`] | the web server: routes, what holds for all pages, the pages |
//! | [`process`], [`command`], [`measure`] | servers as processes; the program; both forms over the network of the paper |

mod ads;
mod auth;
mod book;
mod command;
mod files;
mod http;
mod letter;
mod mail;
mod measure;
mod page;
mod process;
mod secret;
mod services;
mod sessions;
mod storage;
mod web;

use clap::Parser;
use std::process::ExitCode;
use wallaby_program::ending::status;

// One thread: servers share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    status(command::Cli::parse().run().await)
}
