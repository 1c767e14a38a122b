//! Servers of gRPC: their methods are methods of Wallaby, `package.Service/Method`, whose payloads are their messages.
//!
//! What the messages look like the sidecar need not know. A client of Rust has them by `wallaby-build`, from the same `.proto`
//! files. A method answers with each message that the server sends; the call's status is the server's, with the same number. Streams
//! of requests are not passed on.

use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderMap, Method as Verb, Request as Asking, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use percent_encoding::percent_decode;
use tokio::time::timeout;
use wallaby::{Code, Metadata, RawRequest, Service, Status};

use crate::config::{GrpcConfig, HttpServer};
use crate::dial::Way;
use crate::http::{client, lost};
use crate::upstream::{Checked, Gate, Upstream};

/// Bytes before each message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// Codecs whose payloads are messages.
const CODECS: [&str; 2] = ["protobuf", "raw"];

/// The type of bodies, perhaps with more behind it.
const GRPC: &str = "application/grpc";

/// The highest number of a status, and that of an unknown one.
const MOST_NUMBER: u8 = 16;
const UNKNOWN: u8 = 2;

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// The method that tells whether a server takes work, and its answer if it does.
const HEALTH: &str = "grpc.health.v1.Health/Check";
const SERVING: &[u8] = &[8, 1];

/// A server of gRPC behind a sidecar.
#[derive(Debug)]
pub(crate) struct Grpc {
    pub(crate) server: HttpServer,
    pub(crate) services: Vec<String>,
    metadata: Vec<HeaderName>,
    client: Client<Way, Full<Bytes>>,
    gate: Gate,
}

/// How many messages a method answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    One,
    /// Or it is not known.
    Many,
}

impl Grpc {
    pub(crate) fn new(config: &GrpcConfig) -> Self {
        let way = Way::new(&config.server.host, config.server.port);
        Self {
            client: client(way, true),
            gate: Gate::new(config.server.to_string(), config.limits.clone()),
            services: config.services.iter().map(ToString::to_string).collect(),
            metadata: config.metadata.clone(),
            server: config.server.clone(),
        }
    }

    /// Whether a method is one of its services.
    pub(crate) fn has(&self, method: &str) -> bool {
        // Whatever stands between would take another path for another service.
        let is_name = |name: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !name.is_empty() && name.bytes().all(is_letter)
        };
        let parts = method.split_once('/').filter(|(_, name)| is_name(name));
        parts.is_some_and(|(service, _)| self.services.iter().any(|own| own == service))
    }

    /// Handles a request for one of its methods.
    ///
    /// # Errors
    ///
    /// The server's status, or why there is none.
    pub(crate) async fn handle(&self, request: RawRequest, answers: Answers) -> Result<(), Status> {
        let (method, codec) = (request.method().to_owned(), request.definition().codec());
        if !CODECS.contains(&codec) {
            let message = format!(
                "{method} has messages of Protocol Buffers, and is called with the codec {codec}"
            );
            return Err(Status::mismatch(message));
        }
        if request.take_body().is_some() {
            let message =
                format!("{method} is behind a sidecar, which passes no stream of requests on");
            return Err(Status::unimplemented(message));
        }
        let _place = self.gate.enter()?;
        let remaining = request.remaining();
        let asking = self.asking(&method, request.payload(), (request.metadata(), remaining))?;
        // All of it, or up to the first message of a stream.
        let first = async {
            let mut messages = self.call(asking).await?;
            let first = messages.next().await?;
            if answers == Answers::One {
                messages.only().await?;
            }
            Ok((first, messages))
        };
        let (first, mut messages) = self.gate.within(remaining, first).await?;
        match (answers, first) {
            (Answers::One, Some(message)) => return Ok(request.respond(message).await?),
            (Answers::One, None) => {
                let message = format!("{method} has ended without an answer");
                return Err(Status::new(Code::Unanswered, message));
            }
            (Answers::Many, None) => return Ok(()),
            (Answers::Many, Some(message)) => request.reply(message).await?,
        }
        // Not before there is credit for it: the server has to wait then, too.
        while let Some(message) = messages.next().await? {
            request.reply(message).await?;
        }
        Ok(())
    }

    /// The one answer of a method, within so much time.
    ///
    /// # Errors
    ///
    /// As [`handle`](Self::handle)'s.
    pub(crate) async fn ask(
        &self,
        method: &str,
        message: &Bytes,
        time: Duration,
    ) -> Result<Bytes, Status> {
        let asking = self.asking(method, message, (&Metadata::default(), time))?;
        let asked = async {
            let mut messages = self.call(asking).await?;
            let first = messages.next().await?;
            messages.only().await?;
            first.ok_or_else(|| Status::new(Code::Unanswered, format!("{method} has not answered")))
        };
        let late =
            || Status::deadline_exceeded(format!("{method} has not answered within {time:?}"));
        timeout(time, asked).await.unwrap_or_else(|_| Err(late()))
    }

    fn asking(
        &self,
        method: &str,
        message: &Bytes,
        (metadata, remaining): (&Metadata, Duration),
    ) -> Result<Asking<Full<Bytes>>, Status> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.server.authority.clone())
            .path_and_query(format!("/{method}"))
            .build();
        let uri = uri.map_err(|_| Status::invalid_argument(format!("{method:?} is no path")))?;
        let length = u32::try_from(message.len());
        let length =
            length.map_err(|_| Status::resource_exhausted("a message of more than 4 GiB"))?;
        let mut body = BytesMut::with_capacity(HEAD + message.len());
        body.put_u8(0);
        body.put_u32(length);
        body.put_slice(message);
        let mut asking = Asking::new(Full::new(body.freeze()));
        (
            *asking.method_mut(),
            *asking.uri_mut(),
            *asking.version_mut(),
        ) = (Verb::POST, uri, Version::HTTP_2);
        let headers = asking.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
        headers.insert(USER_AGENT, HeaderValue::from_static("wallaby-sidecar"));
        headers.insert("grpc-timeout", timeout_of(remaining));
        for key in &self.metadata {
            if let Some(value) = value_of(metadata, key.as_str())? {
                headers.insert(key, value);
            }
        }
        Ok(asking)
    }

    async fn call(&self, asking: Asking<Full<Bytes>>) -> Result<Messages<'_>, Status> {
        let answered = self.client.request(asking).await;
        let answered = answered.map_err(|error| lost(&self.server, &error))?;
        Messages::new(self, answered)
    }
}

/// The messages that a method answers with, while they arrive. Who drops it resets its stream.
struct Messages<'a> {
    grpc: &'a Grpc,
    body: Incoming,
    unread: BytesMut,
    ended: bool,
}

impl<'a> Messages<'a> {
    fn new(grpc: &'a Grpc, answered: Response<Incoming>) -> Result<Self, Status> {
        let (head, body) = answered.into_parts();
        if head.status != StatusCode::OK {
            let message = format!("{} has answered with HTTP {}", grpc.server, head.status);
            return Err(Status::new(code(head.status.as_u16()), message));
        }
        let kind = head.headers.get(CONTENT_TYPE);
        if !kind.is_some_and(|kind| kind.as_bytes().starts_with(GRPC.as_bytes())) {
            let message = format!(
                "{} has answered with something else than {GRPC}",
                grpc.server
            );
            return Err(Status::unknown(message));
        }
        let ended = outcome(&head.headers).transpose()?.is_some();
        let unread = BytesMut::new();
        Ok(Self {
            grpc,
            body,
            unread,
            ended,
        })
    }

    /// The next one; `None` after the last one, if the server says that all is well.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let server = &self.grpc.server;
        loop {
            if let Some(message) = self.whole()? {
                return Ok(Some(message));
            }
            if self.ended {
                return Ok(None);
            }
            let ended =
                || Status::unfinished(format!("the answer of {server} has ended without a status"));
            let frame = self.body.frame().await.ok_or_else(ended)?;
            let frame = frame.map_err(|error| {
                Status::unfinished(format!(
                    "the answer of {server} has ended in the middle: {error}"
                ))
            })?;
            match frame.into_data() {
                Ok(data) => self.unread.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    outcome(&trailers).ok_or_else(ended)??;
                    if !self.unread.is_empty() {
                        let message = format!("{server} has ended in the middle of a message");
                        return Err(Status::data_loss(message));
                    }
                    self.ended = true;
                }
            }
        }
    }

    /// A message that is there, all of it.
    fn whole(&mut self) -> Result<Option<Bytes>, Status> {
        let server = &self.grpc.server;
        let Some((&[compressed, length @ ..], _)) = self.unread.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        if compressed != 0 {
            let message =
                format!("{server} has sent a compressed message, which nobody has asked for");
            return Err(Status::internal(message));
        }
        let (length, most) = (
            u32::from_be_bytes(length) as usize,
            self.grpc.gate.limits().answer,
        );
        if length > most {
            let message = format!(
                "{server} has answered with a message of {length} bytes: at most {most} are allowed"
            );
            return Err(Status::resource_exhausted(message));
        }
        if self.unread.len() < HEAD + length {
            return Ok(None);
        }
        self.unread.advance(HEAD);
        Ok(Some(self.unread.split_to(length).freeze()))
    }

    /// Nothing comes after the first one.
    async fn only(&mut self) -> Result<(), Status> {
        match self.next().await? {
            None => Ok(()),
            Some(_) => {
                let message = format!(
                    "{} has answered twice where once was said",
                    self.grpc.server
                );
                Err(Status::internal(message))
            }
        }
    }
}

/// What trailers say of how a method has ended, if they do.
fn outcome(trailers: &HeaderMap) -> Option<Result<(), Status>> {
    let number = trailers.get(STATUS)?.to_str().ok();
    let number: u8 = number
        .and_then(|number| number.parse().ok())
        .unwrap_or(UNKNOWN);
    if number == 0 {
        return Some(Ok(()));
    }
    let number = if number > MOST_NUMBER {
        UNKNOWN
    } else {
        number
    };
    let message = trailers.get(MESSAGE).map_or(&[][..], HeaderValue::as_bytes);
    let message = percent_decode(message).decode_utf8_lossy().into_owned();
    Some(Err(Status::new(Code::from_number(number), message)))
}

/// The code for an answer that is none of gRPC, by its number.
fn code(number: u16) -> Code {
    match number {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// A time as gRPC writes it: at most eight digits, and a unit.
fn timeout_of(time: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match time.as_millis() {
        millis @ 0..=MOST => format!("{}m", millis.max(1)),
        _ => format!("{}S", u128::from(time.as_secs()).min(MOST)),
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("1m"))
}

/// A value of the call's metadata, as gRPC writes it.
fn value_of(metadata: &Metadata, key: &str) -> Result<Option<HeaderValue>, Status> {
    let text = match metadata.get_bin(key) {
        Some(bytes) if key.ends_with("-bin") => Some(BASE64_STANDARD_NO_PAD.encode(bytes)),
        _ => metadata.get(key).map(str::to_owned),
    };
    let value = text.map(|text| HeaderValue::from_str(&text)).transpose();
    value.map_err(|_| {
        Status::invalid_argument(format!(
            "the metadata {key} have a value that gRPC cannot pass on"
        ))
    })
}

impl Upstream for Grpc {
    fn names(&self) -> Vec<String> {
        self.services.clone()
    }

    /// They are caught: nobody knows them yet.
    fn service(self: Arc<Self>) -> Service {
        Service::new("grpc")
    }

    fn check(&self) -> Checked<'_> {
        Box::pin(async {
            match self
                .ask(HEALTH, &Bytes::new(), crate::upstream::PATIENCE)
                .await
            {
                Ok(answer) if &*answer == SERVING => Ok(()),
                Ok(_) => Err("it says that it does not serve".to_owned()),
                // It is there.
                Err(status) if status.code() == Code::Unimplemented => Ok(()),
                Err(status) => Err(status.message().to_owned()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_eight_digits() {
        for (time, expected) in [
            (Duration::ZERO, "1m"),
            (Duration::from_millis(1500), "1500m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(timeout_of(time), expected);
        }
    }

    #[test]
    fn trailers_say_how_it_has_ended() {
        let check = |status: &'static str, message: &'static str| {
            let mut trailers = HeaderMap::new();
            trailers.insert(STATUS, HeaderValue::from_static(status));
            trailers.insert(MESSAGE, HeaderValue::from_static(message));
            outcome(&trailers)
                .unwrap()
                .map_err(|status| (status.code(), status.message().to_owned()))
        };
        assert_eq!(outcome(&HeaderMap::new()), None);
        assert_eq!(check("0", ""), Ok(()));
        assert_eq!(
            check("5", "no%20b%C3%B6ok%"),
            Err((Code::NotFound, "no b\u{f6}ok%".into()))
        );
        assert_eq!(
            check("16", "%zz"),
            Err((Code::Unauthenticated, "%zz".into()))
        );
        for odd in ["17", "200", "-1", "x", "999"] {
            assert_eq!(
                check(odd, "odd"),
                Err((Code::Unknown, "odd".into())),
                "{odd}"
            );
        }
    }
}
