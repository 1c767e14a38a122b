//! The program as it is now: books have years, and some are there to be heard.

#[path = "../program.rs"]
mod program;

mod protos {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}

/// In MessagePack: loans have a time, and who asks may have a card.
mod lending {
    use serde::{Deserialize, Serialize};
    use wallaby::Many;
    use wallaby::codec::MessagePack;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Loan {
        pub(crate) days: Option<u16>,
        #[serde(default)]
        pub(crate) card: Card,
        pub(crate) title: String,
    }

    #[derive(Debug, Clone, Default, Serialize, Deserialize)]
    pub(crate) enum Card {
        #[default]
        None,
        Number(u32),
    }

    #[wallaby::service(package = "library", codec = MessagePack)]
    pub(crate) trait Desk {
        /// Lends what is wished for, as the desks behind this one do.
        async fn lend(wish: Loan) -> Many<Loan>;
    }
}

use lending::{Card, Loan};
use program::Version;
use protos::library::{Book, Format, Query};

fn books() -> Vec<Book> {
    let book = |title: &str, format: Format, year| Book {
        title: title.into(),
        format: format.into(),
        year: Some(year),
    };
    vec![
        book("Hop and Skip", Format::Paper, 1971),
        book("Audio Hops", Format::Audio, 1999),
    ]
}

fn fits(book: &Book, query: &Query) -> bool {
    let is_new = book.year.is_none_or(|year| year >= query.since);
    is_new && book.title.to_lowercase().contains(&query.word)
}

fn text(book: &Book) -> String {
    let year = book.year.map_or("no year".into(), |year| year.to_string());
    format!("{}: {:?}, {year}", book.title, book.format())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    program::run(Version {
        books,
        query: |word| Query { word, since: 1980 },
        fits,
        text,
        wish: |title| Loan {
            days: None,
            card: Card::Number(7),
            title,
        },
        lend: |wish| Loan {
            days: Some(match wish.card {
                Card::None => 7,
                Card::Number(_) => 28,
            }),
            ..wish
        },
    })
    .await
}
