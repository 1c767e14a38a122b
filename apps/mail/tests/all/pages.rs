//! What people do, and what strangers try. One set of servers is enough for all of it.

use crate::town::{PASSWORD, Page, Town};

#[test]
fn people_and_strangers_visit() {
    let town = Town::start("pages");
    a_session_begins_with_a_login_and_ends_with_a_logout(&town);
    who_guesses_passwords_has_to_wait(&town);
    forms_of_other_sites_do_nothing(&town);
    mails_are_read_searched_and_written(&town);
    an_address_book_is_kept(&town);
    malformed_mails_show_and_break_nothing(&town);
    every_page_says_what_it_may_do(&town);
}

fn a_session_begins_with_a_login_and_ends_with_a_logout(town: &Town) {
    let visitor = town.stranger();
    let page = visitor.get("/inbox");
    assert_eq!((page.status, &*page.location), (303, "/login"));
    let (wrong, unknown) = (
        visitor.login("anna", "wrong"),
        visitor.login("nobody", "wrong"),
    );
    assert_eq!((wrong.status, unknown.status), (403, 403));
    assert!(wrong.text.contains("The name or the password is wrong."));
    assert_eq!(
        wrong.text.replace("anna", ""),
        unknown.text.replace("nobody", "")
    );

    let page = visitor.login(" Anna ", PASSWORD);
    let cookie = page.header("set-cookie");
    assert!(
        cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    assert!(visitor.get("/inbox").text.contains("<span>anna</span>"));
    let first = visitor.cookie.borrow().clone();

    // Who logs in again leaves the session before.
    visitor.login("anna", PASSWORD);
    let second = visitor.cookie.borrow().clone();
    assert_ne!(first, second);
    assert_eq!(visitor.get("/inbox").status, 200);
    assert_eq!(visitor.send("/logout", &[]).location, "/login");
    for old in [first, second] {
        *visitor.cookie.borrow_mut() = old;
        let page = visitor.get("/inbox");
        assert_eq!(
            (page.status, &*page.location),
            (303, "/login"),
            "it is over at the server"
        );
    }
}

fn who_guesses_passwords_has_to_wait(town: &Town) {
    let visitor = town.stranger();
    for _ in 0..5 {
        assert!(visitor.login("carl", "guess").text.contains("is wrong"));
    }
    let page = visitor.login("carl", "guess");
    assert!(
        page.text.contains("too many attempts. Try again in 15 min"),
        "{}",
        page.text
    );
}

fn forms_of_other_sites_do_nothing(town: &Town) {
    let visitor = town.visitor("anna");
    let mail = [("to", "anna"), ("subject", "forged"), ("text", "")];
    let token = visitor.get("/write").field("token");
    let others = town.visitor("anna").get("/write").field("token");
    let of_elsewhere = [("origin", "http://evil.example")];
    for (token, headers) in [
        ("", &[][..]),
        (&others, &[]),
        (&token, &of_elsewhere),
        (&token, &[("sec-fetch-site", "cross-site")]),
    ] {
        let page = visitor.send_with(
            "/write",
            &[&mail[..], &[("token", token)]].concat(),
            headers,
        );
        assert_eq!(page.status, 403, "{}", page.text);
    }
    assert!(
        !visitor
            .get("/inbox?words=forged")
            .text
            .contains("class=\"mail\"")
    );
    let login = [("name", "anna"), ("password", PASSWORD)];
    assert_eq!(
        visitor.send_with("/login", &login, &of_elsewhere).status,
        403
    );
    // What is too large is not waited for: whoever still sends may find nobody there.
    let too_long = "x".repeat(5 << 20);
    if let Ok(page) = visitor.try_send("/write", &[("text", &too_long)], &[]) {
        assert_eq!(page.status, 413);
    }
    assert_eq!(visitor.get("/inbox").status, 200);
}

fn mails_are_read_searched_and_written(town: &Town) {
    let (anna, ben) = (town.visitor("anna"), town.visitor("ben"));
    let found = anna.get("/inbox?words=RIDGE+boots").mails();
    assert_eq!(found.len(), 1, "{found:?}");
    let page = anna.get(&found[0]);
    assert!(page.text.contains("Yes, let us hike.") && page.text.contains("Boots that hop"));
    assert!(page.text.contains("class=\"quoted\""), "{}", page.text);
    assert!(
        anna.get("/inbox?words=nowhere")
            .text
            .contains("Nothing was found.")
    );

    let answer = anna.get(&found[0].replace("/mail?", "/write?"));
    assert_eq!(answer.field("to"), "ben@mail.example");
    assert_eq!(answer.field("subject"), "Re: The weekend");
    assert!(
        answer.text.contains("\n&gt; Yes, let us hike."),
        "{}",
        answer.text
    );

    let text = "Gr\u{fc}\u{df}e,\r\n.\r\nFrom <b>me</b> & \"you\"";
    let mail = |to| {
        [
            ("to", to),
            ("subject", "One\r\nBcc: eve@evil.example"),
            ("text", text),
        ]
    };
    let page = anna.send("/write", &mail("ben, eve@evil.example"));
    assert!(page.status == 400 && page.text.contains("eve@evil.example is nobody here."));
    assert!(
        page.text.contains("From &lt;b&gt;me&lt;/b&gt; &amp; "),
        "what was written stays"
    );
    assert_eq!(
        anna.send("/write", &mail("Ben <ben@mail.example>, ben"))
            .location,
        "/sent"
    );

    let read = |page: Page, visitor: &crate::town::Visitor| {
        let found = page.mails();
        assert_eq!(found.len(), 1, "{found:?}");
        let page = visitor.get(&found[0]);
        assert!(
            page.text.contains("<h1>One  Bcc: eve@evil.example</h1>")
                || page.text.contains("<h1>One Bcc: eve@evil.example</h1>"),
            "{}",
            page.text
        );
        assert!(
            page.text
                .contains("Gr\u{fc}\u{df}e,\n.\nFrom &lt;b&gt;me&lt;/b&gt; &amp; "),
            "{}",
            page.text
        );
        page
    };
    let page = read(ben.get("/inbox?words=gr%C3%BC%C3%9Fe"), &ben);
    assert!(page.text.contains("anna@mail.example"));
    read(anna.get("/sent?words=bcc"), &anna);
    let mail = &ben.get("/inbox?words=gr%C3%BC%C3%9Fe").mails()[0];
    assert_eq!(
        anna.get(mail).status,
        404,
        "it is in Ben's inbox, not in hers"
    );
    assert_eq!(
        anna.get("/mail?folder=inbox&id=..%2F..%2Fben%2Finbox%2Fa.eml")
            .status,
        404
    );
}

fn an_address_book_is_kept(town: &Town) {
    let ben = town.visitor("ben");
    for (name, address) in [
        ("Eve", "eve"),
        ("", "eve@mail.example"),
        ("Eve", "e ve@mail.example"),
    ] {
        let page = ben.send("/book", &[("name", name), ("address", address)]);
        assert!(
            page.status == 400 && page.text.contains("class=\"told\""),
            "{name} {address}"
        );
    }
    let anna = [("name", "<Anna>"), ("address", "anna@mail.example")];
    assert_eq!(ben.send("/book", &anna).location, "/book");
    assert!(ben.get("/book").text.contains("&lt;Anna&gt;"));
    assert!(
        ben.get("/write")
            .text
            .contains("<option value=\"anna@mail.example\">&lt;Anna&gt;</option>")
    );
    assert!(
        !town
            .visitor("anna")
            .get("/book")
            .text
            .contains("&lt;Anna&gt;")
    );
    assert_eq!(ben.send("/book/remove", &[anna[1]]).location, "/book");
    assert!(!ben.get("/book").text.contains("&lt;Anna&gt;"));
}

/// All that are checked in are shown, each with all that hangs on it, and none has a say in how.
fn malformed_mails_show_and_break_nothing(town: &Town) {
    let ben = town.visitor("ben");
    let mut mails = Vec::new();
    for page in 1.. {
        let more = ben.get(&format!("/inbox?page={page}")).mails();
        if more.is_empty() {
            break;
        }
        mails.extend(more);
    }
    assert!(mails.len() > 45, "{}", mails.len());
    let mut attachments = 0;
    for mail in mails {
        let page = ben.get(&mail);
        assert!(
            page.status == 200 && page.text.contains("<article class=\"letter\">"),
            "{mail}"
        );
        check_that_no_script_runs(&page, &mail);
        for link in page.links("<a href=\"/attachment?") {
            let file = ben.get(&format!("/attachment?{link}"));
            assert_eq!(file.status, 200, "{mail} {link}");
            assert!(
                file.header("content-security-policy").ends_with("sandbox"),
                "{mail} {link}"
            );
            assert_eq!(file.header("x-content-type-options"), "nosniff");
            let is_inert = [
                "application/octet-stream",
                "image/png",
                "image/jpeg",
                "image/gif",
            ];
            assert!(
                is_inert.contains(&file.header("content-type")),
                "{mail} {link}"
            );
            attachments += 1;
        }
        assert_eq!(
            ben.get(&mail.replace("/mail?", "/write?")).status,
            200,
            "{mail} is answered"
        );
    }
    assert!(attachments > 60, "{attachments}");
}

/// Nothing that a mail says is a tag or an attribute of the page, and if it were, no script would run.
fn check_that_no_script_runs(page: &Page, mail: &str) {
    let text = page.text.to_lowercase();
    for hostile in [
        "<script",
        "javascript:",
        "<svg",
        "src=\"x",
        "<img src=x",
        "<iframe",
        "<style",
    ] {
        let is_escaped = hostile == "javascript:" && !text.contains("href=\"javascript:");
        assert!(
            is_escaped || !text.contains(hostile),
            "{mail} has {hostile}"
        );
    }
    let events = text.split('<').filter_map(|tag| tag.split_once('>'));
    for (tag, _) in events {
        assert!(
            !tag.contains(" on") && !tag.contains("\"on"),
            "{mail} has {tag}"
        );
    }
    let policy = page.header("content-security-policy");
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("script-src"),
        "{policy}"
    );
}

fn every_page_says_what_it_may_do(town: &Town) {
    let (anna, stranger) = (town.visitor("anna"), town.stranger());
    for page in [
        anna.get("/inbox"),
        anna.get("/write"),
        anna.get("/nowhere"),
        stranger.get("/login"),
    ] {
        check_that_no_script_runs(&page, "a page");
        assert_eq!(page.header("cache-control"), "no-store");
        assert_eq!(page.header("referrer-policy"), "no-referrer");
        assert_eq!(page.header("x-frame-options"), "DENY");
    }
    assert_eq!(anna.get("/nowhere").status, 404);
    assert_eq!(
        stranger.get("/style.css").header("content-type"),
        "text/css; charset=utf-8"
    );
}
