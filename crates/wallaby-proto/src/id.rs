//! Who and what a message is about: nodes, calls, places in the tree, tokens.
//!
//! Ids are places in the tree (thesis 4.1.2 uses numbers that servers assign; here parents are prefixes and children
//! computable, so nothing depends on a server's counters and a deterministic re-execution yields the same ids).

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU64;

use bytes::BufMut;
use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::slot_map::SlotKey;
use crate::varint::{self, Reader, WireError};

/// A connection of this incarnation with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(SlotKey);

impl ConnId {
    /// Before all others, and no connection's.
    pub(crate) const FIRST: Self = Self(SlotKey::FIRST);

    pub(crate) fn new(key: SlotKey) -> Self {
        Self(key)
    }

    pub(crate) fn key(self) -> SlotKey {
        self.0
    }

    /// A number that no other connection of the endpoint ever has.
    pub const fn number(self) -> u64 {
        self.0.number()
    }

    /// The connection with this number.
    pub const fn from_number(number: u64) -> Self {
        Self(SlotKey::from_number(number))
    }

    /// Its place among the open ones: less than the number of connections that were ever open at once, and of no other open one.
    pub fn slot(self) -> usize {
        self.0.slot()
    }
}

/// One incarnation of one endpoint: 64 random bits, new at every start, never zero.
///
/// Never derived from an address: a restarted process must not be mistaken for its former self (thesis 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// The node id made of these random bits; `None` for zero, which is no id.
    pub fn new(random: u64) -> Option<Self> {
        NonZeroU64::new(random).map(Self)
    }

    /// The id as a number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn put(self, out: &mut impl BufMut) {
        out.put_u64(self.get());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "node id";
        Self::new(u64::from_be_bytes(reader.array(what)?)).ok_or(WireError::Malformed {
            what,
            why: "zero, which is no id",
        })
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// One distributed procedure call: its initiator's incarnation and a number that the initiator counts up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The endpoint that made the call.
    pub initiator: NodeId,
    /// Counts the initiator's calls, from 1.
    pub sequence: u64,
}

impl CallId {
    /// What stands in its place where a call of this endpoint could not begin.
    pub fn none(initiator: NodeId) -> Self {
        let sequence = 0;
        Self {
            initiator,
            sequence,
        }
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.initiator, self.sequence)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

/// The reply token of a call: whoever shows it was told of the call by one of its servers.
///
/// Responses, pings and aborts that do not come over a connection that a request of the call used must show it. It is
/// also the key under which long paths fold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The token made of these random bits.
    pub fn new(random: u64) -> Self {
        Self(random)
    }

    /// The token of the initiator's call with this sequence: nobody without the initiator's secret can tell it.
    pub fn derive(secret: [u8; 16], sequence: u64) -> Self {
        let mut hasher = siphasher::sip::SipHasher24::new_with_key(&secret);
        hasher.write_u64(sequence);
        Self(hasher.finish())
    }

    /// What a server shows in place of the token where the other end of a connection only claims to be the initiator: who
    /// knows the token can tell that the server does, too. The token does not follow from it, and to anybody else, or from
    /// another server, it says nothing.
    pub fn vouch(self, call: CallId, server: NodeId) -> Self {
        let mut hasher = siphasher::sip::SipHasher24::new_with_keys(self.0, call.sequence);
        hasher.write_u8(0xfe); // no path begins so
        hasher.write_u64(call.initiator.get());
        hasher.write_u64(server.get());
        Self(hasher.finish())
    }

    pub(crate) fn put(self, out: &mut impl BufMut) {
        out.put_u64(self.0);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(u64::from_be_bytes(reader.array("reply token")?)))
    }
}

/// Tokens are secrets: they do not appear in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Longest path that is kept as it is; a longer one is folded into a digest of the same size.
pub const MAX_LITERAL_PATH: usize = 16;

const FOLDED: u8 = 0xff;

/// The bits that say of each byte of a path that its index goes on.
const MORE: u128 = u128::from_ne_bytes([0x80; MAX_LITERAL_PATH]);

/// The place of a branch in its call's tree.
///
/// A *literal* path is the child index of each level as a varint, at most [`MAX_LITERAL_PATH`] bytes in all; the empty
/// one is the call itself (the initiator's place). A path that would be longer is *folded*: 128 bits of SipHash-2-4
/// over the parent's path and the child index, keyed by the call's token, so that every server computes the same
/// (docs/protocol.md, rule 7). A tag keeps folded and literal ones apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Number of bytes used, or [`FOLDED`].
    tag: u8,
    bytes: [u8; MAX_LITERAL_PATH],
}

impl Path {
    /// The place of the initiator; its children are the initial requests.
    pub const ROOT: Self = Self {
        tag: 0,
        bytes: [0; MAX_LITERAL_PATH],
    };

    /// The place of the initial request 0: what a call with a single request uses.
    pub const FIRST: Self = Self {
        tag: 1,
        bytes: [0; MAX_LITERAL_PATH],
    };

    /// The place of the initial request with this number.
    #[inline]
    pub fn initial(index: u32) -> Self {
        if index < 0x80 {
            let mut initial = Self::FIRST;
            initial.bytes[0] = index as u8;
            return initial;
        }
        Self::high_initial(index)
    }

    #[cold]
    fn high_initial(index: u32) -> Self {
        let (varint, len) = varint::encode(u64::from(index));
        let mut initial = Self::ROOT;
        initial.bytes[..len].copy_from_slice(&varint[..len]);
        initial.tag = len as u8;
        initial
    }

    /// The number of the initial request at this place or above it; `None` for the initiator's own place and for folded
    /// paths.
    pub fn initial_index(&self) -> Option<u32> {
        if self.is_root() || self.is_folded() {
            return None;
        }
        match self.bytes[0] {
            index @ 0..0x80 => Some(u32::from(index)),
            _ => Reader::new(self.literal()).u32("path").ok(),
        }
    }

    /// Whether this is the initiator's own place.
    pub fn is_root(&self) -> bool {
        self.tag == 0
    }

    /// Whether this path is a digest.
    pub fn is_folded(&self) -> bool {
        self.tag == FOLDED
    }

    /// The path of child `index` of the branch at this path, in the call with this id and token.
    pub fn child(&self, index: u32, call: CallId, token: Token) -> Self {
        let used = usize::from(self.tag);
        if index < 0x80 && used < MAX_LITERAL_PATH {
            let mut child = *self;
            child.bytes[used] = index as u8;
            child.tag += 1;
            return child;
        }
        let (varint, len) = varint::encode(u64::from(index));
        if used + len <= MAX_LITERAL_PATH {
            let mut child = *self;
            child.bytes[used..used + len].copy_from_slice(&varint[..len]);
            child.tag += len as u8;
            return child;
        }
        let mut hasher = SipHasher24::new_with_keys(token.0, call.sequence);
        hasher.write(&[self.tag]);
        hasher.write(&self.bytes);
        hasher.write(&varint[..len]);
        Self {
            tag: FOLDED,
            bytes: hasher.finish128().as_bytes(),
        }
    }

    /// The parent's path; `None` for the root and for folded paths, which cannot be traced upwards.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() || self.is_folded() {
            return None;
        }
        let mut end = usize::from(self.tag) - 1;
        while end > 0 && self.bytes[end - 1] >= 0x80 {
            end -= 1;
        }
        let mut parent = Self {
            tag: end as u8,
            bytes: [0; MAX_LITERAL_PATH],
        };
        parent.bytes[..end].copy_from_slice(&self.bytes[..end]);
        Some(parent)
    }

    /// Its number among the children of its parent; `None` for the root and for folded paths.
    pub fn last_index(&self) -> Option<u32> {
        let above = usize::from(self.parent()?.tag);
        Reader::new(&self.literal()[above..]).u32("path").ok()
    }

    /// How many levels `self` lies below its ancestor `other`; `None` where that cannot be read off the paths.
    pub fn levels_below(&self, other: &Self) -> Option<u32> {
        let mut levels = 0;
        let mut place = *self;
        while place != *other {
            place = place.parent()?;
            levels += 1;
        }
        Some(levels)
    }

    /// The ancestor `levels` above; `None` where there is none or the path is folded.
    pub fn ancestor(&self, levels: u32) -> Option<Self> {
        let mut place = *self;
        for _ in 0..levels {
            place = place.parent()?;
        }
        Some(place)
    }

    fn literal(&self) -> &[u8] {
        &self.bytes[..usize::from(self.tag).min(MAX_LITERAL_PATH)]
    }

    pub(crate) fn put(&self, out: &mut impl BufMut) {
        match self.tag {
            1 => out.put_slice(&[1, self.bytes[0]]),
            tag => {
                out.put_u8(tag);
                out.put_slice(self.literal());
            }
        }
    }

    /// Reads a path: one byte for its length (or 255 for a folded one), then its bytes.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "path";
        let tag = reader.u8(what)?;
        if tag == FOLDED {
            return Ok(Self {
                tag,
                bytes: reader.array(what)?,
            });
        }
        if usize::from(tag) > MAX_LITERAL_PATH {
            return Err(WireError::TooLong {
                what,
                len: u64::from(tag),
                limit: MAX_LITERAL_PATH,
            });
        }
        let bytes = reader.take_short(usize::from(tag), what)?;
        // Indexes of one byte each, as most are, cannot be malformed.
        let path = Self { tag, bytes };
        if u128::from_ne_bytes(bytes) & MORE != 0 {
            path.check_indexes()?;
        }
        Ok(path)
    }

    #[cold]
    #[inline(never)]
    fn check_indexes(&self) -> Result<(), WireError> {
        let mut indexes = Reader::new(self.literal());
        while !indexes.is_empty() {
            indexes.u32("path")?;
        }
        Ok(())
    }
}

/// Most paths are short: these are hashed as one word.
impl Hash for Path {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, rest @ ..] = self.bytes;
        state.write_u64(u64::from_le_bytes([self.tag, a, b, c, d, e, f, g]));
        if self.tag > 7 {
            state.write(&rest);
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str("root");
        }
        if self.is_folded() {
            f.write_str("~")?;
            return self.bytes[..6]
                .iter()
                .try_for_each(|byte| write!(f, "{byte:02x}"));
        }
        let mut indexes = Reader::new(self.literal());
        let mut separator = "";
        while let Ok(index) = indexes.varint("path") {
            write!(f, "{separator}{index}")?;
            separator = ".";
        }
        Ok(())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}

/// One request of a call: its branch and how many hops of the branch came before it.
// The path begins a word: so it is read by the pieces that it was just written by, and waits for none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The branch.
    pub path: Path,
    /// 0 for the branch's first request, one more for each single delegation along it.
    pub hop: u32,
}

impl RequestId {
    /// The initial request 0 of a call.
    pub const FIRST: Self = Self {
        path: Path::FIRST,
        hop: 0,
    };
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hop {
            0 => write!(f, "{}", self.path),
            hop => write!(f, "{}+{hop}", self.path),
        }
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

/// Hashes paths under a call's token, so that nobody outside the call can make them collide.
#[derive(Clone, Copy)]
pub(crate) struct PathHasher(pub(crate) Token);

impl BuildHasher for PathHasher {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0.0, !self.0.0)
    }
}

/// A hash of bytes that is the same in every process and release (SipHash-2-4 with the key 0).
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hasher = siphasher::sip::SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(7);

    fn call() -> CallId {
        CallId {
            initiator: NodeId(NonZeroU64::MIN),
            sequence: 5,
        }
    }

    fn path(indexes: &[u32]) -> Path {
        indexes
            .iter()
            .fold(Path::ROOT, |path, &index| path.child(index, call(), TOKEN))
    }

    #[test]
    fn parents_undo_children() {
        let place = path(&[0, 300, 5, 70_000]);
        assert_eq!(place.to_string(), "0.300.5.70000");
        assert_eq!(place.parent(), Some(path(&[0, 300, 5])));
        assert_eq!(place.levels_below(&path(&[0])), Some(3));
        assert_eq!(place.ancestor(4), Some(Path::ROOT));
        assert_eq!(place.ancestor(5), None);
        assert_eq!(path(&[0]), Path::FIRST);
        assert_eq!(path(&[1]).levels_below(&path(&[0])), None);
    }

    #[test]
    fn the_initial_request_above_a_place_is_read_off() {
        for index in [0, 1, 127, 128, 300, 70_000, u32::MAX] {
            assert_eq!(Path::initial(index), path(&[index]));
            assert_eq!(path(&[index]).initial_index(), Some(index));
            assert_eq!(path(&[index, 5, 1_000]).initial_index(), Some(index));
        }
        assert_eq!(Path::ROOT.initial_index(), None);
        assert_eq!(path(&[3; 17]).initial_index(), None);
    }

    #[test]
    fn long_paths_fold_the_same_everywhere_and_never_equal_literal_ones() {
        let long = path(&[1; 16]);
        assert!(!long.is_folded());
        let folded = long.child(0, call(), TOKEN);
        assert!(folded.is_folded());
        assert_eq!(folded, path(&[1; 16]).child(0, call(), TOKEN));
        assert_ne!(folded, long.child(1, call(), TOKEN));
        assert_ne!(folded, long.child(0, call(), Token(8)));
        assert_eq!(folded.parent(), None);
        assert_ne!(folded.child(0, call(), TOKEN), folded);
    }

    #[test]
    fn paths_survive_the_wire() {
        for place in [
            Path::ROOT,
            Path::FIRST,
            path(&[9; 12]),
            path(&[1_000_000; 9]),
        ] {
            let mut out = Vec::new();
            place.put(&mut out);
            assert_eq!(Path::read(&mut Reader::new(&out)), Ok(place));
        }
        assert!(Path::read(&mut Reader::new(&[17])).is_err());
        assert!(Path::read(&mut Reader::new(&[2, 0x80, 0x00])).is_err());
        assert!(Path::read(&mut Reader::new(&[1, 0x80])).is_err());
    }

    #[test]
    fn paths_collide_under_one_token_only() {
        let hash = |token| PathHasher(token).hash_one(Path::FIRST);
        assert_eq!(hash(TOKEN), hash(Token(7)));
        assert_ne!(hash(TOKEN), hash(Token(8)));
    }

    #[test]
    fn tokens_do_not_show() {
        assert_eq!(format!("{:?}", Token(0xdead_beef)), "Token(..)");
    }
}
