//! The program as it was first.

#[path = "../program.rs"]
mod program;

mod protos {
    include!(concat!(env!("OUT_DIR"), "/v1.rs"));
}

/// In MessagePack.
mod lending {
    use serde::{Deserialize, Serialize};
    use wallaby::Many;
    use wallaby::codec::MessagePack;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Loan {
        pub(crate) title: String,
    }

    #[wallaby::service(package = "library", codec = MessagePack)]
    pub(crate) trait Desk {
        /// Lends what is wished for, as the desks behind this one do.
        async fn lend(wish: Loan) -> Many<Loan>;
    }
}

use lending::Loan;
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
        wish: |title| Loan { title },
        lend: |wish| wish,
    })
    .await
}
