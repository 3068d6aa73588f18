//! Links between nodes, for those who follow them without a walker. None: there is no code.

use rtit_image::View;

use super::cache::Code;
use super::node::{Stop, NO_NODE};

impl Code {
    /// The node itself, or the one that took its place.
    fn live(&mut self, view: &View, index: u32) -> Option<u32> {
        let node = self.node(index);
        match node.stop {
            Stop::Dead => self.lookup(view, node.start, node.mode).ok(),
            _ => Some(index),
        }
    }

    /// The node after one that lets the flow pass.
    pub fn after(&mut self, view: &View, index: u32) -> Option<u32> {
        self.branch(view, index, false)
    }

    /// The node after a conditional branch.
    pub fn branch(&mut self, view: &View, index: u32, taken: bool) -> Option<u32> {
        let node = self.node(index);
        let (link, ip, mode) = if taken {
            (node.taken, node.target, node.mode)
        } else {
            (node.fall, node.next, node.mode)
        };
        if link != NO_NODE {
            return self.live(view, link);
        }
        let next = self.lookup(view, ip, mode).ok()?;
        let node = self.node_mut(index);
        if taken {
            node.taken = next;
        } else {
            node.fall = next;
        }
        Some(next)
    }

    /// The node to which a RET at the end of `from` goes if its call was that of a site.
    pub fn return_node(&mut self, view: &View, from: u32, site: u32) -> Option<u32> {
        let mode = self.node(from).mode;
        let call = self.call(site)?;
        let (node, ip) = (call.node, mode.truncate(call.return_ip));
        if node != NO_NODE && self.node(node).mode == mode {
            return self.live(view, node);
        }
        let node = self.lookup(view, ip, mode).ok()?;
        if let Some(call) = self.call_mut(site) {
            call.node = node;
        }
        Some(node)
    }
}
