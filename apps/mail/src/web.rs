//! The web server: pages and forms. It vouches for nobody: other servers ask whose the browser's token is.

use crate::auth::away;
use crate::http::{self, Answer, Visit, go_to, page, with_session};
use crate::letter::{Letter, part};
use crate::mail::By;
use crate::page;
use crate::process::{Directory, Role, Settings};
use crate::secret::{Secret, Token};
use crate::services::{Contact, Draft, Folder, Owned, Query, Refusal, auth, book, mail};
use ::http::{Method, StatusCode};
use maud::Markup;
use std::sync::Arc;
use tokio::net::TcpListener;
use wallaby::{CallError, Code, Endpoint};

/// Mails of a page.
pub(crate) const LISTED: u32 = 50;

/// What the pages need.
#[derive(Debug)]
pub(crate) struct Site {
    auth: auth::Client,
    book: book::Client,
    mail: mail::Client,
    by: By,
    /// Cookies are for HTTPS alone.
    https: bool,
}

/// Why there is no page.
enum Trouble {
    /// Nobody is logged in.
    Stranger,
    /// A page that says so.
    Told(StatusCode, String),
}

/// What a server says, or why it does not.
fn said<T>(server: &str, answer: Result<T, CallError>) -> Result<T, Trouble> {
    answer.map_err(|error| {
        let status = away(server, error);
        let sorry = format!("Sorry: {}.", status.message());
        match status.code() {
            Code::Unauthenticated => Trouble::Stranger,
            Code::NotFound => missing("mail"),
            Code::FailedPrecondition | Code::ResourceExhausted => {
                Trouble::Told(StatusCode::SERVICE_UNAVAILABLE, sorry)
            }
            _ => Trouble::Told(StatusCode::INTERNAL_SERVER_ERROR, sorry),
        }
    })
}

impl Site {
    /// One that calls others from this endpoint.
    pub(crate) fn new(
        endpoint: Endpoint,
        others: &Directory,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            auth: auth::at(&endpoint, &others.of(Role::Auth)?),
            book: book::at(&endpoint, &others.of(Role::Book)?),
            mail: mail::at(&endpoint, &others.of(Role::Mail)?),
            by: settings.by,
            https: settings.https,
        })
    }

    /// Serves it, as long as this is polled.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let site = Arc::new(self);
        http::serve(listener, move |visit| {
            let site = Arc::clone(&site);
            async move { site.answer(visit).await }
        })
        .await;
    }

    async fn answer(&self, visit: Visit) -> Answer {
        match self.answered(&visit).await {
            Ok(answer) => answer,
            Err(Trouble::Stranger) => with_session(go_to("/login"), None, self.https),
            Err(Trouble::Told(status, text)) => page(status, page::trouble(&text)),
        }
    }

    async fn answered(&self, visit: &Visit) -> Result<Answer, Trouble> {
        let is_form = visit.method == Method::POST;
        match (&*visit.path, is_form) {
            ("/style.css", false) => {
                return Ok(http::fixed("text/css; charset=utf-8", page::STYLE));
            }
            ("/icon.svg", false) => return Ok(http::fixed("image/svg+xml", page::ICON)),
            ("/login", false) => return shown(page::login("", "")),
            ("/login", true) => return self.login(visit).await,
            _ => {}
        }
        let token = visit.token.as_ref().ok_or(Trouble::Stranger)?;
        if is_form && !token.fits(visit.form.of("token")) {
            let why = "This form is too old, or not ours. Please try again.";
            return Err(Trouble::Told(StatusCode::FORBIDDEN, why.into()));
        }
        match (&*visit.path, is_form) {
            ("/", false) => Ok(go_to("/inbox")),
            ("/inbox", false) => self.list(visit, token, Folder::Inbox).await,
            ("/sent", false) => self.list(visit, token, Folder::Sent).await,
            ("/mail", false) => self.read(visit, token).await,
            ("/attachment", false) => self.attachment(visit, token).await,
            ("/write", false) => self.write(visit, token).await,
            ("/write", true) => self.send(visit, token).await,
            ("/book", false) => self.contacts(token, "", &Contact::default()).await,
            ("/book", true) => self.put_contact(visit, token).await,
            ("/book/remove", true) => {
                let address = visit.form.of("address").to_owned();
                said(
                    "address book",
                    self.book.remove(token.clone(), address).await,
                )?;
                Ok(go_to("/book"))
            }
            ("/logout", true) => {
                said("authentication", self.auth.logout(token.clone()).await)?;
                Err(Trouble::Stranger)
            }
            _ => Err(missing("page")),
        }
    }

    async fn login(&self, visit: &Visit) -> Result<Answer, Trouble> {
        let (name, password) = (visit.form.of("name"), visit.form.of("password"));
        let (wanted, from) = (Secret(password.to_owned()), visit.from.to_string());
        let why = match said(
            "authentication",
            self.auth.login(name.to_owned(), wanted, from).await,
        )? {
            Ok(token) => {
                if let Some(old) = &visit.token {
                    said("authentication", self.auth.logout(old.clone()).await)?;
                }
                return Ok(with_session(go_to("/inbox"), Some(&token), self.https));
            }
            Err(Refusal::Wrong) => "The name or the password is wrong.".to_owned(),
            Err(Refusal::TooMany { wait_seconds }) => {
                let minutes = wait_seconds.div_ceil(60);
                format!("There were too many attempts. Try again in {minutes} min.")
            }
        };
        Ok(page(StatusCode::FORBIDDEN, page::login(name, &why)))
    }

    async fn list(&self, visit: &Visit, token: &Token, folder: Folder) -> Result<Answer, Trouble> {
        let number = visit.query.of("page").parse().unwrap_or(1).clamp(1, 10_000);
        let query = Query {
            folder,
            words: visit.query.of("words").to_owned(),
            skip: (number - 1) * LISTED,
            most: LISTED,
        };
        let listing = said("mail", self.mail.list(token.clone(), query.clone()).await)?;
        shown(page::list(&token.form(), &listing, &query, number))
    }

    async fn read(&self, visit: &Visit, token: &Token) -> Result<Answer, Trouble> {
        let (folder, id) = place(visit)?;
        let reading = said(
            "mail",
            self.mail.read(token.clone(), folder, id, self.by).await,
        )?;
        let letter = Letter::read(&reading.what.message.bytes);
        shown(page::read(&token.form(), &reading, folder, &letter))
    }

    async fn attachment(&self, visit: &Visit, token: &Token) -> Result<Answer, Trouble> {
        let (folder, id) = place(visit)?;
        let Owned { what: message, .. } =
            said("mail", self.mail.fetch(token.clone(), folder, id).await)?;
        // The mail itself, as it is.
        if visit.query.of("part") == "all" {
            return Ok(http::file(&message.id, "message/rfc822", message.bytes));
        }
        let number = visit.query.of("part").parse().ok();
        let found = number.and_then(|number| part(&message.bytes, number));
        let (attachment, bytes) = found.ok_or_else(|| missing("attachment"))?;
        Ok(http::file(&attachment.name, &attachment.kind, bytes))
    }

    async fn write(&self, visit: &Visit, token: &Token) -> Result<Answer, Trouble> {
        let mut draft = Draft {
            to: visit.query.of("to").to_owned(),
            ..Draft::default()
        };
        if !visit.query.of("id").is_empty() {
            let (folder, id) = place(visit)?;
            let fetched = said("mail", self.mail.fetch(token.clone(), folder, id).await)?;
            draft = reply(&Letter::read(&fetched.what.bytes));
        }
        self.draft(token, &draft, StatusCode::OK, "").await
    }

    async fn draft(
        &self,
        token: &Token,
        draft: &Draft,
        status: StatusCode,
        why: &str,
    ) -> Result<Answer, Trouble> {
        let contacts = said("address book", self.book.contacts(token.clone()).await)?;
        let text = page::write(&token.form(), &contacts, draft, why);
        Ok(page(status, text))
    }

    /// What cannot be sent stays on the page.
    async fn send(&self, visit: &Visit, token: &Token) -> Result<Answer, Trouble> {
        let field = |name| visit.form.of(name).to_owned();
        let (to, subject, text) = (field("to"), field("subject"), field("text"));
        let draft = Draft { to, subject, text };
        let sent = self.mail.send(token.clone(), draft.clone()).await;
        let (status, why) = match said("mail", sent) {
            Ok(Ok(())) => return Ok(go_to("/sent")),
            Ok(Err(why)) => (StatusCode::BAD_REQUEST, why),
            Err(Trouble::Told(status, why)) => (status, why),
            Err(Trouble::Stranger) => return Err(Trouble::Stranger),
        };
        self.draft(token, &draft, status, &why).await
    }

    async fn contacts(
        &self,
        token: &Token,
        why: &str,
        wanted: &Contact,
    ) -> Result<Answer, Trouble> {
        let contacts = said("address book", self.book.contacts(token.clone()).await)?;
        let status = if why.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::BAD_REQUEST
        };
        let text = page::book(&token.form(), &contacts, why, wanted);
        Ok(page(status, text))
    }

    async fn put_contact(&self, visit: &Visit, token: &Token) -> Result<Answer, Trouble> {
        let contact = Contact {
            name: visit.form.of("name").trim().to_owned(),
            address: visit.form.of("address").trim().to_owned(),
        };
        match said(
            "address book",
            self.book.put(token.clone(), contact.clone()).await,
        )? {
            Ok(()) => Ok(go_to("/book")),
            Err(why) => self.contacts(token, &why, &contact).await,
        }
    }
}

fn shown(text: Markup) -> Result<Answer, Trouble> {
    Ok(page(StatusCode::OK, text))
}

fn missing(what: &str) -> Trouble {
    Trouble::Told(StatusCode::NOT_FOUND, format!("There is no such {what}."))
}

/// Which mail is meant.
fn place(visit: &Visit) -> Result<(Folder, String), Trouble> {
    let folder = Folder::of(visit.query.of("folder"));
    Ok((
        folder.ok_or_else(|| missing("folder"))?,
        visit.query.of("id").to_owned(),
    ))
}

/// What an answer to a letter begins with.
fn reply(letter: &Letter) -> Draft {
    const MOST_LINES: usize = 200;
    let subject = match letter.subject.to_lowercase().starts_with("re:") {
        true => letter.subject.clone(),
        false => format!("Re: {}", letter.subject),
    };
    let lines = letter.text.lines().take(MOST_LINES);
    let quoted: Vec<String> = lines.map(|line| format!("> {line}")).collect();
    Draft {
        to: letter.answer_to.clone(),
        subject,
        text: format!("\n\n{} wrote:\n{}\n", letter.from, quoted.join("\n")),
    }
}
