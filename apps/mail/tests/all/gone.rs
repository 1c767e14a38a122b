//! Servers that are not there, and who is no server.

use crate::town::{Town, program};
use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby::{Client, Code, Endpoint, Method, One};
use wallaby_program::testing;

#[test]
fn a_page_says_which_server_is_missing() {
    let town = Town::start("gone");
    let anna = town.visitor("anna");
    let mail = &anna.get("/inbox?words=ridge+boots").mails()[0];
    assert!(anna.get(mail).text.contains("Boots that hop"));

    town.kill("ads");
    let page = anna.get(mail);
    assert!(
        page.status == 200 && page.text.contains("let us hike"),
        "{}",
        page.text
    );
    assert!(!page.text.contains("Boots that hop"));

    town.kill("storage");
    for path in ["/inbox", mail] {
        let page = anna.get(path);
        assert_eq!(page.status, 503);
        assert!(
            page.text
                .contains("Sorry: the storage server does not answer."),
            "{}",
            page.text
        );
    }
    let page = anna.send(
        "/write",
        &[("to", "ben"), ("subject", "x"), ("text", "y < z")],
    );
    assert!(
        page.status == 503 && page.text.contains("the storage server does not answer"),
        "{}",
        page.text
    );
    assert!(page.text.contains("\ny &lt; z</textarea>"), "it stays");
    assert_eq!(
        anna.get("/book").status,
        200,
        "who needs it not is not concerned"
    );

    // It comes back to where it was, started alone.
    let address = |name: &str| town.address(name);
    let [auth, book, mails, storage, ads] = ["auth", "book", "mail", "storage", "ads"].map(address);
    let directory = serde_json::json!({
        "auth": auth, "book": book, "mail": mails, "storage": storage, "ads": ads,
    });
    let file = town.data.join("directory.json");
    std::fs::write(&file, directory.to_string()).unwrap();
    let (file, data) = (file.to_str().unwrap(), town.data.to_str().unwrap());
    let mut storage = program(&["server", "storage", "--directory", file, "--data", data]);
    let mut storage = testing::start(&mut storage, "storage serves");
    assert!(anna.get(mail).text.contains("let us hike"));
    testing::signal("TERM", storage.id());
    assert!(storage.wait().unwrap().success());

    for (server, name) in [
        ("book", "address book"),
        ("auth", "authentication"),
        ("mail", "mail"),
    ] {
        town.kill(server);
        let page = anna.get(if server == "book" { "/write" } else { "/inbox" });
        let sorry = format!("Sorry: the {name} server does not answer.");
        assert!(
            page.status == 503 && page.text.contains(&sorry),
            "{}",
            page.text
        );
    }
    assert_eq!(town.stranger().login("anna", "x").status, 503);
}

/// Servers take requests of servers only: of who has the key.
#[tokio::test]
async fn who_has_no_key_is_refused() {
    static FETCH: Method<(Bytes,), One<Bytes>, Raw> = Method::new("mail.Storage/fetch");
    let town = Town::start("key");
    let stranger = Endpoint::client().unwrap();
    let storage: wallaby::Address = town.address("storage").parse().unwrap();
    let refused = Client::new(&stranger, &storage)
        .call(&FETCH, (Bytes::new(),))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}
