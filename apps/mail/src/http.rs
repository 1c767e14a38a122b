//! Requests of browsers, and answers to them: what holds for all pages.

use crate::secret::Token;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE,
    HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maud::Markup;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time; others wait.
const MOST_CONNECTIONS: usize = 512;
/// Bytes of a form: a mail's text, and what a browser makes of its letters.
const MOST_FORM: usize = 4 << 20;
/// That a request's head may take, and then its form.
const PATIENCE: Duration = Duration::from_secs(20);
/// The cookie that has the session's token.
const SESSION: &str = "wallaby-mail-session";
/// What pages may do: nothing but look as they do, and send forms here. No script runs, wherever it is from.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";
/// What attachments may do that are looked at by themselves.
const SANDBOX: &str = "default-src 'none'; sandbox";

/// What a browser wants.
#[derive(Debug)]
pub(crate) struct Visit {
    /// `GET` or `POST`.
    pub(crate) method: Method,
    /// As in `/inbox`.
    pub(crate) path: String,
    /// Behind the `?`.
    pub(crate) query: Fields,
    /// What a form sends.
    pub(crate) form: Fields,
    /// The session that it says it has.
    pub(crate) token: Option<Token>,
    /// Where it is.
    pub(crate) from: IpAddr,
}

/// Names and values that a browser sends.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    fn read(bytes: &[u8]) -> Self {
        Self(
            form_urlencoded::parse(bytes)
                .into_owned()
                .take(100)
                .collect(),
        )
    }

    /// The value of this name; empty if there is none.
    pub(crate) fn of(&self, name: &str) -> &str {
        let field = self.0.iter().find(|(known, _)| known == name);
        field.map_or("", |(_, value)| value)
    }
}

/// An answer, whose body is known.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A page.
pub(crate) fn page(status: StatusCode, page: Markup) -> Answer {
    answer(
        status,
        "text/html; charset=utf-8",
        page.into_string().into(),
    )
}

/// The browser is to look elsewhere.
pub(crate) fn go_to(path: &str) -> Answer {
    let mut answer = answer(StatusCode::SEE_OTHER, "text/plain", Bytes::new());
    if let Ok(path) = HeaderValue::from_str(path) {
        answer.headers_mut().insert(LOCATION, path);
    }
    answer
}

/// What is the same for all: browsers keep it for an hour.
pub(crate) fn fixed(kind: &str, text: &'static str) -> Answer {
    let mut answer = answer(StatusCode::OK, kind, text.into());
    set(&mut answer, CACHE_CONTROL, "max-age=3600");
    answer
}

/// A file. Pictures of these kinds are shown, all others are kept by the browser as files.
pub(crate) fn file(name: &str, kind: &str, bytes: Vec<u8>) -> Answer {
    let kind = SHOWN.into_iter().find(|shown| *shown == kind);
    let mut answer = answer(
        StatusCode::OK,
        kind.unwrap_or("application/octet-stream"),
        bytes.into(),
    );
    // RFC 6266 and 8187: letters that would need a second look are written as numbers.
    let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
    let how = if kind.is_some() {
        "inline"
    } else {
        "attachment"
    };
    let how = format!(
        "{how}; filename*=UTF-8''{}",
        name.replace('+', "%20").replace('*', "%2A")
    );
    set(&mut answer, CONTENT_SECURITY_POLICY, SANDBOX);
    set(&mut answer, CONTENT_DISPOSITION, &how);
    answer
}

/// Kinds of pictures that cannot be anything else.
pub(crate) const SHOWN: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The browser keeps a session, or forgets it.
pub(crate) fn with_session(mut answer: Answer, token: Option<&Token>, secure: bool) -> Answer {
    let secure = if secure { "; Secure" } else { "" };
    let rules = format!("; Path=/; HttpOnly; SameSite=Strict{secure}");
    let cookie = match token {
        Some(token) => format!("{SESSION}={}{rules}", token.cookie()),
        None => format!("{SESSION}={rules}; Max-Age=0"),
    };
    set(&mut answer, SET_COOKIE, &cookie);
    answer
}

fn answer(status: StatusCode, kind: &str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (CACHE_CONTROL, "no-store"),
    ] {
        set(&mut answer, name, value);
    }
    answer
}

/// Nothing more is read of who has sent that.
fn refusal(status: StatusCode, why: &'static str) -> Answer {
    let mut refusal = answer(status, "text/plain; charset=utf-8", why.into());
    set(&mut refusal, CONNECTION, "close");
    refusal
}

fn set(answer: &mut Answer, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// Answers browsers by `site`, as long as this is polled.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    site: impl Fn(Visit) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return; // nobody closes it
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("no connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let site = site.clone();
        let service = service_fn(move |request| {
            let site = site.clone();
            async move {
                Ok::<_, Infallible>(match visit(request, peer.ip()).await {
                    Ok(visit) => site(visit).await,
                    Err((status, why)) => refusal(status, why),
                })
            }
        });
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE);
        let connection = server.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _ = connection.await; // a browser may leave at any time
            drop(place);
        });
    }
}

/// What a request is, if it is one that a page of this site could have made.
async fn visit(
    request: Request<Incoming>,
    from: IpAddr,
) -> Result<Visit, (StatusCode, &'static str)> {
    let (head, body) = request.into_parts();
    let form = match head.method {
        Method::GET | Method::HEAD => Fields::default(),
        Method::POST => {
            let body = Limited::new(body, MOST_FORM).collect();
            let body = tokio::time::timeout(PATIENCE, body).await;
            let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "The form did not come."))?;
            let body =
                body.map_err(|_| (StatusCode::PAYLOAD_TOO_LARGE, "The form is too large."))?;
            // Not before all of it is read: who still sends would not read why.
            if is_of_elsewhere(&head.headers) {
                return Err((StatusCode::FORBIDDEN, "This form is of another site."));
            }
            Fields::read(&body.to_bytes())
        }
        _ => {
            let why = "There are pages and forms only.";
            return Err((StatusCode::METHOD_NOT_ALLOWED, why));
        }
    };
    Ok(Visit {
        query: Fields::read(head.uri.query().unwrap_or_default().as_bytes()),
        path: head.uri.path().to_owned(),
        token: cookie(&head.headers).and_then(Token::read),
        method: head.method,
        form,
        from,
    })
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).into_iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
    cookies.find_map(|cookie| cookie.trim().strip_prefix(SESSION)?.strip_prefix('='))
}

/// Whether a browser says that a page of another site has sent this. One that says nothing has at least to know the token that
/// is in our forms.
fn is_of_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| Some(headers.get(name)?.to_str().unwrap_or("?"));
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return !["same-origin", "none"].contains(&site);
    }
    text(ORIGIN).is_some_and(|origin| {
        let origin = origin.split_once("://").map(|(_, host)| host);
        origin.is_none() || origin != text(HOST)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        });
        fields.collect()
    }

    #[test]
    fn forms_of_other_sites_are_known() {
        let host = ("host", "127.0.0.1:8025");
        for (is_of_elsewhere_too, fields) in [
            (false, vec![host]),
            (false, vec![host, ("origin", "http://127.0.0.1:8025")]),
            (true, vec![host, ("origin", "http://127.0.0.1:1")]),
            (true, vec![host, ("origin", "null")]),
            (true, vec![("origin", "http://127.0.0.1:8025")]),
            (false, vec![host, ("sec-fetch-site", "same-origin")]),
            (true, vec![host, ("sec-fetch-site", "same-site")]),
            (
                true,
                vec![
                    host,
                    ("sec-fetch-site", "cross-site"),
                    ("origin", "http://127.0.0.1:8025"),
                ],
            ),
        ] {
            assert_eq!(
                is_of_elsewhere(&headers(&fields)),
                is_of_elsewhere_too,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let cookies = |text| headers(&[("cookie", text)]);
        assert_eq!(
            cookie(&cookies("a=b; wallaby-mail-session=x=; c")),
            Some("x=")
        );
        assert_eq!(cookie(&cookies("wallaby-mail-session2=x; c")), None);
        assert_eq!(cookie(&HeaderMap::new()), None);
    }

    #[test]
    fn files_have_names_that_say_nothing_else() {
        let answer = file("a \"b\";*\r\n\u{e4}.html", "text/html", Vec::new());
        let named = answer.headers()[CONTENT_DISPOSITION].to_str().unwrap();
        assert_eq!(
            named,
            "attachment; filename*=UTF-8''a%20%22b%22%3B%2A%0D%0A%C3%A4.html"
        );
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/octet-stream");
        assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], SANDBOX);
        assert_eq!(
            file("a.png", "image/png", Vec::new()).headers()[CONTENT_TYPE],
            "image/png"
        );
    }
}
