//! One connection of a channel: records out, records in, and which calls of it wait.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, oneshot};

use crate::client::counters::{Counting, count};
use crate::client::xid::{Arrived, Waiting, arrived};
use crate::client::{Options, Result};
use crate::failure::{Lost, NoReply, Reason};
use crate::message::Reply;
use crate::peer::Peer;
use crate::record::{self, MAX_FRAGMENT, Records};
use crate::stream::Stream;

/// How much is read at a time.
const READ: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    state: Mutex<State>,
    /// The task that reads has something to write, or nothing to do any more.
    changed: Notify,
    counters: Arc<Counting>,
}

#[derive(Debug)]
struct State {
    waiting: Waiting<Waiter>,
    unsent: BytesMut,
    /// How many bytes the system took so far.
    sent: u64,
    ended: Option<Lost>,
}

#[derive(Debug)]
struct Waiter {
    /// How many bytes of the stream come before this call.
    begins: u64,
    reply: oneshot::Sender<Result<Reply>>,
}

impl Connection {
    pub(super) async fn open(
        server: &Peer,
        options: &Options,
        counters: &Arc<Counting>,
    ) -> io::Result<Arc<Self>> {
        let stream = match server {
            Peer::Tcp(address) | Peer::Udp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Peer::Unix(path) => {
                let path = path.as_deref().unwrap_or("".as_ref());
                Stream::Unix(UnixStream::connect(path).await?)
            }
        };
        count(&counters.connections);
        let connection = Arc::new(Self {
            stream,
            state: Mutex::new(State {
                waiting: Waiting::new()?,
                unsent: BytesMut::new(),
                sent: 0,
                ended: None,
            }),
            changed: Notify::new(),
            counters: Arc::clone(counters),
        });
        tokio::spawn(drive(Arc::clone(&connection), options.max_record));
        Ok(connection)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    /// Ends it, and tells every call that waits what is known of it.
    pub(super) fn close(&self, why: Lost) {
        self.state().end(why);
        self.changed.notify_one();
    }

    /// Sends a call, as far as the system takes it now. The rest follows by itself.
    pub(super) fn begin(
        &self,
        head: impl FnOnce(u32) -> Result<Bytes, Reason>,
        arguments: &[u8],
        options: &Options,
    ) -> Result<Outstanding<'_>, Reason> {
        let mut state = self.state();
        if let Some(why) = &state.ended {
            return Err(NoReply::NotSent { why: why.clone() }.into());
        }
        if state.unsent.len() >= options.max_unsent {
            let limit = options.max_unsent;
            return Err(NoReply::TooMuchUnsent { limit }.into());
        }
        let (tell, reply) = oneshot::channel();
        let begins = state.sent + state.unsent.len() as u64;
        let xid = state.waiting.insert(Waiter {
            begins,
            reply: tell,
        });
        let head = checked(head(xid), arguments, options).inspect_err(|_| {
            state.waiting.remove(xid);
        })?;
        let mark = record::mark(head.len() + arguments.len());
        self.write(&mut state, [&mark, &head, arguments]);
        if !state.unsent.is_empty() {
            self.changed.notify_one();
        }
        Ok(Outstanding {
            connection: self,
            xid,
            reply,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message, as far as the system takes it. Only the rest is copied.
    fn write(&self, state: &mut State, parts: [&[u8]; 3]) {
        let mut sent = 0;
        if state.unsent.is_empty() {
            match self.stream.try_write_parts(&parts.map(IoSlice::new)) {
                Ok(length) => sent = length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.changed.notify_one();
                    return state.end((&error).into());
                }
            }
        }
        state.sent += sent as u64;
        for part in parts {
            let now = sent.min(part.len());
            state.unsent.extend_from_slice(&part[now..]);
            sent -= now;
        }
        self.send(state);
    }

    /// Writes what waits, as far as the system takes it.
    fn send(&self, state: &mut State) {
        while !state.unsent.is_empty() {
            match self.stream.try_write(&state.unsent) {
                Ok(length) => {
                    state.unsent.advance(length);
                    state.sent += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.changed.notify_one();
                    return state.end((&error).into());
                }
            }
        }
    }

    fn handle_record(&self, record: Bytes) {
        let (xid, reply) = match arrived(record) {
            Arrived::Reply(xid, reply) => (xid, Ok(reply)),
            Arrived::Malformed(xid, error) => {
                count(&self.counters.malformed);
                (xid, Err(NoReply::Malformed(error)))
            }
            Arrived::Other => return count(&self.counters.malformed),
        };
        let is_reply = reply.is_ok();
        match self.state().waiting.remove(xid) {
            Some(waiter) => {
                if is_reply {
                    count(&self.counters.replies);
                }
                // Who dropped the call does not wait.
                let _ = waiter.reply.send(reply);
            }
            None if is_reply => count(&self.counters.late_replies),
            None => {}
        }
    }
}

impl State {
    fn end(&mut self, why: Lost) {
        if self.ended.is_some() {
            return;
        }
        for waiter in self.waiting.drain() {
            let why = why.clone();
            let error = match waiter.begins >= self.sent {
                true => NoReply::NotSent { why },
                false => NoReply::Unknown { why },
            };
            let _ = waiter.reply.send(Err(error));
        }
        self.unsent = BytesMut::new();
        self.ended = Some(why);
    }
}

fn checked(
    head: Result<Bytes, Reason>,
    arguments: &[u8],
    options: &Options,
) -> Result<Bytes, Reason> {
    let head = head?;
    let limit = options.max_record.min(MAX_FRAGMENT);
    match head.len() + arguments.len() {
        found if found > limit => Err(NoReply::TooLong { limit, found }.into()),
        _ => Ok(head),
    }
}

/// The task of a connection: reads until it ends, and writes what the system did not take at once.
async fn drive(connection: Arc<Connection>, max_record: usize) {
    let mut records = Records::new(max_record);
    let mut buffer = vec![0; READ];
    let why = loop {
        let interest = {
            let state = connection.state();
            if state.ended.is_some() {
                return;
            }
            match state.unsent.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            }
        };
        let ready = tokio::select! {
            ready = connection.stream.ready(interest) => ready,
            () = connection.changed.notified() => continue,
        };
        match ready {
            Ok(ready) if ready.is_writable() => connection.send(&mut connection.state()),
            Ok(_) => {}
            Err(error) => break Lost::from(&error),
        }
        if let Err(why) = connection.receive(&mut records, &mut buffer) {
            break why;
        }
    };
    connection.close(why);
}

impl Connection {
    fn receive(&self, records: &mut Records, buffer: &mut [u8]) -> Result<(), Lost> {
        match self.stream.try_read(records, buffer) {
            Ok(0) => return Err(Lost::Closed),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err((&error).into()),
        }
        while let Some(record) = records.poll_record()? {
            self.handle_record(record);
        }
        Ok(())
    }
}

/// A call that waits for its reply; not any more when this is dropped.
pub(super) struct Outstanding<'a> {
    connection: &'a Connection,
    xid: u32,
    reply: oneshot::Receiver<Result<Reply>>,
}

impl Outstanding<'_> {
    pub(super) async fn reply(mut self) -> Result<Reply> {
        let ended = NoReply::Unknown { why: Lost::Here };
        (&mut self.reply).await.unwrap_or(Err(ended))
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.connection.state().waiting.remove(self.xid);
    }
}
