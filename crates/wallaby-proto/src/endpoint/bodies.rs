//! Bodies: bytes, as many as there are, that follow a request while it is handled already.
//!
//! The frames and their windows are the connection's. Here is who reads a body and who writes it, what waits for its reader, and
//! what becomes of it when its request, its call or its connection ends.
//!
//! Everything is bounded: what waits to be read by the body's window, which is the limit `call`, and how many are read by the
//! requests that brought them and those of their readers that outlive these. Of what is written nothing waits here but what
//! the connection has taken, at most 64 KiB of each; [`MAX_BODIES`](crate::connection::MAX_BODIES) are on a connection, and the
//! others belong to requests that wait.

use crate::ConnId;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::conn::Conn;
use super::event::{Output, RequestKey};
use super::probe::Probe;
use super::{Alarm, Endpoint};
use crate::connection::{BodyEvent, BodyRefusal, Connection};
use crate::detach::detach;
use crate::error::{CALL_ENDED, ConnectError};
use crate::slot_map::{SlotKey, SlotMap};
use crate::wire::Request;

/// Shorter pieces are gathered: each would keep the buffer alive that it arrived in.
const PIECE: usize = 8 * 1024;

/// So many chunks that wait may keep their buffers.
const AHEAD: usize = 4;

/// How long after its deadline a delegation's body may still be sent: its initiator's clock decides, not this one.
const LATE: Duration = Duration::from_secs(1);

/// A body that has come with a request and is read here. Its key means nothing any more once it was read to its end or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InBody(SlotKey);

/// A body that is written here. Its key means nothing any more once it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutBody(SlotKey);

/// What is next of a body that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyNext {
    /// Some of it.
    Chunk(Bytes),
    /// Nothing yet: [`Output::Body`] tells when there is more.
    Pending,
    /// It is whole, or why nothing more of it comes. Told once.
    End(Result<(), BodyEnd>),
}

/// Why a body ended before it was whole.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BodyEnd {
    /// Its sender could not go on, or its call has ended.
    #[error("the body is broken: {0}")]
    Broken(String),
    /// The connection that it came over has ended.
    #[error("the connection of the body has ended: {0}")]
    Lost(String),
}

/// Bodies of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    read: SlotMap<IncomingBody>,
    written: SlotMap<OutgoingBody>,
    /// Those that are written, by what ends them.
    owners: BTreeSet<(Owner, OutBody)>,
    /// Connections on which one has ended: another one may begin.
    freed: Vec<ConnId>,
}

/// Bodies of a connection, at most [`MAX_BODIES`](crate::connection::MAX_BODIES) each way.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// Those that arrive, by number.
    arriving: Vec<(u64, InBody)>,
    leaving: Vec<OutBody>,
}

/// One that is read.
#[derive(Debug)]
struct IncomingBody {
    conn: ConnId,
    number: u64,
    chunks: VecDeque<Bytes>,
    /// Short pieces behind those, together.
    pieces: BytesMut,
    end: Option<Result<(), BodyEnd>>,
    /// Its request was stopped: its reader gets no more of it, though more may come.
    over: bool,
    /// Bytes that were taken and not granted anew.
    taken: u64,
    /// Its reader looks at it, or was told to.
    told: bool,
}

/// One that is written.
#[derive(Debug)]
struct OutgoingBody {
    owner: Owner,
    place: OutgoingState,
    /// When it is given up, if its owner may have ended before.
    until: Option<Duration>,
    /// What its writer waits for.
    waits: Option<Waits>,
    /// It is broken off with this as soon as that may be sent.
    break_off: Option<String>,
    /// Its writer is gone.
    abandoned: bool,
}

/// With what a body that is written ends, at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Call(u64),
    Request(RequestKey),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutgoingState {
    /// Its request is held back: it is not sent at all if its handler fails.
    Held,
    /// Its request waits to be sent.
    Waits,
    /// On this connection, with this number.
    At(ConnId, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    ForRoom,
    ToEnd,
}

impl Bodies {
    pub(super) fn len(&self) -> usize {
        self.read.len() + self.written.len()
    }

    /// Whether none is written.
    pub(super) fn is_empty(&self) -> bool {
        self.written.len() == 0
    }

    /// Whether one has ended, so that another one may begin.
    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// One is to follow an initial request of this call.
    pub(super) fn begin_root(&mut self, sequence: u64) -> OutBody {
        self.begin(Owner::Call(sequence), OutgoingState::Waits, None)
    }

    fn begin(&mut self, owner: Owner, place: OutgoingState, until: Option<Duration>) -> OutBody {
        let body = OutBody(self.written.insert(OutgoingBody {
            owner,
            place,
            until,
            waits: Some(Waits::ForRoom),
            break_off: None,
            abandoned: false,
        }));
        self.owners.insert((owner, body));
        body
    }

    /// Its request is not held back any more.
    pub(super) fn released(&mut self, body: OutBody) {
        if let Some(leaving) = self.written.get_mut(body.0) {
            leaving.place = OutgoingState::Waits;
        }
    }

    /// Those that end with this one, at the latest.
    fn of(&self, owner: Owner) -> Vec<OutBody> {
        let [first, last] = [SlotKey::FIRST, SlotKey::LAST].map(OutBody);
        let bodies = self.owners.range((owner, first)..=(owner, last));
        bodies.map(|(_, body)| *body).collect()
    }
}

impl IncomingBody {
    /// Keeps what has arrived in about as much memory as it has bytes, however small the pieces are that it came in.
    fn push(&mut self, mut bytes: Bytes) {
        if self.over {
            return;
        }
        if bytes.len() < PIECE {
            return self.pieces.extend_from_slice(&bytes);
        }
        if !self.pieces.is_empty() {
            let pieces = std::mem::take(&mut self.pieces);
            self.chunks.push_back(pieces.freeze());
        }
        if self.chunks.len() >= AHEAD {
            detach(&mut bytes);
        }
        self.chunks.push_back(bytes);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let pieces = || std::mem::take(&mut self.pieces).freeze();
        let next = self.chunks.pop_front().unwrap_or_else(pieces);
        (!next.is_empty()).then_some(next)
    }
}

impl<P: Probe> Endpoint<P> {
    // Bodies that come with requests.

    /// What is next of a body. Its sender may send more when a quarter of the limit `call` was read.
    pub fn read_body(&mut self, body: InBody) -> BodyNext {
        let Some(arriving) = self.bodies.read.get_mut(body.0) else {
            let why = "it was read to its end, or dropped".to_owned();
            return BodyNext::End(Err(BodyEnd::Broken(why)));
        };
        if arriving.over {
            self.drop_body(body);
            return BodyNext::End(Err(BodyEnd::Broken(CALL_ENDED.into())));
        }
        if let Some(chunk) = arriving.pop() {
            self.credit_body(body, chunk.len());
            return BodyNext::Chunk(chunk);
        }
        match arriving.end.clone() {
            Some(end) => {
                self.drop_body(body);
                BodyNext::End(end)
            }
            None => {
                arriving.told = false;
                BodyNext::Pending
            }
        }
    }

    /// So many bytes of a body were read.
    fn credit_body(&mut self, body: InBody, len: usize) {
        let worth = (self.hello.limits.call / 4).max(1);
        let Some(arriving) = self.bodies.read.get_mut(body.0) else {
            return;
        };
        arriving.taken += len as u64;
        if arriving.end.is_some() || arriving.taken < worth {
            return;
        }
        let (conn, number) = (arriving.conn, arriving.number);
        let taken = std::mem::take(&mut arriving.taken);
        self.on_connection(conn, |connection| connection.grant_body(number, taken));
    }

    /// Nobody reads a body any more: its sender is stopped, unless it has ended.
    pub fn drop_body(&mut self, body: InBody) {
        let Some(arriving) = self.bodies.read.remove(body.0) else {
            return;
        };
        if arriving.end.is_none() {
            self.forget_arriving(arriving.conn, arriving.number);
            let stop = |connection: &mut Connection| connection.stop_body(arriving.number);
            self.on_connection(arriving.conn, stop);
        }
        self.needs_less(arriving.conn);
    }

    /// Whether the request of a body that is still read was stopped: its reader gets no more of it.
    pub fn is_given_up(&self, body: InBody) -> bool {
        let arriving = self.bodies.read.get(body.0);
        arriving.is_some_and(|arriving| arriving.over)
    }

    /// A request that is to be handled has come over a stream, and a body with this number follows it.
    pub(super) fn begin_read(&mut self, conn: ConnId, number: u64) -> Option<InBody> {
        self.conns.get(conn)?.stream()?;
        let body = InBody(self.bodies.read.insert(IncomingBody {
            conn,
            number,
            chunks: VecDeque::new(),
            pieces: BytesMut::new(),
            end: None,
            over: false,
            taken: 0,
            told: true,
        }));
        let followed = self.followed(conn)?;
        followed.arriving.push((number, body));
        self.needs_more(conn);
        Some(body)
    }

    /// The body of a request that is not handled: its sender is stopped.
    #[cold]
    pub(super) fn stop_unread(&mut self, conn: ConnId, number: u64) {
        if self.arriving(conn, number).is_none() {
            self.on_connection(conn, |connection| connection.stop_body(number));
        }
    }

    /// Something of a body has arrived.
    pub(super) fn handle_body(&mut self, conn: ConnId, number: u64, event: &mut BodyEvent) {
        let Some(body) = self.arriving(conn, number) else {
            return self.stop_unread(conn, number);
        };
        let Some(arriving) = self.bodies.read.get_mut(body.0) else {
            return;
        };
        match event {
            BodyEvent::Bytes(bytes) => arriving.push(std::mem::take(bytes)),
            BodyEvent::Whole => arriving.end = Some(Ok(())),
            BodyEvent::Broken(why) => {
                arriving.end = Some(Err(BodyEnd::Broken(std::mem::take(why))));
            }
        }
        if arriving.end.is_some() {
            self.forget_arriving(conn, number);
        }
        self.tell_reader(body);
    }

    /// A request was stopped whose body its handler has taken: what waits of it is dropped.
    pub(super) fn give_body_up(&mut self, body: InBody) {
        if let Some(arriving) = self.bodies.read.get_mut(body.0) {
            arriving.over = true;
            (arriving.chunks, arriving.pieces) = Default::default();
            arriving.told = false; // who has read too far ahead waits for nothing but this
            self.tell_reader(body);
        }
    }

    fn tell_reader(&mut self, body: InBody) {
        if let Some(arriving) = self.bodies.read.get_mut(body.0)
            && !std::mem::replace(&mut arriving.told, true)
        {
            self.outputs.push_back(Output::Body(body));
        }
    }

    fn arriving(&self, conn: ConnId, number: u64) -> Option<InBody> {
        let followed = self.conns.get(conn)?.followed.as_ref()?;
        let mut arriving = followed.arriving.iter();
        Some(arriving.find(|arriving| arriving.0 == number)?.1)
    }

    fn forget_arriving(&mut self, conn: ConnId, number: u64) {
        let conn = self.conns.get_mut(conn);
        if let Some(followed) = conn.and_then(|conn| conn.followed.as_mut()) {
            followed.arriving.retain(|arriving| arriving.0 != number);
        }
    }

    // Bodies that follow requests of this endpoint.

    /// Writes some of a body, as much as is accepted: that is taken off `chunk`.
    ///
    /// # Errors
    ///
    /// [`BodyRefusal::Blocked`] until [`Output::BodyRoom`] if nothing is accepted now, also while its request has not left;
    /// [`BodyRefusal::Stopped`] if nobody wants more of it.
    pub fn write_body(&mut self, body: OutBody, chunk: &mut Bytes) -> Result<(), BodyRefusal> {
        self.on_body(body, Waits::ForRoom, |connection, number| {
            connection.send_body(number, chunk)
        })
    }

    /// Ends a body: it is whole, or why it is not. What has not left yet of one that is not whole is dropped.
    ///
    /// # Errors
    ///
    /// [`BodyRefusal::Blocked`] if that cannot be said yet: it is to be called again at [`Output::BodyRoom`].
    /// [`BodyRefusal::Stopped`] if nobody wants more of it: it has ended.
    pub fn end_body(&mut self, body: OutBody, how: Result<(), &str>) -> Result<(), BodyRefusal> {
        self.on_body(body, Waits::ToEnd, |connection, number| {
            connection.end_body(number, how)
        })?;
        self.forget_body(body);
        Ok(())
    }

    /// Whoever writes a body is gone: it is broken off with this reason, as soon as that may be sent.
    pub fn abandon_body(&mut self, body: OutBody, reason: &str) {
        if let Some(leaving) = self.bodies.written.get_mut(body.0) {
            leaving.abandoned = true;
            self.break_off(body, reason);
        }
    }

    /// Whether more of a body is wanted.
    pub fn wants_body(&self, body: OutBody) -> bool {
        let leaving = self.bodies.written.get(body.0);
        leaving.is_some_and(|leaving| {
            leaving.break_off.is_none()
                && match leaving.place {
                    OutgoingState::Held | OutgoingState::Waits => true,
                    OutgoingState::At(conn, number) => {
                        let stream = self.conns.get(conn).and_then(Conn::stream);
                        stream.is_some_and(|stream| stream.connection.wants_body(number))
                    }
                }
        })
    }

    fn on_body(
        &mut self,
        body: OutBody,
        waits: Waits,
        act: impl FnOnce(&mut Connection, u64) -> Result<(), BodyRefusal>,
    ) -> Result<(), BodyRefusal> {
        let leaving = self.bodies.written.get_mut(body.0);
        let leaving = leaving.filter(|leaving| leaving.break_off.is_none());
        let leaving = leaving.ok_or(BodyRefusal::Stopped)?;
        let OutgoingState::At(conn, number) = leaving.place else {
            leaving.waits = Some(waits);
            return Err(BodyRefusal::Blocked);
        };
        let stream = self.conns.get_mut(conn).and_then(Conn::stream_mut);
        let stream = stream.ok_or(BodyRefusal::Stopped)?;
        match act(&mut stream.connection, number) {
            Ok(()) => {
                self.note_output(conn);
                Ok(())
            }
            Err(BodyRefusal::Blocked) => {
                leaving.waits = Some(waits);
                Err(BodyRefusal::Blocked)
            }
            Err(BodyRefusal::Stopped) => {
                self.forget_body(body);
                Err(BodyRefusal::Stopped)
            }
        }
    }

    /// One is to follow a delegation of this request, whose deadline is then.
    pub(super) fn begin_delegated_body(
        &mut self,
        request: RequestKey,
        deadline: Duration,
    ) -> OutBody {
        let until = deadline.saturating_add(LATE);
        let owner = Owner::Request(request);
        let body = self.bodies.begin(owner, OutgoingState::Held, Some(until));
        self.alarms.insert((until, Alarm::Body(body)));
        body
    }

    /// A request was handed to a connection: its body follows it there.
    pub(super) fn body_sent(&mut self, body: Option<OutBody>, id: ConnId, request: &Request) {
        let (Some(body), Some(number)) = (body, request.body()) else {
            return;
        };
        let leaving = self.bodies.written.get_mut(body.0);
        match (leaving, self.conns.get_mut(id)) {
            (Some(leaving), Some(conn)) => {
                leaving.place = OutgoingState::At(id, number);
                let followed = conn.followed.get_or_insert_default();
                followed.leaving.push(body);
            }
            _ => return,
        }
        self.needs_more(id);
        self.look_at_body(body);
    }

    /// Bodies of a connection may be accepted that were not before, or nobody wants more of them.
    pub(super) fn look_at_bodies(&mut self, conn: ConnId) {
        let followed = self.conns.get(conn).and_then(|conn| conn.followed.as_ref());
        if let Some(followed) = followed.filter(|followed| !followed.leaving.is_empty()) {
            let leaving = followed.leaving.clone();
            leaving.into_iter().for_each(|body| self.look_at_body(body));
        }
    }

    fn look_at_body(&mut self, body: OutBody) {
        let Some(leaving) = self.bodies.written.get_mut(body.0) else {
            return;
        };
        let OutgoingState::At(conn, number) = leaving.place else {
            return;
        };
        let Some(stream) = self.conns.get(conn).and_then(Conn::stream) else {
            return;
        };
        let connection = &stream.connection;
        if !connection.wants_body(number) {
            return self.body_over(body);
        }
        if leaving.break_off.is_some() {
            if connection.may_end_body(number, false)
                && let Some(reason) = leaving.break_off.take()
            {
                self.break_off(body, &reason);
            }
            return;
        }
        let may = match leaving.waits {
            None => false,
            Some(Waits::ForRoom) => connection.takes_body(number),
            Some(Waits::ToEnd) => connection.may_end_body(number, true),
        };
        if may {
            leaving.waits = None;
            self.outputs.push_back(Output::BodyRoom(body));
        }
    }

    /// Nobody wants more of a body, or it can go nowhere.
    #[cold]
    pub(super) fn body_over(&mut self, body: OutBody) {
        let is_written = self.bodies.written.get(body.0);
        if is_written.is_some_and(|leaving| !leaving.abandoned) {
            self.outputs.push_back(Output::BodyRoom(body));
        }
        self.forget_body(body);
    }

    /// A body is not written any more, and its writer knows.
    pub(super) fn forget_body(&mut self, body: OutBody) {
        let Some(leaving) = self.bodies.written.remove(body.0) else {
            return;
        };
        self.bodies.owners.remove(&(leaving.owner, body));
        if let Some(until) = leaving.until {
            self.alarms.remove(&(until, Alarm::Body(body)));
        }
        let OutgoingState::At(id, _) = leaving.place else {
            return;
        };
        let conn = self.conns.get_mut(id);
        if let Some(followed) = conn.and_then(|conn| conn.followed.as_mut()) {
            followed.leaving.retain(|other| *other != body);
            self.bodies.freed.push(id);
        }
        self.needs_less(id);
    }

    /// A body must not go on: its receiver is told why, as soon as that may be.
    fn break_off(&mut self, body: OutBody, reason: &str) {
        let leaving = self.bodies.written.get_mut(body.0);
        let Some(leaving) = leaving.filter(|leaving| leaving.break_off.is_none()) else {
            return;
        };
        if let OutgoingState::At(conn, number) = leaving.place {
            let stream = self.conns.get_mut(conn).and_then(Conn::stream_mut);
            let ended = stream.map(|stream| stream.connection.end_body(number, Err(reason)));
            if ended != Some(Err(BodyRefusal::Blocked)) {
                self.note_output(conn);
                return self.body_over(body);
            }
        }
        leaving.break_off = Some(reason.to_owned());
        if !leaving.abandoned {
            self.outputs.push_back(Output::BodyRoom(body));
        }
    }

    /// Others may begin where bodies have ended.
    pub(super) fn send_followed(&mut self) {
        while let Some(conn) = self.bodies.freed.pop() {
            if (self.conns.get(conn)).is_some_and(|conn| conn.holds_requests(true)) {
                self.pump(conn);
            }
        }
    }

    // What ends them.

    /// A call has ended, and its bodies with it.
    #[cold]
    pub(super) fn break_bodies_of_call(&mut self, sequence: u64) {
        self.break_bodies(Owner::Call(sequence), CALL_ENDED);
    }

    /// A request was stopped: so are the bodies of its delegations.
    #[cold]
    pub(super) fn break_bodies_of_request(&mut self, request: RequestKey) {
        self.break_bodies(Owner::Request(request), CALL_ENDED);
    }

    fn break_bodies(&mut self, owner: Owner, reason: &str) {
        let bodies = self.bodies.of(owner).into_iter();
        bodies.for_each(|body| self.break_off(body, reason));
    }

    /// A delegation's body is still written though nobody can wait for it any more.
    #[cold]
    pub(super) fn body_deadline(&mut self, body: OutBody) {
        self.break_off(body, "the deadline of its call has passed");
    }

    /// A request has failed: what it held back is not sent.
    #[cold]
    pub(super) fn end_held_bodies(&mut self, request: RequestKey) {
        for body in self.bodies.of(Owner::Request(request)) {
            let leaving = self.bodies.written.get(body.0);
            if leaving.is_some_and(|leaving| leaving.place == OutgoingState::Held) {
                self.body_over(body);
            }
        }
    }

    /// A connection takes nothing more.
    pub(super) fn end_written_bodies(&mut self, conn: ConnId) {
        let followed = self.conns.get(conn).and_then(|conn| conn.followed.as_ref());
        let leaving = followed.map(|followed| followed.leaving.clone());
        let leaving = leaving.into_iter().flatten();
        leaving.for_each(|body| self.body_over(body));
    }

    /// A connection has ended. What had arrived before is still read.
    #[cold]
    pub(super) fn lose_bodies(&mut self, followed: Followed, why: &ConnectError) {
        let reason = match why {
            ConnectError::Closed { reason, .. } => reason.clone(),
            why => why.to_string(),
        };
        for (_, body) in followed.arriving {
            if let Some(arriving) = self.bodies.read.get_mut(body.0) {
                let lost = || Err(BodyEnd::Lost(reason.clone()));
                arriving.end.get_or_insert_with(lost);
                self.tell_reader(body);
            }
        }
        let leaving = followed.leaving.into_iter();
        leaving.for_each(|body| self.body_over(body));
    }

    // Their connections.

    fn followed(&mut self, conn: ConnId) -> Option<&mut Followed> {
        let conn = self.conns.get_mut(conn)?;
        Some(conn.followed.get_or_insert_default())
    }

    fn on_connection(&mut self, conn: ConnId, act: impl FnOnce(&mut Connection)) {
        if let Some(stream) = self.conns.get_mut(conn).and_then(Conn::stream_mut) {
            act(&mut stream.connection);
            self.note_output(conn);
        }
    }

    /// A body is read or written over a connection: it is not idle, and its peer must not be silent.
    fn needs_more(&mut self, conn: ConnId) {
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.busy += 1;
            self.begin_looking();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A buffer that something arrived in, and whether anybody still keeps it.
    struct Buffer {
        bytes: [u8; 2 * PIECE],
        _kept: Arc<()>,
    }

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    fn arriving() -> IncomingBody {
        IncomingBody {
            conn: ConnId::FIRST,
            number: 0,
            chunks: VecDeque::new(),
            pieces: BytesMut::new(),
            end: None,
            over: false,
            taken: 0,
            told: true,
        }
    }

    #[test]
    fn short_pieces_do_not_keep_their_buffers() {
        let mut arriving = arriving();
        let kept = Arc::new(());
        let mut expected = Vec::new();
        for (round, len) in [1, 1, 7, PIECE, 1, 2 * PIECE, 3, 3].into_iter().enumerate() {
            let buffer = Buffer {
                bytes: [round as u8; 2 * PIECE],
                _kept: Arc::clone(&kept),
            };
            expected.extend_from_slice(&buffer.bytes[..len]);
            arriving.push(Bytes::from_owner(buffer).slice(..len));
        }
        // The two long ones are not copied.
        assert_eq!(Arc::strong_count(&kept), 1 + 2);
        let mut chunks = Vec::new();
        while let Some(chunk) = arriving.pop() {
            chunks.push(chunk);
        }
        assert_eq!(chunks.concat(), expected);
        assert_eq!(chunks.len(), 5, "pieces that arrive together are one");
    }

    #[test]
    fn of_very_many_chunks_few_keep_their_buffers() {
        let mut arriving = arriving();
        let kept = Arc::new(());
        for _ in 0..3 * AHEAD {
            let buffer = Buffer {
                bytes: [7; 2 * PIECE],
                _kept: Arc::clone(&kept),
            };
            arriving.push(Bytes::from_owner(buffer));
        }
        assert_eq!(Arc::strong_count(&kept), 1 + AHEAD);
    }

    #[test]
    fn what_is_given_up_keeps_nothing() {
        let mut arriving = arriving();
        arriving.over = true;
        arriving.push(Bytes::from_static(&[1; PIECE]));
        assert_eq!(arriving.pop(), None);
    }
}
