//! The storage server: folders of files, a mail each.

use crate::files::{self, internal};
use crate::letter::Letter;
use crate::services::{Folder, Listing, Message, Query, Storage, Summary, is_name};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Known;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use wallaby::Status;

/// Bytes of a mail.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// Mails of a folder.
const MOST_MAILS: usize = 20_000;
/// Mails of an answer.
const MOST_LISTED: usize = 200;
/// Bytes of a mail that words are looked for in.
const MOST_SEARCHED: usize = 32 << 10;
/// How files of mails end.
const ENDINGS: [&str; 2] = ["eml", "msg"];

/// The server. A folder is read when it is first asked for; what it has is known from then on.
#[derive(Debug)]
pub(crate) struct StorageServer {
    folder: PathBuf,
    known: Mutex<HashMap<(String, Folder), Vec<Entry>>>,
}

/// What is known of a mail, the newest first.
#[derive(Debug)]
struct Entry {
    summary: Summary,
    /// What words are looked for in.
    searched: String,
}

impl StorageServer {
    /// A server of the mails in a folder: `USER/inbox/ID.eml`.
    pub(crate) fn new(folder: PathBuf) -> Self {
        let known = Mutex::default();
        Self { folder, known }
    }

    /// Looks at what is known of a user's folder.
    fn with<T>(
        &self,
        user: &str,
        folder: Folder,
        look: impl FnOnce(&Path, &mut Vec<Entry>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        if !is_name(user) {
            return Err(Status::invalid_argument(format!("{user:?} is no user")));
        }
        let path = self.folder.join(user).join(folder.word());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = match known.entry((user.to_owned(), folder)) {
            Known::Occupied(entry) => entry.into_mut(),
            Known::Vacant(entry) => entry.insert(read(&path).map_err(internal)?),
        };
        look(&path, entries)
    }
}

#[wallaby::serve]
impl Storage for StorageServer {
    fn list(&self, user: String, query: Query) -> Result<Listing, Status> {
        let words = query.words.to_lowercase();
        let words: Vec<&str> = words.split_whitespace().take(16).collect();
        self.with(&user, query.folder, |_, entries| {
            let fits = |entry: &&Entry| words.iter().all(|word| entry.searched.contains(word));
            let fitting = entries.iter().filter(fits);
            let most = MOST_LISTED.min(query.most as usize);
            let mails = fitting.clone().skip(query.skip as usize).take(most);
            Ok(Listing {
                mails: mails.map(|entry| entry.summary.clone()).collect(),
                total: fitting.count() as u32,
            })
        })
    }

    fn fetch(&self, user: String, folder: Folder, id: String) -> Result<Message, Status> {
        // What is not known is no path.
        let path = self.with(&user, folder, |path, entries| {
            let is_known = entries.iter().any(|entry| entry.summary.id == id);
            is_known
                .then(|| path.join(&id))
                .ok_or_else(|| Status::not_found("there is no such mail"))
        })?;
        // A file that is gone is a status that says so.
        let bytes = std::fs::read(&path)?;
        Ok(Message { id, bytes })
    }

    fn store(&self, user: String, folder: Folder, message: Message) -> Result<(), Status> {
        let Message { id, bytes } = message;
        if !id.strip_suffix(".eml").is_some_and(is_name) {
            return Err(Status::invalid_argument(format!("{id:?} is no id")));
        }
        if bytes.len() > MOST_BYTES {
            return Err(Status::resource_exhausted(format!(
                "a mail has at most {MOST_BYTES} bytes"
            )));
        }
        self.with(&user, folder, |path, entries| {
            if entries.len() >= MOST_MAILS {
                return Err(Status::resource_exhausted("the mailbox is full"));
            }
            if entries.iter().any(|entry| entry.summary.id == id) {
                return Ok(()); // it came before
            }
            files::write(&path.join(&id), &bytes).map_err(internal)?;
            let entry = Entry::new(id, &bytes);
            let at = entries.partition_point(|other| other.order() < entry.order());
            entries.insert(at, entry);
            Ok(())
        })
    }
}

impl Entry {
    fn new(id: String, bytes: &[u8]) -> Self {
        let letter = Letter::read(bytes);
        let searched = format!(
            "{}\n{}\n{}\n{}\n{}",
            letter.from, letter.to, letter.copies, letter.subject, letter.text
        );
        let mut searched = searched.to_lowercase();
        searched.truncate(searched.floor_char_boundary(MOST_SEARCHED));
        let summary = Summary {
            id,
            begins: letter.begins(),
            attachments: letter.attachments.len() as u32,
            from: letter.from,
            to: letter.to,
            subject: letter.subject,
            sent_at: letter.sent_at,
        };
        Self { summary, searched }
    }

    /// Newer ones first; those without a date are the oldest.
    fn order(&self) -> Reverse<(Option<i64>, &str)> {
        Reverse((self.summary.sent_at, &self.summary.id))
    }
}

/// The mails of a folder. One that is too large, or that cannot be read, is left out.
fn read(folder: &Path) -> anyhow::Result<Vec<Entry>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for file in std::fs::read_dir(folder)?.take(MOST_MAILS) {
        let path = file?.path();
        let size = path.metadata().map_or(u64::MAX, |file| file.len());
        let id = path.file_name().and_then(|name| name.to_str());
        let Some(id) = id.filter(|_| is_mail(&path) && size <= MOST_BYTES as u64) else {
            continue;
        };
        match std::fs::read(&path) {
            Ok(bytes) => entries.push(Entry::new(id.to_owned(), &bytes)),
            Err(error) => eprintln!("{} can't be read: {error}", path.display()),
        }
    }
    entries.sort_by(|one, other| one.order().cmp(&other.order()));
    Ok(entries)
}

fn is_mail(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending))
}
