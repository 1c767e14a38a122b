//! The initial requests of a call: where they went, and over which connections.

use std::sync::Arc;

use wallaby_proto::{Address, NodeId, Path};

use crate::body::Body;
use crate::driver::peer::Peer;
use wallaby_proto::line::Line;
use wallaby_proto::trace::Root;

/// An initial request.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) server: Address,
    pub(super) method: Arc<str>,
    pub(super) node: Option<NodeId>,
    pub(super) peer: Option<Arc<Peer>>,
    /// What follows it, until it was sent.
    pub(super) body: Option<Box<Body>>,
    /// Its number among the call's initial requests.
    index: u32,
    /// Its connection has ended.
    pub(super) lost: bool,
}

impl Sent {
    /// Its place in the call's tree.
    pub(super) fn path(&self) -> Path {
        Path::initial(self.index)
    }

    fn goes_over(&self, connection: u64) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.id == connection)
    }
}

/// All of a call, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Roots(Line<Sent>);

impl Roots {
    /// Adds the next one, which has this place.
    pub(super) fn push(&mut self, path: Path, server: Address, method: Arc<str>) {
        self.0.push(Sent {
            server,
            method,
            node: None,
            peer: None,
            body: None,
            index: path.initial_index().unwrap_or(u32::MAX),
            lost: false,
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.0.iter_mut()
    }

    /// The one with this place.
    pub(super) fn find(&self, path: &Path) -> Option<&Sent> {
        let sent = self.0.get(path.initial_index()? as usize)?;
        (sent.path() == *path).then_some(sent)
    }

    /// The one with this place.
    pub(super) fn find_mut(&mut self, path: &Path) -> Option<&mut Sent> {
        let sent = self.0.get_mut(path.initial_index()? as usize)?;
        (sent.path() == *path).then_some(sent)
    }

    /// Whether one of them went out over this connection. One at or above this place is the likeliest: a call may have
    /// thousands, and most answers come the way that their requests went.
    pub(super) fn any_over(&self, connection: u64, path: &Path) -> bool {
        let likely = path.initial_index();
        let likely = likely.and_then(|index| self.0.get(index as usize));
        likely.is_some_and(|sent| sent.goes_over(connection))
            || self.iter().any(|sent| sent.goes_over(connection))
    }

    /// What a trace tells of them.
    pub(super) fn traced(&self) -> Vec<Root> {
        let root = |sent: &Sent| Root {
            path: sent.path(),
            server: sent.server.clone(),
            method: Arc::clone(&sent.method),
            node: sent.node,
        };
        self.iter().map(root).collect()
    }
}

#[cfg(test)]
mod tests {
    use wallaby_proto::{CallId, Token};

    use super::*;

    #[test]
    fn each_is_found_by_its_place_and_nothing_else_is() {
        let mut roots = Roots::default();
        let server: Address = "mem://server".parse().expect("an address");
        for index in 0..300 {
            roots.push(Path::initial(index), server.clone(), "method".into());
        }
        for index in 0..300 {
            let path = Path::initial(index);
            assert_eq!(roots.find(&path).expect("it is there").index, index);
            assert_eq!(roots.find_mut(&path).expect("it is there").path(), path);
        }
        assert!(roots.find(&Path::initial(300)).is_none());
        assert!(roots.find(&Path::ROOT).is_none());
        let call = CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        };
        let below = Path::initial(7).child(0, call, Token::new(1));
        assert!(roots.find(&below).is_none() && !roots.any_over(1, &below));
    }
}
