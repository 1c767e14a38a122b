//! A mail as people read it, of bytes that may be anything.

use mail_parser::{
    Address, DateTime, HeaderName, HeaderValue, Message, MessageParser, MessagePart, MimeHeaders,
    PartType,
};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A mail as it is shown. All of it is text: nothing in it is to be taken for HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Letter {
    /// Who has sent it.
    pub(crate) from: String,
    /// The address that an answer goes to.
    pub(crate) answer_to: String,
    /// Who gets it.
    pub(crate) to: String,
    /// And who else.
    pub(crate) copies: String,
    /// What it is about.
    pub(crate) subject: String,
    /// When it was sent, as seconds since 1970, as far as that can be read.
    pub(crate) sent_at: Option<i64>,
    /// The same where it was sent, for people.
    pub(crate) date: String,
    /// What it says. HTML was made text.
    pub(crate) text: String,
    /// What is attached.
    pub(crate) attachments: Vec<Attachment>,
}

/// A part of a mail that is not shown as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Its number, by which [`part`] finds it.
    pub(crate) number: usize,
    /// What its file is called.
    pub(crate) name: String,
    /// What it is, as in `image/png`; who has sent the mail says so.
    pub(crate) kind: String,
    /// How many bytes it has.
    pub(crate) size: usize,
}

/// Bytes of text that are shown; the rest is in the mail as it is.
const MOST_TEXT: usize = 256 << 10;
/// Characters of a line of the head.
const MOST_LINE: usize = 500;
/// Mails inside each other that are looked into.
const MOST_LEVELS: u32 = 3;
/// Attachments that are shown.
const MOST_ATTACHMENTS: usize = 100;

impl Letter {
    /// Reads a mail as well as it can be. What cannot be taken apart is shown as it is.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        parsed(bytes, Self::of).unwrap_or_else(|| Self {
            subject: "(unreadable)".to_owned(),
            text: bounded(&String::from_utf8_lossy(bytes)),
            ..Self::default()
        })
    }

    fn of(mail: &Message<'_>) -> Self {
        let date = mail.date().filter(|date| date.is_valid());
        let mut text = text(mail, MOST_LEVELS);
        if text.is_empty() && mail.attachment_count() == 0 {
            text = behind_head(mail.raw_message());
        }
        let answer_to = mail.reply_to().or(mail.from());
        let answer_to = answer_to.and_then(|to| to.iter().find_map(|to| to.address()));
        Self {
            from: people(mail, HeaderName::From),
            answer_to: answer_to.map(line).unwrap_or_default(),
            to: people(mail, HeaderName::To),
            copies: people(mail, HeaderName::Cc),
            subject: mail.subject().map(line).unwrap_or_default(),
            sent_at: date.map(DateTime::to_timestamp),
            date: date.map_or_else(|| raw(mail, HeaderName::Date), DateTime::to_rfc822),
            text: bounded(&text),
            attachments: attachments(mail),
        }
    }

    /// How it begins, for a list of mails.
    pub(crate) fn begins(&self) -> String {
        let words = self.text.split_whitespace();
        let words = words.filter(|word| !word.starts_with('>')).take(30);
        let words: Vec<&str> = words.collect();
        words.join(" ").chars().take(140).collect()
    }
}

/// An attachment with its bytes.
pub(crate) fn part(bytes: &[u8], number: usize) -> Option<(Attachment, Vec<u8>)> {
    let part = parsed(bytes, |mail| {
        let attachment = attachments(mail).into_iter().nth(number)?;
        Some((
            attachment,
            mail.attachments().nth(number)?.contents().to_vec(),
        ))
    });
    part.flatten()
}

/// A day for people, of seconds since 1970.
pub(crate) fn day(sent_at: i64) -> String {
    let date = DateTime::from_timestamp(sent_at).to_rfc822();
    let words = date.split(' ').skip(1).take(3);
    words.collect::<Vec<_>>().join(" ")
}

/// What `look` finds in the mail, unless the parser, which is not ours, fails on it.
fn parsed<T>(bytes: &[u8], look: impl FnOnce(&Message<'_>) -> T) -> Option<T> {
    let mail = catch_unwind(|| MessageParser::default().parse(bytes)).ok()??;
    let found = catch_unwind(AssertUnwindSafe(|| look(&mail))).ok();
    // To drop thousands of mails inside each other at once would take too much of the stack.
    let mut mails = vec![mail];
    while let Some(mail) = mails.pop() {
        mails.extend(mail.parts.into_iter().filter_map(|part| match part.body {
            PartType::Message(inside) => Some(inside),
            _ => None,
        }));
    }
    found
}

fn people(mail: &Message<'_>, header: HeaderName<'_>) -> String {
    let people = match mail.header(header.clone()) {
        Some(HeaderValue::Address(address)) => names(address),
        _ => String::new(),
    };
    match people.is_empty() {
        true => raw(mail, header),
        false => people,
    }
}

fn names(address: &Address<'_>) -> String {
    let people = address.iter().filter_map(|person| {
        Some(match (person.name(), person.address()) {
            (Some(name), Some(address)) => format!("{} <{}>", line(name), line(address)),
            (Some(one), None) | (None, Some(one)) => line(one),
            (None, None) => return None,
        })
    });
    line(&people.take(50).collect::<Vec<_>>().join(", "))
}

/// A line of the head as it is, where it means nothing.
fn raw(mail: &Message<'_>, header: HeaderName<'_>) -> String {
    mail.header_raw(header).map(line).unwrap_or_default()
}

/// What a mail says; if nothing itself, then what mails and nameless texts inside it say, so many levels deep.
fn text(mail: &Message<'_>, levels: u32) -> String {
    let parts = (0..mail.text_body_count()).filter_map(|number| mail.body_text(number));
    let parts: Vec<Cow<'_, str>> = parts.filter(|text| !text.trim().is_empty()).collect();
    if !parts.is_empty() || levels == 0 {
        return parts.join("\n\n");
    }
    let inside = mail.attachments().take(MOST_ATTACHMENTS);
    let inside = inside.filter_map(|part| match &part.body {
        PartType::Message(mail) => {
            let (from, subject) = (people(mail, HeaderName::From), mail.subject().map(line));
            let head = format!("{from}: {}", subject.unwrap_or_default());
            Some(format!("{head}\n\n{}", text(mail, levels - 1)))
        }
        PartType::Text(text) if part.attachment_name().is_none() => Some(text.to_string()),
        _ => None,
    });
    inside.collect::<Vec<_>>().join("\n\n")
}

/// What stands behind the first empty line; all, if there is none.
fn behind_head(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    match text.split_once("\n\n") {
        Some((_, behind)) => behind.to_owned(),
        None => text,
    }
}

fn attachments(mail: &Message<'_>) -> Vec<Attachment> {
    let parts = (0..).zip(mail.attachments()).take(MOST_ATTACHMENTS);
    let attachments = parts.map(|(number, part)| {
        let kind = kind(part);
        let name = part
            .attachment_name()
            .map(line)
            .filter(|name| !name.is_empty());
        Attachment {
            number,
            name: name.unwrap_or_else(|| format!("part {} ({kind})", number + 1)),
            size: part.contents().len(),
            kind,
        }
    });
    attachments.collect()
}

fn kind(part: &MessagePart<'_>) -> String {
    match (part.content_type(), &part.body) {
        (Some(kind), _) => {
            let kind = format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("*"));
            line(&kind.to_lowercase())
        }
        (None, PartType::Message(_)) => "message/rfc822".to_owned(),
        (None, _) => "text/plain".to_owned(),
    }
}

/// One line of text, and not a long one.
fn line(text: &str) -> String {
    let text = clean(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(MOST_LINE).collect()
}

fn bounded(text: &str) -> String {
    let text = clean(text).replace("\r\n", "\n");
    if text.len() <= MOST_TEXT {
        return text;
    }
    let shown = &text[..text.floor_char_boundary(MOST_TEXT)];
    format!("{shown}\n\n(The rest is not shown: the mail is too long.)")
}

/// Text without what would not be seen, and could make the rest look like something else: controls, and marks that turn the
/// direction of text.
fn clean(text: &str) -> String {
    let turns = ['\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    let is_seen = |c: char| {
        (!c.is_control() || c == '\n' || c == '\r' || c == '\t')
            && !turns.iter().any(|turns| turns.contains(&c))
    };
    text.chars().filter(|c| is_seen(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_read() {
        let letter = Letter::read(
            b"From: =?utf-8?Q?J=C3=B6rg?= <joerg@example.org>\r\nTo: anna@example.org\r\nDate: Fri, 07 Oct 1994 16:15:05 -0700\r\n\
              Subject: =?utf-8?B?SMOkbmRl?=\r\nContent-Type: text/html\r\n\r\n<p>one</p><script>alert(1)</script><p>two &lt;b&gt;</p>",
        );
        assert_eq!(letter.from, "J\u{f6}rg <joerg@example.org>");
        assert_eq!(letter.answer_to, "joerg@example.org");
        assert_eq!(letter.subject, "H\u{e4}nde");
        assert_eq!(letter.date, "Fri, 7 Oct 1994 16:15:05 -0700");
        assert_eq!(day(letter.sent_at.unwrap()), "7 Oct 1994");
        assert!(letter.text.contains("one") && letter.text.contains("two <b>"));
    }

    #[test]
    fn what_is_no_mail_is_shown_all_the_same() {
        for bytes in [
            &b""[..],
            b"\0\xff\xfe",
            b"no head\r\n\r\nno body",
            b"\r\n\r\n",
            b":",
        ] {
            let letter = Letter::read(bytes);
            assert!(letter.attachments.is_empty(), "{letter:?}");
        }
        let turned = Letter::read("Subject: bill \u{202e}fdp.exe\n\na\u{7}b".as_bytes());
        assert_eq!((&*turned.subject, &*turned.text), ("bill fdp.exe", "ab"));
        let long = format!(
            "Subject: {}\n\n{}",
            "x".repeat(100_000),
            "\u{e4}".repeat(MOST_TEXT)
        );
        let long = Letter::read(long.as_bytes());
        assert_eq!(long.subject.len(), MOST_LINE);
        assert!(long.text.len() < MOST_TEXT + 100 && long.text.ends_with("too long.)"));
        // Parts inside each other, deeper than anybody reads.
        let mut deep = String::new();
        for level in 0..20_000 {
            deep += &format!("Content-Type: multipart/mixed; boundary=b{level}\n\n--b{level}\n");
        }
        Letter::read(deep.as_bytes());
        Letter::read("Content-Type: message/rfc822\n\n".repeat(20_000).as_bytes());
        // An assertion of the parser's fails on this.
        let digest = "Content-Type: multipart/digest; boundary=1\n\n--1\n\nr\nContent-Type: message/rfc822\n\n\n--1--";
        Letter::read(digest.as_bytes());
    }

    #[test]
    fn a_mail_that_says_nothing_shows_what_is_inside() {
        let inside =
            b"Content-Type: message/rfc822\n\nFrom: eve@evil.example\nSubject: inner\n\nhello\n";
        assert_eq!(
            Letter::read(inside).text.trim(),
            "eve@evil.example: inner\n\nhello"
        );
        let endless = b"Subject: a head that does not end\n \n hello\n";
        assert!(Letter::read(endless).text.ends_with("hello\n"));
        assert_eq!(Letter::read(b"Subject: an empty mail\n\n").text, "");
        let unclosed = b"Content-Type: multipart/mixed; boundary=a\n\n--b\n\nhello\n";
        assert_eq!(Letter::read(unclosed).text.trim(), "--b\n\nhello");
    }

    #[test]
    fn attachments_are_found_by_their_numbers() {
        let mail = b"Content-Type: multipart/mixed; boundary=x\n\n--x\n\nhello\n--x\nContent-Type: IMAGE/PNG\n\
            Content-Disposition: attachment; filename=\"../a\\\"b.png\"\nContent-Transfer-Encoding: base64\n\niVBORw==\n--x--\n";
        let letter = Letter::read(mail);
        assert_eq!(letter.text.trim(), "hello");
        let (attachment, bytes) = part(mail, 0).unwrap();
        assert_eq!(letter.attachments, [attachment]);
        assert_eq!(
            (&*letter.attachments[0].kind, &bytes[..]),
            ("image/png", &b"\x89PNG"[..])
        );
        assert_eq!(part(mail, 1), None);
    }
}
