//! Modes as MODE.Exec names them.

use rtit_x86::Mode;

/// The mode that MODE.Exec names (Table 33-26).
pub(super) fn mode_of(csl: bool, csd: bool) -> Mode {
    match (csl, csd) {
        (true, _) => Mode::Bits64,
        (false, true) => Mode::Bits32,
        (false, false) => Mode::Bits16,
    }
}
