//! What the clients of those floors have in common that call the system themselves.

use super::message::Frames;
use super::socket::Stream;
use super::{Directory, Iterate, LARGEST_DATAGRAM, await_departure, check_answer, departure};
use crate::patience::{Lost, within};
use crate::plan::PREFIX;
use anyhow::{Result, ensure};
use std::net::UdpSocket;
use std::time::Duration;

/// A client's sockets.
pub(super) enum Sockets {
    /// One to each server, with what has arrived there.
    Streams(Vec<(Stream, Frames)>),
    Datagrams(Datagrams),
}

/// A client's socket for datagrams.
pub(super) struct Datagrams {
    socket: UdpSocket,
    directory: Directory,
    buffer: Vec<u8>,
}

/// How a client sends and receives.
pub(super) trait Exchange {
    fn sockets(&self) -> &Sockets;

    fn send(&self, server: u8, frame: &[u8]) -> Result<()>;

    /// Receives one answer: from this server, or over datagrams from anybody.
    fn receive(&mut self, server: u8, operation: u64) -> Result<()>;
}

/// Carries out operations, one after the other.
pub(super) fn run(
    client: &mut impl Exchange,
    link: Duration,
    limit: Duration,
    lost: &Lost,
    job: &mut dyn Iterate,
) -> Result<()> {
    let alarm = client.sockets().alarm()?;
    within(limit, lost, alarm, || {
        while let Some((plan, operation)) = job.next() {
            for phase in plan.phases() {
                await_departure(departure(link));
                for (place, &server) in phase.to.iter().enumerate() {
                    client.send(server, phase.frame(place))?;
                }
                for &server in &phase.from {
                    client.receive(server, operation)?;
                }
            }
        }
        Ok(())
    })
}

impl Sockets {
    pub(super) fn streams(streams: Vec<Stream>, payload: usize) -> Self {
        let streams = streams.into_iter();
        Self::Streams(
            streams
                .map(|stream| (stream, Frames::new(payload)))
                .collect(),
        )
    }

    pub(super) fn datagrams(socket: UdpSocket, directory: Directory) -> Self {
        Self::Datagrams(Datagrams {
            socket,
            directory,
            buffer: vec![0; LARGEST_DATAGRAM],
        })
    }

    /// What wakes a thread that waits for these sockets.
    fn alarm(&self) -> Result<impl FnOnce() + Send + use<>> {
        let (streams, datagram) = match self {
            Self::Streams(streams) => {
                let clones = streams.iter().map(|(stream, _)| stream.try_clone());
                (clones.collect::<Result<Vec<_>, _>>()?, None)
            }
            Self::Datagrams(Datagrams { socket, .. }) => {
                let own = (socket.try_clone()?, socket.local_addr()?);
                (Vec::new(), Some(own))
            }
        };
        Ok(move || {
            streams.iter().for_each(Stream::shut_down);
            if let Some((socket, address)) = datagram {
                // An empty datagram to oneself; loopback does not lose it while somebody waits for one.
                let _ = socket.send_to(&[], address);
            }
        })
    }
}

impl Datagrams {
    /// Sends what is in a frame.
    pub(super) fn send(&self, server: u8, frame: &[u8]) -> Result<()> {
        let address = self.directory.of(server)?;
        self.socket.send_to(&frame[PREFIX..], address)?;
        Ok(())
    }

    /// Receives one answer.
    pub(super) fn receive(&mut self, operation: u64) -> Result<()> {
        let (count, _) = self.socket.recv_from(&mut self.buffer)?;
        ensure!(count > 0, "interrupted");
        check_answer(&self.buffer[..count], operation)
    }
}
