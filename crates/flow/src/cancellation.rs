//! Cancellation of decoding: code without packets may be as long as memory is, and its end may not be worth waiting
//! for.
//!
//! The decoder checks the token at every `NODES_PER_CHECK`th node of such a path. After cancellation the last results
//! have no meaning.

use std::fmt::{Debug, Formatter, Result};
use std::sync::Arc;

/// Nodes of up to 512 instructions between two questions.
const NODES_PER_CHECK: u32 = 1 << 12;

/// Whom a decoder asks, on a long way through code without packets, whether to give up. Then nothing more comes of the
/// stream, and what was found last means nothing.
#[derive(Clone, Default)]
pub struct CancellationToken(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl CancellationToken {
    /// `is_cancelled` is called now and then, by whatever thread decodes.
    pub fn new(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> CancellationToken {
        CancellationToken(Some(Arc::new(is_cancelled)))
    }

    /// Whether to give up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|is_cancelled| is_cancelled())
    }
}

impl Debug for CancellationToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_tuple("CancellationToken")
            .field(&self.0.is_some())
            .finish()
    }
}

/// One that counts when to ask.
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

    /// The next stream begins.
    pub fn reset(&mut self) {
        self.is_cancelled = false;
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// A node more; whether to give up.
    pub fn check_at_node(&mut self) -> bool {
        self.nodes_checked = self.nodes_checked.wrapping_add(1);
        if self.nodes_checked % NODES_PER_CHECK == 0 && !self.is_cancelled {
            self.is_cancelled = self.token.is_cancelled();
        }
        self.is_cancelled
    }
}
