//! Two servers and a client with mutual TLS in one program; the certificates are made on the fly.
//!
//! The client asks the front server, which forwards to the back one; that one answers the client directly. The back server takes
//! requests only of the front server, by the name in its certificate.
//!
//! ```text
//! cargo run -p wallaby-tls --example mutual
//! ```

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use wallaby::transport::Name;
use wallaby::{Address, Code, Endpoint, One, Request, Status};
use wallaby_tls::Tls;

/// Says who asks.
#[wallaby::service(package = "example")]
trait Greeter {
    async fn greet(who: String) -> String;
}

struct Front {
    back: Address,
}

struct Back;

#[wallaby::serve]
impl Greeter for Front {
    async fn greet(&self, request: Request<One<String>>, who: String) -> Result<(), Status> {
        println!("front: asked by {}", request.identity());
        Ok(request.forward(&self.back, greeter::greet(who)).await?)
    }
}

#[wallaby::serve]
impl Greeter for Back {
    async fn greet(&self, request: Request<One<String>>, who: String) -> Result<(), Status> {
        println!("back: asked by {}", request.identity());
        let front = Name::Dns("front.example".into());
        if !request.identity().names().contains(&front) {
            let why = format!("not for {}", request.identity());
            return Err(Status::new(Code::PermissionDenied, why));
        }
        Ok(request.respond(format!("hello, {who}")).await?)
    }
}

/// Writes a certificate for this name and `localhost`, its key, and the root that has signed it.
fn issue(
    folder: &Path,
    name: &str,
    root: &(Issuer<'static, KeyPair>, String),
) -> Result<Arc<Tls>, Box<dyn std::error::Error>> {
    let params = CertificateParams::new(vec!["localhost".into(), format!("{name}.example")])?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &root.0)?;
    let file = |end: &str| folder.join(format!("{name}.{end}"));
    std::fs::write(file("root"), &root.1)?;
    std::fs::write(file("pem"), certificate.pem())?;
    std::fs::write(file("key"), key.serialize_pem())?;
    let tls = Tls::builder().roots_file(file("root"));
    Ok(tls
        .certificate_files(file("pem"), file("key"))
        .mutual()
        .build()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("wallaby-mutual-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let pem = authority.self_signed(&key)?.pem();
    let root = (Issuer::new(authority, key), pem);

    let listen = async |name: &str| {
        let tls = issue(&folder, name, &root)?;
        let endpoint = Endpoint::builder()
            .transport(tls)
            .listen("tls://localhost:0");
        Ok::<_, Box<dyn std::error::Error>>(endpoint.bind().await?)
    };
    let back = listen("back").await?;
    back.serve(greeter::service(Back))?;
    let front = listen("front").await?;
    let address = |endpoint: &Endpoint| endpoint.address().cloned().ok_or("it listens");
    front.serve(greeter::service(Front {
        back: address(&back)?,
    }))?;
    let client = listen("client").await?;

    let answer = greeter::at(&client, address(&front)?)
        .greet("client".into())
        .await?;
    println!("client: {answer}");
    let refused = greeter::at(&client, address(&back)?)
        .greet("client".into())
        .await;
    println!(
        "client, asking the back server itself: {}",
        refused.err().ok_or("it refuses")?
    );
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
