//! Cancellation of decoding: code without packets may be as long as memory, and its end may not be worth waiting for.
//!
//! The decoder checks the token at every `NODES_PER_CHECK`th node of such a path. After cancellation the last results
//! have no meaning.

use std::fmt::{Debug, Formatter, Result};
use std::sync::Arc;

/// Nodes of up to 512 instructions between two checks.
const NODES_PER_CHECK: u32 = 1 << 12;

/// A callback by which the caller cancels decoding on a long path without packets.
#[derive(Clone, Default)]
pub struct CancellationToken(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl CancellationToken {
    /// `is_cancelled` is called now and then, by whatever thread decodes.
    pub fn new(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> CancellationToken {
        CancellationToken(Some(Arc::new(is_cancelled)))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|is_cancelled| is_cancelled())
    }
}

impl Debug for CancellationToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "CancellationToken({})", self.0.is_some())
    }
}

/// Checks a token now and then, and remembers the result.
#[derive(Debug, Default)]
pub(crate) struct CancellationPoll {
    token: CancellationToken,
    nodes_checked: u32,
    is_cancelled: bool,
}

impl CancellationPoll {
    pub fn new(token: CancellationToken) -> CancellationPoll {
        CancellationPoll {
            token,
            ..CancellationPoll::default()
        }
    }

    /// Prepares for the next stream.
    pub fn reset(&mut self) {
        self.is_cancelled = false;
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Called at each node of a path without packets. Returns whether decoding is cancelled.
    pub fn check_at_node(&mut self) -> bool {
        self.nodes_checked = self.nodes_checked.wrapping_add(1);
        if self.nodes_checked % NODES_PER_CHECK == 0 && !self.is_cancelled {
            self.is_cancelled = self.token.is_cancelled();
        }
        self.is_cancelled
    }
}
