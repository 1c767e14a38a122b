//! Connections to a server behind the sidecar: always to the one that the configuration names, whatever a request says.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex as Turn;
use tokio::time::{Instant, timeout};

/// How long a server may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a server that could not be reached is not dialled: at first, and at most. It is twice as long each time.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// When a server is dialled that could not be reached the last time: by one request at a time, and by nobody within a pause.
/// Requests fail at once then.
#[derive(Debug, Default)]
pub(crate) struct Dialling {
    /// Since it could not be reached.
    trouble: Mutex<Option<Trouble>>,
    /// Who dials while there is trouble.
    turn: Turn<()>,
}

#[derive(Debug, Clone)]
struct Trouble {
    since: Instant,
    pause: Duration,
    until: Instant,
    why: String,
}

impl Dialling {
    /// Dials so, if it is time for that.
    ///
    /// # Errors
    ///
    /// It cannot be reached, or could not shortly before.
    pub(crate) async fn dial<T>(&self, dial: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let _turn = match self.trouble() {
            None => None,
            Some(_) => {
                let turn = self.turn.lock().await;
                if let Some(trouble) = self.trouble().filter(|it| Instant::now() < it.until) {
                    let kind = io::ErrorKind::ConnectionRefused;
                    return Err(io::Error::new(kind, trouble.why));
                }
                Some(turn)
            }
        };
        let begun = Instant::now();
        let dialled = timeout(PATIENCE, dial).await.unwrap_or_else(|_| {
            let why = format!("not connected within {PATIENCE:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        });
        self.note(begun, dialled.as_ref().err());
        dialled
    }

    fn trouble(&self) -> Option<Trouble> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What became of a dial. Many may find out at the same time that nobody is there: that is one trouble.
    fn note(&self, begun: Instant, error: Option<&io::Error>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |before: &Trouble| begun < before.since;
        if error.is_some() && trouble.as_ref().is_some_and(is_known) {
            return;
        }
        *trouble = error.map(|error| {
            let pause = trouble.as_ref().map_or(PAUSE, |before| before.pause * 2);
            let pause = pause.min(LONGEST_PAUSE);
            let since = Instant::now();
            Trouble {
                since,
                pause,
                until: since + pause,
                why: error.to_string(),
            }
        });
    }
}

/// The way to one server over TCP. Clones are the same way.
#[derive(Debug, Clone)]
pub(crate) struct Way(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: String,
    port: u16,
    dialling: Dialling,
}

impl Way {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self(Arc::new(Inner {
            host: host.to_owned(),
            port,
            dialling: Dialling::default(),
        }))
    }

    /// A new connection.
    ///
    /// # Errors
    ///
    /// As [`Dialling::dial`]'s.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let Inner {
            host,
            port,
            dialling,
        } = &*self.0;
        let stream = dialling.dial(TcpStream::connect((host.as_str(), *port)));
        let stream = stream.await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// So hyper dials: what the request's URI says is nothing to it.
impl tower_service::Service<Uri> for Way {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let way = self.clone();
        Box::pin(async move { way.connect().await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_dialled_seldom_until_it_can() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let way = Way::new("127.0.0.1", at.port());
        way.connect().await.unwrap_err();
        let listener = TcpListener::bind(at).await.unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let mut refused = 0;
        while way.connect().await.is_err() {
            refused += 1;
            assert!(Instant::now() < end, "it is dialled again");
            tokio::task::yield_now().await;
        }
        assert!(refused > 0, "not within the pause");
        listener.accept().await.unwrap();
        way.connect().await.unwrap();
    }
}
