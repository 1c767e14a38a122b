//! What a call knows of the places in its tree, and what it has lost there: for those whose requests are told apart by
//! their places, and go on without each other.

use std::time::Duration;

use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::watch::{Failure as Loss, Location, Watch};
use wallaby_proto::{Address, Path};

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

    /// It goes down a line: these are its servers, behind the first. Said before it is watched over.
    pub(crate) fn note_line(&self, servers: &[Address]) {
        self.lock().rare.get_or_insert_default().line = servers.to_vec();
    }

    /// Who watches over it knows where the servers of its line are.
    pub(super) fn place_line(&self, state: &mut State, watch: &mut Watch, now: Duration) {
        let line = state.rare.as_ref().map_or(&[][..], |rare| &rare.line);
        let places = self.places_in_line(line.len() + 1).into_iter().skip(1);
        for (path, server) in places.zip(line) {
            let at = Location {
                address: Some(server.clone()),
                node: None,
            };
            watch.place(&mut state.initiator, path, at, now);
        }
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
