//! The mail server: what users do with their mails. It keeps nothing itself.
//!
//! ```text
//!   browser ─▶ web ─▶ mail ─▶ auth                      whose session is it?
//!                      │ ◀─────┘
//!                      ├──▶ storage ─▶ ads ─┐           a mail with advertisements, by a chain:
//!                      │ ◀──────────────────┘           the two servers know nothing of each other
//!                      ├──▶ storage, and back           the same by plain calls,
//!                      └──▶ ads, and back               one after the other
//! ```
//!
//! `MailServer::advertised` is both.

use crate::auth::{Guard, away};
use crate::files::internal;
use crate::secret::{Token, random};
use crate::services::{
    self, Draft, Folder, Listing, Mail, Message, Owned, Query, Reading, is_name,
};
use clap::ValueEnum;
use mail_builder::MessageBuilder;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use wallaby::{Address, CallError, Code, Endpoint, One, Request, Status};
use wallaby_chain::pipe;

/// How a mail and its advertisements are fetched. What comes is the same, to the byte.
#[derive(Clone, Copy, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum By {
    /// From the storage on to the ad server, and then here.
    Chain,
    /// From the storage, and then by the ad server, each by a call from here.
    Calls,
}

/// What addresses of users have behind the `@`.
pub(crate) const DOMAIN: &str = "mail.example";
/// Who gets a mail at most.
const MOST_RECIPIENTS: usize = 20;
/// Bytes of a text that is sent, and of its subject.
const MOST_TEXT: usize = 1 << 20;
const MOST_SUBJECT: usize = 500;

/// The server.
#[derive(Debug)]
pub(crate) struct MailServer {
    /// What it calls others from.
    pub(crate) endpoint: Endpoint,
    /// Whose session is it?
    pub(crate) guard: Guard,
    /// The server of all mails.
    pub(crate) storage: Address,
    /// The server of advertisements.
    pub(crate) ads: Address,
}

impl MailServer {
    async fn advertised(
        &self,
        user: &str,
        folder: Folder,
        id: &str,
        by: By,
    ) -> Result<Reading, CallError> {
        let which = (user.to_owned(), folder, id.to_owned());
        match by {
            By::Chain => {
                let chain = pipe(&self.storage, &services::storage::FETCH, which)
                    .then(&self.ads, &services::ads::APPEND);
                let call = chain.call(self.endpoint.caller());
                call.map_err(|error| Status::internal(error.to_string()))?
                    .await
            }
            By::Calls => {
                let (user, folder, id) = which;
                let message = self.storage().fetch(user, folder, id).await?;
                let ads = services::ads::at(&self.endpoint, &self.ads);
                ads.append(message).await
            }
        }
    }

    async fn fetch_for(&self, user: &str, folder: Folder, id: &str) -> Result<Message, Status> {
        let fetched = self
            .storage()
            .fetch(user.to_owned(), folder, id.to_owned())
            .await;
        fetched.map_err(|error| away("storage", error))
    }

    fn storage(&self) -> services::storage::Client {
        services::storage::at(&self.endpoint, &self.storage)
    }

    /// The users who are to get it; or who is not one.
    async fn recipients(&self, to: &str) -> Result<Result<Vec<String>, String>, Status> {
        let mut users = Vec::new();
        for address in to
            .split([',', ';'])
            .map(str::trim)
            .filter(|to| !to.is_empty())
        {
            let plain = match address.rsplit_once('<') {
                Some((_, address)) => address.trim_end_matches('>'),
                None => address,
            };
            let plain = plain.trim().to_lowercase();
            let name = match plain.split_once('@') {
                Some((name, DOMAIN)) => name,
                Some(_) => "",
                None => &plain,
            };
            if !is_name(name) || !self.guard.knows(name).await? {
                return Ok(Err(format!(
                    "{address} is nobody here. Mails go to users of {DOMAIN} only."
                )));
            }
            if !users.iter().any(|user| user == name) {
                users.push(name.to_owned());
            }
        }
        Ok(match users.len() {
            0 => Err("To whom?".to_owned()),
            1..=MOST_RECIPIENTS => Ok(users),
            _ => Err(format!("A mail goes to {MOST_RECIPIENTS} users at most.")),
        })
    }
}

#[wallaby::serve]
impl Mail for MailServer {
    async fn list(&self, token: Token, query: Query) -> Result<Owned<Listing>, Status> {
        let owner = self.guard.user(token).await?;
        let what = self.storage().list(owner.clone(), query).await;
        let what = what.map_err(|error| away("storage", error))?;
        Ok(Owned { owner, what })
    }

    async fn read(
        &self,
        token: Token,
        folder: Folder,
        id: String,
        by: By,
    ) -> Result<Owned<Reading>, Status> {
        let owner = self.guard.user(token).await?;
        let what = match self.advertised(&owner, folder, &id, by).await {
            Ok(reading) => reading,
            Err(error) if error.code() == Code::NotFound => return Err(away("storage", error)),
            // A mail can be read without advertisements.
            Err(error) => {
                let message = self.fetch_for(&owner, folder, &id).await?;
                eprintln!("a mail without advertisements: {error}");
                let ads = Vec::new();
                Reading { message, ads }
            }
        };
        Ok(Owned { owner, what })
    }

    async fn fetch(
        &self,
        token: Token,
        folder: Folder,
        id: String,
    ) -> Result<Owned<Message>, Status> {
        let owner = self.guard.user(token).await?;
        let what = self.fetch_for(&owner, folder, &id).await?;
        Ok(Owned { owner, what })
    }

    async fn send(
        &self,
        request: Request<One<Result<(), String>>>,
        token: Token,
        draft: Draft,
    ) -> Result<(), Status> {
        let user = self.guard.user(token).await?;
        if draft.text.len() > MOST_TEXT || draft.subject.len() > MOST_SUBJECT {
            let wrong = "The mail, or its subject, is too long.".to_owned();
            return Ok(request.respond(Err(wrong)).await?);
        }
        let to = match self.recipients(&draft.to).await? {
            Ok(to) => to,
            Err(wrong) => return Ok(request.respond(Err(wrong)).await?),
        };
        let message = compose(&user, &to, draft)?;
        let copies = to.into_iter().map(|user| (user, Folder::Inbox));
        // A browser that leaves meanwhile aborts the call: a mail that some have got goes to all of them.
        let delivering = request.shield(async {
            for (user, folder) in copies.chain([(user, Folder::Sent)]) {
                let stored = self.storage().store(user, folder, message.clone()).await;
                stored.map_err(|error| away("storage", error))?;
            }
            Ok::<_, Status>(())
        });
        delivering.await?;
        Ok(request.respond(Ok(())).await?)
    }
}

/// The mail as it is kept.
fn compose(user: &str, to: &[String], draft: Draft) -> Result<Message, Status> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let bytes = random().map_err(internal)?;
    let mut id = format!("{:x}-{:08x}", now.as_millis(), u32::from_ne_bytes(bytes));
    let address = |user: &str| format!("{user}@{DOMAIN}");
    let to: Vec<String> = to.iter().map(|user| address(user)).collect();
    let mail = MessageBuilder::new()
        .from(address(user))
        .to(to)
        // One line, whatever a browser sends.
        .subject(draft.subject.replace(char::is_control, " "))
        .date(now.as_secs() as i64)
        .message_id(address(&id))
        .text_body(draft.text);
    let bytes = mail.write_to_vec()?;
    id.push_str(".eml");
    Ok(Message { id, bytes })
}
