//! The command line.

use crate::auth::Users;
use crate::files;
use crate::measure::Measure;
use crate::process::{Role, Serve, Servers, Settings};
use crate::secret::random_text;
use crate::services::Contact;
use crate::storage;
use clap::{Args, Parser, Subcommand};
use std::io::{BufRead, IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wallaby_link::Topology;
use wallaby_program::ending::{interrupted, unless_interrupted};
use wallaby_program::output::line;
use wallaby_program::scratch::Scratch;

const EXAMPLES: &str = "\
Examples:
  wallaby-mail up                          all servers, with two users and some mails; open what it says
  wallaby-mail up --mails FOLDER           the same, with all .eml and .msg files below a folder
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
    Up(Up),
    /// One more user, or another password
    User(User),
    /// Read mails by plain calls and by chains, over an emulated wide-area network
    Measure(Measure),
    /// The web server alone: pages and forms
    Web(Serve),
    /// The authentication server alone: users, passwords, sessions
    Auth(Serve),
    /// The address book server alone
    Book(Serve),
    /// The mail server alone, which asks the others
    Mail(Serve),
    /// The storage server alone: folders of mails
    Storage(Serve),
    /// The ad server alone: what fits a mail
    Ads(Serve),
}

#[derive(Debug, Args)]
struct Up {
    /// Without --data: Anna's mails are all .eml and .msg files below this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "data")]
    mails: Option<PathBuf>,
    /// Servers are as far from each other as those of the paper, by emulated links
    #[arg(long, conflicts_with = "topology")]
    far: bool,
    #[command(flatten)]
    settings: Settings,
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
            Command::Up(up) => up.run().await?,
            Command::User(user) => user.run()?,
            Command::Measure(measure) => unless_interrupted(measure.run()).await?,
            Command::Web(serve) => serve.run(Role::Web).await?,
            Command::Auth(serve) => serve.run(Role::Auth).await?,
            Command::Book(serve) => serve.run(Role::Book).await?,
            Command::Mail(serve) => serve.run(Role::Mail).await?,
            Command::Storage(serve) => serve.run(Role::Storage).await?,
            Command::Ads(serve) => serve.run(Role::Ads).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Up {
    async fn run(mut self) -> anyhow::Result<()> {
        let scratch = Scratch::create("wallaby-mail")?;
        if self.settings.data.is_none() {
            let data = scratch.path().join("data");
            for (name, password) in invent(&data, self.mails.as_deref())? {
                line(format_args!("user {name}, password {password}"))?;
            }
            self.settings.data = Some(data);
        }
        if self.far {
            let file = scratch.path().join("topology");
            std::fs::write(&file, Topology::FIGURE_7)?;
            self.settings.topology = Some(file);
        }
        let mut servers = unless_interrupted(Servers::start(&self.settings)).await?;
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

/// Users of a new folder with their passwords: Anna, who has mails and knows Ben, and Ben.
pub(crate) fn invent(
    data: &Path,
    mails: Option<&Path>,
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut users = Vec::new();
    for name in ["anna", "ben"] {
        let password = random_text::<12>()?;
        Users::of(data).put(name, &password)?;
        users.push((name, password));
    }
    let (name, address) = ("Ben".to_owned(), "ben@mail.example".to_owned());
    let contacts = serde_json::to_vec(&[Contact { name, address }])?;
    files::write(&data.join("book/anna.json"), &contacts)?;
    if let Some(mails) = mails {
        storage::import(mails, &data.join("mails"), "anna")?;
        return Ok(users);
    }
    for (id, mail) in MAILS {
        let mail = mail.replace('\n', "\r\n");
        files::write(&data.join("mails/anna/inbox").join(id), mail.as_bytes())?;
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
