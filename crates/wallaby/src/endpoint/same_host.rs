//! Endpoints of one host find each other's shared memory in a folder, by the addresses that they are known by.

use std::path::Path;
use std::time::Duration;

use wallaby_proto::Address;

use crate::driver::shared::Inner;
use crate::timer::{self, Instant};
use crate::transport::{self, Connector};

/// How long who offers shared memory may take, before it is dialled at the address itself.
const LIMIT: Duration = Duration::from_millis(500);

/// Where in this folder somebody offers shared memory who is reached at this address; `None` if nobody can: it is in this
/// process, or a socket in a folder already.
pub(super) fn socket(folder: &str, address: &Address) -> Option<Address> {
    let (scheme, place) = match address {
        Address::Tcp(socket) => ("tcp", socket.to_string()),
        Address::Udp(socket) => ("udp", socket.to_string()),
        Address::Unix(path) => ("unix", path.replace('%', "%25").replace('/', "%2F")),
        _ => return None,
    };
    let path = Path::new(folder).join(format!("{scheme}:{place}"));
    path.to_str()
        .filter(|_| cfg!(target_os = "linux"))
        .map(|path| Address::Shm(path.into()))
}

impl Inner {
    /// A stream to a server of this host that offers shared memory; `None` if it does not, or not as it should.
    pub(crate) async fn dial_same_host(
        &self,
        server: &Address,
        by: Connector<'_>,
    ) -> Option<transport::Stream> {
        let socket = socket(self.settings.driver.same_host.as_deref()?, server)?;
        if let Address::Shm(path) = &socket
            && !Path::new(&**path).exists()
        {
            return None; // of another host, most likely
        }
        let dialled = transport::dial(
            &socket,
            self.settings.ring,
            &self.settings.driver.transports,
            by,
        );
        match timer::timeout_at(Instant::now() + LIMIT, dialled).await?? {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%server, %socket, %error, "not over shared memory");
                None
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_socket_of_its_own() {
        for (address, expected) in [
            ("tcp://127.0.0.1:70", Some("shm:///run/me/tcp:127.0.0.1:70")),
            ("tcp://[::1]:70", Some("shm:///run/me/tcp:[::1]:70")),
            ("udp://127.0.0.1:70", Some("shm:///run/me/udp:127.0.0.1:70")),
            ("unix:///a/b", Some("shm:///run/me/unix:%2Fa%2Fb")),
            ("unix://%2Fa/b", Some("shm:///run/me/unix:%252Fa%2Fb")),
            ("unix://../b", Some("shm:///run/me/unix:..%2Fb")),
            ("mem://a", None),
            ("shm:///a", None),
        ] {
            let found = socket("/run/me", &address.parse().expect("an address"));
            assert_eq!(found.map(|found| found.to_string()).as_deref(), expected);
        }
    }
}
