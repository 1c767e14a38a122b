//! How streams begin: dialled for the endpoint, or accepted.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use bytes::BytesMut;
use wallaby_proto::Address;
use wallaby_proto::endpoint::ConnId;

use super::effects;
use super::shared::{Inner, StreamState, locked};
use super::stream::Stream;
use crate::error::{ConnectError, dial_failed};
use crate::panics::{carried_by, polled};
use crate::timer::{self, Instant};
use crate::transport::{self, Accepted, Connector, Listener, Opening, PAUSE};

/// Where streams come in, until the endpoint is closed.
pub(crate) type Listening = Mutex<Option<Box<dyn Listener>>>;

impl Inner {
    /// Opens a stream for the endpoint.
    pub(super) fn dial(self: &Arc<Self>, conn: ConnId, to: Address) {
        let endpoint = Arc::clone(self);
        self.open(conn, async move {
            match endpoint.dial_stream(conn, &to).await {
                Ok(Some(stream)) => {
                    endpoint.logs.connected(endpoint.node, &to);
                    endpoint.begin(conn, stream);
                }
                Ok(None) => {}
                Err(why) => {
                    endpoint.logs.vain(endpoint.node, &to, &why);
                    endpoint.enter(|core| core.endpoint.handle_dial_failed(conn, why));
                }
            }
        });
    }

    /// Does what opens a stream, as long as the endpoint wants it.
    fn open(self: &Arc<Self>, conn: ConnId, opening: impl Future<Output = ()> + Send + 'static) {
        let (begin, begun) = tokio::sync::oneshot::channel();
        let task = self.runtime.spawn(async move {
            // Not before it can be found to be aborted.
            if begun.await.is_ok() {
                opening.await;
            }
        });
        if self.enter(|core| core.opens(conn, task.abort_handle())) {
            let _ = begin.send(());
        }
    }

    /// The stream; `None` if it goes over datagrams after all.
    async fn dial_stream(
        self: &Arc<Self>,
        conn: ConnId,
        to: &Address,
    ) -> Result<Option<transport::Stream>, ConnectError> {
        let failed = |error: io::Error| dial_failed(to, &error);
        let may_dial = |at| {
            let found = match to.is_udp() {
                true => Address::Udp(at),
                false => Address::Tcp(at),
            };
            self.enter(|core| core.endpoint.may_dial_found(conn, &found))
        };
        let by = Connector::new(
            self.ask(|core| core.endpoint.is_named_by_peer(conn)),
            &may_dial,
        );
        if let Some(stream) = self.dial_same_host(to, by).await {
            return Ok(Some(stream));
        }
        let datagrams = match to {
            Address::Udp(at) => Some(*at),
            Address::Other(name) if to.is_udp() => {
                Some(by.datagrams(name.text()).await.map_err(failed)?)
            }
            _ => None,
        };
        if let Some(at) = datagrams {
            self.enter(|core| core.endpoint.dial_datagrams(conn, at));
            return Ok(None);
        }
        let transports = &self.settings.driver.transports;
        let stream = transport::dial(to, self.settings.ring, transports, by).await;
        let stream = stream.ok_or_else(|| ConnectError::NoTransport { server: to.clone() })?;
        stream.map(Some).map_err(failed)
    }

    /// A stream is open: from now on it is driven by a task of its own.
    fn begin(self: &Arc<Self>, conn: ConnId, opened: transport::Stream) {
        let transport::Stream {
            reader,
            writer,
            identity,
        } = match self.settings.driver.transports.wrap(opened) {
            Ok(wrapped) => wrapped,
            Err(error) => return self.end_unopened(conn, &error),
        };
        let stream = Stream::new(conn, identity, writer);
        let wanted = self.enter(|core| {
            let wanted = core.is_opening(conn);
            if wanted {
                core.put_stream(conn, StreamState::Open(Arc::clone(&stream)));
                // What there was to write before was told when nobody could.
                effects::write(self, &stream);
            }
            wanted
        });
        match wanted {
            true => drop(self.runtime.spawn(stream.drive(reader, self))),
            false => stream.close(&[]),
        }
    }

    /// Accepts streams until the endpoint is closed.
    pub(crate) async fn accept(inner: Weak<Self>, listening: Arc<Listening>) {
        loop {
            let accepted = poll_fn(|cx| match locked(&listening).as_mut() {
                Some(listener) => polled(|| listener.poll_accept(cx)).map(Some),
                None => Poll::Ready(None),
            });
            let (Some(accepted), Some(endpoint)) = (accepted.await, inner.upgrade()) else {
                return;
            };
            match accepted.and_then(|accepted| endpoint.let_in(accepted)) {
                Ok(()) => {}
                Err(error) => {
                    endpoint.logs.accept_failed(&error);
                    timer::sleep_until(Instant::now() + PAUSE).await;
                }
            }
        }
    }

    fn let_in(self: &Arc<Self>, accepted: Accepted) -> io::Result<()> {
        let opened = match accepted {
            Accepted::Open(opened) => opened,
            Accepted::Opening(opening) => {
                self.open_accepted(opening);
                return Ok(());
            }
        };
        let transport::Stream {
            reader,
            writer,
            identity,
        } = self.settings.driver.transports.wrap(opened)?;
        self.logs.accepted(self.node, &identity);
        let stream = self.enter(|core| {
            let conn = core.endpoint.handle_accepted();
            let stream = Stream::new(conn, identity, writer);
            core.put_stream(conn, StreamState::Open(Arc::clone(&stream)));
            stream
        });
        self.runtime.spawn(stream.drive(reader, self));
        Ok(())
    }

    /// A stream does not become a connection.
    fn end_unopened(self: &Arc<Self>, conn: ConnId, error: &io::Error) {
        let end = transport::end_of(error);
        self.enter(|core| {
            core.endpoint.handle_ended(conn, &mut BytesMut::new(), end);
        });
    }

    /// Waits for what the transport of an accepted stream has to do first, as long as it has its place among the strangers.
    fn open_accepted(self: &Arc<Self>, opening: Opening) {
        let conn = self.enter(|core| {
            let conn = core.endpoint.handle_accepted();
            core.put_stream(conn, StreamState::Opening(None));
            conn
        });
        let endpoint = Arc::clone(self);
        let not_accepted = NotAccepted(Some(Arc::clone(self)));
        self.open(conn, async move {
            let mut not_accepted = not_accepted;
            match carried_by(opening).await {
                Ok(stream) => {
                    not_accepted.0 = None;
                    endpoint.logs.accepted(endpoint.node, &stream.identity);
                    endpoint.begin(conn, stream);
                }
                Err(error) => {
                    let reason = error.to_string();
                    if let Some(left_out) = endpoint.logs.not_opened.pass() {
                        tracing::warn!(endpoint = %endpoint.node, reason, left_out, "a stream that came in was not accepted");
                    }
                    endpoint.end_unopened(conn, &error);
                }
            }
        });
    }
}

/// A stream that came in does not become a connection, unless this is taken back.
struct NotAccepted(Option<Arc<Inner>>);

impl Drop for NotAccepted {
    fn drop(&mut self) {
        if let Some(endpoint) = &self.0 {
            endpoint.meters.accepts_failed.add();
        }
    }
}
