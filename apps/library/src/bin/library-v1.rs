//! The program as it was first.

#[path = "../program.rs"]
mod program;

mod protos {
    include!(concat!(env!("OUT_DIR"), "/v1.rs"));
}

use program::Version;
use protos::library::{Book, Format, Query};

fn books() -> Vec<Book> {
    vec![Book {
        title: "Hopping for Beginners".into(),
        format: Format::Paper.into(),
    }]
}

fn text(book: &Book) -> String {
    let format = Format::try_from(book.format);
    let format = format.map_or_else(|error| error.to_string(), |format| format!("{format:?}"));
    format!("{}: {format}", book.title)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    program::run(Version {
        books,
        query: |word| Query { word },
        fits: |book, query| book.title.to_lowercase().contains(&query.word),
        text,
    })
    .await
}
