//! Sessions over UDP of peers that lie: handshakes, packets and pieces by hand. What is lost is not sent again.

use std::net::SocketAddr;

use super::wire::{self, Frame, kind, put_varint, take_bytes, take_u64, take_varint};

const ASK: u8 = 0x01;
const CHALLENGE: u8 = 0x02;
const OPEN: u8 = 0x03;
const DATA: u8 = 0x10;
const ASK_LEN: usize = 1200;
const WITH_ACK: u8 = 1;
const URGENT: u8 = 2;
const PIECE: u8 = 0x04;
const PROBE: u8 = 0x06;

/// What came in a datagram.
#[derive(Debug)]
pub(crate) enum Arrived {
    Ask {
        client: u64,
    },
    Challenge {
        client: u64,
        server: u64,
        issued: u64,
        hello: Vec<u8>,
    },
    Open {
        server: u64,
        client: u64,
        hello: Vec<u8>,
        packet: Vec<u8>,
        flags: u8,
    },
    Data {
        session: u64,
        packet: Vec<u8>,
        flags: u8,
    },
}

pub(crate) fn seal(mut datagram: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&datagram);
    datagram.extend_from_slice(&sum.to_be_bytes());
    datagram
}

/// Reads a datagram; what is none is nothing.
pub(crate) fn read(datagram: &[u8]) -> Option<Arrived> {
    let (mut rest, _) = datagram.split_last_chunk::<4>()?;
    let (first, after) = rest.split_first()?;
    rest = after;
    if first & !3 == DATA {
        return Some(Arrived::Data {
            session: take_u64(&mut rest)?,
            packet: rest.to_vec(),
            flags: first & 3,
        });
    }
    Some(match *first {
        ASK => Arrived::Ask {
            client: take_u64(&mut rest.get(6..)?)?,
        },
        CHALLENGE => Arrived::Challenge {
            client: take_u64(&mut rest)?,
            server: take_u64(&mut rest)?,
            issued: take_u64(&mut rest)?,
            hello: take_bytes(&mut rest)?.to_vec(),
        },
        OPEN => {
            let (server, client) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
            take_u64(&mut rest)?;
            let hello = take_bytes(&mut rest)?.to_vec();
            let (flags, packet) = rest.split_first()?;
            Arrived::Open {
                server,
                client,
                hello,
                packet: packet.to_vec(),
                flags: flags & 3,
            }
        }
        _ => return None,
    })
}

pub(crate) fn ask(client: u64) -> Vec<u8> {
    let mut out = vec![ASK];
    out.extend_from_slice(b"WLBY\x01\x01");
    out.extend_from_slice(&client.to_be_bytes());
    out.resize(ASK_LEN - 4, 0);
    seal(out)
}

/// `hello` is what stands in a stream's first frame, without that frame's header.
pub(crate) fn challenge(client: u64, server: u64, hello: &[u8]) -> Vec<u8> {
    let mut out = vec![CHALLENGE];
    out.extend_from_slice(&client.to_be_bytes());
    out.extend_from_slice(&server.to_be_bytes());
    out.extend_from_slice(&1u64.to_be_bytes());
    put_varint(&mut out, hello.len() as u64);
    out.extend_from_slice(hello);
    seal(out)
}

/// One side of a session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) remote: SocketAddr,
    pub(crate) own_id: u64,
    pub(crate) peer_id: u64,
    /// What goes before each packet until the peer is known to have the session: when it was issued, and the hello.
    pub(crate) opening: Option<(u64, Vec<u8>)>,
    next_packet: u64,
    next_message: u64,
    newest: Option<u64>,
    /// Something came that asks to be acknowledged.
    owes: bool,
}

impl Session {
    pub(crate) fn new(remote: SocketAddr, own_id: u64, peer_id: u64) -> Self {
        Self {
            remote,
            own_id,
            peer_id,
            opening: None,
            next_packet: 0,
            next_message: 0,
            newest: None,
            owes: false,
        }
    }

    /// A datagram with these frames.
    pub(crate) fn pack(&mut self, frames: &[Frame]) -> Vec<u8> {
        let mut body = Vec::new();
        for frame in frames {
            body.push(frame.kind);
            put_varint(&mut body, self.next_message);
            self.next_message += 1;
            put_varint(&mut body, frame.body.len() as u64);
            body.extend_from_slice(&frame.body);
        }
        self.packet(&body, 0)
    }

    /// A datagram that asks to be acknowledged, and nothing else.
    pub(crate) fn probe(&mut self) -> Vec<u8> {
        self.packet(&[PROBE], URGENT)
    }

    /// A datagram with the first byte of a message that is said to be longer.
    pub(crate) fn piece(&mut self, total: u64) -> Vec<u8> {
        let mut body = vec![PIECE];
        put_varint(&mut body, self.next_message);
        self.next_message += 1;
        body.push(kind::REQUEST);
        put_varint(&mut body, total);
        body.extend_from_slice(&[0, 1, 0]); // the first byte of it
        self.packet(&body, 0)
    }

    /// What says that everything has arrived, if somebody wants to know.
    pub(crate) fn acknowledge(&mut self) -> Option<Vec<u8>> {
        self.owes.then(|| self.packet(&[], 0))
    }

    fn packet(&mut self, body: &[u8], flags: u8) -> Vec<u8> {
        let flags = flags | if self.newest.is_some() { WITH_ACK } else { 0 };
        let mut out = Vec::new();
        match &self.opening {
            Some((issued, hello)) => {
                out.push(OPEN);
                out.extend_from_slice(&self.peer_id.to_be_bytes());
                out.extend_from_slice(&self.own_id.to_be_bytes());
                out.extend_from_slice(&issued.to_be_bytes());
                put_varint(&mut out, hello.len() as u64);
                out.extend_from_slice(hello);
                out.push(DATA | flags);
            }
            None => {
                out.push(DATA | flags);
                out.extend_from_slice(&self.peer_id.to_be_bytes());
            }
        }
        put_varint(&mut out, self.next_packet);
        self.next_packet += 1;
        if let Some(newest) = self.newest {
            put_varint(&mut out, newest);
            out.extend_from_slice(&[0, 0, 0]); // without delay, one range
            put_varint(&mut out, newest); // all of them
            self.owes = false;
        }
        out.extend_from_slice(body);
        seal(out)
    }

    /// The messages in a packet of this session.
    pub(crate) fn unpack(&mut self, packet: &[u8], flags: u8) -> Vec<Frame> {
        self.read(packet, flags).unwrap_or_default()
    }

    fn read(&mut self, mut packet: &[u8], flags: u8) -> Option<Vec<Frame>> {
        let rest = &mut packet;
        let number = take_varint(rest)?;
        self.newest = Some(self.newest.map_or(number, |newest| newest.max(number)));
        self.opening = None;
        if flags & WITH_ACK != 0 {
            take_varint(rest)?;
            *rest = rest.get(2..)?;
            let more = take_varint(rest)?;
            for _ in 0..=2 * more {
                take_varint(rest)?;
            }
        }
        let mut frames = Vec::new();
        while let Some((kind, after)) = rest.split_first() {
            *rest = after;
            self.owes |= *kind != 0;
            match *kind {
                0 | PROBE => {}
                PIECE => {
                    take_varint(rest)?;
                    *rest = rest.get(1..)?;
                    take_varint(rest)?;
                    take_varint(rest)?;
                    take_bytes(rest)?;
                }
                kind => {
                    take_varint(rest)?;
                    let mut body = take_bytes(rest)?;
                    if kind == wire::kind::INTRODUCTION {
                        take_bytes(&mut body)?;
                        take_bytes(&mut body)?;
                        body = body.get(16..)?;
                        frames.push(Frame::new(wire::kind::REQUEST, body.to_vec()));
                    } else {
                        frames.push(Frame::new(kind, body.to_vec()));
                    }
                }
            }
        }
        Some(frames)
    }
}
