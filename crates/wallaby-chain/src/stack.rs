//! What travels with a chain's requests: the stack of what is to be done with answers, and where the chain has been.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use wallaby::codec::Codec;
use wallaby::{Address, Answers, Method, MethodDefinition, Status};

use crate::away::Away;
use crate::chains::MOST_BYTES;
use crate::code::{ChainCode, Hash};
use crate::exception::{Exception, HostPath, MOST_NAME};
use crate::state::{Answer, State};

/// The first bytes of a chain's continuation; others are not ours.
const MAGIC: &[u8] = b"wchn";

/// The version of what follows. Servers refuse newer ones.
const VERSION: u8 = 3;

/// The same with a [`Tail`] behind it.
const WITH_TAIL: u8 = 4;

/// So many servers a chain avoids at most.
pub(crate) const MOST_AVOIDED: usize = 4;

/// What stands before the last answer of a chain, so that nobody takes the answer of a link for it.
pub(crate) const MARK: [u8; 8] = [0xc4, b'c', b'h', b'a', b'i', b'n', 0x01, 0x9e];

/// What is to be done with the answer of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// Who has made the call expects [`MARK`] before the last answer.
    pub(crate) marked: bool,
    /// How many hops led here.
    pub(crate) hops: u32,
    pub(crate) path: HostPath,
    /// The number of each branch that it is in, the outermost first.
    pub(crate) branch: Vec<u32>,
    /// The innermost last: the answer goes to that one.
    pub(crate) levels: Vec<Level>,
    /// The code of functions, or where it is.
    pub(crate) codes: Vec<ChainCode>,
    #[serde(skip)]
    pub(crate) tail: Tail,
}

/// What holds for all hops, if anything is said. Servers that do not know it refuse the chain, and those of an older release get
/// one without it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tail {
    pub(crate) asked: Asked,
    /// Servers that an attempt before was lost at; travels only where links are to be recorded.
    #[serde(skip)]
    pub(crate) avoid: Vec<Address>,
    /// What of the states follows the request, in place of being here.
    #[serde(skip)]
    pub(crate) away: Option<Away>,
}

/// What who has started the chain wants of all servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub(crate) struct Asked {
    /// The values that functions tell.
    pub(crate) told: bool,
    /// The lines that they log.
    pub(crate) lines: bool,
    /// Records of what links come to: the chain may be made again.
    pub(crate) record: bool,
    /// That they read what follows the request; only on its way.
    away: bool,
    /// What other releases may ask for: a server that does not know it cannot do it.
    other: u8,
}

impl Tail {
    fn check(&self) -> Result<(), Status> {
        match self.asked.other {
            0 => Ok(()),
            other => Err(Status::unimplemented(format!(
                "a chain that asks for what this server does not know ({other:#x})"
            ))),
        }
    }
}

impl From<u8> for Asked {
    fn from(bits: u8) -> Self {
        Self {
            told: bits & 1 != 0,
            lines: bits & 2 != 0,
            record: bits & 4 != 0,
            away: bits & 8 != 0,
            other: bits & !15,
        }
    }
}

impl From<Asked> for u8 {
    fn from(asked: Asked) -> Self {
        let (told, lines) = (Self::from(asked.told), Self::from(asked.lines));
        let (record, away) = (Self::from(asked.record), Self::from(asked.away));
        told | lines << 1 | record << 2 | away << 3 | asked.other
    }
}

/// One level of a stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Level {
    /// This function says how it goes on.
    Run { function: Runs, state: State },
    /// Answers pass; of exceptions this function is asked, at this host.
    Catch {
        at: Address,
        function: Runs,
        state: State,
    },
    /// A branch ends here.
    Merge(Box<Merging>),
    /// Answers and exceptions pass; what functions tell is for this one, at this host.
    Tell {
        at: Address,
        function: Runs,
        state: State,
    },
}

/// Where a branch ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Merging {
    pub(crate) at: Address,
    pub(crate) function: Runs,
    pub(crate) state: State,
    /// Which split of the call: the request that was split.
    pub(crate) split: String,
    /// Which branch, from 1.
    pub(crate) number: u32,
    /// How many branches there are.
    pub(crate) of: u32,
    /// The payload is the exception with which the branch has ended.
    pub(crate) raised: bool,
}

impl Merging {
    /// What the branch has come to, as its last request says.
    pub(crate) fn what(&self, payload: Bytes) -> Result<Result<Answer, Exception>, Status> {
        match self.raised {
            false => Ok(Ok(Answer(payload))),
            true => Exception::read(payload).map(Err),
        }
    }
}

impl Level {
    pub(crate) fn function(&self) -> &Runs {
        match self {
            Self::Run { function, .. }
            | Self::Catch { function, .. }
            | Self::Tell { function, .. } => function,
            Self::Merge(merging) => &merging.function,
        }
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        match self {
            Self::Run { state, .. } | Self::Catch { state, .. } | Self::Tell { state, .. } => state,
            Self::Merge(merging) => &mut merging.state,
        }
    }
}

/// What runs on an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Runs {
    /// No code: the answer goes to these, one after the other.
    Pipe(Vec<Link>),
    /// Code that servers have by this name.
    Native(String),
    /// Code that the client brings, and which function of it.
    Code { code: Hash, function: String },
}

/// A method of a server, for the [`State`] of functions that are [`ChainCode`]: they know neither addresses nor types.
///
/// ```
/// use wallaby_chain::{Link, State};
///
/// #[wallaby::service(package = "example")]
/// trait Ads { async fn pick(topic: String) -> String; }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let at: wallaby::Address = "tcp://10.0.0.2:4000".parse()?;
/// let state = State::new().with("ads", &Link::to(at, &ads::PICK))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub(crate) server: Address,
    method: String,
    codec: String,
    arguments: u64,
    answer: u64,
}

impl Link {
    /// This method of this server.
    pub fn to<Args, A, C>(server: impl Into<Address>, method: &'static Method<Args, A, C>) -> Self
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        Self::new(server.into(), method.definition())
    }

    pub(crate) fn new(server: Address, method: &MethodDefinition) -> Self {
        Self {
            server,
            method: method.name().to_string(),
            codec: method.codec().to_owned(),
            arguments: method.arguments(),
            answer: method.answer(),
        }
    }

    pub(crate) fn definition(&self) -> Result<Arc<MethodDefinition>, Status> {
        let Self { method, codec, .. } = self;
        let definition = MethodDefinition::new(method, codec, self.arguments, self.answer);
        let illegal = || Status::invalid_argument(format!("{method:?} is no name of a method"));
        definition.map(Arc::new).ok_or_else(illegal)
    }
}

impl Stack {
    /// What the last answer passes unchanged is not kept.
    pub(crate) fn push(&mut self, function: Runs, state: State) {
        if !matches!(&function, Runs::Pipe(links) if links.is_empty()) {
            self.levels.push(Level::Run { function, state });
        }
    }

    /// Which chain it is, for people: the number of the call, and those of the branches.
    pub(crate) fn name(&self, call: u64) -> String {
        let numbers = self.branch.iter().map(|number| format!(".{number}"));
        let mut name = format!("{call}{}", numbers.collect::<String>());
        name.truncate(MOST_NAME);
        name
    }

    /// An exception at this place.
    pub(crate) fn exception(&self, call: u64, status: &Status) -> Exception {
        Exception::new(status, self.name(call), self.path.clone())
    }

    /// It may run this code.
    pub(crate) fn bring(&mut self, code: Option<ChainCode>) {
        let known = |code: &ChainCode| self.codes.iter().any(|known| known.hash() == code.hash());
        self.codes.extend(code.filter(|code| !known(code)));
    }

    /// The code with this hash.
    pub(crate) fn code(&self, hash: Hash) -> Option<&ChainCode> {
        self.codes.iter().find(|code| code.hash() == hash)
    }

    /// Whether any of its functions is code that somebody brings.
    pub(crate) fn has_code(&self) -> bool {
        let is_code = |level: &Level| matches!(level.function(), Runs::Code { .. });
        self.levels.iter().any(is_code)
    }

    /// Whether somebody catches its exceptions.
    pub(crate) fn is_caught(&self) -> bool {
        let catches = |level: &Level| matches!(level, Level::Catch { .. });
        self.levels.iter().any(catches)
    }

    /// Code that is not needed any more does not travel further.
    pub(crate) fn drop_used_code(&mut self) {
        let levels = &self.levels;
        self.codes.retain(|known| {
            let needs = |level: &Level| matches!(level.function(), Runs::Code { code, .. } if *code == known.hash());
            levels.iter().any(needs)
        });
    }

    /// What has a server record what a link comes to, and answer its caller; nothing if nobody wants records.
    pub(crate) fn recorded(&self) -> Option<Bytes> {
        if !self.tail.asked.record {
            return None;
        }
        let record = Self {
            hops: self.hops,
            path: self.path.clone(),
            branch: self.branch.clone(),
            tail: self.tail.clone(),
            ..Self::default()
        };
        record.to_bytes().ok()
    }

    /// It goes on to this server.
    pub(crate) fn advance(&mut self, server: &Address) {
        self.hops = self.hops.saturating_add(1);
        self.path.push(server);
        self.drop_used_code();
    }

    /// Its bytes, and what of its states follows them because they would be more than so many.
    pub(crate) fn write(&mut self, most: usize) -> Result<(Bytes, Option<Bytes>), postcard::Error> {
        let bytes = self.to_bytes()?;
        match self.put_away(bytes.len(), most.min(MOST_BYTES)) {
            None => Ok((bytes, None)),
            away => Ok((self.to_bytes()?, away)),
        }
    }

    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Result<Bytes, postcard::Error> {
        let tells = |level: &Level| matches!(level, Level::Tell { .. });
        let has_tail = self.tail != Tail::default() || self.levels.iter().any(tells);
        let mut bytes = BytesMut::with_capacity(256);
        bytes.put_slice(MAGIC);
        bytes.put_u8(if has_tail { WITH_TAIL } else { VERSION });
        let mut bytes = postcard::to_extend(self, Extend(bytes))?;
        if has_tail {
            let mut asked = self.tail.asked;
            asked.away = self.tail.away.is_some();
            bytes = postcard::to_extend(&asked, bytes)?;
        }
        if self.tail.asked.record {
            bytes = postcard::to_extend(&self.tail.avoid, bytes)?;
        }
        if let Some(away) = &self.tail.away {
            bytes = postcard::to_extend(away, bytes)?;
        }
        Ok(bytes.0.freeze())
    }

    /// Reads the bytes of a continuation; `None` if it is of something else than a chain.
    ///
    /// # Errors
    ///
    /// If this server cannot read it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, Status> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Ok(None);
        };
        let malformed = |what: &dyn fmt::Display| {
            Status::invalid_argument(format!("a chain that cannot be read: {what}"))
        };
        let Some((version, rest)) = rest.split_first() else {
            return Err(malformed(&"it ends before its version"));
        };
        if ![VERSION, WITH_TAIL].contains(version) {
            let message = format!(
                "a chain of version {version}: this server knows versions {VERSION} and {WITH_TAIL}"
            );
            return Err(Status::unimplemented(message));
        }
        let (mut stack, mut rest) =
            postcard::take_from_bytes::<Self>(rest).map_err(|error| malformed(&error))?;
        if *version == WITH_TAIL {
            (stack.tail, rest) =
                postcard::take_from_bytes(rest).map_err(|error| malformed(&error))?;
            stack.tail.check()?;
        }
        if stack.tail.asked.record {
            (stack.tail.avoid, rest) =
                postcard::take_from_bytes(rest).map_err(|error| malformed(&error))?;
        }
        if std::mem::take(&mut stack.tail.asked.away) {
            let away: Away;
            (away, rest) = postcard::take_from_bytes(rest).map_err(|error| malformed(&error))?;
            away.check(&mut stack.levels)
                .map_err(|why| malformed(&why))?;
            stack.tail.away = Some(away);
        }
        match rest {
            [] if stack.tail.avoid.len() > MOST_AVOIDED => {
                Err(malformed(&"it avoids too many servers"))
            }
            [] if stack.path.is_legal() => Ok(Some(stack)),
            [] => Err(malformed(&"its path is too long")),
            more => Err(malformed(&format!("{} bytes behind it", more.len()))),
        }
    }
}

/// `BytesMut` as postcard's output.
struct Extend(BytesMut);

impl std::iter::Extend<u8> for Extend {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use wallaby_chain_guest as guest;

    use super::*;

    fn stack() -> Stack {
        let at: Address = "mem://a".parse().expect("an address");
        let mut path = HostPath::default();
        path.push(&at);
        let method = MethodDefinition::new("a.B/c", "raw", 1, 2).expect("a name");
        Stack {
            marked: true,
            hops: 3,
            path,
            branch: vec![2],
            levels: vec![
                Level::Run {
                    function: Runs::Code {
                        code: ChainCode::new(&b"code"[..]).hash(),
                        function: "g".into(),
                    },
                    state: State::new(),
                },
                Level::Catch {
                    at: at.clone(),
                    function: Runs::Native("f".into()),
                    state: State::new(),
                },
                Level::Run {
                    function: Runs::Pipe(vec![Link::new(at, &method)]),
                    state: State::new(),
                },
            ],
            codes: vec![
                ChainCode::new(&b"code"[..]),
                ChainCode::new(&b"more"[..]).at("mem://b".parse::<Address>().expect("an address")),
            ],
            tail: Tail::default(),
        }
    }

    /// Peers of other releases must read the same.
    #[test]
    fn its_bytes_do_not_change() {
        let (code, more) = (ChainCode::new(&b"code"[..]), ChainCode::new(&b"more"[..]));
        let mut expected = b"wchn\x03\x01\x03\x01\x07mem://a\0\x01\x02\x03".to_vec();
        expected.extend(b"\0\x02");
        expected.extend(code.hash().bytes());
        expected.extend(b"\x01g\0\x01\x07mem://a\x01\x01f\0");
        expected.extend(b"\0\0\x01\x07mem://a\x05a.B/c\x03raw\x01\x02\0");
        let packed = b"\0\x06\x4b\xce\x4f\x49\x05\0"; // RFC 1951, with fixed codes
        expected.extend([&[2], &code.hash().bytes()[..], packed].concat());
        expected.extend([&more.hash().bytes()[..], b"\x01\x07mem://b"].concat());
        let bytes = stack().to_bytes().expect("it can be written");
        assert_eq!(
            bytes.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        assert_eq!(Stack::read(&bytes), Ok(Some(stack())));
    }

    /// Servers of releases before take what has no tail.
    #[test]
    fn a_tail_makes_it_version_4() {
        let mut with_tail = stack();
        with_tail.tail.asked.lines = true;
        let before = stack().to_bytes().expect("it can be written");
        let expected = [b"wchn\x04", &before[5..], b"\x02"].concat();
        let bytes = with_tail.to_bytes().expect("it can be written");
        assert_eq!(
            bytes.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        assert_eq!(Stack::read(&bytes), Ok(Some(with_tail.clone())));
        with_tail.tail.asked.record = true;
        with_tail.tail.avoid = vec!["mem://c".parse().expect("an address")];
        let expected = [b"wchn\x04", &before[5..], b"\x06\x01\x07mem://c"].concat();
        let bytes = with_tail.to_bytes().expect("it can be written");
        assert_eq!(
            bytes.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        assert_eq!(Stack::read(&bytes), Ok(Some(with_tail)));
        // A value that follows it.
        let mut state = State::new();
        state
            .set("much", &vec![7u8; 1000])
            .expect("it can be written");
        let mut large = stack();
        large.levels[2].state_mut().clone_from(&state);
        let whole = large.clone();
        let size = large.to_bytes().expect("it can be written").len();
        let (bytes, away) = large.write(size - 1).expect("it can be written");
        let away = away.expect("there is no room for it");
        assert_eq!(away, [&[0xe8, 0x07][..], &[7; 1000]].concat());
        let hash = Hash::of(&away);
        let end = [&b"\x08"[..], hash.bytes(), b"\x01\x02\x00\xea\x07"].concat();
        assert!(bytes.starts_with(b"wchn\x04"));
        assert!(bytes.ends_with(&end), "{}", bytes.escape_ascii());
        let mut read = Stack::read(&bytes).expect("it is one").expect("a chain");
        assert_eq!(read.put_back(&away), Ok(()));
        assert_eq!(read, whole);
        let unknown = [b"wchn\x04", &before[5..], b"\x82"].concat();
        let error = Stack::read(&unknown).expect_err("it asks for more");
        assert_eq!(error.code(), wallaby::Code::Unimplemented);
    }

    #[test]
    fn code_travels_as_far_as_it_is_needed() {
        let mut stack = stack();
        stack.bring(Some(ChainCode::new(&b"code"[..])));
        assert_eq!((stack.codes.len(), stack.has_code()), (2, true));
        stack.drop_used_code();
        assert_eq!(stack.codes, [ChainCode::new(&b"code"[..])]);
        stack.levels.remove(0);
        stack.drop_used_code();
        assert_eq!((stack.codes.len(), stack.has_code()), (0, false));
    }

    #[test]
    fn what_cannot_be_read_says_so() {
        let mut stack = stack();
        stack.tail.asked.told = true;
        let bytes = stack.to_bytes().expect("it can be written");
        for length in 0..MAGIC.len() {
            assert_eq!(Stack::read(&bytes[..length]), Ok(None));
        }
        for length in MAGIC.len()..bytes.len() {
            let error = Stack::read(&bytes[..length]).expect_err("it is cut");
            assert_eq!(error.code(), wallaby::Code::InvalidArgument, "{error}");
        }
        let error = Stack::read(&[&bytes[..], b"x"].concat()).expect_err("too long");
        assert!(error.message().ends_with("1 bytes behind it"), "{error}");
        let at: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        stack.tail.asked.record = true;
        for (avoided, is_legal) in [(MOST_AVOIDED, true), (MOST_AVOIDED + 1, false)] {
            stack.tail.avoid = vec![at.clone(); avoided];
            let bytes = stack.to_bytes().expect("it can be written");
            assert_eq!(Stack::read(&bytes).is_ok(), is_legal, "{avoided}");
        }
        stack.tail.asked.record = false;
        stack.tail.avoid.clear();
        for (places, is_legal) in [
            (&[(0, 0, 9), (1, 0, 9)][..], true),
            (&[], true),
            (&[(1, 0, 9), (0, 0, 9)], false),
            (&[(0, 0, 9), (0, 0, 9)], false),
            (&[(0, 1, 9)], false),
            (&[(3, 0, 9)], false),
            (&[(2, 0, 9)], false),
        ] {
            for level in 0..2 {
                let empty = guest::Value {
                    shape: 0,
                    bytes: Vec::new(),
                };
                stack.levels[level].state_mut().values.insert("much", empty);
            }
            stack.levels[2]
                .state_mut()
                .set("small", &7u8)
                .expect("a number");
            stack.tail.away = Some(Away::at(Hash::of(b""), places));
            let bytes = stack.to_bytes().expect("it can be written");
            assert_eq!(Stack::read(&bytes).is_ok(), is_legal, "{places:?}");
        }
        let error = Stack::read(b"wchn\x05").expect_err("newer");
        assert_eq!(error.code(), wallaby::Code::Unimplemented);
    }
}
