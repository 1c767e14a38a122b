//! The pages. What is put into one is escaped; no script is needed, or would run.

use crate::http::SHOWN;
use crate::letter::{Letter, day};
use crate::services::{Contact, Draft, Folder, Listing, Owned, Query, Reading, Summary};
use crate::web::LISTED;
use maud::{DOCTYPE, Markup, html};

/// How they look.
pub(crate) const STYLE: &str = include_str!("style.css");
/// What stands for them.
pub(crate) const ICON: &str = include_str!("icon.svg");

/// Where somebody logs in; `why` it did not work before.
pub(crate) fn login(name: &str, why: &str) -> Markup {
    let form = html! {
        main.narrow {
            h1 { "Wallaby Mail" }
            form.card method="post" action="/login" {
                (told(why))
                label for="name" { "Name" }
                input #name name="name" value=(name) required autofocus
                    autocomplete="username" autocapitalize="none" spellcheck="false";
                label for="password" { "Password" }
                input #password name="password" type="password" required autocomplete="current-password";
                button type="submit" { "Log in" }
            }
        }
    };
    bare("Log in", form)
}

/// What went wrong.
pub(crate) fn trouble(text: &str) -> Markup {
    let text = html! {
        main.narrow {
            h1 { "Wallaby Mail" }
            div.card {
                p.told role="alert" { (text) }
                p { a href="/inbox" { "To the inbox" } }
            }
        }
    };
    bare("Sorry", text)
}

/// The mails of a folder.
pub(crate) fn list(token: &str, listing: &Owned<Listing>, query: &Query, number: u32) -> Markup {
    let Listing { total, mails } = &listing.what;
    let (words, folder) = (&query.words, query.folder.word());
    let title = match query.folder {
        Folder::Inbox => "Inbox",
        Folder::Sent => "Sent",
    };
    let other = |number: u32| {
        address(
            &format!("/{folder}"),
            &[("words", words), ("page", &number.to_string())],
        )
    };
    let list = html! {
        div.head {
            h1 { (title) }
            p.count {
                (total) @if *total == 1 { " mail" } @else { " mails" }
                @if !words.is_empty() { " with “" (words) "” · " a href={"/" (folder)} { "show all" } }
            }
        }
        @if mails.is_empty() {
            p.empty { @if words.is_empty() { "There is nothing here." } @else { "Nothing was found." } }
        } @else {
            ul.mails { @for mail in mails { li { (row(mail, query.folder)) } } }
        }
        @if *total > LISTED {
            nav.pages aria-label="Pages" {
                @if number > 1 { a rel="prev" href=(other(number - 1)) { "← newer" } }
                span { "page " (number) " of " (total.div_ceil(LISTED)) }
                @if number < total.div_ceil(LISTED) { a rel="next" href=(other(number + 1)) { "older →" } }
            }
        }
    };
    full(title, token, &listing.owner, folder, words, list)
}

fn row(mail: &Summary, folder: Folder) -> Markup {
    let place = address("/mail", &[("folder", folder.word()), ("id", &mail.id)]);
    let who = match folder {
        Folder::Inbox => name(&mail.from),
        Folder::Sent => &mail.to,
    };
    html! {
        a.mail href=(place) {
            span.who { (or(who, "(nobody)")) }
            span.what {
                span.subject { (or(&mail.subject, "(no subject)")) }
                " "
                span.begins { (mail.begins) }
            }
            span.when {
                @match mail.attachments { 0 => {}, 1 => { "1 file · " }, files => { (files) " files · " } }
                @if let Some(sent_at) = mail.sent_at { (day(sent_at)) }
            }
        }
    }
}

/// A mail.
pub(crate) fn read(
    token: &str,
    reading: &Owned<Reading>,
    folder: Folder,
    letter: &Letter,
) -> Markup {
    let id = &reading.what.message.id;
    let at = |path: &str, more: &[(&str, &str)]| {
        address(
            path,
            &[&[("folder", folder.word()), ("id", id)], more].concat(),
        )
    };
    let subject = or(&letter.subject, "(no subject)");
    let mail = html! {
        article.letter {
            h1 { (subject) }
            header {
                span.avatar aria-hidden="true" { (initial(&letter.from)) }
                dl {
                    dt { "From" } dd.from { (or(&letter.from, "(nobody)")) }
                    dt { "To" } dd { (or(&letter.to, "(nobody)")) }
                    @if !letter.copies.is_empty() { dt { "Cc" } dd { (letter.copies) } }
                    @if !letter.date.is_empty() { dt { "Date" } dd { (letter.date) } }
                }
            }
            div.text { (text(&letter.text)) }
            @if !letter.attachments.is_empty() {
                section.attachments aria-label="Attachments" {
                    @for attachment in &letter.attachments {
                        @let place = at("/attachment", &[("part", &attachment.number.to_string())]);
                        a href=(place) {
                            @if SHOWN.contains(&&*attachment.kind) { img src=(place) alt=""; }
                            span { (attachment.name) }
                            small { (size(attachment.size)) }
                        }
                    }
                }
            }
            p.actions {
                a.button href=(at("/write", &[])) { "Answer" }
                a href=(at("/attachment", &[("part", "all")])) { "Save as a file" }
            }
        }
        @if !reading.what.ads.is_empty() {
            aside.ads aria-label="Advertisements" {
                @for ad in &reading.what.ads {
                    div { strong { (ad.title) } p { (ad.text) } }
                }
                small { "Advertisements" }
            }
        }
    };
    full(subject, token, &reading.owner, folder.word(), "", mail)
}

/// A mail that is being written; `why` it was not sent.
pub(crate) fn write(
    token: &str,
    contacts: &Owned<Vec<Contact>>,
    draft: &Draft,
    why: &str,
) -> Markup {
    let form = html! {
        h1 { "New mail" }
        form.card method="post" action="/write" {
            (told(why))
            (hidden(token))
            label for="to" { "To" }
            input #to name="to" value=(draft.to) required list="contacts" autocomplete="off" autofocus[draft.to.is_empty()];
            datalist #contacts {
                @for contact in &contacts.what { option value=(contact.address) { (contact.name) } }
            }
            label for="subject" { "Subject" }
            input #subject name="subject" value=(draft.subject) maxlength="300" autocomplete="off";
            label for="text" { "Text" }
            // HTML drops a line's end that comes first.
            textarea #text name="text" rows="16" autofocus[!draft.to.is_empty()] { "\n" (draft.text) }
            button type="submit" { "Send" }
        }
    };
    full("New mail", token, &contacts.owner, "write", "", form)
}

/// The address book; `why` somebody was not taken into it.
pub(crate) fn book(
    token: &str,
    contacts: &Owned<Vec<Contact>>,
    why: &str,
    wanted: &Contact,
) -> Markup {
    let book = html! {
        h1 { "Addresses" }
        @if contacts.what.is_empty() { p.empty { "There is nobody yet." } }
        ul.contacts {
            @for contact in &contacts.what {
                li {
                    span.avatar aria-hidden="true" { (initial(&contact.name)) }
                    span.who { (contact.name) br; small { (contact.address) } }
                    a.button href=(address("/write", &[("to", &contact.address)])) { "Write" }
                    form method="post" action="/book/remove" {
                        (hidden(token))
                        input type="hidden" name="address" value=(contact.address);
                        button.quiet type="submit" aria-label={"Remove " (contact.name)} { "Remove" }
                    }
                }
            }
        }
        form.card method="post" action="/book" {
            (told(why))
            (hidden(token))
            label for="name" { "Name" }
            input #name name="name" value=(wanted.name) required maxlength="200" autocomplete="off";
            label for="address" { "Address" }
            input #address name="address" value=(wanted.address) required maxlength="200" autocomplete="off" spellcheck="false";
            button type="submit" { "Add" }
        }
    };
    full("Addresses", token, &contacts.owner, "book", "", book)
}

fn full(title: &str, token: &str, user: &str, here: &str, words: &str, inside: Markup) -> Markup {
    let folder = if here == "sent" { "sent" } else { "inbox" };
    let links = [("inbox", "Inbox"), ("sent", "Sent"), ("book", "Addresses")];
    let page = html! {
        header.top {
            a.brand href="/inbox" { "Wallaby Mail" }
            form.search action={"/" (folder)} role="search" {
                input type="search" name="words" value=(words) placeholder={"Search in " (folder)} aria-label="Search";
            }
            form.user method="post" action="/logout" {
                (hidden(token))
                span { (user) }
                button.quiet type="submit" { "Log out" }
            }
        }
        div.body {
            nav.side aria-label="Folders" {
                a.button href="/write" { "Write" }
                @for (place, text) in links {
                    a href={"/" (place)} aria-current=[(here == place).then_some("page")] { (text) }
                }
            }
            main { (inside) }
        }
    };
    bare(title, page)
}

fn bare(title: &str, inside: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Wallaby Mail" }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="/icon.svg";
            }
            body { (inside) }
        }
    }
}

/// Text with what is quoted in it set apart.
fn text(text: &str) -> Markup {
    let lines: Vec<&str> = text.trim_matches(['\n', '\r']).lines().collect();
    let blocks = lines.chunk_by(|one, next| one.starts_with('>') == next.starts_with('>'));
    html! {
        @for block in blocks {
            @if block[0].starts_with('>') {
                @let inside: Vec<&str> = block.iter().map(|line| line[1..].trim_start_matches(' ')).collect();
                div.quoted { (inside.join("\n")) }
            } @else {
                div { (block.join("\n").trim_matches('\n')) }
            }
        }
    }
}

fn told(why: &str) -> Markup {
    html! { @if !why.is_empty() { p.told role="alert" { (why) } } }
}

fn hidden(token: &str) -> Markup {
    html! { input type="hidden" name="token" value=(token); }
}

/// An address of a page.
fn address(path: &str, fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    format!("{path}?{}", query.finish())
}

/// Somebody without the address.
fn name(person: &str) -> &str {
    let name = person.split(" <").next().unwrap_or(person);
    or(name.trim_matches(['"', '\'', ' ']), person)
}

fn initial(name: &str) -> char {
    let letter = name.chars().find(|c| c.is_alphanumeric());
    letter
        .and_then(|letter| letter.to_uppercase().next())
        .unwrap_or('?')
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
