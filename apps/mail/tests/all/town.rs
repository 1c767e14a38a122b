//! Servers as processes, and visitors who see what a browser sees.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use wallaby_program::testing::signal;

/// The passwords of Anna and Ben.
pub(crate) const PASSWORD: &str = "a long password";

/// The program under test.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-mail"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Makes a user.
pub(crate) fn put_user(data: &Path, name: &str, password: &str) -> Output {
    let mut user = program(&["user", name, "--data", data.to_str().unwrap()]);
    let mut user = user
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(user.stdin.take().unwrap(), "{password}").unwrap();
    user.wait_with_output().unwrap()
}

/// Servers until this is dropped: Anna has the mails of the demo, Ben has malformed ones.
pub(crate) struct Town {
    up: Child,
    pub(crate) data: PathBuf,
    pub(crate) web: String,
    /// What `up` says of each server.
    servers: Vec<String>,
}

impl Town {
    pub(crate) fn start(name: &str) -> Self {
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&data); // of the run before
        let mails = Path::new(env!("CARGO_MANIFEST_DIR")).join("mails");
        for (user, folders) in [
            ("anna", &["demo"][..]),
            (
                "ben",
                &["malformed/dovecot", "malformed/mikel-mail", "malformed/own"],
            ),
        ] {
            assert!(put_user(&data, user, PASSWORD).status.success());
            let inbox = data.join("mails").join(user).join("inbox");
            fs::create_dir_all(&inbox).unwrap();
            for file in folders
                .iter()
                .flat_map(|folder| fs::read_dir(mails.join(folder)).unwrap())
            {
                let file = file.unwrap();
                fs::copy(file.path(), inbox.join(file.file_name())).unwrap();
            }
        }
        let mut up = program(&[
            "up",
            "--web",
            "127.0.0.1:0",
            "--data",
            data.to_str().unwrap(),
        ]);
        let mut up = up.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(up.stdout.take().unwrap()).lines();
        let mut servers: Vec<String> = Vec::new();
        for line in lines.map_while(Result::ok) {
            servers.push(line);
            if servers.last().unwrap().starts_with("open ") {
                break;
            }
        }
        let page = servers.pop().unwrap_or_default();
        let web = page.split(' ').nth(1).unwrap_or_default().to_owned();
        let town = Self {
            up,
            data,
            web,
            servers,
        };
        assert!(
            town.web.starts_with("http://"),
            "the servers do not come up"
        );
        town
    }

    /// Kills a server.
    pub(crate) fn kill(&self, server: &str) {
        signal(
            "KILL",
            self.server(server)
                .split(' ')
                .nth(1)
                .unwrap()
                .parse()
                .unwrap(),
        );
    }

    /// Where a server is.
    pub(crate) fn address(&self, server: &str) -> String {
        self.server(server).split(' ').nth(2).unwrap().to_owned()
    }

    /// Its process and its address.
    fn server(&self, name: &str) -> String {
        let line = self
            .servers
            .iter()
            .find(|line| line.starts_with(name))
            .unwrap();
        line.split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Somebody who is logged in.
    pub(crate) fn visitor(&self, name: &str) -> Visitor {
        let visitor = self.stranger();
        let page = visitor.login(name, PASSWORD);
        assert_eq!(
            (page.status, &*page.location),
            (303, "/inbox"),
            "{}",
            page.text
        );
        visitor
    }

    /// Somebody who is not.
    pub(crate) fn stranger(&self) -> Visitor {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0);
        let (web, cookie) = (self.web.clone(), RefCell::default());
        Visitor {
            agent: agent.build().into(),
            web,
            cookie,
        }
    }
}

impl Drop for Town {
    fn drop(&mut self) {
        signal("TERM", self.up.id());
        let _ = self.up.wait();
    }
}

/// Keeps a cookie, and follows nothing.
pub(crate) struct Visitor {
    agent: Agent,
    web: String,
    pub(crate) cookie: RefCell<String>,
}

/// What came.
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) location: String,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Visitor {
    pub(crate) fn get(&self, path: &str) -> Page {
        let request = self.agent.get(format!("{}{path}", self.web));
        let cookie = self.cookie.borrow().clone();
        self.came(request.header("cookie", cookie).call().unwrap())
    }

    /// Sends a form, with the token that belongs into it.
    pub(crate) fn send(&self, path: &str, fields: &[(&str, &str)]) -> Page {
        let token = self.get("/book").field("token");
        self.send_with(path, &[fields, &[("token", &token)]].concat(), &[])
    }

    /// Sends a form as it is, and says this besides.
    pub(crate) fn send_with(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Page {
        self.try_send(path, fields, headers).unwrap()
    }

    /// The same, where the server may hang up before it has all.
    pub(crate) fn try_send(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Result<Page, ureq::Error> {
        let form = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let mut request = self.agent.post(format!("{}{path}", self.web));
        request = request.header("cookie", &*self.cookie.borrow());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.content_type("application/x-www-form-urlencoded");
        Ok(self.came(request.send(form.as_bytes())?))
    }

    pub(crate) fn login(&self, name: &str, password: &str) -> Page {
        self.send_with("/login", &[("name", name), ("password", password)], &[])
    }

    fn came(&self, mut response: Response<ureq::Body>) -> Page {
        let headers = response.headers().clone();
        let text = |name| {
            headers
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
                .to_owned()
        };
        if let Some((cookie, _)) = text("set-cookie").split_once(';') {
            *self.cookie.borrow_mut() = cookie.to_owned();
        }
        let bytes = response.body_mut().read_to_vec().unwrap();
        Page {
            status: response.status().as_u16(),
            location: text("location"),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            headers,
        }
    }
}

impl Page {
    /// What a field of a form has in it.
    pub(crate) fn field(&self, name: &str) -> String {
        let field = self.text.split(&format!("name=\"{name}\" value=\"")).nth(1);
        let field = field.and_then(|field| field.split('"').next());
        field
            .unwrap_or_else(|| panic!("no {name} in {}", self.text))
            .to_owned()
    }

    /// The addresses of the mails that it lists.
    pub(crate) fn mails(&self) -> Vec<String> {
        self.links("class=\"mail\" href=\"")
    }

    /// What stands behind these words up to the next quotation mark.
    pub(crate) fn links(&self, words: &str) -> Vec<String> {
        let links = self.text.split(words).skip(1);
        links
            .map(|link| link.split('"').next().unwrap().replace("&amp;", "&"))
            .collect()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}
