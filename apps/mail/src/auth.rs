//! The authentication server: users, passwords, sessions.

use crate::files::{self, internal};
use crate::secret::{Passwords, SHORTEST_PASSWORD, Secret, Token};
use crate::services::{self, Auth, Refusal, is_name};
use crate::sessions::{Attempts, Rules, Sessions};
use anyhow::ensure;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wallaby::{CallError, Code, Status};

/// The server.
#[derive(Debug)]
pub(crate) struct AuthServer {
    users: Users,
    passwords: Passwords,
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: Sessions,
    attempts: Attempts,
}

/// The file of users: names, and hashes of passwords. It is read anew each time, so it may be changed while servers run.
#[derive(Debug)]
pub(crate) struct Users(PathBuf);

impl Users {
    /// Those of this folder.
    pub(crate) fn of(folder: &Path) -> Self {
        Self(folder.join("users.json"))
    }

    /// All of them.
    pub(crate) fn read(&self) -> anyhow::Result<BTreeMap<String, String>> {
        Ok(wallaby_program::page::find(&self.0)?.unwrap_or_default())
    }

    /// One more, or another password.
    pub(crate) fn put(&self, name: &str, password: &str) -> anyhow::Result<()> {
        ensure!(
            is_name(name),
            "{name:?} is no name: it has 1 to 32 of a-z, 0-9 and .-_, and begins with one of the first two"
        );
        let len = password.chars().count();
        ensure!(
            len >= SHORTEST_PASSWORD,
            "a password has {SHORTEST_PASSWORD} characters at least, not {len}"
        );
        let mut users = self.read()?;
        users.insert(name.to_owned(), Passwords::new()?.hash(password)?);
        files::write(&self.0, &serde_json::to_vec_pretty(&users)?)
    }
}

impl AuthServer {
    /// A server of these users.
    pub(crate) fn new(users: Users) -> anyhow::Result<Self> {
        Ok(Self {
            users,
            passwords: Passwords::new()?,
            rules: Rules::default(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash_of(&self, name: &str) -> Result<Option<String>, Status> {
        Ok(self.users.read().map_err(internal)?.remove(name))
    }
}

#[wallaby::serve]
impl Auth for AuthServer {
    // A thread of its own: a hash takes long.
    fn login(
        &self,
        name: String,
        password: Secret,
        from: String,
    ) -> Result<Result<Token, Refusal>, Status> {
        let name = name.trim().to_lowercase();
        if !is_name(&name) {
            return Ok(Err(Refusal::Wrong));
        }
        let (rules, now) = (&self.rules, Instant::now());
        if let Err(wait) = self.state().attempts.begin(&name, &from, rules, now) {
            let wait_seconds = wait.as_secs() + 1;
            return Ok(Err(Refusal::TooMany { wait_seconds }));
        }
        let hash = self.hash_of(&name)?;
        if !self.passwords.is_right(&password.0, hash.as_deref()) {
            return Ok(Err(Refusal::Wrong));
        }
        let token = Token::draw().map_err(internal)?;
        let mut state = self.state();
        state.attempts.right(&name, &from);
        state.sessions.begin(&token, &name, rules, now);
        Ok(Ok(token))
    }

    async fn check(&self, token: Token) -> Result<String, Status> {
        let (rules, now) = (&self.rules, Instant::now());
        let user = self.state().sessions.user(&token, rules, now);
        user.ok_or_else(|| Status::unauthenticated("there is no such session, or it is over"))
    }

    fn knows(&self, name: String) -> Result<bool, Status> {
        Ok(self.hash_of(&name)?.is_some())
    }

    async fn logout(&self, token: Token) {
        self.state().sessions.end(&token);
    }
}

/// Asks the authentication server for others.
#[derive(Clone, Debug)]
pub(crate) struct Guard(pub(crate) services::auth::Client);

impl Guard {
    /// Whose session this is.
    pub(crate) async fn user(&self, token: Token) -> Result<String, Status> {
        let user = self.0.check(token).await;
        user.map_err(|error| away("authentication", error))
    }

    /// Whether there is such a user.
    pub(crate) async fn knows(&self, name: &str) -> Result<bool, Status> {
        let known = self.0.knows(name.to_owned()).await;
        known.map_err(|error| away("authentication", error))
    }
}

/// What a server that needs another one says of an error: if that is not there, it is `FailedPrecondition`, and says which.
pub(crate) fn away(server: &str, error: CallError) -> Status {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unauthenticated};
    use Code::{Internal, Mismatch, Panicked, PermissionDenied};
    match (error.code(), error.status()) {
        (
            code @ (FailedPrecondition | InvalidArgument | NotFound | ResourceExhausted
            | Unauthenticated),
            Some(status),
        ) => return Status::new(code, status.message()),
        _ => eprintln!("the {server} server: {error}"),
    }
    match error.code() {
        Internal | Mismatch | Panicked | PermissionDenied => {
            Status::internal(format!("something is wrong at the {server} server"))
        }
        _ => Status::failed_precondition(format!("the {server} server does not answer")),
    }
}
