//! What a finished branch reports: how many requests and responses it sent (thesis 4.3).
//!
//! Ids are computable, so two numbers say which requests and which responses to expect. A manifest travels in a
//! message that goes out anyway; see [`crate::call::server`] for which one.

use bytes::BufMut;

use crate::id::Path;
use crate::varint::{self, Reader, WireError};

/// The facts of a branch: final as soon as they are known, written once (docs/protocol.md, rule 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Child requests 0 to `requests` (exclusive) were sent.
    pub requests: u32,
    /// Responses 0 to `responses` (exclusive) were sent.
    pub responses: u32,
}

/// The facts of a branch, with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Whose facts these are: the sender's branch or any ancestor of the message's path (rule 6).
    pub owner: Path,
    /// What it sent.
    pub facts: Facts,
}

/// A manifest that is relayed. Most messages carry none: so these do not wait for its bytes, which were just written.
#[inline]
pub(crate) fn relayed(manifest: &Option<Manifest>) -> Option<Manifest> {
    match manifest {
        None => None,
        Some(manifest) => copied(manifest),
    }
}

#[cold]
#[inline(never)]
fn copied(manifest: &Manifest) -> Option<Manifest> {
    Some(*manifest)
}

/// Owners that cannot be named by a number of levels, since a path is folded, are named in full.
const NAMED: u8 = 0xff;

impl Facts {
    pub(crate) fn put(self, out: &mut impl BufMut) {
        varint::put(out, u64::from(self.requests));
        varint::put(out, u64::from(self.responses));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            requests: reader.u32("manifest")?,
            responses: reader.u32("manifest")?,
        })
    }
}

impl Manifest {
    /// Appends the owner, as levels above `place` (one byte) where it can be, and the facts.
    pub(crate) fn put(&self, out: &mut impl BufMut, place: &Path) {
        match place
            .levels_below(&self.owner)
            .and_then(|levels| u8::try_from(levels).ok())
        {
            Some(levels) if levels < NAMED => out.put_u8(levels),
            _ => {
                out.put_u8(NAMED);
                self.owner.put(out);
            }
        }
        self.facts.put(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, place: &Path) -> Result<Self, WireError> {
        let what = "manifest";
        let owner = match reader.u8(what)? {
            NAMED => Path::read(reader)?,
            levels => place
                .ancestor(u32::from(levels))
                .ok_or(WireError::Malformed {
                    what,
                    why: "an owner above the root",
                })?,
        };
        if owner.is_root() {
            return Err(WireError::Malformed {
                what,
                why: "the initiator as its owner",
            });
        }
        Ok(Self {
            owner,
            facts: Facts::read(reader)?,
        })
    }
}
