//! Ways to servers over sockets: [`TcpChannel`], [`UdpChannel`] and [`UnixChannel`], for generated clients.
//!
//! Any number of calls go over one channel at a time, and a clone of a channel is the same channel; calls of a clone may
//! have another time ([`TcpChannel::timeout`]) and caller ([`TcpChannel::credential`]). Replies are told apart
//! by the calls' numbers (`xid`), which start at random.
//!
//! ```no_run
//! # mod rquota { pub mod rquotaprog { pub mod rquotavers {
//! #     #[derive(Debug)] pub struct Client<C>(pub C);
//! # } } }
//! # async fn example() -> std::io::Result<()> {
//! use rquota::rquotaprog::rquotavers::Client;
//! use wallaby_onc::client::{ClientOptions, UdpChannel};
//!
//! let channel = UdpChannel::connect("127.0.0.1:875".parse().unwrap(), ClientOptions::default()).await?;
//! let client = Client(channel.clone());
//! # Ok(())
//! # }
//! ```

mod counters;
mod datagram;
mod stream;
mod xid;

use std::result;
use std::time::Duration;

pub use counters::ClientCounters;
pub use datagram::UdpChannel;
pub use stream::{StreamChannel, Tcp, TcpChannel, Unix, UnixChannel};

use crate::auth::OpaqueAuth;
use crate::failure::{NoReply, Reason};
use crate::message::{CallBody, Procedure};
use crate::record::HEADER;
use crate::scratch::Scratch;
use crate::xdr::{EncodeError, Writer};

/// What channels have mostly to say when something fails.
type Result<T, E = NoReply> = result::Result<T, E>;

/// How calls of a channel are made, and what they may take up.
///
/// ```
/// use std::time::Duration;
/// use wallaby_onc::client::ClientOptions;
///
/// let options = ClientOptions { max_calls: 16, ..ClientOptions::default() }.timeout(Duration::from_secs(3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Who calls: [`OpaqueAuth::none`], or [`AuthSys::credential`](crate::auth::AuthSys::credential).
    pub credential: OpaqueAuth,
    /// How long a call may take, connecting included; 25 s, as clients of rpcgen wait.
    pub timeout: Duration,
    /// How many calls may be outstanding at a time; 1,024.
    pub max_calls: usize,
    /// Most bytes of a record, sent or received, over TCP and unix sockets; 16 MiB.
    pub max_record: usize,
    /// How many bytes may wait to be sent, over TCP and unix sockets, before further calls fail; 64 MiB. One call may wait
    /// however long it is.
    pub max_unsent: usize,
    /// How long a call over UDP waits for its reply before it is sent again; 500 ms, and twice as long each time.
    pub retransmit_after: Duration,
    /// The longest such wait; 10 s.
    pub retransmit_at_most: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            credential: OpaqueAuth::none(),
            timeout: Duration::from_secs(25),
            max_calls: 1024,
            max_record: 16 << 20,
            max_unsent: 64 << 20,
            retransmit_after: Duration::from_millis(500),
            retransmit_at_most: Duration::from_secs(10),
        }
    }
}

impl ClientOptions {
    /// With this credential.
    #[must_use]
    pub fn credential(mut self, credential: OpaqueAuth) -> Self {
        self.credential = credential;
        self
    }

    /// With this much time for a call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// What calls over a clone of a channel say and how long they take; clones may differ.
#[derive(Debug, Clone)]
struct Calling {
    credential: OpaqueAuth,
    timeout: Duration,
}

impl Calling {
    fn new(options: &ClientOptions) -> Self {
        Self {
            credential: options.credential.clone(),
            timeout: options.timeout,
        }
    }

    /// A call as a record, with arguments that are written here, if they are; its number is not known yet.
    fn written(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<Scratch, Reason> {
        let written = Scratch::write(|writer| {
            writer.u32(0); // the mark's place
            CallBody::write_head(0, procedure, &self.credential, writer)?;
            arguments(writer)
        });
        Ok(written?)
    }
}

/// Fills in the number of a call that is written.
fn set_xid(record: &mut [u8], xid: u32) {
    let message = record.get_mut(HEADER..).unwrap_or_default();
    if let Some(place) = message.first_chunk_mut() {
        *place = xid.to_be_bytes();
    }
}
