//! A page of mail by three services that know nothing of each other: mail, advertisements, layout. The client says what follows
//! what, sends one message, and gets one; each server sends one to the next.
//!
//! ```text
//! cargo run -p wallaby-chain --example page
//! ```

use wallaby::{Address, Endpoint, Service};
use wallaby_chain::{Chains, Hop, State, Step, start};

#[wallaby::service(package = "example")]
trait Mail {
    async fn fetch(number: u32) -> String;
}

#[wallaby::service(package = "example")]
trait Ads {
    async fn choose(word: String) -> String;
}

#[wallaby::service(package = "example")]
trait Layout {
    async fn columns(left: String, right: String) -> String;
}

struct Server;

#[wallaby::serve]
impl Mail for Server {
    async fn fetch(&self, number: u32) -> String {
        format!("Mail {number}: let us talk about wallabies")
    }
}

#[wallaby::serve]
impl Ads for Server {
    async fn choose(&self, word: String) -> String {
        format!("Everything for your {word}!")
    }
}

#[wallaby::serve]
impl Layout for Server {
    async fn columns(&self, left: String, right: String) -> String {
        format!("{left} | {right}")
    }
}

/// The glue, of which the services need none.
fn glue() -> Chains {
    Chains::new()
        .function("advertise", |state, mail| {
            let mail: String = mail.read()?;
            let word = mail.rsplit(' ').next().unwrap_or_default().to_owned();
            let ads: Address = state.get("ads")?;
            let state = state.with("mail", &mail)?;
            Ok(Hop::to(ads, &ads::CHOOSE, (word,))
                .then("lay out", state)
                .into())
        })
        .function("lay out", |state, ad| {
            let layout: Address = state.get("layout")?;
            let columns = (state.get("mail")?, ad.read()?);
            Ok(Step::from(Hop::to(layout, &layout::COLUMNS, columns)))
        })
}

async fn serve(service: Service) -> Result<Endpoint, wallaby::BindError> {
    let builder = glue().add_to(Endpoint::builder().serve(service));
    builder.listen("tcp://127.0.0.1:0").bind().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mail = serve(mail::service(Server)).await?;
    let ads = serve(ads::service(Server)).await?;
    let layout = serve(layout::service(Server)).await?;
    let client = Endpoint::bind("tcp://127.0.0.1:0").await?;
    let at = |server: &Endpoint| server.address().cloned().ok_or("it listens");

    let state = State::new()
        .with("ads", &at(&ads)?)?
        .with("layout", &at(&layout)?)?;
    let first = Hop::to(at(&mail)?, &mail::FETCH, (7,)).then("advertise", state);
    let page = start::<String>(first).call(client.caller())?.await?;

    println!("{page}");
    for (name, endpoint) in [
        ("client", &client),
        ("mail", &mail),
        ("ads", &ads),
        ("layout", &layout),
    ] {
        println!(
            "{name} has sent {} message",
            endpoint.metrics().messages_sent
        );
    }
    Ok(())
}
