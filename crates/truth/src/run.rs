//! A run: the piece of which an executed path is made.

/// Instructions executed one after the other in memory order.
///
/// In a decoded path a run without instructions whose `hash` is n says that the instructions at the `start`s of the next
/// n runs, which have none either, may have been executed there any number of times more, all of them in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Address of the first instruction.
    pub start: u64,
    /// How many instructions were executed; a REP instruction counts once.
    pub instructions: u32,
    /// [`RunHash`](crate::RunHash) of their addresses.
    pub hash: u64,
}
