//! Addresses with hosts' names: looked up when they are dialled, by whoever dials them.

use crate::common::{Net, at, patience, service, sorted, work};
use wallaby::{Address, Code, ConnectError, DialPolicy, Endpoint, Many, Request, Service};

/// The address with the name of this host in place of its IP address.
fn named(endpoint: &Endpoint) -> Address {
    let address = at(endpoint).to_string();
    let (rest, port) = address.rsplit_once(':').expect("a port");
    let (scheme, _) = rest.split_once("://").expect("a scheme");
    let named = format!("{scheme}://localhost:{port}");
    named.parse().expect("a name is an address")
}

/// Answers, and hands on to the server named.
fn hops() -> Service {
    service().method(
        &work::MANY,
        |request: Request<Many<_>>, (next,): (String,)| async move {
            request.reply(format!("before {next}")).await?;
            if !next.is_empty() {
                let next: Address = next.parse().expect("an address");
                request.forward(next, work::many(String::new())).await?;
            }
            Ok(())
        },
    )
}

#[tokio::test]
async fn a_host_is_found_by_its_name_at_each_hop() {
    for net in [Net::tcp(), Net::udp()] {
        let (first, second) = (net.serve(hops()).await, net.serve(hops()).await);
        let client = net.client().await;
        let next = named(&second).to_string();
        let mut call = work::at(&client, named(&first)).many(next.clone());
        let (answers, statuses) = patience(sorted(&mut call)).await;
        let expected = ["before ".to_owned(), format!("before {next}")];
        assert_eq!((answers, statuses), (expected.to_vec(), vec![]));
    }
}

#[tokio::test]
async fn a_name_that_leads_nowhere_is_an_error_that_says_so() {
    let client = Net::tcp().client().await;
    let nobody: Address = "tcp://nobody.invalid:7000".parse().expect("an address");
    let error = patience(client.connect(&nobody))
        .await
        .expect_err("there is none");
    // Where no name server answers, the time for dialling passes.
    let is_said = matches!(
        error,
        ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. }
    );
    assert!(
        is_said && error.to_string().contains("nobody.invalid"),
        "{error}"
    );
}

/// A name may lead to any place, so who restricts where it dials does not dial names that others give.
#[tokio::test]
async fn a_policy_may_forbid_names() {
    let net = Net::tcp();
    let last = net.serve(hops()).await;
    let only = DialPolicy::default().deny("10.0.0.0/8").expect("a network");
    let first = net
        .bind(Endpoint::builder().dial_policy(only).serve(hops()))
        .await;
    let client = net.client().await;
    let mut call = work::at(&client, at(&first)).many(named(&last).to_string());
    let (_, statuses) = patience(sorted(&mut call)).await;
    let codes: Vec<Code> = statuses.iter().map(wallaby::Status::code).collect();
    assert_eq!(codes, [Code::PermissionDenied]);
}

#[tokio::test]
async fn an_endpoint_may_tell_a_name() {
    let net = Net::tcp();
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|held| held.local_addr());
    let port = port.expect("a free port").port();
    let told: Address = format!("tcp://localhost:{port}").parse().expect("a name");
    let server = Endpoint::builder()
        .serve(hops())
        .advertise(told.clone())
        .listen(&format!("tcp://127.0.0.1:{port}"))
        .bind()
        .await
        .expect("it is free");
    assert_eq!(server.address(), Some(&told));
    let client = net.client().await;
    let mut call = work::at(&client, &told).many(told.to_string());
    let (answers, statuses) = patience(sorted(&mut call)).await;
    assert_eq!((answers.len(), statuses.len()), (2, 0));
    server.close();
    let error = patience(net.client().await.connect(&told)).await;
    let error = error.expect_err("nobody listens any more");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
}

/// What leads to no one server is not dialled behind a name either.
#[tokio::test]
async fn a_name_is_no_way_around_what_is_never_dialled() {
    let client = Net::tcp().client().await;
    for scheme in ["tcp", "udp"] {
        let nowhere = format!("{scheme}://localhost:0").parse::<Address>();
        let nowhere = nowhere.expect("an address");
        let error = patience(client.connect(&nowhere)).await;
        let error = error.expect_err("nobody is at port 0");
        assert!(error.to_string().contains("may be dialled"), "{error}");
    }
}
