//! The call tree: one node for each distinct path of calls.

use rtit_flow::AddressMap;

/// No node.
pub const NO_NODE: u32 = u32::MAX;

/// How a function was entered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CallKind {
    /// The first function of a stack; the call is a `RootKind`.
    Root = 0,
    Call = 1,
    /// A jump to another function, which returns for its caller.
    Tail = 2,
    /// A signal handler.
    Signal = 3,
    /// A call that a signal handler put into the interrupted code, as Go preempts goroutines.
    Injected = 4,
    /// Code outside of the filters called into traced code.
    Untraced = 5,
}

/// The executions of a function with the same callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The node of the caller; `NO_NODE` for roots. It has a smaller index in the finished tree.
    pub parent: u32,
    /// The number of the call site and function, from `CodeInfo`.
    pub call: u32,
    pub kind: CallKind,
    pub calls: u64,
    /// Instructions of the function itself.
    pub own: u64,
    /// The child of the last call.
    last_child: (u32, u32),
}

/// Nodes beyond this number are not made: their instructions count for the caller.
const MAX_NODES: usize = 1 << 22;

#[derive(Debug, Default)]
pub struct CallTree {
    nodes: Vec<Node>,
    /// By parent and call.
    children: AddressMap<u32>,
    /// The node that each floating node turned out to be.
    links: AddressMap<u32>,
    /// Calls without a node of their own.
    pub calls_without_node: u64,
}

/// `Node::call` of a floating node.
const FLOATING: u32 = u32::MAX;

impl CallTree {
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Adds instructions to a node.
    #[inline]
    pub fn add_instructions(&mut self, node: u32, count: u64) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.own += count;
        }
    }

    /// Returns the node of a call from `parent`, and counts the call.
    #[inline]
    pub fn enter_call(&mut self, parent: u32, call: u32, kind: CallKind) -> u32 {
        let mut child = NO_NODE;
        if let Some(above) = self.nodes.get(parent as usize) {
            if above.last_child.0 == call {
                child = above.last_child.1;
            }
        }
        if child == NO_NODE {
            child = self.find_or_add_child(parent, call, kind);
        }
        if let Some(node) = self.nodes.get_mut(child as usize) {
            node.calls += 1;
        }
        child
    }

    fn find_or_add_child(&mut self, parent: u32, call: u32, kind: CallKind) -> u32 {
        let next = self.nodes.len();
        let key = u64::from(parent) << 32 | u64::from(call);
        let child = match self.children.get(&key) {
            Some(&child) => child,
            None if next >= MAX_NODES && parent != NO_NODE => {
                self.calls_without_node += 1;
                return parent;
            }
            None => {
                self.children.insert(key, next as u32);
                self.add_node(parent, call, kind)
            }
        };
        if let Some(above) = self.nodes.get_mut(parent as usize) {
            above.last_child = (call, child);
        }
        child
    }

    fn add_node(&mut self, parent: u32, call: u32, kind: CallKind) -> u32 {
        self.nodes.push(Node {
            parent,
            call,
            kind,
            calls: 0,
            own: 0,
            last_child: (FLOATING, NO_NODE),
        });
        self.nodes.len() as u32 - 1
    }

    /// Returns a new node. `link` gives it a place in the tree later.
    pub fn add_floating(&mut self) -> u32 {
        self.add_node(NO_NODE, FLOATING, CallKind::Root)
    }

    /// What was counted for a floating node belongs to `node`.
    pub fn link(&mut self, floating: u32, node: u32) {
        self.links.insert(floating.into(), node);
    }

    /// The call to the node of a floating node was one to `node`.
    pub fn relink_call(&mut self, floating: u32, node: u32) {
        let linked = self.links.insert(floating.into(), node);
        self.undo_call(linked.unwrap_or(NO_NODE), NO_NODE, 0);
    }

    /// A call to `node` turned out to be part of `parent`, with its instructions.
    pub fn undo_call(&mut self, node: u32, parent: u32, instructions: u64) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.calls = node.calls.saturating_sub(1);
            let moved = instructions.min(node.own);
            node.own -= moved;
            self.add_instructions(parent, moved);
        }
    }

    pub fn is_full(&self) -> bool {
        self.nodes.len() >= MAX_NODES
    }

    /// Returns the tree without floating nodes and nodes of undone calls, and the number in it of each node, `NO_NODE`
    /// for those left out. Floating nodes without a link become roots with `unknown_call`.
    pub fn finish(self, unknown_call: u32) -> (CallTree, Vec<u32>) {
        let mut is_used: Vec<bool> = self
            .nodes
            .iter()
            .map(|node| node.own != 0 || node.calls != 0)
            .collect();
        // Links may go to later nodes.
        for &node in self.links.values() {
            if let Some(used) = is_used.get_mut(node as usize) {
                *used = true;
            }
        }
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if is_used.get(at) == Some(&true) {
                if let Some(used) = is_used.get_mut(node.parent as usize) {
                    *used = true;
                }
            }
        }
        let mut finished = CallTree {
            calls_without_node: self.calls_without_node,
            ..CallTree::default()
        };
        let mut moved = vec![NO_NODE; self.nodes.len()];
        let mut pending = Vec::new();
        for first in 0..self.nodes.len() as u32 {
            if is_used.get(first as usize) != Some(&true) {
                continue;
            }
            let mut at = first;
            // nodes from `first` up to one that has been moved
            while let (Some(node), Some(&NO_NODE)) =
                (self.nodes.get(at as usize), moved.get(at as usize))
            {
                if pending.len() > self.nodes.len() {
                    break; // links in a circle
                }
                pending.push(at);
                at = if node.call == FLOATING {
                    self.links.get(&u64::from(at)).copied().unwrap_or(NO_NODE)
                } else {
                    node.parent
                };
            }
            let mut above = moved.get(at as usize).copied().unwrap_or(NO_NODE);
            while let Some(at) = pending.pop() {
                let (Some(node), Some(&NO_NODE)) =
                    (self.nodes.get(at as usize), moved.get(at as usize))
                else {
                    above = moved.get(at as usize).copied().unwrap_or(NO_NODE);
                    continue;
                };
                if node.call != FLOATING {
                    above = finished.find_or_add_child(above, node.call, node.kind);
                } else if above == NO_NODE && node.own == 0 {
                    continue;
                } else if above == NO_NODE {
                    above = finished.find_or_add_child(above, unknown_call, CallKind::Root);
                }
                if let Some(place) = moved.get_mut(at as usize) {
                    *place = above;
                }
                if let Some(target) = finished.nodes.get_mut(above as usize) {
                    target.own += node.own;
                    target.calls += node.calls;
                }
            }
        }
        (finished, moved)
    }
}
