//! Where a request has handed work on to, found by the place that it got: however many there are.

use std::collections::BTreeMap;

use crate::id::Path;
use crate::wire::Child;

/// The children of a request, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Children {
    all: Vec<Child>,
    /// The numbers of those whose paths do not say them. Whoever knows the call's token can choose paths, so they are
    /// compared, not hashed.
    folded: BTreeMap<Path, u32>,
}

impl Children {
    pub(super) fn all(&self) -> &[Child] {
        &self.all
    }

    /// The next child, with its place.
    pub(super) fn push(&mut self, path: Path, child: Child) {
        if path.is_folded() {
            self.folded.insert(path, self.all.len() as u32);
        }
        self.all.push(child);
    }

    /// The places of those that do not say their numbers.
    pub(super) fn folded(&self) -> impl Iterator<Item = &Path> {
        self.folded.keys()
    }

    /// The child with this place, below the request's own.
    pub(super) fn find(&self, own: &Path, path: &Path) -> Option<&Child> {
        self.all.get(self.position(own, path)?)
    }

    /// The same, to be changed.
    pub(super) fn find_mut(&mut self, own: &Path, path: &Path) -> Option<&mut Child> {
        let position = self.position(own, path)?;
        self.all.get_mut(position)
    }

    fn position(&self, own: &Path, path: &Path) -> Option<usize> {
        let number = match path.is_folded() {
            true => self.folded.get(path).copied(),
            false if path.parent().as_ref() == Some(own) => path.last_index(),
            false => None,
        };
        number.map(|number| number as usize)
    }
}
