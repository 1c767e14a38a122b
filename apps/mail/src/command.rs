//! The command line.

use crate::auth::Users;
use crate::files;
use crate::mail::DOMAIN;
use crate::measure::Measure;
use crate::process::{Serve, Servers, Settings};
use crate::secret::random_text;
use crate::services::Contact;
use clap::{Args, Parser, Subcommand};
use std::io::{BufRead, IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wallaby_program::ending::{interrupted, unless_interrupted};
use wallaby_program::output::line;
use wallaby_program::scratch::Scratch;

const EXAMPLES: &str = "\
Examples:
  wallaby-mail up                          all servers, with two users and some mails; open what it says
  wallaby-mail up --far --by calls         as far away as in the paper, and by plain calls: slower to read
  wallaby-mail user anna --data DATA       a user who stays; the first line of the input is the password
  wallaby-mail up --data DATA              all servers, for users and mails that stay
  wallaby-mail measure                     both ways, over the network of the paper, beside what links alone take

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 nobody reads the output any more.";

/// Web mail of six kinds of servers, on Wallaby
#[derive(Debug, Parser)]
#[command(name = "wallaby-mail", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// All servers on this machine, until Ctrl-C
    Up(Settings),
    /// One more user, or another password
    User(User),
    /// Read mails by plain calls and by chains, over an emulated wide-area network
    Measure(Measure),
    /// One server alone
    Server(Serve),
}

#[derive(Debug, Args)]
struct User {
    /// The name
    name: String,
    /// The folder of 'up --data'
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
}

impl Cli {
    /// Does it.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Up(settings) => up(settings).await?,
            Command::User(user) => user.run()?,
            Command::Measure(measure) => unless_interrupted(measure.run()).await?,
            Command::Server(serve) => serve.run().await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn up(mut settings: Settings) -> anyhow::Result<()> {
    let scratch = Scratch::create("wallaby-mail")?;
    if settings.data.is_none() {
        let data = scratch.path().join("data");
        for (name, password) in invent(&data, &MAILS)? {
            line(format_args!("user {name}, password {password}"))?;
        }
        settings.data = Some(data);
    }
    let mut servers = unless_interrupted(Servers::start(&settings)).await?;
    for server in servers.list() {
        line(server)?;
    }
    line(format_args!("open {} until Ctrl-C", servers.page))?;
    tokio::select! {
        // The others go on: pages say what is missing.
        ended = servers.ended() => {
            eprintln!("{ended}; the others go on");
            interrupted().await?;
        }
        asked = interrupted() => drop(asked?),
    }
    servers.end().await;
    Ok(())
}

impl User {
    fn run(self) -> anyhow::Result<()> {
        let mut password = String::new();
        if stdin().is_terminal() {
            eprintln!("The password, as one line, which the terminal shows:");
        }
        stdin().lock().read_line(&mut password)?;
        Users::of(&self.data).put(&self.name, password.trim_end_matches(['\r', '\n']))
    }
}

/// Users of a new folder with their passwords: Anna, who has these mails and knows Ben, and Ben.
pub(crate) fn invent(
    data: &Path,
    mails: &[(impl AsRef<Path>, impl AsRef<str>)],
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut users = Vec::new();
    for name in ["anna", "ben"] {
        let password = random_text::<12>()?;
        Users::of(data).put(name, &password)?;
        users.push((name, password));
    }
    let (name, address) = ("Ben".to_owned(), format!("ben@{DOMAIN}"));
    let contacts = serde_json::to_vec(&[Contact { name, address }])?;
    files::write(&data.join("book/anna.json"), &contacts)?;
    for (id, mail) in mails {
        let file = data.join("mails/anna/inbox").join(id);
        files::write(&file, mail.as_ref().as_bytes())?;
    }
    Ok(users)
}

/// Mails to begin with.
const MAILS: [(&str, &str); 4] = [
    ("welcome.eml", include_str!("../mails/demo/welcome.eml")),
    ("weekend.eml", include_str!("../mails/demo/weekend.eml")),
    ("letter.eml", include_str!("../mails/demo/letter.eml")),
    ("picture.eml", include_str!("../mails/demo/picture.eml")),
];
