//! The conditional branches in ranges of code, whether they ran or not.

use rtit_image::View;
use rtit_x86::{decode, Class, Mode, MAX_LENGTH};

/// A conditional branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conditional {
    /// Number of the stretch that it is in.
    pub stretch: u32,
    pub ip: u64,
    /// Where it leads if it is not taken, and if it is.
    pub behind: u64,
    pub target: u64,
}

/// Those of stretches of `size` bytes from `start` on, in the code that `view` has now. A stretch ends before its first
/// byte that is no instruction. No more than `most` instructions are looked at: then comes in which stretch to go on,
/// and how far in it.
pub fn conditionals(
    view: &View,
    mode: Mode,
    stretches: impl Iterator<Item = (u64, u64)>,
    most: usize,
) -> (Vec<Conditional>, Option<(u32, u64)>) {
    let (mut found, mut seen) = (Vec::new(), 0);
    for ((start, size), stretch) in stretches.zip(0..) {
        let mut done = 0;
        while done < size {
            if seen == most {
                return (found, Some((stretch, done)));
            }
            seen += 1;
            let ip = start.wrapping_add(done);
            let mut bytes = [0; 16];
            let known = view.read(ip, &mut bytes).min(MAX_LENGTH);
            let decoded = bytes.get(..known).map(|bytes| decode(bytes, ip, mode));
            let Some(Ok(decoded)) = decoded else {
                break;
            };
            let length = u64::from(decoded.length);
            if decoded.class == Class::Conditional {
                found.push(Conditional {
                    stretch,
                    ip,
                    behind: ip.wrapping_add(length),
                    target: decoded.target,
                });
            }
            done = done.saturating_add(length);
        }
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtit_image::Space;

    #[test]
    fn what_did_not_run_has_them_too() {
        let mut space = Space::new();
        // jz +2; nop; loop -5; then what is no instruction, and another jz
        let code = b"\x74\x02\x90\xe2\xfb\x06\x74\x00";
        space.map(0, 0x1000, code.as_slice().into());
        let whole = [(0x1000, 3), (0x1002, u64::MAX), (0x1005, 3), (0x9000, 2)];
        let view = space.view();
        let (found, next) = conditionals(&view, Mode::Bits64, whole.into_iter(), 9);
        assert_eq!(next, None);
        let rows: Vec<_> = found
            .iter()
            .map(|each| (each.stretch, each.ip, each.behind, each.target))
            .collect();
        assert_eq!(
            rows,
            [(0, 0x1000, 0x1002, 0x1004), (1, 0x1003, 0x1005, 0x1000),]
        );
        let (part, next) = conditionals(&view, Mode::Bits64, whole.into_iter(), 3);
        assert_eq!((part.as_slice(), next), (&found[..1], Some((1, 1))));
    }
}
