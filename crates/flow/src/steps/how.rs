//! How the nodes of a step end.

/// How a node on a path ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// It lets the flow pass.
    Pass,
    NotTaken,
    Taken,
    /// A compressed RET, to the call site with this number.
    Returned(u32),
    /// A TIP gave the target; the RET among these is `TipReturn`.
    Tip(u64),
    TipReturn(u64),
}
