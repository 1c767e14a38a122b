//! One connection: a thread reads a call, executes it, writes its reply, and waits for the next one for a while.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::Shared;
use crate::blocking::socket::{Stream, is_timeout};
use crate::message::{BadMessage, Body, Denial, Message, Reply};
use crate::peer::Origin;
use crate::record::{self, MAX_FRAGMENT, Records};
use crate::scratch::Scratch;
use crate::server::counters::count;

/// How much is read at a time.
const READ: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) stream: Stream,
    origin: Origin,
    records: Mutex<Records>,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        stream: Stream,
        origin: Origin,
        shared: &Shared,
    ) -> io::Result<Self> {
        stream.limit_reads(shared.options.linger)?;
        stream.limit_writes(shared.options.write_timeout)?;
        Ok(Self {
            id,
            stream,
            origin,
            records: Mutex::new(Records::new(shared.options.max_record)),
        })
    }

    /// Executes the calls that come, until none has come for a while or others need the thread.
    pub(super) fn serve(self: Arc<Self>, shared: &Arc<Shared>) {
        let _runtime = shared.runtime.as_ref().map(|runtime| runtime.enter());
        match BUFFER.with_borrow_mut(|buffer| self.serve_with(shared, buffer)) {
            Left::Idle => shared.watcher.park(self),
            Left::Over => drop(shared.connections().remove(&self.id)),
        }
    }

    fn serve_with(&self, shared: &Shared, buffer: &mut Vec<u8>) -> Left {
        buffer.resize(READ, 0);
        // One thread at a time has the connection.
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.handle_records(shared, &mut records).is_break() || shared.is_over() {
                return Left::Over;
            }
            if shared.workers.is_short() {
                return Left::Idle;
            }
            match self.stream.read_records(&mut records, buffer) {
                Ok(0) => return Left::Over,
                Ok(_) => {}
                Err(error) if is_timeout(&error) => return Left::Idle,
                Err(_) => return Left::Over,
            }
        }
    }

    fn handle_records(&self, shared: &Shared, records: &mut Records) -> ControlFlow<()> {
        loop {
            match records.poll_record() {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(record)) => self.handle_record(shared, record)?,
                Err(_) => {
                    count(&shared.counters.too_long_records);
                    return ControlFlow::Break(());
                }
            }
        }
    }

    fn handle_record(&self, shared: &Shared, record: Bytes) -> ControlFlow<()> {
        let (xid, reply) = match Message::decode(record) {
            Ok(Message {
                xid,
                body: Body::Call(call),
            }) => (xid, shared.reply(call, self.origin.clone(), || {})),
            Err(BadMessage::OtherVersion { xid, .. }) => {
                (xid, Some(Reply::Denied(Denial::other_version())))
            }
            Ok(_) | Err(BadMessage::Malformed(_)) => {
                count(&shared.counters.malformed);
                return ControlFlow::Break(());
            }
        };
        let Some(reply) = reply.filter(|reply| reply.length() <= MAX_FRAGMENT) else {
            return ControlFlow::Continue(());
        };
        let written = Scratch::write(|writer| {
            writer.u32(0); // the mark's place
            reply.write(xid, writer)
        });
        match written {
            Ok(mut record) => {
                record::set_mark(&mut record, 0);
                self.write(shared, &record)
            }
            Err(_) => ControlFlow::Continue(()),
        }
    }

    fn write(&self, shared: &Shared, record: &[u8]) -> ControlFlow<()> {
        // The limit is for each part that is taken.
        let again = |late: Option<_>| late.map_or(Ok(()), Err);
        match self.stream.write_record(record, &[], again) {
            Ok(()) => ControlFlow::Continue(()),
            Err((_, error)) => {
                if is_timeout(&error) {
                    count(&shared.counters.stalled);
                }
                ControlFlow::Break(())
            }
        }
    }
}

/// Why a thread left a connection.
enum Left {
    /// No call came.
    Idle,
    /// It ended, or has to.
    Over,
}

thread_local! {
    /// What a thread reads into: it is at one connection at a time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
