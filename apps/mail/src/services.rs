//! What the servers offer each other. Who asks for a user shows the token of a session; the storage and the advertisements are
//! behind the mail server, and take its word for who the user is.

use crate::mail::By;
use crate::secret::{Secret, Token};
use serde::{Deserialize, Serialize};

/// Who users are, and their sessions.
#[wallaby::service(package = "mail")]
pub(crate) trait Auth {
    /// A new session, for a user with the right password who asks from this host.
    async fn login(name: String, password: Secret, from: String) -> Result<Token, Refusal>;
    /// Whose session this is; the status `Unauthenticated` if it is none, or over.
    async fn check(token: Token) -> String;
    async fn knows(name: String) -> bool;
    async fn logout(token: Token);
}

/// Whom users know.
#[wallaby::service(package = "mail")]
pub(crate) trait Book {
    async fn contacts(token: Token) -> Owned<Vec<Contact>>;
    /// One more, or another name for an address; or what is wrong with it, for people.
    async fn put(token: Token, contact: Contact) -> Result<(), String>;
    async fn remove(token: Token, address: String);
}

/// What users do with their mails.
#[wallaby::service(package = "mail")]
pub(crate) trait Mail {
    async fn list(token: Token, query: Query) -> Owned<Listing>;
    /// A mail, with advertisements that fit it.
    async fn read(token: Token, folder: Folder, id: String, by: By) -> Owned<Reading>;
    /// A mail alone.
    async fn fetch(token: Token, folder: Folder, id: String) -> Owned<Message>;
    /// Sends a mail; or what is wrong with it, for people.
    async fn send(token: Token, draft: Draft) -> Result<(), String>;
}

/// The mails of all users.
#[wallaby::service(package = "mail")]
pub(crate) trait Storage {
    async fn list(user: String, query: Query) -> Listing;
    async fn fetch(user: String, folder: Folder, id: String) -> Message;
    async fn store(user: String, folder: Folder, message: Message);
}

/// Advertisements.
#[wallaby::service(package = "mail")]
pub(crate) trait Ads {
    /// The mail with advertisements that fit it.
    async fn append(message: Message) -> Reading;
}

/// Why there is no session. Whether the name or the password is wrong is not told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Wrong,
    TooMany { wait_seconds: u64 },
}

/// Something of a user's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Owned<T> {
    pub(crate) owner: String,
    pub(crate) what: T,
}

/// Somebody whom a user knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contact {
    pub(crate) name: String,
    pub(crate) address: String,
}

/// A part of a user's mails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Folder {
    Inbox,
    Sent,
}

/// Which mails are asked for: those that have all the words, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Query {
    pub(crate) folder: Folder,
    pub(crate) words: String,
    pub(crate) skip: u32,
    pub(crate) most: u32,
}

/// How many mails fit, and some of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) total: u32,
    pub(crate) mails: Vec<Summary>,
}

/// A mail in short. The id is what it is known by in its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) id: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) subject: String,
    pub(crate) begins: String,
    /// As seconds since 1970, as far as the mail says so.
    pub(crate) sent_at: Option<i64>,
    pub(crate) attachments: u32,
}

/// A mail as it is, with headers and all, of RFC 5322 or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: String,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: Vec<u8>,
}

/// A mail with advertisements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) message: Message,
    pub(crate) ads: Vec<Ad>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ad {
    pub(crate) title: String,
    pub(crate) text: String,
}

/// A mail that is to be sent, to addresses with commas between them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Draft {
    pub(crate) to: String,
    pub(crate) subject: String,
    pub(crate) text: String,
}

impl Folder {
    /// As a word: of addresses of pages, and of folders of files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Sent => "sent",
        }
    }

    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Inbox, Self::Sent]
            .into_iter()
            .find(|folder| folder.word() == word)
    }
}

/// Whether this is a name that users have: so it is no way out of a folder of files either.
pub(crate) fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |byte: u8| is_letter(byte) || b".-_".contains(&byte);
    (1..=32).contains(&name.len()) && name.bytes().all(is_part) && is_letter(name.as_bytes()[0])
}
