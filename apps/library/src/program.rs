//! What both versions of the program have in common.

use std::env;
use std::error::Error;
use std::sync::Arc;

use wallaby::codec::{MessagePack, Protobuf};
use wallaby::{Address, Endpoint, Many, Request, Status, Streaming, items};

use crate::lending::{Desk, Loan, desk};
use crate::protos::library::{Book, Counted, Query, Shelf, shelf};

/// What they have not.
pub(crate) struct Version {
    /// The books of its shelves.
    pub(crate) books: fn() -> Vec<Book>,
    /// The question for books with this word.
    pub(crate) query: fn(String) -> Query,
    /// Whether a book is an answer.
    pub(crate) fits: fn(&Book, &Query) -> bool,
    /// A book in words.
    pub(crate) text: fn(&Book) -> String,
    /// Asks for a book.
    pub(crate) wish: fn(String) -> Loan,
    /// Lends what was asked for.
    pub(crate) lend: fn(Loan) -> Loan,
}

struct MyShelf {
    version: Version,
    next: Option<Address>,
}

#[wallaby::serve]
impl Shelf for MyShelf {
    async fn find(
        &self,
        request: Request<Many<Book>, Protobuf>,
        query: Query,
    ) -> Result<(), Status> {
        if let Some(next) = &self.next {
            request.delegate(next, shelf::find(query.clone())).await?;
        }
        for book in (self.version.books)() {
            if (self.version.fits)(&book, &query) {
                request.reply(book).await?;
            }
        }
        Ok(())
    }

    async fn count(&self, mut books: Streaming<Book, Protobuf>) -> Result<Counted, Status> {
        let mut counted = Counted::default();
        while let Some(book) = books.next().await {
            counted.books += u32::from(!book?.title.is_empty());
        }
        Ok(counted)
    }
}

#[wallaby::serve]
impl Desk for MyShelf {
    async fn lend(
        &self,
        request: Request<Many<Loan>, MessagePack>,
        loan: Loan,
    ) -> Result<(), Status> {
        if let Some(next) = &self.next {
            request.delegate(next, desk::lend(loan.clone())).await?;
        }
        Ok(request.respond((self.version.lend)(loan)).await?)
    }
}

/// Does what the command line says.
pub(crate) async fn run(version: Version) -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve"] => serve(version, None).await,
        ["serve", next] => serve(version, Some(next.parse()?)).await,
        ["find", server, word] => find(version, &server.parse()?, word).await,
        ["count", server] => count(version, &server.parse()?).await,
        ["lend", server, title] => lend(version, &server.parse()?, title).await,
        _ => Err(
            "expected: serve [NEXT], find SERVER WORD, count SERVER, or lend SERVER TITLE".into(),
        ),
    }
}

async fn serve(version: Version, next: Option<Address>) -> Result<(), Box<dyn Error>> {
    let shelf = Arc::new(MyShelf { version, next });
    let builder = Endpoint::builder().listen("tcp://127.0.0.1:0");
    let builder = builder.serve(shelf::service(Arc::clone(&shelf)));
    let endpoint = builder.serve(desk::service(shelf)).bind().await?;
    println!("{}", endpoint.address().ok_or("it listens")?);
    std::future::pending().await
}

async fn find(version: Version, server: &Address, word: &str) -> Result<(), Box<dyn Error>> {
    let client = Endpoint::client()?;
    let query = (version.query)(word.to_owned());
    let found = shelf::at(&client, server).find(query).collect().await?;
    let mut found: Vec<String> = found.iter().map(version.text).collect();
    found.sort();
    println!("{}", found.join("\n"));
    Ok(())
}

async fn count(version: Version, server: &Address) -> Result<(), Box<dyn Error>> {
    let client = Endpoint::client()?;
    let books = items((version.books)());
    let counted = shelf::at(&client, server).count(books).await?;
    println!("{} books", counted.books);
    Ok(())
}

async fn lend(version: Version, server: &Address, title: &str) -> Result<(), Box<dyn Error>> {
    let client = Endpoint::client()?;
    let wish = (version.wish)(title.to_owned());
    for loan in desk::at(&client, server).lend(wish).collect().await? {
        println!("{loan:?}");
    }
    Ok(())
}
