//! Whether a program's arguments and environment fit on its stack, which execve decides.

const POINTER: usize = 8;
/// Of one string, its NUL included.
const LONGEST: usize = 32 * 4096;
/// What there is room for, however small the stack is.
const SMALLEST: u64 = 32 * 4096;
/// However large the stack is: three quarters of the default limit of 8 MiB.
const LARGEST: u64 = 6 << 20;
/// The path again, random bytes, alignment.
const SLACK: u64 = 3 * 4096;

/// Whether execve will take these strings under the stack limit in force.
pub(crate) fn holds(arguments: &[Vec<u8>], environment: &[Vec<u8>]) -> bool {
    fits(arguments, environment, limit().rlim_cur)
}

fn fits(arguments: &[Vec<u8>], environment: &[Vec<u8>], stack: u64) -> bool {
    let all = || arguments.iter().chain(environment);
    let size: usize = all().map(|text| text.len() + 1 + POINTER).sum();
    let room = (stack / 4).clamp(SMALLEST, LARGEST);
    all().all(|text| text.len() < LONGEST) && size as u64 + SLACK <= room
}

/// Makes the execve that follows fail for want of room, if it is near to that. `widen` takes it back,
/// with what is `kept`.
pub(crate) fn narrow(kept: &mut Option<u64>) {
    let old = limit();
    *kept = Some(old.rlim_cur);
    set(old, 0);
}

/// The system call is over.
pub(crate) fn widen(kept: Option<u64>) {
    if let Some(stack) = kept {
        set(limit(), stack);
    }
}

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills in a value of our own.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    limit
}

fn set(old: libc::rlimit, stack: u64) {
    let new = libc::rlimit {
        rlim_cur: stack,
        ..old
    };
    // SAFETY: reads a value of our own.
    unsafe { libc::setrlimit(libc::RLIMIT_STACK, &new) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_execve() {
        let text = |size: usize| vec![b'x'; size];
        assert!(fits(&[text(100)], &[text(LONGEST - 1 - 4096 * 5)], 0));
        // execve(2): 128 KiB for one string, a quarter of the stack for all, but at least 128 KiB and at most 6 MiB.
        assert!(!fits(&[text(LONGEST)], &[], 8 << 20));
        assert!(!fits(&[text(70_000), text(70_000)], &[], 0));
        assert!(fits(&[text(70_000), text(70_000)], &[], 8 << 20));
        let many = vec![text(100_000); 30];
        assert!(!fits(&many, &[], 8 << 20));
        assert!(fits(&many, &[], u64::MAX));
        assert!(!fits(&vec![text(100_000); 63], &[], u64::MAX));
    }
}
