//! Who is where: connections by the address that they lead to, and by the incarnation that their peers say they are.

use std::collections::BTreeMap;

use crate::{Address, ConnId, NodeId};

/// The ways to find a connection.
#[derive(Debug, Default)]
pub(super) struct Directory {
    by_address: BTreeMap<Address, ConnId>,
    /// What was looked up there last.
    latest: Option<(Address, ConnId)>,
    /// By what their peers say that they are: that proves nothing of those who dialled this endpoint.
    by_node: BTreeMap<NodeId, Vec<ConnId>>,
    /// Those that are being opened back to an initiator.
    back: BTreeMap<Address, ConnId>,
}

impl Directory {
    /// The connection with a server, open or being opened.
    pub(super) fn at(&mut self, to: &Address) -> Option<ConnId> {
        if let Some((at, id)) = &self.latest
            && at == to
        {
            return Some(*id);
        }
        let id = *self.by_address.get(to)?;
        self.latest = Some((to.clone(), id));
        Some(id)
    }

    /// Whether this is the connection with a server.
    pub(super) fn leads_to(&self, to: &Address, id: ConnId) -> bool {
        self.by_address.get(to) == Some(&id)
    }

    /// The connection that is being opened back to an initiator there.
    pub(super) fn back_to(&self, to: &Address) -> Option<ConnId> {
        self.back.get(to).copied()
    }

    /// Open connections with this incarnation, in the order in which they were opened.
    pub(super) fn with(&self, node: NodeId) -> &[ConnId] {
        self.by_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// A connection is being opened, perhaps `back` to an initiator.
    pub(super) fn dialled(&mut self, to: &Address, id: ConnId, back: bool) {
        let by_address = match back {
            true => &mut self.back,
            false => &mut self.by_address,
        };
        by_address.insert(to.clone(), id);
        self.latest = None;
    }

    /// A connection is open: who is there has shown that it receives what is sent to this address.
    pub(super) fn opened(&mut self, at: Option<&Address>, node: NodeId, id: ConnId) {
        self.by_node.entry(node).or_default().push(id);
        if let Some(at) = at {
            remove(&mut self.back, at, id);
            self.by_address.entry(at.clone()).or_insert(id);
        }
    }

    /// What is sent to its address from now on takes another connection.
    pub(super) fn leave_address(&mut self, at: Option<&Address>, id: ConnId) {
        if let Some(at) = at {
            remove(&mut self.by_address, at, id);
        }
        self.latest = None;
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, at: Option<&Address>, node: Option<NodeId>, id: ConnId) {
        self.leave_address(at, id);
        if let Some(at) = at {
            remove(&mut self.back, at, id);
        }
        if let Some(node) = node
            && let Some(known) = self.by_node.get_mut(&node)
        {
            known.retain(|known| *known != id);
            if known.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}

/// Another connection that has taken its place stays.
fn remove(by_address: &mut BTreeMap<Address, ConnId>, at: &Address, id: ConnId) {
    if by_address.get(at) == Some(&id) {
        by_address.remove(at);
    }
}
