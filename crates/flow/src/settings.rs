//! How a stream is to be read.

use crate::time::TimeSettings;

/// What the packets alone do not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub time: TimeSettings,
    /// The stream was recorded with DisTNT: no conditional branch can be followed.
    pub no_tnt: bool,
    /// The stream was recorded with DisRETC: every RET has its own TIP.
    pub no_retcomp: bool,
    /// The code cache is emptied when it holds more than about this many instructions.
    pub cache_limit: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            time: TimeSettings::default(),
            no_tnt: false,
            no_retcomp: false,
            cache_limit: 1 << 26,
        }
    }
}
