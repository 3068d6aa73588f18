//! The rest of a way through code, as a plain value.

use std::fmt;

use rtit_image::View;
use rtit_x86::Mode;

/// Instructions from `ip` on, one after the other, to the end of a node that lets the flow pass. The code is that of when
/// they ran: the walker's may be another by the time they are told.
#[derive(Clone)]
pub struct Ahead {
    pub(crate) view: View,
    /// Number of the address space.
    pub(crate) space: u32,
    pub(crate) ip: u64,
    pub(crate) mode: Mode,
    pub(crate) instructions: u64,
    /// As `Sink::append` and `Sink::close` have them.
    pub(crate) time: u64,
    pub(crate) offset: u64,
}

impl PartialEq for Ahead {
    fn eq(&self, other: &Ahead) -> bool {
        let plain = |ahead: &Ahead| {
            let &Ahead {
                ref view,
                space,
                ip,
                mode,
                instructions,
                time,
                offset,
            } = ahead;
            let code = (space, view.changes());
            (code, ip, mode, instructions, time, offset)
        };
        plain(self) == plain(other)
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instructions from {:#x}", self.instructions, self.ip)
    }
}
