//! The address book server: a file for each user.

use crate::auth::Guard;
use crate::files::{self, internal};
use crate::secret::Token;
use crate::services::{Book, Contact, Owned};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use wallaby::Status;

/// Contacts of a user.
const MOST: usize = 1_000;
/// Characters of a name or an address.
const MOST_TEXT: usize = 200;

/// The server.
#[derive(Debug)]
pub(crate) struct BookServer {
    folder: PathBuf,
    guard: Guard,
    /// One change at a time.
    changing: Mutex<()>,
}

impl BookServer {
    /// A server of the books in a folder.
    pub(crate) fn new(folder: PathBuf, guard: Guard) -> Self {
        let changing = Mutex::default();
        Self {
            folder,
            guard,
            changing,
        }
    }

    fn path(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.json"))
    }

    fn read(&self, user: &str) -> anyhow::Result<Vec<Contact>> {
        Ok(wallaby_program::page::find(&self.path(user))?.unwrap_or_default())
    }

    fn change<T>(
        &self,
        user: &str,
        change: impl FnOnce(&mut Vec<Contact>) -> T,
    ) -> Result<T, Status> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = || -> anyhow::Result<T> {
            let mut contacts = self.read(user)?;
            let changed = change(&mut contacts);
            contacts.sort_by_key(|contact| contact.name.to_lowercase());
            files::write(&self.path(user), &serde_json::to_vec_pretty(&contacts)?)?;
            Ok(changed)
        };
        changed().map_err(internal)
    }
}

#[wallaby::serve]
impl Book for BookServer {
    async fn contacts(&self, token: Token) -> Result<Owned<Vec<Contact>>, Status> {
        let owner = self.guard.user(token).await?;
        let what = self.read(&owner).map_err(internal)?;
        Ok(Owned { owner, what })
    }

    async fn put(&self, token: Token, contact: Contact) -> Result<Result<(), String>, Status> {
        let user = self.guard.user(token).await?;
        if let Err(wrong) = contact.check() {
            return Ok(Err(wrong.to_owned()));
        }
        self.change(&user, |contacts| {
            contacts.retain(|other| other.address != contact.address);
            if contacts.len() >= MOST {
                return Err(format!("a book has at most {MOST} contacts"));
            }
            contacts.push(contact);
            Ok(())
        })
    }

    async fn remove(&self, token: Token, address: String) -> Result<(), Status> {
        let user = self.guard.user(token).await?;
        self.change(&user, |contacts| {
            contacts.retain(|other| other.address != address)
        })
    }
}

impl Contact {
    fn check(&self) -> Result<(), &'static str> {
        let is_line =
            |text: &str| text.chars().count() <= MOST_TEXT && !text.chars().any(char::is_control);
        let (name, host) = self.address.split_once('@').unwrap_or_default();
        let is_word =
            |text: &str| !text.is_empty() && !text.contains([' ', '@', ',', ';', '<', '>', '"']);
        if !is_line(&self.name) || self.name.trim().is_empty() {
            return Err("A name is needed, of at most 200 characters.");
        }
        if !is_line(&self.address) || !is_word(name) || !is_word(host) {
            return Err("An address looks like anna@mail.example.");
        }
        Ok(())
    }
}
