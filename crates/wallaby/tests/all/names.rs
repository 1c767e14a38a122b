//! Names and addresses that cannot be: each is an error that says why, and nothing was changed.

use crate::common::{Net, at, client, patience, service};
use wallaby::{Address, BindError, Endpoint, Method, One, Request, ServeError, Service, Status};

over_every_transport!(
    an_address_is_bound_once,
    an_endpoint_listens_at_several_addresses
);

static FIRST: Method<(), One<u32>> = Method::new("test.Names/first");
static SECOND: Method<(), One<u32>> = Method::new("test.Names/second");
static RESERVED: Method<(), One<u32>> = Method::new("wallaby.Health/check");
static ALMOST: Method<(), One<u32>> = Method::new("wallabys.Health/check");

fn with(service: Service, method: &'static Method<(), One<u32>>, answer: u32) -> Service {
    service.method(method, move |request: Request<One<u32>>, ()| async move {
        Ok::<_, Status>(request.respond(answer).await?)
    })
}

#[tokio::test]
async fn a_method_is_served_once() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(with(service(), &FIRST, 1)).await;
        let taken = ServeError::Taken {
            name: "test.Names/first".into(),
        };
        // Neither of the two is registered.
        let both = with(with(service(), &SECOND, 2), &FIRST, 3);
        assert_eq!(server.serve(both), Err(taken.clone()));
        assert!(taken.to_string().contains("test.Names/first"), "{taken}");
        let client = client();
        let calls = wallaby::Client::new(&client, at(&server));
        assert_eq!(calls.call(&FIRST, ()).await, Ok(1));
        calls
            .call(&SECOND, ())
            .await
            .expect_err("it was not registered");
        server
            .serve(with(service(), &SECOND, 2))
            .expect("the name is free");
        assert_eq!(calls.call(&SECOND, ()).await, Ok(2));

        // Within a service.
        let twice = with(with(service(), &FIRST, 1), &FIRST, 2);
        let other = net.endpoint().await;
        assert_eq!(other.serve(twice), Err(taken));

        // At the beginning.
        let address = net.address();
        let builder = || {
            Endpoint::builder()
                .listen(&address)
                .serve(with(service(), &FIRST, 1))
        };
        let error = builder()
            .serve(with(service(), &FIRST, 2))
            .bind()
            .await
            .expect_err("the same name");
        assert!(
            matches!(error, BindError::Serve(ServeError::Taken { .. })),
            "{error}"
        );
        // Nobody listens there after the error.
        builder().bind().await.expect("the address is free");
    })
    .await;
}

#[tokio::test]
async fn names_of_the_framework_are_reserved() {
    let net = Net::mem();
    let server = net.endpoint().await;
    let error = server
        .serve(with(with(service(), &FIRST, 1), &RESERVED, 2))
        .expect_err("it is reserved");
    assert_eq!(
        error,
        ServeError::Reserved {
            name: "wallaby.Health/check".into()
        }
    );
    assert!(error.to_string().contains("reserved"), "{error}");
    server
        .serve(with(service(), &ALMOST, 1))
        .expect("it only looks like it");
    server
        .serve(with(service(), &FIRST, 1))
        .expect("nothing was registered");
}

async fn an_address_is_bound_once(net: Net) {
    let first = net.endpoint().await;
    let error = Endpoint::bind(&at(&first).to_string())
        .await
        .expect_err("it is taken");
    let BindError::Listen { address, .. } = &error else {
        panic!("another error: {error}")
    };
    assert_eq!(*address, at(&first));
    assert!(
        error.to_string().contains(&at(&first).to_string()),
        "{error}"
    );
    // The first one still listens.
    client().connect(at(&first)).await.expect("it listens");

    let address = net.address();
    if !address.ends_with(":0") {
        let twice = Endpoint::builder()
            .listen(&address)
            .listen(&address)
            .bind()
            .await;
        assert!(matches!(twice, Err(BindError::Listen { .. })), "{twice:?}");
        Endpoint::bind(&address)
            .await
            .expect("nobody listens there after the error");
    }
}

async fn an_endpoint_listens_at_several_addresses(net: Net) {
    let other = Net::mem();
    let second = other.address();
    let server = with(service(), &FIRST, 7);
    let builder = Endpoint::builder()
        .listen(&net.address())
        .listen(&second)
        .serve(server);
    let server = builder.bind().await.expect("both are free");
    let second: Address = second.parse().expect("an address");
    assert_ne!(
        server.address(),
        Some(&second),
        "others are told the first one"
    );
    let client = client();
    for address in [at(&server), second] {
        assert_eq!(
            wallaby::Client::new(&client, address)
                .call(&FIRST, ())
                .await,
            Ok(7)
        );
    }
    assert_eq!(client.metrics().connections_opened, 2);
}

#[tokio::test]
async fn what_is_no_address_says_what_was_expected() {
    let long = format!("unix:///{}", "x".repeat(200));
    for (text, expected) in [
        ("", "expected"),
        ("127.0.0.1:80", "expected tcp://"),
        ("http://localhost", "expected tcp://"),
        (
            "tcp://",
            "expected an IP address or a host name, and a port",
        ),
        (
            "tcp://localhost",
            "expected an IP address or a host name, and a port",
        ),
        (
            "tcp://1.2.3.4:99999",
            "expected an IP address or a host name, and a port",
        ),
        ("mem://", "expected a name"),
        ("unix://", "expected a name"),
        ("shm://", "expected a name"),
        (&long, "expected a name"),
        ("tcp://no.such.host.invalid:80", "no.such.host.invalid"),
        (
            "udp://localhost",
            "expected an IP address or a host name, and a port",
        ),
        ("udp://no.such.host.invalid:80", "no.such.host.invalid"),
        ("udp://192.0.2.1:80", "192.0.2.1"),
        ("unix:///no/such/folder/socket", "/no/such/folder/socket"),
        ("shm:///no/such/folder/socket", "/no/such/folder/socket"),
        ("tcp://192.0.2.1:80", "192.0.2.1"),
    ] {
        let error = Endpoint::bind(text).await.expect_err("it cannot be bound");
        assert!(error.to_string().contains(expected), "{text:?}: {error}");
    }
}

#[tokio::test]
async fn names_of_hosts_are_found() {
    let server = Endpoint::bind("tcp://localhost:0")
        .await
        .expect("every machine has that name");
    let Some(Address::Tcp(address)) = server.address() else {
        panic!("no TCP address: {server:?}")
    };
    assert!(
        address.ip().is_loopback() && address.port() != 0,
        "{address}"
    );
    let server = Endpoint::bind("udp://localhost:0").await.expect("the same");
    assert!(matches!(server.address(), Some(Address::Udp(_))));
}

/// A socket file that somebody left behind is replaced, one in use is not, and a file that is none is kept.
#[tokio::test]
async fn a_socket_file_is_replaced_only_if_nobody_listens() {
    for scheme in ["unix", "shm"] {
        let folder = std::env::temp_dir().join(format!("wallaby-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("socket");
        let address = format!("{scheme}://{}", path.display());

        // Left behind by a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a free path"));
        assert!(path.exists());
        let server = Endpoint::bind(&address)
            .await
            .expect("nobody listens there");
        Endpoint::bind(&address)
            .await
            .expect_err("somebody listens there");
        server.close();
        assert!(!path.exists(), "it is removed");

        std::fs::write(&path, "precious").expect("a file");
        Endpoint::bind(&address).await.expect_err("it is no socket");
        assert_eq!(
            std::fs::read_to_string(&path).expect("it is still there"),
            "precious"
        );
        std::fs::remove_dir_all(folder).expect("it is ours");
    }
}
