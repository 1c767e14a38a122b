//! A UDP socket on tokio.

use std::io;
use std::net::UdpSocket;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that is watched for what arrives, and for nothing else.
///
/// tokio's own has the system tell also when a datagram has left, which wakes a thread each time for nothing.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<UdpSocket>);

impl Socket {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        watch(socket, Interest::READABLE).map(Self)
    }

    pub(crate) fn get_ref(&self) -> &UdpSocket {
        self.0.get_ref()
    }

    /// Waits until there is something, and receives it. An error that says there was nothing waits again.
    pub(crate) async fn receive<T>(
        &self,
        receive: impl FnMut(&UdpSocket) -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.async_io(Interest::READABLE, receive).await
    }

    /// Sends at once, or when there is room for it again.
    pub(crate) async fn send<T>(
        &self,
        mut send: impl FnMut(&UdpSocket) -> io::Result<T>,
    ) -> io::Result<T> {
        match send(self.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        // This is rare, and only as long is it watched for that.
        let watched = watch(self.get_ref().try_clone()?, Interest::WRITABLE)?;
        watched.async_io(Interest::WRITABLE, send).await
    }
}

fn watch(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: the socket owns its descriptor, always names that one, and closes it when it is dropped, not before; it is
    // only lent out while it is watched.
    let watched = unsafe { AsyncFd::register_with_interest(socket, interest) };
    Ok(watched?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_no_room_at_once_is_sent_later() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = Socket::new(socket).unwrap();
        let mut attempts = 0;
        let sent = socket.send(|socket| {
            attempts += 1;
            match attempts {
                1 => Err(io::ErrorKind::WouldBlock.into()),
                _ => socket.send_to(b"now", address),
            }
        });
        assert_eq!(sent.await.unwrap(), 3);
        let mut buffer = [0; 8];
        let received = socket.receive(|socket| socket.recv(&mut buffer)).await;
        assert_eq!((received.unwrap(), attempts), (3, 2));
    }
}
