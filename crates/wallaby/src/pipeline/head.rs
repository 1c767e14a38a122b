//! What goes down a line before the bytes: the method, who is still to have it, how it is passed on.

use std::sync::{Arc, LazyLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::{Address, Code, Status};

use crate::codec::{Format, Postcard};
use crate::fingerprint;

/// The method by which messages are passed on. It is nobody's service: endpoints know it by its name.
const NAME: &str = "wallaby.Pipeline/pass";

/// More servers than this stand in no line.
pub(crate) const MOST_SERVERS: usize = 256;

/// Arguments of up to this size follow the head at once; longer ones are the beginning of the body, so that they are
/// passed on before they are whole.
pub(crate) const INLINE: usize = 16 * 1024;

/// A head with its arguments is no longer than this: 256 addresses with the longest of paths, and what follows at once.
const MOST_BYTES: usize = 64 * 1024;

static DEFINITION: LazyLock<Arc<MethodDefinition>> = LazyLock::new(|| {
    let shape = fingerprint::of::<Written>();
    let definition = MethodDefinition::new(NAME, Postcard::NAME, shape, 0);
    Arc::new(definition.expect("a name of less than 256 bytes"))
});

/// What is said of the method on its first use on a connection.
pub(crate) fn definition() -> &'static Arc<MethodDefinition> {
    &DEFINITION
}

/// A head as it is on the wire; arguments follow it if `following` is 0.
#[derive(Serialize, Deserialize)]
struct Written {
    method: String,
    codec: String,
    arguments: u64,
    answer: u64,
    /// Servers that are still to have it, the next one first.
    rest: Vec<String>,
    /// It is passed on when it is whole.
    store: bool,
    /// So many bytes of arguments begin the body.
    following: u64,
    /// Bytes of the application follow as well.
    body: bool,
}

/// A head as it is used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Head {
    /// The method that each server is to run.
    pub(crate) method: Arc<MethodDefinition>,
    /// Servers that are still to have it, the next one first.
    pub(crate) rest: Vec<Address>,
    /// It is passed on when it is whole, not while it arrives.
    pub(crate) store: bool,
    /// The encoded arguments, unless they follow.
    pub(crate) arguments: Bytes,
    /// How many bytes of arguments begin the body.
    pub(crate) following: u64,
    /// Bytes of the application follow as well.
    pub(crate) body: bool,
}

impl Head {
    /// Whether a body follows the request.
    pub(crate) fn has_body(&self) -> bool {
        self.body || self.following > 0
    }

    /// The same for the next server of the line; `None` at its end.
    pub(crate) fn onward(&self) -> Option<(Address, Self)> {
        let (next, rest) = self.rest.split_first()?;
        let onward = Self {
            rest: rest.to_vec(),
            ..self.clone()
        };
        Some((next.clone(), onward))
    }

    /// The payload of the request.
    pub(crate) fn write(&self) -> Bytes {
        let written = Written {
            method: self.method.name().to_string(),
            codec: self.method.codec().to_owned(),
            arguments: self.method.arguments(),
            answer: self.method.answer(),
            rest: self.rest.iter().map(Address::to_string).collect(),
            store: self.store,
            following: self.following,
            body: self.body,
        };
        let mut payload = BytesMut::new();
        let head = postcard::to_allocvec(&written).expect("text and numbers can be encoded");
        payload.put_slice(&head);
        payload.put_slice(&self.arguments);
        payload.freeze()
    }

    /// Reads the payload of a request, which comes from a peer.
    pub(crate) fn read(payload: &Bytes) -> Result<Self, Status> {
        let malformed = |why: String| Status::new(Code::InvalidArgument, format!("{NAME}: {why}"));
        if payload.len() > MOST_BYTES {
            let why = format!("{} bytes: at most {MOST_BYTES} may be", payload.len());
            return Err(malformed(why));
        }
        let (written, arguments) = postcard::take_from_bytes::<Written>(payload)
            .map_err(|error| malformed(format!("the head cannot be read: {error}")))?;
        if written.rest.len() >= MOST_SERVERS {
            let why = format!(
                "{} servers are left: fewer than {MOST_SERVERS} may be",
                written.rest.len()
            );
            return Err(malformed(why));
        }
        let mut servers: Vec<_> = written.rest.iter().collect();
        servers.sort_unstable();
        if let Some([twice, _]) = servers.array_windows().find(|[one, next]| one == next) {
            return Err(malformed(format!("{twice} stands in the line twice")));
        }
        if written.following > 0 && !arguments.is_empty() {
            return Err(malformed("arguments both here and in the body".into()));
        }
        let Written { method, codec, .. } = &written;
        let method = MethodDefinition::new(method, codec, written.arguments, written.answer)
            .ok_or_else(|| malformed("a method without a name, or with too long a one".into()))?;
        let rest = written.rest.iter().map(|server| server.parse());
        let rest = rest.collect::<Result<_, _>>();
        Ok(Self {
            method: Arc::new(method),
            rest: rest
                .map_err(|error: wallaby_proto::AddressError| malformed(error.to_string()))?,
            store: written.store,
            arguments: payload.slice_ref(arguments),
            following: written.following,
            body: written.body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let method = MethodDefinition::new("test.Work/one", "postcard", 1, 2);
        Head {
            method: Arc::new(method.expect("a short name")),
            rest: ["tcp://127.0.0.1:1", "mem://a"]
                .map(|text| text.parse().expect(text))
                .into(),
            store: true,
            arguments: Bytes::from_static(b"arguments"),
            following: 0,
            body: true,
        }
    }

    /// Other versions read it: docs/protocol.md says how.
    #[test]
    fn these_are_its_bytes() {
        let written = head().write();
        let expected = b"\x0dtest.Work/one\x08postcard\x01\x02\
            \x02\x11tcp://127.0.0.1:1\x07mem://a\x01\x00\x01arguments";
        assert_eq!(written[..], expected[..]);
        assert_eq!(Head::read(&written), Ok(head()));
    }

    /// Other versions know it by this name.
    #[test]
    fn this_is_its_method() {
        let method = definition();
        assert_eq!(method.name().as_ref(), "wallaby.Pipeline/pass");
        assert_eq!((method.codec(), method.answer()), ("postcard", 0));
    }

    #[test]
    fn a_line_gets_shorter() {
        let (first, head) = head().onward().expect("two are left");
        assert_eq!(first.to_string(), "tcp://127.0.0.1:1");
        let (second, head) = head.onward().expect("one is left");
        assert_eq!(second.to_string(), "mem://a");
        assert_eq!(head.onward(), None);
        assert_eq!(head.arguments, Bytes::from_static(b"arguments"));
    }

    #[test]
    fn what_is_no_head_says_what_is_wrong() {
        let why = |head: Head| {
            let error = Head::read(&head.write()).expect_err("it is no head");
            assert_eq!(error.code(), Code::InvalidArgument);
            error.message().to_owned()
        };
        let crowded = Head {
            rest: vec![head().rest[0].clone(); MOST_SERVERS],
            ..head()
        };
        assert!(why(crowded).contains("256 servers are left: fewer than 256 may be"));
        let again = Head {
            rest: vec![head().rest[0].clone(); 2],
            ..head()
        };
        assert!(why(again).contains("tcp://127.0.0.1:1 stands in the line twice"));
        let long = Head {
            arguments: vec![0; MOST_BYTES].into(),
            ..head()
        };
        assert!(why(long).contains("at most 65536 may be"));
        let twice = Head {
            following: 9,
            ..head()
        };
        assert!(why(twice).contains("both here and in the body"));
        let written = head().write();
        for len in 0..written.len() - b"arguments".len() {
            assert!(Head::read(&written.slice(..len)).is_err(), "{len}");
        }
    }

    /// Whatever a peer sends, reading it ends, and what it yields can be written and read again.
    #[test]
    fn any_bytes_are_a_head_or_none() {
        let given = std::env::var("WALLABY_SEED").ok();
        let seed = given.and_then(|given| given.parse().ok()).unwrap_or(1_u64);
        println!("to repeat: WALLABY_SEED={seed}");
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let mut bytes = head().write().to_vec();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(random(bytes.len()) + 1);
            if let Ok(head) = Head::read(&bytes.into()) {
                assert_eq!(Head::read(&head.write()), Ok(head));
            }
        }
    }
}
