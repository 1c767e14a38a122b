//! The program as it is now: books have years, and some are there to be heard.

#[path = "../program.rs"]
mod program;

mod protos {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}

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
    })
    .await
}
