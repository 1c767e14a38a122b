//! Datagrams that are received many at a time: several in one system call, and where the kernel has joined those of one
//! sender (GRO), several in each.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};

use super::bare;

/// How many one system call receives at first, each of them a datagram or several that were joined, and how many where more
/// come at a time: a socket that seldom receives need not have so much room.
const BATCHES: (usize, usize) = (4, 16);

/// Room for the longest datagram, and for as many as the kernel joins.
const ROOM: usize = 64 * 1024;

/// What is as long as this stays where it was received. Shorter ones are copied together: each would keep all of its room
/// while anybody has a message of it. No more than that is made room for at a time, so that it stays in the nearest caches.
const LONG: usize = 16 * 1024;

/// What the kernel says besides a datagram: the length of those that it joined, with its header, aligned.
type Control = [u64; 4];

/// Datagrams that were received, and room for the next ones. The one way to receive from a socket of [`bare::bind`], which
/// gives them joined.
pub(crate) struct Inbox {
    /// What a system call reads and fills in. They point to `names`, `vectors` and `controls`, in blocks of the heap that
    /// never move, and the vectors to `rooms`.
    headers: Box<[libc::mmsghdr; BATCHES.1]>,
    names: Box<[libc::sockaddr_storage; BATCHES.1]>,
    vectors: Box<[libc::iovec; BATCHES.1]>,
    controls: Box<[Control; BATCHES.1]>,
    /// Each has room as its vector says, and seems empty: what was received lies in it.
    rooms: Vec<BytesMut>,
    /// How many the last system call could have filled in, and how many of these it did.
    asked: usize,
    filled: usize,
    /// Each datagram, with where it lies in which room; none if each has its room.
    parts: Vec<(usize, Range<usize>)>,
    /// Short ones are copied here.
    short: BytesMut,
}

// SAFETY: the pointers lead only into what the same value owns, and are followed only by who has it mutably.
unsafe impl Send for Inbox {}

impl Inbox {
    pub(crate) fn new() -> Self {
        // SAFETY: these are plain C structures, for which zero bytes are valid.
        let (headers, names, vectors): (
            [libc::mmsghdr; BATCHES.1],
            [libc::sockaddr_storage; BATCHES.1],
            [libc::iovec; BATCHES.1],
        ) = unsafe { std::mem::zeroed() };
        Self {
            headers: Box::new(headers),
            names: Box::new(names),
            vectors: Box::new(vectors),
            controls: Box::default(),
            rooms: Vec::new(),
            asked: 0,
            filled: 0,
            parts: Vec::new(),
            short: BytesMut::new(),
        }
    }

    /// Receives what is there, at most a [`batch`](Self::batch), and forgets what was received before. Whether there may be
    /// more: if not, the socket was found empty.
    pub(crate) fn receive(&mut self, socket: &UdpSocket, flags: libc::c_int) -> io::Result<bool> {
        self.make_room();
        // SAFETY: each header points to a name, a control block and a vector, and that to room for a datagram, with their
        // lengths; all belong to `self`, which is borrowed mutably during the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.rooms.len() as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        self.filled = received;
        let mut controls = self.headers[..received].iter();
        if controls.any(|header| header.msg_hdr.msg_controllen > 0) {
            self.find_parts();
        }
        Ok(received == self.rooms.len())
    }

    /// Receives one datagram, or several that were joined, which costs less. Whether there are more is not known then.
    pub(crate) fn receive_one(&mut self, socket: &UdpSocket, flags: libc::c_int) -> io::Result<()> {
        self.make_room();
        self.asked = 1;
        let header = &mut self.headers[0];
        // SAFETY: as above, of one header.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header.msg_hdr, flags) };
        header.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
        self.filled = 1;
        if header.msg_hdr.msg_controllen > 0 {
            self.find_parts();
        }
        Ok(())
    }

    /// Receives one datagram by other means.
    pub(crate) fn put(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>>,
    ) -> Poll<io::Result<()>> {
        self.make_room();
        self.rooms[0].resize(ROOM, 0);
        let received = receive(&mut self.rooms[0]);
        self.rooms[0].clear();
        let (len, from) = ready!(received)?;
        // It is code from outside: what is taken later must have been there.
        self.headers[0].msg_len = len.min(ROOM) as _;
        self.headers[0].msg_hdr.msg_controllen = 0;
        bare::put_address(&mut self.names[0], from);
        self.filled = 1;
        Poll::Ready(Ok(()))
    }

    /// How many the last system call could have received; fewer datagrams say that no more were there.
    pub(crate) fn batch(&self) -> usize {
        self.asked
    }

    /// How many datagrams were received.
    pub(crate) fn len(&self) -> usize {
        if self.parts.is_empty() {
            self.filled
        } else {
            self.parts.len()
        }
    }

    /// One of them, and who sent it.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], SocketAddr)> {
        if index >= self.len() {
            return None;
        }
        let (slot, part) = match self.parts.get(index) {
            Some((slot, part)) => (*slot, part.clone()),
            None => (index, 0..self.lengths(index).0),
        };
        let bytes = &received(&self.rooms[slot], part.end)[part.start..];
        Some((bytes, bare::address(&self.names[slot])?))
    }

    /// Hands out all of them, each with its sender, so that it can be referred to for as long as one likes.
    pub(crate) fn take(&mut self, mut each: impl FnMut(SocketAddr, Bytes)) {
        for slot in 0..self.filled {
            let Some(from) = bare::address(&self.names[slot]) else {
                continue;
            };
            let (len, segment) = self.lengths(slot);
            let mut all = if len < LONG {
                keep(&mut self.short, received(&self.rooms[slot], len))
            } else {
                take(&mut self.rooms[slot], len)
            };
            while all.len() > segment {
                each(from, all.split_to(segment));
            }
            each(from, all);
        }
    }

    /// Notes where the datagrams lie of which some came joined.
    fn find_parts(&mut self) {
        for slot in 0..self.filled {
            let (len, segment) = self.lengths(slot);
            let mut begin = 0;
            while begin + segment < len {
                self.parts.push((slot, begin..begin + segment));
                begin += segment;
            }
            self.parts.push((slot, begin..len));
        }
    }

    /// How long those in this room are together, and each of them but for the last one.
    fn lengths(&self, slot: usize) -> (usize, usize) {
        let header = &self.headers[slot];
        let len = (header.msg_len as usize).min(ROOM);
        if header.msg_hdr.msg_controllen == 0 {
            return (len, ROOM); // the common case: it came alone
        }
        (len, joined(&header.msg_hdr).unwrap_or(ROOM))
    }

    /// Forgets what was received, whose headers the system has changed; where there were many there is room for more.
    #[inline]
    fn make_room(&mut self) {
        for slot in 0..self.filled {
            // Where its room was handed out, what is left of it begins elsewhere.
            let room = &self.rooms[slot];
            if room.capacity() < ROOM
                || !std::ptr::eq(room.as_ptr(), self.vectors[slot].iov_base.cast())
            {
                self.prepare(slot);
            }
            let header = &mut self.headers[slot].msg_hdr;
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_controllen = size_of::<Control>() as _;
        }
        if self.filled == self.rooms.len() {
            self.add_rooms();
        }
        self.asked = self.rooms.len();
        self.filled = 0;
        self.parts.clear();
    }

    #[cold]
    fn add_rooms(&mut self) {
        let (few, many) = BATCHES;
        let slots = self.rooms.len();
        let most = (2 * slots).clamp(few, many);
        self.rooms.resize_with(most, BytesMut::new);
        (slots..most).for_each(|slot| self.prepare(slot));
    }

    /// Makes a header say what there is room for.
    fn prepare(&mut self, slot: usize) {
        let room = &mut self.rooms[slot];
        room.reserve(ROOM); // what was handed out and dropped is taken back
        let vector = &mut self.vectors[slot];
        vector.iov_base = room.as_mut_ptr().cast();
        vector.iov_len = ROOM;
        let header = &mut self.headers[slot].msg_hdr;
        header.msg_name = (&raw mut self.names[slot]).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[slot]).cast();
        header.msg_controllen = size_of::<Control>() as _;
    }
}

/// What was received into a room that seems empty.
fn received(room: &BytesMut, len: usize) -> &[u8] {
    debug_assert!(len <= room.capacity());
    // SAFETY: the system has written so many bytes there, into the room's capacity, before it said so.
    unsafe { std::slice::from_raw_parts(room.as_ptr(), len) }
}

/// What was received into a room, with that room.
fn take(room: &mut BytesMut, len: usize) -> Bytes {
    debug_assert!(len <= room.capacity());
    // SAFETY: as above.
    unsafe { room.set_len(len) };
    room.split().freeze()
}

/// A copy that can be referred to.
fn keep(short: &mut BytesMut, bytes: &[u8]) -> Bytes {
    if short.capacity() < bytes.len() {
        short.reserve(LONG);
    }
    short.extend_from_slice(bytes);
    short.split().freeze()
}

/// The length of the datagrams that came joined, if they did.
fn joined(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the system has filled in the header and its control block, whose length it says; the macros stay within
    // that, and what they find is read as the number that the option is documented to be.
    unsafe {
        let mut item = libc::CMSG_FIRSTHDR(header);
        while !item.is_null() {
            if ((*item).cmsg_level, (*item).cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let length = libc::CMSG_DATA(item).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(length).ok().filter(|length| *length > 0);
            }
            item = libc::CMSG_NXTHDR(header, item);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::transport::outbox::Outbox;

    fn sockets() -> (UdpSocket, UdpSocket) {
        let bind = || bare::bind((Ipv4Addr::LOCALHOST, 0).into(), true).expect("a socket");
        (bind(), bind())
    }

    /// Sends a run of this many datagrams of this length.
    fn send_run(from: &UdpSocket, to: &UdpSocket, count: u8, len: usize) {
        let mut outbox = Outbox::new(from);
        let to = to.local_addr().expect("an address");
        for number in 0..count {
            outbox
                .buffer()
                .resize(usize::from(number + 1) * len, number);
            outbox.push(to, len);
        }
        outbox.send(from).expect("sent");
    }

    /// Takes what one system call receives.
    fn taken(inbox: &mut Inbox, socket: &UdpSocket) -> Vec<Bytes> {
        inbox
            .receive(socket, libc::MSG_WAITFORONE)
            .expect("received");
        let mut taken = Vec::new();
        inbox.take(|_, datagram| taken.push(datagram));
        taken
    }

    #[test]
    fn joined_datagrams_are_told_apart() {
        let (here, there) = sockets();
        let mut inbox = Inbox::new();
        for (count, len) in [(5, 100), (50, 1200)] {
            send_run(&here, &there, count, len);
            inbox
                .receive(&there, libc::MSG_WAITFORONE)
                .expect("received");
            assert_eq!(inbox.len(), usize::from(count));
            for number in 0..count {
                let expected = vec![number; len];
                let (datagram, from) = inbox.get(number.into()).expect("a datagram");
                assert_eq!(datagram, expected);
                assert_eq!(from, here.local_addr().expect("an address"));
            }
            assert!(inbox.get(count.into()).is_none());
            let mut number = 0;
            inbox.take(|_, datagram| {
                assert_eq!(datagram, vec![number; len]);
                number += 1;
            });
            assert_eq!(number, count);
        }
    }

    #[test]
    fn an_empty_datagram_is_one() {
        let (here, there) = sockets();
        let mut inbox = Inbox::new();
        here.send_to(&[], there.local_addr().expect("an address"))
            .expect("sent");
        assert_eq!(taken(&mut inbox, &there), [Bytes::new()]);
        assert_eq!(
            (inbox.len(), inbox.get(0).map(|(bytes, _)| bytes.len())),
            (1, Some(0))
        );
    }

    #[test]
    fn what_is_held_is_not_overwritten_and_what_is_not_is_used_again() {
        let (here, there) = sockets();
        let mut inbox = Inbox::new();
        let mut held = Vec::new();
        for number in 0..20 {
            for len in [1, LONG - 1, LONG, 60_000] {
                let to = there.local_addr().expect("an address");
                here.send_to(&vec![number; len], to).expect("sent");
                let datagrams = taken(&mut inbox, &there);
                assert_eq!(datagrams, [vec![number; len]]);
                held.extend(datagrams);
            }
        }
        for (index, datagram) in held.iter().enumerate() {
            assert!(datagram.iter().all(|byte| usize::from(*byte) == index / 4));
        }
        drop(held);
        let addresses: Vec<_> = (0..10)
            .map(|_| {
                send_run(&here, &there, 50, 1200);
                taken(&mut inbox, &there)[0].as_ptr()
            })
            .collect();
        assert!(addresses.iter().all(|address| *address == addresses[0]));
    }

    #[test]
    fn where_many_come_there_is_room_for_many() {
        let (here, there) = sockets();
        let mut inbox = Inbox::new();
        let to = there.local_addr().expect("an address");
        for batch in [4, 8, 16, 16] {
            for number in 0..20 {
                here.send_to(&[number], to).expect("sent");
            }
            let more = inbox.receive(&there, libc::MSG_WAITFORONE);
            assert!(more.expect("received"));
            assert_eq!((inbox.batch(), inbox.len()), (batch, batch));
        }
        let mut left = 80 - 4 - 8 - 16 - 16;
        while inbox.receive(&there, libc::MSG_DONTWAIT).expect("received") {
            left -= inbox.len();
        }
        assert_eq!(left, inbox.len(), "the last batch is not full");
    }
}
