//! Giving up on the way: code without packets may be as long as memory is, and its end may not be worth waiting for.

use std::fmt::{Debug, Formatter, Result};
use std::sync::Arc;

/// Nodes of up to 512 instructions between two questions.
const PERIOD: u32 = 1 << 12;

/// Whom a decoder asks, on a long way through code without packets, whether to give up. Then nothing more comes of the
/// stream, and what was found last means nothing.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Watch {
    /// `gives_up` is called now and then, by whatever thread decodes.
    pub fn new(gives_up: impl Fn() -> bool + Send + Sync + 'static) -> Watch {
        Watch(Some(Arc::new(gives_up)))
    }

    /// Whether to give up.
    pub(crate) fn asks(&self) -> bool {
        self.0.as_ref().is_some_and(|gives_up| gives_up())
    }
}

impl Debug for Watch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}

/// One that counts when to ask.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    watch: Watch,
    nodes: u32,
    gave_up: bool,
}

impl Watched {
    pub fn new(watch: Watch) -> Watched {
        Watched {
            watch,
            ..Watched::default()
        }
    }

    /// The next stream begins.
    pub fn start_again(&mut self) {
        self.gave_up = false;
    }

    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// A node more; whether to give up.
    pub fn passes(&mut self) -> bool {
        self.nodes = self.nodes.wrapping_add(1);
        if self.nodes % PERIOD == 0 && !self.gave_up {
            self.gave_up = self.watch.asks();
        }
        self.gave_up
    }
}
