//! What a call knows of the places in its tree, and what it has lost there: for those whose requests are told apart by
//! their places, and go on without each other.

use wallaby_proto::Path;
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::watch::Failure as Loss;

use super::{CallShared, State};

impl CallShared {
    /// The place of each server of a line: the first delegation of the one before, from the first initial request on.
    pub(crate) fn places_in_line(&self, servers: usize) -> Vec<Path> {
        let next = |path: &Path| Some(self.child_of(path, 0));
        std::iter::successors(Some(Path::FIRST), next)
            .take(servers)
            .collect()
    }

    /// The place of a child.
    pub(crate) fn child_of(&self, path: &Path, index: u32) -> Path {
        path.child(index, self.id, self.token)
    }

    /// Looks at what the initiator knows.
    pub(crate) fn look_at_tree<T>(&self, look: impl FnOnce(&mut Initiator) -> T) -> T {
        look(&mut self.lock().initiator)
    }

    /// Whether anything of the call may have left this endpoint.
    pub(crate) fn was_sent(&self) -> bool {
        let state = self.lock();
        state.roots.iter().any(|sent| sent.peer.is_some())
    }

    /// What it has gone on without.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.lock().losses().to_vec()
    }
}

impl State {
    #[cold]
    pub(super) fn note_lost_for_good(&mut self, loss: Loss) {
        tracing::debug!(%loss, "the call goes on without it");
        self.rare.get_or_insert_default().losses.push(loss);
    }

    pub(super) fn is_complete_but_for_losses(&self) -> bool {
        !self.losses().is_empty() && self.initiator.is_complete()
    }
}
