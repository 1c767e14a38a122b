//! What is asked of etcd: JSON over HTTP (its documentation calls it the gRPC gateway, version 3 of the API). Keys and values are in
//! base64, numbers of 64 bits are texts.

use std::io::{BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::http::{Response, StatusCode};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use crate::EtcdError;

/// How long a member may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long one wait for a change is. Then the list is read anew: so a change that was missed is not missed for long, and a wait that
/// nobody is interested in any more ends.
const WAIT: Duration = Duration::from_secs(30);

/// The shortest wait without a change: a member that ends waits at once is not asked again and again.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long an answer may be, in bytes.
const LONGEST: u64 = 4 << 20;

/// How long a reason may be, in bytes; no more of it is read.
const LONGEST_WHY: u64 = 4096;

/// Asks the members of an etcd; blocks its thread.
pub(crate) struct Api {
    members: Vec<String>,
    /// The one that has answered last.
    current: AtomicUsize,
    agent: Agent,
    password: Option<Password>,
    /// What etcd has given for the password. It forgets it when that has not been used for some minutes. Some kinds (JWT) are void
    /// when users or roles have changed.
    token: Mutex<String>,
}

/// Of a user of etcd's.
#[derive(Clone, Serialize)]
pub(crate) struct Password {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// All values below a key that are text, and of when that is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) values: Vec<String>,
    pub(crate) revision: i64,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

#[derive(Deserialize)]
struct Ranged {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    #[cfg(feature = "chain")]
    key: String,
    #[serde(default)]
    value: String,
}

#[cfg(feature = "chain")]
#[derive(Deserialize)]
struct Deleted {
    /// How many; None if none was there.
    deleted: Option<String>,
}

#[derive(Deserialize)]
struct Known {
    token: String,
}

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Deserialize)]
struct KeptAlive {
    result: Option<Lease>,
}

#[derive(Deserialize)]
struct Lease {
    /// None if the lease is over.
    #[serde(rename = "TTL")]
    ttl: Option<String>,
}

#[derive(Deserialize)]
struct Watched {
    result: Option<Change>,
}

#[derive(Deserialize)]
struct Change {
    #[serde(default)]
    events: Vec<Value>,
    #[serde(default)]
    canceled: bool,
}

/// Versions differ in what they call it; some say it twice.
#[derive(Deserialize)]
struct Refusal {
    error: Option<Value>,
    message: Option<Value>,
}

impl Refusal {
    fn why(self) -> Option<String> {
        match self.message.or(self.error)? {
            Value::String(why) => Some(why),
            why => Some(why.to_string()),
        }
    }
}

impl Api {
    pub(crate) fn new(members: Vec<String>, tls: TlsConfig, password: Option<Password>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A member does not send a password elsewhere.
            .max_redirects(0)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE)) // it begins at once, though that of a watch goes on
            .tls_config(tls);
        Self {
            agent: config.build().into(),
            members,
            current: AtomicUsize::new(0),
            password,
            token: Mutex::default(),
        }
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// All values whose keys begin with this. What is no text is left out, and logged: anybody may have written it.
    pub(crate) fn list(&self, prefix: &str) -> Result<Listed, EtcdError> {
        let what = "a list of servers";
        let (member, answer) = self.ask(PATIENCE, what, "kv/range", &below(prefix))?;
        let unreadable = |why: String| EtcdError::Unreadable {
            member: member.clone(),
            what,
            why,
        };
        let ranged: Ranged = answer;
        let revision = ranged.header.revision.parse();
        let revision = revision.map_err(|_| unreadable("it has no revision".into()))?;
        let mut values = Vec::with_capacity(ranged.kvs.len());
        for pair in &ranged.kvs {
            let value = BASE64_STANDARD.decode(&pair.value);
            let value = value.map_err(|_| unreadable("a value has no base64".into()))?;
            match String::from_utf8(value) {
                Ok(value) => values.push(value),
                Err(error) => tracing::warn!(prefix, %error, "a server in etcd is left out"),
            }
        }
        Ok(Listed { values, revision })
    }

    /// Waits until something below this key is newer than that, or for [`WAIT`].
    pub(crate) fn wait(&self, prefix: &str, revision: i64) -> Result<(), EtcdError> {
        let begun = Instant::now();
        if !self.watch(prefix, revision)? {
            thread::sleep(SHORTEST.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    /// Whether something has changed; if not, the time is over, or the member does not want to tell.
    fn watch(&self, prefix: &str, revision: i64) -> Result<bool, EtcdError> {
        let mut request = below(prefix);
        request["start_revision"] = json!(revision.saturating_add(1).to_string());
        let request = json!({ "create_request": request });
        let what = "to watch servers";
        let (member, body) = self.send(WAIT, what, "watch", &request)?;
        let stream = BufReader::new(body.into_reader().take(LONGEST));
        for message in serde_json::Deserializer::from_reader(stream).into_iter::<Watched>() {
            match message {
                Ok(Watched {
                    result: Some(change),
                }) if change.events.is_empty() && !change.canceled => {} // it has begun
                Ok(Watched {
                    result: Some(change),
                }) => return Ok(!change.events.is_empty()),
                Ok(Watched { result: None }) => {
                    let why = "it does not say why".into();
                    return Err(EtcdError::Refused { member, what, why });
                }
                Err(error) if error.is_io() => return Ok(false), // the time is over, or the member is gone
                Err(error) => {
                    let why = error.to_string();
                    return Err(EtcdError::Unreadable { member, what, why });
                }
            }
        }
        Ok(false)
    }

    /// A lease for so many seconds: its name.
    pub(crate) fn grant(&self, seconds: u64) -> Result<String, EtcdError> {
        let request = json!({ "TTL": seconds.to_string() });
        let (_, granted): (_, Granted) = self.ask(PATIENCE, "a lease", "lease/grant", &request)?;
        Ok(granted.id)
    }

    /// Whether the lease still holds, and does for its whole time again. Each member has so long to answer.
    pub(crate) fn keep_alive(&self, lease: &str, most: Duration) -> Result<bool, EtcdError> {
        let request = json!({ "ID": lease });
        let what = "to keep a lease";
        let (_, kept): (_, KeptAlive) = self.ask(most, what, "lease/keepalive", &request)?;
        Ok(kept.result.is_some_and(|lease| lease.ttl.is_some()))
    }

    /// The lease is over, and with it what was written under it.
    pub(crate) fn revoke(&self, lease: &str) -> Result<(), EtcdError> {
        let request = json!({ "ID": lease });
        let (_, _): (_, Value) = self.ask(PATIENCE, "to end a lease", "lease/revoke", &request)?;
        Ok(())
    }

    /// Writes a value, as long as the lease holds.
    pub(crate) fn put(&self, key: &str, value: &str, lease: &str) -> Result<(), EtcdError> {
        let request = put(key, value, lease);
        let what = "to write a server down";
        let (_, _): (_, Value) = self.ask(PATIENCE, what, "kv/put", &request)?;
        Ok(())
    }

    /// The same if the key is not there. If it is, nobody who watches learns of a change. Each member has so long to answer.
    pub(crate) fn put_if_gone(
        &self,
        key: &str,
        value: &str,
        lease: &str,
        most: Duration,
    ) -> Result<(), EtcdError> {
        let is_gone = json!({ "key": coded(key), "target": "CREATE", "create_revision": "0" });
        let request = json!({
            "compare": [is_gone],
            "success": [{ "request_put": put(key, value, lease) }],
        });
        let what = "to write a server down again";
        let (_, _): (_, Value) = self.ask(most, what, "kv/txn", &request)?;
        Ok(())
    }

    /// The first key that begins with this, and its value. Each member has so long to answer.
    #[cfg(feature = "chain")]
    pub(crate) fn first(
        &self,
        prefix: &str,
        most: Duration,
    ) -> Result<Option<(String, Vec<u8>)>, EtcdError> {
        let mut request = below(prefix);
        request["limit"] = json!("1");
        let what = "a module";
        let (member, ranged): (_, Ranged) = self.ask(most, what, "kv/range", &request)?;
        let first = ranged.kvs.into_iter().next().map(|pair| {
            let value = BASE64_STANDARD.decode(&pair.value).ok()?;
            Some((decoded(&pair.key)?, value))
        });
        let unreadable = || EtcdError::Unreadable {
            member,
            what,
            why: "its value has no base64".into(),
        };
        first.map(|first| first.ok_or_else(unreadable)).transpose()
    }

    /// The keys below this prefix from this one on, in their order, and at most so many.
    #[cfg(feature = "chain")]
    pub(crate) fn keys(
        &self,
        prefix: &str,
        from: &str,
        most: usize,
    ) -> Result<Vec<String>, EtcdError> {
        let mut request = below(prefix);
        request["key"] = json!(coded(from));
        request["keys_only"] = json!(true);
        request["limit"] = json!(most.to_string());
        let what = "a list of modules";
        let (_, ranged): (_, Ranged) = self.ask(PATIENCE, what, "kv/range", &request)?;
        let keys = ranged.kvs.iter().filter_map(|pair| decoded(&pair.key));
        Ok(keys.collect())
    }

    /// Writes a value for good.
    #[cfg(feature = "chain")]
    pub(crate) fn keep(&self, key: &str, value: &[u8]) -> Result<(), EtcdError> {
        let request = json!({ "key": coded(key), "value": BASE64_STANDARD.encode(value) });
        let (_, _): (_, Value) = self.ask(PATIENCE, "to keep a module", "kv/put", &request)?;
        Ok(())
    }

    /// Deletes all keys that begin with this; whether there were any.
    #[cfg(feature = "chain")]
    pub(crate) fn delete(&self, prefix: &str) -> Result<bool, EtcdError> {
        let request = below(prefix);
        let what = "to delete a module";
        let (_, deleted): (_, Deleted) = self.ask(PATIENCE, what, "kv/deleterange", &request)?;
        Ok(deleted.deleted.is_some())
    }

    fn ask<T: DeserializeOwned>(
        &self,
        most: Duration,
        what: &'static str,
        path: &str,
        request: &impl Serialize,
    ) -> Result<(String, T), EtcdError> {
        let (member, body) = self.send(most, what, path, request)?;
        read(member, what, body)
    }

    /// Asks one member after the other for so long, the one that has answered last first.
    fn send(
        &self,
        most: Duration,
        what: &'static str,
        path: &str,
        request: &impl Serialize,
    ) -> Result<(String, Body), EtcdError> {
        let request = serde_json::to_vec(request).unwrap_or_default();
        let first = self.current.load(Ordering::Relaxed);
        let mut failed = EtcdError::NoMember;
        for place in first..first + self.members.len() {
            let member = &self.members[place % self.members.len()];
            match self.send_as_user(Instant::now() + most, member, what, path, &request) {
                Ok(body) => {
                    self.current.store(place, Ordering::Relaxed);
                    return Ok((member.clone(), body));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// With the token of the user, if there is one; with another if etcd does not know it, or not any more.
    fn send_as_user(
        &self,
        until: Instant,
        member: &str,
        what: &'static str,
        path: &str,
        request: &[u8],
    ) -> Result<Body, EtcdError> {
        let Some(password) = &self.password else {
            return sent(member, what, self.post(until, member, path, "", request)?);
        };
        let known = self
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !known.is_empty() {
            let answer = self.post(until, member, path, &known, request)?;
            let is_unknown = answer.status() == StatusCode::UNAUTHORIZED;
            match sent(member, what, answer) {
                Err(EtcdError::Refused { why, .. }) if is_unknown || is_void(&why) => {}
                answer => return answer,
            }
        }
        let asking = "for a token of its user";
        let password = serde_json::to_vec(password).unwrap_or_default();
        let soon = until.min(Instant::now() + PATIENCE);
        let answer = self.post(soon, member, "auth/authenticate", "", &password)?;
        let body = sent(member, asking, answer)?;
        let (_, Known { token }) = read(member.to_owned(), asking, body)?;
        self.token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&token);
        sent(
            member,
            what,
            self.post(until, member, path, &token, request)?,
        )
    }

    fn post(
        &self,
        until: Instant,
        member: &str,
        path: &str,
        token: &str,
        request: &[u8],
    ) -> Result<Response<Body>, EtcdError> {
        let url = format!("{}/v3/{path}", member.trim_end_matches('/'));
        let left = until.saturating_duration_since(Instant::now());
        let post = self.agent.post(url).config().timeout_global(Some(left));
        let mut post = post.build().content_type("application/json");
        if !token.is_empty() {
            post = post.header("Authorization", token);
        }
        post.send(request).map_err(|error| EtcdError::Unreachable {
            member: member.to_owned(),
            why: error.to_string(),
        })
    }
}

/// Without the password.
impl fmt::Debug for Api {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("Api");
        shown
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// What etcd has answered, if it has not refused.
fn sent(member: &str, what: &'static str, answer: Response<Body>) -> Result<Body, EtcdError> {
    let (status, body) = (answer.status(), answer.into_body());
    if status.is_success() {
        return Ok(body);
    }
    let mut text = Vec::new();
    let _as_far_as_it_comes = body.into_reader().take(LONGEST_WHY).read_to_end(&mut text);
    let refusal: Option<Refusal> = serde_json::from_slice(&text).ok();
    let why = refusal.and_then(Refusal::why).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&text);
        format!("HTTP status {status}: {}", text.trim())
    });
    Err(EtcdError::Refused {
        member: member.to_owned(),
        what,
        why,
    })
}

/// Whether this is what etcd says of a token that was of use before. Its HTTP status is that of any bad request.
fn is_void(why: &str) -> bool {
    let said = [
        "revision of auth store is old",
        "user name is empty",
        "invalid auth token",
    ];
    said.iter().any(|said| why.contains(said))
}

fn read<T: DeserializeOwned>(
    member: String,
    what: &'static str,
    body: Body,
) -> Result<(String, T), EtcdError> {
    let answer = serde_json::from_reader(BufReader::new(body.into_reader().take(LONGEST)));
    match answer {
        Ok(answer) => Ok((member, answer)),
        Err(error) => Err(EtcdError::Unreadable {
            member,
            what,
            why: error.to_string(),
        }),
    }
}

fn coded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

#[cfg(feature = "chain")]
fn decoded(text: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
}

fn put(key: &str, value: &str, lease: &str) -> Value {
    json!({ "key": coded(key), "value": coded(value), "lease": lease })
}

/// All keys that begin with this: up to the key behind the last of them.
fn below(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1; // a key of ours ends with a slash
    }
    json!({ "key": coded(prefix), "range_end": BASE64_STANDARD.encode(end) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn keys_below_a_prefix_are_a_range() {
        let range = below("a/b/");
        assert_eq!(range["key"], coded("a/b/"));
        assert_eq!(range["range_end"], coded("a/b0"));
    }

    /// As etcd's documentation has them.
    #[test]
    fn answers_are_read() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"12"},
            "kvs":[{"key":"Zm9v","create_revision":"2","value":"YmFy"}],"count":"1"}"#;
        let ranged: Ranged = serde_json::from_str(text).expect("it is one");
        assert_eq!(
            (
                ranged.header.revision.as_str(),
                ranged.kvs[0].value.as_str()
            ),
            ("12", "YmFy")
        );
        let kept = r#"{"result":{"header":{},"ID":"7587848390318000000","TTL":"10"}}"#;
        let kept: KeptAlive = serde_json::from_str(kept).expect("it is one");
        assert!(kept.result.is_some_and(|lease| lease.ttl.is_some()));
        let over = r#"{"result":{"header":{},"ID":"7587848390318000000"}}"#;
        let over: KeptAlive = serde_json::from_str(over).expect("it is one");
        assert!(over.result.is_some_and(|lease| lease.ttl.is_none()));
        let why = "etcdserver: no leader";
        for refusal in [
            json!({ "error": why, "code": 14 }),
            json!({ "message": why, "code": 14 }),
            json!({ "error": why, "message": why, "code": 14 }),
        ] {
            let refusal: Refusal = serde_json::from_value(refusal).expect("it is one");
            assert_eq!(refusal.why().as_deref(), Some(why));
        }
    }

    #[test]
    fn a_member_that_ends_waits_at_once_is_not_asked_again_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let member = format!("http://{}", listener.local_addr().expect("it is bound"));
        let member_ends = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is asked");
            let _asked = stream.read(&mut [0; 4096]).expect("a request");
            let end = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(end).expect("it is there");
        });
        let api = Api::new(vec![member], TlsConfig::default(), None);
        let begun = Instant::now();
        assert_eq!(api.wait("a/", 1), Ok(()));
        assert!(begun.elapsed() >= SHORTEST);
        member_ends.join().expect("it has ended");
    }

    #[test]
    fn a_member_that_sends_elsewhere_is_not_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let member = format!("http://{}", listener.local_addr().expect("it is bound"));
        let member_redirects = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is asked");
            let _asked = stream.read(&mut [0; 4096]).expect("a request");
            let end = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://127.0.0.1:1/\r\n\
                Content-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(end).expect("it is there");
        });
        let etcd = crate::Etcd::new([&member]).expect("one member");
        let error = etcd.api.list("a/").expect_err("it has no list");
        let why = "HTTP status 307 Temporary Redirect";
        assert!(error.to_string().contains(why), "{error}");
        member_redirects.join().expect("it has ended");
    }

    #[test]
    fn a_value_that_is_no_text_leaves_the_others() {
        let values = [
            "tcp://127.0.0.1:1".as_bytes(),
            b"\xff",
            b"tcp://127.0.0.1:2",
        ];
        let pair = |value| json!({ "key": coded("a/b"), "value": BASE64_STANDARD.encode(value) });
        let kvs = values.map(pair);
        let list = json!({ "header": { "revision": "12" }, "kvs": kvs }).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let member = format!("http://{}", listener.local_addr().expect("it is bound"));
        let member_lists = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is asked");
            let _asked = stream.read(&mut [0; 4096]).expect("a request");
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
            let answer = format!("{head}: {}\r\n\r\n{list}", list.len());
            stream.write_all(answer.as_bytes()).expect("it is there");
        });
        let api = Api::new(vec![member], TlsConfig::default(), None);
        let listed = Listed {
            values: vec!["tcp://127.0.0.1:1".into(), "tcp://127.0.0.1:2".into()],
            revision: 12,
        };
        assert_eq!(api.list("a/"), Ok(listed));
        member_lists.join().expect("it has ended");
    }

    #[test]
    fn members_that_are_not_there_are_named() {
        let members = ["http://127.0.0.1:1", "http://127.0.0.1:2/"];
        let api = Api::new(members.map(String::from).into(), TlsConfig::default(), None);
        let error = api.list("a/").expect_err("nobody is there");
        assert_eq!(error.code(), wallaby::Code::Unavailable);
        let EtcdError::Unreachable { member, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(member, "http://127.0.0.1:2/");
    }
}
