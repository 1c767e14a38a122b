//! Servers of HTTP: what they serve at paths are methods, whose payloads are the bytes of their bodies.
//!
//! A server called `Files` has these methods, which a client names by a trait:
//!
//! ```
//! use wallaby_sidecar::http::{Answered, Asked};
//!
//! #[wallaby::service(package = "http")]
//! trait Files {
//!     /// The body at a path.
//!     async fn get(path: String) -> Vec<u8>;
//!     /// Puts this body there; the answer's.
//!     async fn put(path: String, body: Vec<u8>) -> Vec<u8>;
//!     /// Posts this body there; the answer's.
//!     async fn post(path: String, body: Vec<u8>) -> Vec<u8>;
//!     /// Deletes what is there; the answer's body.
//!     async fn delete(path: String) -> Vec<u8>;
//!     /// Any other request, with headers.
//!     async fn send(asked: Asked) -> Answered;
//! }
//! # fn main() {}
//! ```
//!
//! Redirects are not followed. A number from 400 on is a status ([`number`] gives it back), for all methods but `send` all numbers
//! are that are not of success.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Method as Verb, Request as Asking, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use wallaby::codec::{Codec, Postcard};
use wallaby::{Code, Metadata, Method, One, Request, Service, Status};

use crate::config::{HOP_HEADERS, HttpConfig, HttpServer, PLAIN_HEADERS};
use crate::dial::Way;
use crate::upstream::{Checked, Gate, Upstream};

/// Most bytes of a path with its query.
const LONGEST_PATH: usize = 8 << 10;

/// Bytes of a path or a name that an error tells.
const SHORT: usize = 100;

/// Most letters of a method.
const LONGEST_VERB: usize = 32;

/// Most headers of a request, and of an answer.
const MOST_HEADERS: usize = 100;

/// Most bytes of an answer's headers.
const HEADER_BYTES: u32 = 64 << 10;

/// Bytes of the body of a failure that are read, and characters of it that are told.
const FAILURE_BYTES: usize = 64 << 10;
const FAILURE_TEXT: usize = 1000;

/// How long the body of a failure is waited for: its number is known.
const FAILURE_TIME: Duration = Duration::from_secs(1);

/// How much of an answer may wait in a connection of HTTP/2 until its caller takes it. What all of them leave there together is not
/// limited but by that: or those that take nothing would hold up the others.
const WINDOW: u32 = 64 << 10;
const ALL_WINDOWS: u32 = (1 << 31) - 1;

/// Requests that were given up lately and are remembered, so that what still comes of them is no error of the server's.
const GIVEN_UP: usize = 4096;

/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(30);

/// Most connections that are kept so.
const MOST_IDLE: usize = 64;

/// How often a connection of HTTP/2 is asked whether it is alive while requests are under way there, and how long that may take.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// What stands before the number of HTTP in the message of a status.
const HTTP: &str = "HTTP ";

/// A request, as HTTP has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// `GET`, `POST`, and so on.
    pub method: String,
    /// The path and the query, beginning with `/`.
    pub path: String,
    /// Headers, each by its name and value: only those that the sidecar passes on.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The answer, as HTTP has it, with a number below 400.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The number: `200`, perhaps.
    pub status: u16,
    /// Headers, each by its name in lower case and its value, without those that are between the sidecar and the server.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The number of HTTP that a status tells of.
///
/// ```
/// use wallaby::Status;
///
/// let status = Status::not_found("HTTP 404 Not Found");
/// assert_eq!(wallaby_sidecar::http::number(&status), Some(404));
/// assert_eq!(wallaby_sidecar::http::number(&Status::not_found("no book")), None);
/// ```
#[must_use]
pub fn number(status: &Status) -> Option<u16> {
    let (_, rest) = status.message().split_once(HTTP)?;
    let digits = rest.get(..3)?;
    let number = StatusCode::from_bytes(digits.as_bytes()).ok()?;
    Some(number.as_u16())
}

/// The code of the status that a number of HTTP is.
#[must_use]
pub fn code(number: u16) -> Code {
    match number {
        400 | 422 => Code::InvalidArgument,
        401 | 407 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 | 410 => Code::NotFound,
        405 | 501 | 505 => Code::Unimplemented,
        408 | 504 => Code::DeadlineExceeded,
        409 => Code::Aborted,
        413 | 414 | 429 | 431 | 507 => Code::ResourceExhausted,
        416 => Code::OutOfRange,
        499 => Code::Cancelled,
        502 | 503 => Code::Unavailable,
        300..=499 => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

/// Checks a path with its query.
///
/// # Errors
///
/// Why it could lead elsewhere than it says, or is none.
pub(crate) fn path_and_query(path: &str) -> Result<PathAndQuery, String> {
    let wrong = |what: &str| Err(format!("the path {:?} {what}", short(path)));
    if path.len() > LONGEST_PATH {
        return wrong(&format!("has more than {LONGEST_PATH} bytes"));
    }
    if !path.starts_with('/') || path.starts_with("//") {
        return wrong("does not begin with one slash");
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains(['#', '\\']) {
        return wrong("has characters that stand in no path: write them as %20 and so on");
    }
    let (names, _) = path.split_once('?').unwrap_or((path, ""));
    let Some(decoded) = decoded(names) else {
        return wrong("has a % without two digits behind it");
    };
    if decoded.iter().any(u8::is_ascii_control) {
        return wrong("has a control character");
    }
    let mut parts = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    // Whatever stands behind a `;` is a parameter to some servers.
    if parts.any(|part| matches!(part.split(|byte| *byte == b';').next(), Some(b"." | b".."))) {
        return wrong("has a part that leads elsewhere (. or ..)");
    }
    path.parse().or_else(|_| wrong("is none"))
}

/// As much of it as an error tells.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHORT)]
}

/// With the characters in place of `%2F` and so on.
fn decoded(path: &str) -> Option<Vec<u8>> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

/// A server of HTTP behind a sidecar.
#[derive(Debug)]
pub(crate) struct Http {
    name: String,
    server: HttpServer,
    headers: Vec<HeaderName>,
    paths: Vec<String>,
    health: Option<String>,
    way: Way,
    client: Client<Way, Full<Bytes>>,
    gate: Gate,
}

impl Http {
    pub(crate) fn new(config: &HttpConfig) -> Self {
        let name = format!("http.{}", config.name.get_ref());
        let way = Way::new(&config.server.host, config.server.port);
        let plain = PLAIN_HEADERS.map(HeaderName::from_static);
        Self {
            client: client(way.clone(), config.h2),
            gate: Gate::new(name.clone(), config.limits.clone()),
            server: config.server.clone(),
            headers: plain.into_iter().chain(config.headers.clone()).collect(),
            paths: config.paths.clone(),
            health: config.health.clone(),
            way,
            name,
        }
    }

    /// Sends a request and gets its answer, whatever its number is.
    async fn exchange(&self, asking: Asking<Full<Bytes>>) -> Result<Response<Incoming>, Status> {
        let answered = self.client.request(asking).await;
        answered.map_err(|error| lost(&self.server, &error))
    }

    /// All of a request, for as long as it may take.
    async fn ask(
        &self,
        asked: Asked,
        (metadata, remaining): (&Metadata, Duration),
        whole: Whole,
    ) -> Result<Answered, Status> {
        let asking = self.asking(asked, metadata)?;
        self.permit(asking.uri())?;
        let _place = self.gate.enter()?;
        let work = async {
            let (head, body) = self.exchange(asking).await?.into_parts();
            let fails = match whole {
                Whole::Yes => head.status.as_u16() >= 400,
                Whole::BodyOnly => !head.status.is_success(),
            };
            let most = self.gate.limits().answer;
            if fails {
                let told = self.read(body, FAILURE_BYTES.min(most));
                let told = timeout(FAILURE_TIME, told).await;
                return Err(failure(
                    &head,
                    &told.unwrap_or(Ok(Bytes::new())).unwrap_or_default(),
                ));
            }
            let body = self.read(body, most).await?;
            Ok(Answered {
                status: head.status.as_u16(),
                headers: match whole {
                    Whole::Yes => headers_of(&head.headers)?,
                    Whole::BodyOnly => Vec::new(),
                },
                body: body.into(),
            })
        };
        self.gate.within(remaining, work).await
    }

    async fn read(&self, body: Incoming, most: usize) -> Result<Bytes, Status> {
        let read = Limited::new(body, most).collect().await;
        read.map(http_body_util::Collected::to_bytes)
            .map_err(|error| {
                let server = &self.server;
                match error.is::<LengthLimitError>() {
                    true => {
                        let message = format!("{server} has answered with more than {most} bytes");
                        Status::resource_exhausted(message)
                    }
                    false => Status::unfinished(format!(
                        "the answer of {server} has ended in the middle: {error}"
                    )),
                }
            })
    }

    /// Whether callers may ask for what is at this path.
    fn permit(&self, at: &Uri) -> Result<(), Status> {
        let path = at.path_and_query().map_or("", PathAndQuery::as_str);
        match self
            .paths
            .iter()
            .any(|start| path.starts_with(start.as_str()))
        {
            true => Ok(()),
            false => {
                let message = format!("{} is open for {} only", self.name, self.paths.join(", "));
                Err(Status::permission_denied(message))
            }
        }
    }

    /// A request that goes to this server, and nowhere else.
    fn asking(&self, asked: Asked, metadata: &Metadata) -> Result<Asking<Full<Bytes>>, Status> {
        let path = path_and_query(&asked.path).map_err(Status::invalid_argument)?;
        let verb = Verb::from_str(&asked.method).ok();
        let verb = verb.filter(|verb| verb.as_str().len() <= LONGEST_VERB);
        let verb = verb.filter(|verb| *verb != Verb::CONNECT && *verb != Verb::TRACE);
        let verb = verb.ok_or_else(|| {
            let message = format!(
                "{:?} is no method of HTTP that is passed on",
                short(&asked.method)
            );
            Status::invalid_argument(message)
        })?;
        // Some servers take such a body for the next request, which nobody has looked at.
        let has_none = [Verb::GET, Verb::HEAD, Verb::DELETE, Verb::OPTIONS].contains(&verb);
        if has_none && !asked.body.is_empty() {
            let message = format!("a body with {verb}: none is passed on");
            return Err(Status::invalid_argument(message));
        }
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.server.authority.clone())
            .path_and_query(path)
            .build();
        let uri = uri.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut asking = Asking::new(Full::new(asked.body.into()));
        (*asking.method_mut(), *asking.uri_mut()) = (verb, uri);
        *asking.headers_mut() = self.headers_for(&asked.headers, metadata)?;
        Ok(asking)
    }

    /// The headers of a request: those that it names, and of the call's metadata what it does not name itself.
    fn headers_for(
        &self,
        own: &[(String, String)],
        metadata: &Metadata,
    ) -> Result<HeaderMap, Status> {
        if own.len() > MOST_HEADERS {
            let message = format!("{} headers: at most {MOST_HEADERS} are allowed", own.len());
            return Err(Status::resource_exhausted(message));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in own {
            let known = self
                .headers
                .iter()
                .find(|known| name.eq_ignore_ascii_case(known.as_str()));
            let known = known.ok_or_else(|| {
                let message = format!(
                    "{} gets no header {:?}: `headers` in its configuration says which",
                    self.name,
                    short(name)
                );
                Status::invalid_argument(message)
            })?;
            headers.append(known, value_of(name, value)?);
        }
        for name in &self.headers {
            if let Some(value) = metadata.get(name.as_str())
                && !headers.contains_key(name)
            {
                headers.insert(name, value_of(name.as_str(), value)?);
            }
        }
        Ok(headers)
    }
}

/// What is told of an answer.
#[derive(Debug, Clone, Copy)]
enum Whole {
    /// Its number and headers, too.
    Yes,
    BodyOnly,
}

/// What became of a request that has no answer.
pub(crate) fn lost(server: &HttpServer, error: &Error) -> Status {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match error.is_connect() {
        true => Status::unavailable(format!("{server} cannot be reached: {cause}")),
        false => Status::unfinished(format!(
            "the connection to {server} has ended before the answer, and whether it did what was asked is not known: {cause}"
        )),
    }
}

pub(crate) fn client(way: Way, h2: bool) -> Client<Way, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .http1_max_headers(MOST_HEADERS)
        .http1_max_buf_size(HEADER_BYTES as usize)
        .http2_only(h2)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .http2_keep_alive_timeout(ALIVE_WITHIN)
        .http2_initial_stream_window_size(WINDOW)
        .http2_initial_connection_window_size(ALL_WINDOWS)
        .http2_max_concurrent_reset_streams(GIVEN_UP)
        .http2_max_local_error_reset_streams(None)
        .build(way)
}

fn value_of(name: &str, value: &str) -> Result<HeaderValue, Status> {
    HeaderValue::from_str(value).map_err(|_| {
        let message = format!("the header {name} has a value that no header can have");
        Status::invalid_argument(message)
    })
}

/// The headers of an answer, if they are not too much: of HTTP/1.1 hyper bounds their number and, about, its buffer.
fn headers_of(headers: &HeaderMap) -> Result<Vec<(String, String)>, Status> {
    let bytes: usize = (headers.iter())
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    if headers.len() > MOST_HEADERS || bytes > HEADER_BYTES as usize {
        let message = format!(
            "an answer with {} headers of {bytes} bytes: at most {MOST_HEADERS} of {HEADER_BYTES} bytes are allowed",
            headers.len()
        );
        return Err(Status::resource_exhausted(message));
    }
    let own = headers
        .iter()
        .filter(|(name, _)| !HOP_HEADERS.contains(&name.as_str()));
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let pairs = own.map(|(name, value)| (name.as_str().to_owned(), text(value)));
    Ok(pairs.collect())
}

/// The status for an answer that is none of success.
fn failure(head: &http::response::Parts, body: &[u8]) -> Status {
    let number = head.status.as_u16();
    let reason = head.extensions.get::<ReasonPhrase>();
    let reason = reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let reason = reason.or_else(|| Some(head.status.canonical_reason()?.to_owned()));
    let mut message = format!("{HTTP}{number} {}", reason.unwrap_or_default());
    let header = |name| {
        head.headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    if head.status.is_redirection()
        && let Some(location) = header(LOCATION)
    {
        message += &format!(" to {location}");
    }
    // Pages are for browsers.
    let is_told = header(CONTENT_TYPE)
        .is_some_and(|kind| kind.contains("json") || kind.starts_with("text/plain"));
    if is_told && let Ok(text) = std::str::from_utf8(body) {
        let text: String = text.chars().take(FAILURE_TEXT).collect();
        message += &format!(": {text}");
    }
    Status::new(code(number), message)
}

impl Upstream for Http {
    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn service(self: Arc<Self>) -> Service {
        let asked = |method: &str, path, body| Asked {
            method: method.to_owned(),
            path,
            headers: Vec::new(),
            body,
        };
        let with_body = move |method: &'static str| {
            move |(path, body): (String, Vec<u8>)| asked(method, path, body)
        };
        let without =
            move |method: &'static str| move |(path,): (String,)| asked(method, path, Vec::new());
        let service = Service::new(leaked(self.name.clone()));
        let service = self.body_only(service, "get", without("GET"));
        let service = self.body_only(service, "delete", without("DELETE"));
        let service = self.body_only(service, "put", with_body("PUT"));
        let service = self.body_only(service, "post", with_body("POST"));
        let send = method::<(Asked,), Answered>(&self.name, "send");
        service.method(send, move |request, (asked,)| {
            let http = Arc::clone(&self);
            async move {
                let context = (request.metadata(), request.remaining());
                let answered = http.ask(asked, context, Whole::Yes).await?;
                Ok(request.respond(answered).await?)
            }
        })
    }

    fn check(&self) -> Checked<'_> {
        Box::pin(async {
            let Some(path) = &self.health else {
                let connected = self.way.connect().await;
                return connected.map(drop).map_err(|error| error.to_string());
            };
            let asked = Asked {
                method: "GET".into(),
                path: path.clone(),
                ..Asked::default()
            };
            let asking = self.asking(asked, &Metadata::default());
            let answered = match asking {
                Ok(asking) => self.exchange(asking).await,
                Err(status) => Err(status),
            };
            match answered {
                Ok(answer) if answer.status().as_u16() < 400 => Ok(()),
                Ok(answer) => Err(format!("{path} is answered with {HTTP}{}", answer.status())),
                Err(status) => Err(status.message().to_owned()),
            }
        })
    }
}

impl Http {
    /// Adds a method that answers with a body alone.
    fn body_only<Args>(
        self: &Arc<Self>,
        service: Service,
        name: &str,
        asked: impl Fn(Args) -> Asked + Send + Sync + 'static,
    ) -> Service
    where
        Args: Send + 'static,
        Postcard: Codec<Args>,
    {
        let http = Arc::clone(self);
        let handle = move |request: Request<One<Vec<u8>>>, arguments: Args| {
            let (http, asked) = (Arc::clone(&http), asked(arguments));
            async move {
                let context = (request.metadata(), request.remaining());
                let answered = http.ask(asked, context, Whole::BodyOnly).await?;
                Ok(request.respond(answered.body).await?)
            }
        };
        service.method(method::<Args, Vec<u8>>(&self.name, name), handle)
    }
}

/// A method whose name is known when the program runs. It is never freed: there are five for each server of the configuration.
fn method<Args, Item>(service: &str, name: &str) -> &'static Method<Args, One<Item>> {
    Box::leak(Box::new(Method::new(leaked(format!("{service}/{name}")))))
}

fn leaked(name: String) -> &'static str {
    Box::leak(name.into_boxed_str())
}
