//! What a sidecar is told, by a file in [TOML](https://toml.io). The page `docs/sidecar.md` lists all keys.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::header::HeaderName;
use http::uri::{Authority, Scheme};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use thiserror::Error;
use toml::Spanned;
use wallaby::Address;

/// Most servers behind one sidecar.
pub const MOST_UPSTREAMS: usize = 64;

/// Most requests of one server that can be allowed to be under way.
const MOST_AT_ONCE: usize = 65_536;

/// Longest answer that can be allowed, which is what a message can have.
pub(crate) const LONGEST: usize = 16 << 20;

/// Most bytes of a name of a service.
const LONGEST_NAME: usize = 100;

/// Headers that go to a server whatever its configuration says: they describe what is asked for, and say nothing of who asks.
pub const PLAIN_HEADERS: [&str; 9] = [
    "accept",
    "accept-language",
    "content-language",
    "content-type",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// Headers that are between the sidecar and its server alone.
pub(crate) const HOP_HEADERS: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why a text is no configuration of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line} ({text}): {why}")]
pub struct ConfigError {
    /// The line, from 1.
    pub line: usize,
    /// What stands there, the key among it.
    pub text: String,
    /// What is wrong with it, and what was expected.
    pub why: String,
}

impl ConfigError {
    fn new(file: &str, at: usize, why: impl Into<String>) -> Self {
        let before = file.get(..at).unwrap_or(file);
        let line = before.matches('\n').count();
        let text = file.lines().nth(line).unwrap_or_default().trim();
        Self {
            line: line + 1,
            text: text.chars().take(120).collect(),
            why: why.into(),
        }
    }
}

/// What a sidecar is told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Where it listens, as a server of Wallaby: at least one address.
    #[serde(deserialize_with = "all_parsed")]
    pub listen: Vec<Address>,
    /// What others are told in place of the first of these.
    #[serde(default, deserialize_with = "parsed_option")]
    pub advertise: Option<Address>,
    /// Who may call.
    #[serde(default)]
    pub allow: Allow,
    /// The file with the cluster's key, for [`Allow::Cluster`] and [`CodeAllow::Cluster`].
    pub cluster_key: Option<PathBuf>,
    /// Certificates, for addresses of the scheme `tls`.
    pub tls: Option<TlsConfig>,
    /// Whether its methods are links of chains. Default yes.
    #[serde(default = "yes")]
    pub chains: bool,
    /// Functions that clients bring along with chains. Default: nobody may bring any.
    pub code: Option<CodeConfig>,
    /// How often each server is asked whether it takes work. Default 5 s.
    #[serde(default = "five_seconds", deserialize_with = "duration")]
    pub health_every: Duration,
    /// Servers of HTTP.
    #[serde(default)]
    pub http: Vec<HttpConfig>,
    /// Servers of gRPC.
    #[serde(default)]
    pub grpc: Vec<GrpcConfig>,
    /// Servers of ONC RPC.
    #[serde(default)]
    pub onc: Vec<OncConfig>,
}

/// Who may call a sidecar. Its servers see the sidecar's host, whoever has called: what they allow that host, they allow all of
/// these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Allow {
    /// Processes of this host: it may listen at loopback addresses, unix sockets and shared memory only. This is the default.
    #[default]
    Local,
    /// Members of the cluster, by seals ([`wallaby::ClusterKey`]).
    Cluster,
    /// Who has shown a certificate with one of these names, over TLS.
    Names(Vec<String>),
    /// Anybody who can connect.
    Anybody,
}

/// Certificates, as PEM files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// Those that are trusted.
    pub roots: PathBuf,
    /// The sidecar's own.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
}

/// Functions that clients bring along with chains, as WebAssembly.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CodeConfig {
    /// Who may bring any: clients, and servers that have them run here ([`wallaby_chain::Chains::proxy`]).
    pub allow: CodeAllow,
    /// The server that runs them. By default this sidecar does, if it was built with the feature `code`.
    #[serde(default, deserialize_with = "parsed_option")]
    pub at: Option<Address>,
}

/// Who may bring functions to a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CodeAllow {
    /// Who may call it.
    Callers,
    /// Members of the cluster, by seals, also where others may call.
    Cluster,
    /// Who has shown a certificate with one of these names, over TLS.
    Names(Vec<String>),
}

/// What a server's requests may take up.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct UpstreamLimits {
    /// How long a request may take, connecting included, and at most what is left until its call's deadline. Default 30 s.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
    /// How many may be under way; further ones get the status `ResourceExhausted`. Default 256.
    #[serde(deserialize_with = "at_once")]
    pub at_once: usize,
    /// Bytes of an answer; a longer one is the status `ResourceExhausted`. Default, and at most, 16 MiB.
    #[serde(deserialize_with = "longest")]
    pub answer: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            at_once: 256,
            answer: LONGEST,
        }
    }
}

/// A server of HTTP.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Its methods are `http.NAME/get` and so on.
    pub name: Spanned<ServiceName>,
    /// Where it is: `http://HOST:PORT`.
    #[serde(deserialize_with = "parsed")]
    pub server: HttpServer,
    /// Whether it speaks HTTP/2, without being asked before. Default no: HTTP/1.1.
    #[serde(default)]
    pub h2: bool,
    /// Headers that go to it besides [`PLAIN_HEADERS`], from the request or from the call's metadata: credentials perhaps.
    #[serde(default, deserialize_with = "headers")]
    pub headers: Vec<HeaderName>,
    /// What paths begin with that may be asked for. Default `/`: all.
    #[serde(default = "all_paths", deserialize_with = "paths")]
    pub paths: Vec<String>,
    /// What is asked for to see whether it takes work: a path that is answered with a number below 400 then. By default it does if
    /// it takes a connection.
    #[serde(default, deserialize_with = "health_path")]
    pub health: Option<String>,
    /// What its requests may take up.
    #[serde(default)]
    pub limits: UpstreamLimits,
}

/// A server of gRPC.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GrpcConfig {
    /// Where it is: `http://HOST:PORT`.
    #[serde(deserialize_with = "parsed")]
    pub server: HttpServer,
    /// Its services that are served: `package.Service`.
    pub services: Vec<Spanned<ServiceName>>,
    /// Keys of the call's metadata that go to it: credentials perhaps. The values of those that end in `-bin` are bytes.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: Vec<HeaderName>,
    /// Whether it is asked by its reflection what its messages look like, for tools. Default no.
    #[serde(default)]
    pub reflection: bool,
    /// What its requests may take up. The timeout is that of the first answer, where there may be several.
    #[serde(default)]
    pub limits: UpstreamLimits,
}

/// A server of ONC RPC.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OncConfig {
    /// Where it is: `tcp://IP:PORT`, `udp://IP:PORT` or `unix:///PATH`.
    #[serde(deserialize_with = "onc_server")]
    pub server: Address,
    /// The file that says what its procedures are (`.x`).
    pub interface: PathBuf,
    /// Programs of that file, by their names there, which are served in all their versions: as those of one interface may be at
    /// several ports. Default: all.
    pub programs: Option<Vec<String>>,
    /// What its requests may take up.
    #[serde(default)]
    pub limits: UpstreamLimits,
}

/// A name of a service: letters, digits, `_`, `-` and `.`, at most 100.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName(String);

impl ServiceName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        match (1..=LONGEST_NAME).contains(&text.len()) && text.chars().all(is_letter) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "{text:?} is no name: expected 1 to {LONGEST_NAME} letters, digits and \"_-.\""
            )),
        }
    }
}

impl<'de> Deserialize<'de> for ServiceName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from)
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A server of HTTP, by `http://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpServer {
    /// As its URL has it.
    pub(crate) authority: Authority,
    /// Its host, as it is dialled: a name or an IP address.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
}

impl FromStr for HttpServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no server: expected http://HOST:PORT, as http://127.0.0.1:8000")
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(format!(
                "{text:?}: servers behind a sidecar are reached without TLS: expected http://"
            ));
        }
        let authority = uri.authority().filter(|_| {
            uri.scheme() == Some(&Scheme::HTTP) && uri.path() == "/" && uri.query().is_none()
        });
        let authority = authority.ok_or_else(wrong)?.clone();
        let host = authority.host();
        // A port that is none is not taken for the usual one.
        let has_wrong_port = authority.as_str() != host && authority.port_u16().is_none();
        if host.is_empty() || authority.as_str().contains('@') || has_wrong_port {
            return Err(wrong());
        }
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority,
        })
    }
}

impl fmt::Display for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl Config {
    /// Reads one from a file's text.
    ///
    /// # Errors
    ///
    /// What is wrong, and in which line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            ConfigError::new(text, at, error.message())
        })?;
        let at_key = |key: &str, why: String| {
            let is_key = |line: &str| line.trim_start().starts_with(key);
            let mut before = text.split_inclusive('\n').take_while(|line| !is_key(line));
            let at = before.by_ref().map(str::len).sum();
            ConfigError::new(text, if at == text.len() { 0 } else { at }, why)
        };
        if config.listen.is_empty() {
            return Err(at_key("listen", "expected at least one address".into()));
        }
        config
            .check_access()
            .map_err(|(key, why)| at_key(key, why))?;
        config.check_names(text)?;
        Ok(config)
    }

    /// Who may call is what its addresses can tell.
    fn check_access(&self) -> Result<(), (&'static str, String)> {
        let far = self.listen.iter().find(|address| !is_local(address));
        if let (Allow::Local, Some(far)) = (&self.allow, far) {
            return Err((
                "listen",
                format!(
                    "others than this host reach {far}: say by `allow` who may call: \"cluster\", {{ names = [..] }} or \"anybody\""
                ),
            ));
        }
        let code = self.code.as_ref();
        let for_code = code.is_some_and(|code| code.allow == CodeAllow::Cluster);
        if (self.allow == Allow::Cluster || for_code) && self.cluster_key.is_none() {
            let why = "expected `cluster_key`, the file that has the key of the cluster";
            return Err((if for_code { "code" } else { "allow" }, why.into()));
        }
        if let Allow::Names(_) = &self.allow
            && let Some(open) = self.listen.iter().find(|at| at.scheme() != "tls")
        {
            let why =
                format!("who calls over {open} shows no certificate: expected tls:// in `listen`");
            return Err(("allow", why));
        }
        if self.code.is_some() && !self.chains {
            let why = "functions come with chains, which are switched off";
            return Err(("chains", why.into()));
        }
        if self.tls.is_none() && self.listen.iter().any(|at| at.scheme() == "tls") {
            let why = "expected `tls` with roots, certificate and key";
            return Err(("listen", why.into()));
        }
        Ok(())
    }

    fn check_names(&self, text: &str) -> Result<(), ConfigError> {
        let http = self.http.iter().map(|http| &http.name);
        let http = http.map(|name| (format!("http.{}", name.get_ref()), name.span().start));
        let grpc = self.grpc.iter().flat_map(|grpc| &grpc.services);
        let grpc = grpc.map(|name| (name.get_ref().to_string(), name.span().start));
        let names: Vec<(String, usize)> = http.chain(grpc).collect();
        let servers = self.http.len() + self.grpc.len() + self.onc.len();
        if servers > MOST_UPSTREAMS {
            let why = format!("{servers} servers: at most {MOST_UPSTREAMS} are allowed");
            return Err(ConfigError::new(text, text.trim_end().len(), why));
        }
        for (index, (name, at)) in names.iter().enumerate() {
            if names.iter().take(index).any(|(other, _)| other == name) {
                let why = format!("another server is {name} already");
                return Err(ConfigError::new(text, *at, why));
            }
        }
        Ok(())
    }
}

/// Whether only processes of this host reach it.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Tcp(at) | Address::Udp(at) => at.ip().is_loopback(),
        Address::Unix(_) | Address::Mem(_) | Address::Shm(_) => true,
        Address::Other(other) => {
            let host = other.text().rsplit_once(':').map_or("", |(host, _)| host);
            let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
            host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        }
        _ => false,
    }
}

fn yes() -> bool {
    true
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn all_paths() -> Vec<String> {
    vec!["/".to_owned()]
}

/// A value that is written as text.
struct Text<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

fn parsed<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Text::deserialize(from).map(|Text(value)| value)
}

fn parsed_option<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    parsed(from).map(Some)
}

fn all_parsed<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Text<T>>::deserialize(from)?;
    Ok(all.into_iter().map(|Text(value)| value).collect())
}

/// A length of time above 0, as `1m 30s` or `250ms`.
fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let Text(duration) = Text::<humantime::Duration>::deserialize(from)?;
    let duration = Duration::from(duration);
    match duration.is_zero() {
        true => Err(D::Error::custom("expected a time above 0, as \"5s\"")),
        false => Ok(duration),
    }
}

fn at_once<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    within(usize::deserialize(from)?, MOST_AT_ONCE)
}

fn longest<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    within(usize::deserialize(from)?, LONGEST)
}

fn within<E: serde::de::Error>(number: usize, most: usize) -> Result<usize, E> {
    match (1..=most).contains(&number) {
        true => Ok(number),
        false => Err(E::custom(format!("{number}: expected 1 to {most}"))),
    }
}

fn onc_server<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
    match parsed(from)? {
        server @ (Address::Tcp(_) | Address::Udp(_) | Address::Unix(_)) => Ok(server),
        other => Err(D::Error::custom(format!(
            "{other} is no server of ONC RPC: expected tcp://IP:PORT, udp://IP:PORT or unix:///PATH"
        ))),
    }
}

fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    let headers: Vec<HeaderName> = all_parsed(from)?;
    match headers
        .iter()
        .find(|name| HOP_HEADERS.contains(&name.as_str()))
    {
        None => Ok(headers),
        Some(name) => Err(D::Error::custom(format!(
            "{name} is between the sidecar and the server: it cannot be passed on"
        ))),
    }
}

fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    let keys = headers(from)?;
    let is_own = |key: &&HeaderName| {
        key.as_str().starts_with("grpc-") || **key == http::header::CONTENT_TYPE
    };
    match keys.iter().find(is_own) {
        None => Ok(keys),
        Some(key) => Err(D::Error::custom(format!(
            "{key} is gRPC's own: it cannot be passed on"
        ))),
    }
}

fn paths<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let paths = Vec::<String>::deserialize(from)?;
    match paths.iter().find(|path| !path.starts_with('/')) {
        None => Ok(paths),
        Some(path) => Err(D::Error::custom(format!("{path:?}: a path begins with /"))),
    }
}

fn health_path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let path = String::deserialize(from)?;
    match crate::http::path_and_query(&path) {
        Ok(_) => Ok(Some(path)),
        Err(why) => Err(D::Error::custom(why)),
    }
}
