//! A real browser, by WebDriver: what it shows, and that nothing needs a script. Where no `chromedriver` and `chromium` are
//! installed (Debian: chromium-driver), the test says so and does nothing. With `WALLABY_MAIL_PICTURES=FOLDER` it keeps pictures of
//! the pages there.

use crate::town::{PASSWORD, Town};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use ureq::Agent;
use wallaby_program::testing;

#[test]
fn a_browser_shows_it() {
    let Some(browser) = Browser::start() else {
        // Not by a macro, whose output a test that passes would keep to itself.
        let why = "mail: a real browser is NOT tested: no chromium or no chromedriver (Debian: chromium-driver)\n";
        return std::io::stderr().write_all(why.as_bytes()).unwrap();
    };
    let town = Town::start("browser");
    browser.resize(1280, 900);
    browser.open(&format!("{}/inbox", town.web));
    browser.login("anna");
    browser.shows("h1", "Inbox");
    browser.picture("inbox");
    browser.fill("input[type=search]", "ridge boots\u{e007}");
    browser.shows(".count", "1 mail with");
    browser.click("a.mail");
    browser.shows("h1", "Re: The weekend");
    browser.shows(".text", "Yes, let us hike.");
    browser.shows(".ads", "Boots that hop");
    browser.picture("mail");

    browser.click(".actions .button");
    browser.shows("h1", "New mail");
    browser.fill("#text", "Seven it is.\n");
    browser.picture("write");
    browser.click("main form button");
    browser.shows("h1", "Sent");
    browser.shows(".mails", "Re: The weekend");
    browser.click("nav a[href='/book']");
    browser.shows("h1", "Addresses");
    browser.fill("#name", "Ben");
    browser.fill("#address", "ben@mail.example");
    browser.click("main > form button");
    browser.shows(".contacts", "ben@mail.example");
    browser.picture("addresses");

    // The mail with a picture shows it; the newsletter neither runs its script nor loads from elsewhere.
    browser.click("nav a[href='/inbox']");
    browser.click("a.mail[href*='picture.eml']");
    browser.shows("h1", "The picture from the ridge");
    let width = "return document.querySelector('.attachments img').naturalWidth";
    assert_eq!(browser.script(width), json!(192));
    browser.picture("picture");
    browser.resize(400, 800);
    for page in ["inbox", "book", "write"] {
        browser.open(&format!("{}/{page}", town.web));
        browser.picture(&format!("{page}-narrow"));
        let overflow =
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
        assert_eq!(browser.script(overflow), json!(0), "{page} fits");
    }
    browser.click("nav a[href='/inbox']");
    browser.click("a.mail[href*='letter.eml']");
    browser.shows("h1", "Four new books");
    browser.picture("letter-narrow");
    let title = browser.script("return document.title");
    assert!(
        title.as_str().unwrap().starts_with("Four new books"),
        "{title}"
    );
    let loaded = "return performance.getEntriesByType('resource').map(entry => entry.name)";
    for loaded in browser.script(loaded).as_array().unwrap() {
        assert!(loaded.as_str().unwrap().starts_with(&town.web), "{loaded}");
    }

    // Malformed mails as Ben has them, and in the dark.
    browser.click("form.user button");
    browser.login("ben");
    browser.shows("h1", "Inbox");
    browser.picture("malformed-narrow");
    browser.resize(1280, 900);
    browser.open(&format!("{}/inbox?words=alert%285%29", town.web));
    browser.click("a.mail");
    browser.shows("h1", "</title><script>alert(5)</script>");
    browser.picture("script");
    let ground = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.script(ground);
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    let dark = json!({"cmd": "Emulation.setEmulatedMedia", "params": dark});
    browser.say("/goog/cdp/execute", dark);
    assert_ne!(
        browser.script(ground),
        light,
        "who wants it dark has it dark"
    );
    browser.open(&format!("{}/inbox", town.web));
    browser.picture("dark");
}

/// A headless browser, and the driver that it obeys.
struct Browser {
    driver: Child,
    agent: Agent,
    session: String,
    pictures: Option<PathBuf>,
}

impl Browser {
    fn start() -> Option<Self> {
        for program in ["chromium", "chromedriver"] {
            let mut program = Command::new(program);
            let found = program.arg("--version").stdout(Stdio::null()).status();
            found.ok().filter(|status| status.success())?;
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut driver = Command::new("chromedriver");
        let driver = testing::start(
            driver.arg(format!("--port={port}")),
            "was started successfully",
        );
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let mut browser = Self {
            driver,
            agent,
            session: format!("http://127.0.0.1:{port}/session"),
            pictures: std::env::var_os("WALLABY_MAIL_PICTURES").map(PathBuf::from),
        };
        // As root, as in containers, it runs without its own sandbox; the pages are ours.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        let wanted =
            json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}});
        let session = browser.say("", wanted);
        browser.session = format!(
            "{}/{}",
            browser.session,
            session["sessionId"].as_str().unwrap()
        );
        browser.say("/timeouts", json!({"implicit": 20_000}));
        Some(browser)
    }

    fn say(&self, path: &str, what: Value) -> Value {
        let request = self.agent.post(format!("{}{path}", self.session));
        let sent = request
            .header("content-type", "application/json")
            .send(what.to_string());
        Self::said(sent.unwrap(), path)
    }

    fn ask(&self, path: &str) -> Value {
        Self::said(
            self.agent
                .get(format!("{}{path}", self.session))
                .call()
                .unwrap(),
            path,
        )
    }

    fn said(mut response: ureq::http::Response<ureq::Body>, path: &str) -> Value {
        let text = response
            .body_mut()
            .with_config()
            .limit(64 << 20)
            .read_to_string()
            .unwrap();
        let mut said: Value = serde_json::from_str(&text).unwrap();
        assert!(response.status().is_success(), "{path}: {text}");
        said["value"].take()
    }

    fn open(&self, page: &str) {
        self.say("/url", json!({"url": page}));
    }

    fn resize(&self, width: u32, height: u32) {
        self.say("/window/rect", json!({"width": width, "height": height}));
    }

    /// Where an element is; the driver waits until there is one.
    fn element(&self, by: &str, what: &str) -> String {
        let found = self.say("/element", json!({"using": by, "value": what}));
        let id = found
            .as_object()
            .and_then(|found| found.values().next()?.as_str());
        format!("/element/{}", id.unwrap())
    }

    /// An element, as in `h1` or `.text`, has these words in it, or will soon.
    fn shows(&self, what: &str, words: &str) {
        let element = match what.strip_prefix('.') {
            Some(class) => format!("//*[@class='{class}']"),
            None => format!("//{what}"),
        };
        self.element("xpath", &format!("{element}[contains(., '{words}')]"));
    }

    fn click(&self, selector: &str) {
        self.say(
            &format!("{}/click", self.element("css selector", selector)),
            json!({}),
        );
    }

    fn fill(&self, selector: &str, text: &str) {
        let element = self.element("css selector", selector);
        self.say(&format!("{element}/value"), json!({"text": text}));
    }

    fn login(&self, name: &str) {
        self.fill("input[type=password]", PASSWORD);
        self.picture("login");
        self.fill("#name", name);
        self.click("button");
    }

    fn script(&self, script: &str) -> Value {
        self.say("/execute/sync", json!({"script": script, "args": []}))
    }

    fn picture(&self, name: &str) {
        let Some(folder) = &self.pictures else {
            return;
        };
        let picture = self.ask("/screenshot");
        let picture = BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of its session ends the browser, which would outlive the driver.
        let _ = self.agent.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
