//! What ends a chain before its time, and the hosts that it has come through until then.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::codec::{Codec, Postcard};
use wallaby::{Address, Code, Status};

use crate::limit::Limit;

/// So many hosts of a path are kept: of a longer one the first half and the last.
const MOST_HOSTS: usize = 16;

/// Longest message of an exception in bytes; a longer one is cut.
const MOST_MESSAGE: usize = 1024;

/// Longest name of a chain in bytes; a longer one is cut.
pub(crate) const MOST_NAME: usize = 1024;

const OPENING: &str = " [chain ";
const ARROW: &str = " > ";

/// The hosts that a chain has come through, in their order. Of more than 16 the first 8 and the last 8 are kept.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPath {
    hosts: Vec<Address>,
    left_out: u32,
}

impl HostPath {
    pub(crate) fn push(&mut self, host: &Address) {
        if self.hosts.len() >= MOST_HOSTS {
            self.hosts.remove(MOST_HOSTS / 2);
            self.left_out = self.left_out.saturating_add(1);
        }
        self.hosts.push(host.clone());
    }

    pub(crate) fn is_legal(&self) -> bool {
        self.hosts.len() <= MOST_HOSTS && (self.left_out == 0 || self.hosts.len() == MOST_HOSTS)
    }

    /// The hosts that are kept.
    pub fn hosts(&self) -> &[Address] {
        &self.hosts
    }

    /// How many hosts in the middle are left out.
    pub fn left_out(&self) -> u32 {
        self.left_out
    }
}

/// `a > b > c`
impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, host) in self.hosts.iter().enumerate() {
            if index > 0 {
                f.write_str(ARROW)?;
            }
            if index == MOST_HOSTS / 2 && self.left_out > 0 {
                write!(f, "{} more{ARROW}", self.left_out)?;
            }
            write!(f, "{host}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostPath({self})")
    }
}

/// Why a chain did not go on: a link's status, a function's error, a limit. A function that catches gets it; who has made the call
/// gets a status with its code, and a message that names the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    code: u8,
    message: String,
    chain: String,
    path: HostPath,
}

impl Exception {
    pub(crate) fn new(status: &Status, chain: String, path: HostPath) -> Self {
        let message = status.message();
        let cut = message.floor_char_boundary(MOST_MESSAGE);
        Self {
            code: status.code() as u8,
            message: message[..cut].to_owned(),
            chain,
            path,
        }
    }

    /// What another server says.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or no server of this kind would have made it, for its length.
    pub(crate) fn read(payload: Bytes) -> Result<Self, Status> {
        let wrong = |why: &dyn fmt::Display| {
            Status::invalid_argument(format!("an exception that cannot be read: {why}"))
        };
        let read: Self = Postcard::decode(payload).map_err(|error| wrong(&error))?;
        let is_short = read.message.len() <= MOST_MESSAGE && read.chain.len() <= MOST_NAME;
        match is_short && read.path.is_legal() {
            true => Ok(read),
            false => Err(wrong(&"it is too long")),
        }
    }

    /// How many bytes it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.message.len() + self.chain.len() + size_of_val(self.path.hosts())
    }

    /// What kind of error it is.
    pub fn code(&self) -> Code {
        Code::from_number(self.code)
    }

    /// What happened, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Which limit was reached, if it was one.
    pub fn limit(&self) -> Option<Limit> {
        match self.code() {
            Code::ResourceExhausted => Limit::read(&self.message),
            _ => None,
        }
    }

    /// Which chain: the number of its call, and behind it the numbers of the branches where it was split, as in `74.2`. If the
    /// chain may be made again ([`Run::retries`](crate::Run::retries)), in place of the call's number that of its durable id, which
    /// stays the same.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// The hosts that the chain has come through; the last is the one where it happened, or that it did not get to.
    pub fn path(&self) -> &HostPath {
        &self.path
    }

    /// What the initiator gets.
    pub(crate) fn to_status(&self) -> Status {
        let Self { chain, path, .. } = self;
        let message = format!("{}{OPENING}{chain}: {path}]", self.message);
        Status::new(self.code(), message)
    }
}

/// The status with which a link has ended, without what its server has added to tell where.
pub(crate) fn bare(status: Status) -> Status {
    match status.message().rsplit_once(OPENING) {
        Some((message, place)) if place.ends_with(']') => Status::new(status.code(), message),
        _ => status,
    }
}

/// For functions that catch, and do not know what to do either.
impl From<Exception> for Status {
    fn from(exception: Exception) -> Self {
        Self::new(exception.code(), exception.message)
    }
}

/// The hosts that a chain had come through when it ended with this status, as texts. Empty if the status is no exception of a
/// chain: some errors are told by the protocol itself, which says where in the call's tree they happened.
///
/// ```
/// let status = wallaby::Status::not_found("no such file [chain 7: tcp://10.0.0.1:80 > tcp://10.0.0.2:80]");
/// assert_eq!(wallaby_chain::hosts(&status), ["tcp://10.0.0.1:80", "tcp://10.0.0.2:80"]);
/// ```
pub fn hosts(status: &Status) -> Vec<&str> {
    let told = status.message().rsplit_once(OPENING);
    let path = told
        .and_then(|(_, told)| told.strip_suffix(']'))
        .and_then(|told| told.split_once(": "));
    path.map_or(Vec::new(), |(_, path)| path.split(ARROW).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_keeps_its_ends() {
        let mut path = HostPath::default();
        for port in 1..=20 {
            let host: Address = format!("tcp://127.0.0.1:{port}")
                .parse()
                .expect("an address");
            path.push(&host);
            assert!(path.is_legal());
        }
        assert_eq!(path.left_out(), 4);
        let text = path.to_string();
        assert!(text.starts_with("tcp://127.0.0.1:1 > "), "{text}");
        let middle = "tcp://127.0.0.1:8 > 4 more > tcp://127.0.0.1:13";
        assert!(text.contains(middle), "{text}");
        assert!(text.ends_with("tcp://127.0.0.1:20"), "{text}");
    }

    /// Another server may say what it likes.
    #[test]
    fn an_exception_that_is_too_long_is_refused() {
        let host: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        let read = |message: usize, chain: usize, hosts: usize| {
            let exception = Exception {
                code: 0,
                message: "m".repeat(message),
                chain: "c".repeat(chain),
                path: HostPath {
                    hosts: vec![host.clone(); hosts],
                    left_out: 0,
                },
            };
            Exception::read(Postcard::encode(&exception).expect("small")).is_ok()
        };
        assert!(read(MOST_MESSAGE, MOST_NAME, MOST_HOSTS));
        assert!(!read(MOST_MESSAGE + 1, 1, 1));
        assert!(!read(1, MOST_NAME + 1, 1));
        assert!(!read(1, 1, MOST_HOSTS + 1));
    }

    #[test]
    fn the_longest_exception_fits_into_a_status() {
        let mut path = HostPath::default();
        let longest = format!("unix:///{}", "x".repeat(106));
        for _ in 0..2000 {
            path.push(&longest.parse().expect("an address"));
        }
        let status = Status::internal("y".repeat(4000));
        let told = Exception::new(&status, "7.1".into(), path).to_status();
        assert!(told.message().ends_with(']'));
        assert_eq!(hosts(&told).len(), MOST_HOSTS + 1);
    }
}
