//! One connection of a channel: records out, records in, and which calls of it wait.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::counters::{Counting, count};
use crate::client::xid::{Arrived, Event, Waiting, arrived};
use crate::client::{ClientOptions, Result, set_xid};
use crate::deadline::rings;
use crate::failure::{Lost, NoReply};
use crate::message::Reply;
use crate::peer::Peer;
use crate::record::{self, HEADER, MAX_FRAGMENT, RecordReader};
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
    /// Calls that wait, and how many bytes of the stream come before each.
    waiting: Waiting<u64>,
    unsent: BytesMut,
    /// How many bytes the system took so far.
    sent: u64,
    ended: Option<Lost>,
}

impl Connection {
    pub(super) async fn open(
        server: &Peer,
        options: &ClientOptions,
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
        tokio::spawn(drive(Driving(Arc::clone(&connection)), options.max_record));
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
        written: &mut [u8],
        arguments: &[u8],
        options: &ClientOptions,
        end: Instant,
    ) -> Result<Outstanding<'_>> {
        let limit = options.max_record.min(MAX_FRAGMENT);
        let found = written.len().saturating_sub(HEADER) + arguments.len();
        if found > limit {
            return Err(NoReply::TooLong { limit, found });
        }
        let mut state = self.state();
        if let Some(why) = &state.ended {
            return Err(NoReply::NotSent { why: why.clone() });
        }
        if state.unsent.len() >= options.max_unsent {
            let limit = options.max_unsent;
            return Err(NoReply::TooMuchUnsent { limit });
        }
        let begins = state.sent + state.unsent.len() as u64;
        let (xid, is_set) = state.waiting.insert(begins, end);
        record::set_mark(written, arguments.len());
        set_xid(written, xid);
        self.write(&mut state, [written, arguments]);
        if is_set || !state.unsent.is_empty() {
            self.changed.notify_one();
        }
        Ok(Outstanding {
            connection: self,
            xid,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message, as far as the system takes it. Only the rest is copied.
    fn write(&self, state: &mut State, parts: [&[u8]; 2]) {
        let mut sent = 0;
        if state.unsent.is_empty() {
            let written = match parts {
                [whole, []] => self.stream.try_write(whole),
                _ => self.stream.try_write_parts(&parts.map(IoSlice::new)),
            };
            match written {
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
        let answered = self
            .state()
            .waiting
            .answer(xid, reply)
            .map(|(waker, _)| waker);
        match answered {
            Some(waker) => {
                if is_reply {
                    count(&self.counters.replies);
                }
                waker.into_iter().for_each(Waker::wake);
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
        let sent = self.sent;
        self.waiting.answer_all(None, |begins| {
            let why = why.clone();
            Err(match *begins >= sent {
                true => NoReply::NotSent { why },
                false => NoReply::Unknown { why },
            })
        });
        self.unsent = BytesMut::new();
        self.ended = Some(why);
    }
}

/// No call waits for what nobody reads: the task ends with the connection, or with the runtime that this was made in.
struct Driving(Arc<Connection>);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.close(Lost::Here);
    }
}

/// The task of a connection: reads until it ends, and writes what the system did not take at once.
async fn drive(driving: Driving, max_record: usize) {
    let connection = &driving.0;
    let mut records = RecordReader::new(max_record);
    let mut buffer = vec![0; READ];
    let mut alarmed = None;
    let mut rung = pin!(rings(None));
    let why = loop {
        let (interest, alarm) = {
            let state = connection.state();
            if state.ended.is_some() {
                return;
            }
            let interest = match state.unsent.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            (interest, state.waiting.alarm())
        };
        // It is mostly the same one as before.
        if alarm != alarmed {
            rung.set(rings(alarm));
            alarmed = alarm;
        }
        let ready = tokio::select! {
            ready = connection.stream.ready(interest) => ready,
            () = connection.changed.notified() => continue,
            () = &mut rung => {
                connection.state().waiting.ring(Instant::now());
                alarmed = None;
                rung.set(rings(None));
                continue;
            }
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
    fn receive(&self, records: &mut RecordReader, buffer: &mut [u8]) -> Result<(), Lost> {
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
}

impl Outstanding<'_> {
    /// What became of it; nothing within its time, if it is none.
    pub(super) async fn reply(self) -> Option<Result<Reply>> {
        let event = poll_fn(|context| self.connection.state().waiting.poll(self.xid, context));
        match event.await {
            Some(Event::Over(outcome)) => Some(outcome),
            Some(Event::Due) => None,
            None => Some(Err(NoReply::Unknown { why: Lost::Here })),
        }
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.connection.state().waiting.remove(self.xid);
    }
}
