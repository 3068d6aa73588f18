//! The rights that a thread has after an exec: it may lose capabilities by it.

use std::mem::size_of;

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const VERSION: u32 = 0x2008_0522;
const SECBIT_NOROOT: i32 = 1;
const IS_SET: u64 = libc::PR_CAP_AMBIENT_IS_SET as u64;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// The capabilities below 32, then those from 32 on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Answers `question`, about files, with the capabilities that the calling thread has after an exec of a file that
/// gives none (capabilities(7)).
pub(super) fn after_exec<T>(question: impl FnOnce() -> T) -> T {
    let Some(before) = sets() else {
        return question();
    };
    let lost = [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH]
        .into_iter()
        .filter(|&capability| !survives(capability, before[0].inheritable))
        .fold(0, |lost, capability| lost | 1 << capability);
    if before[0].effective & lost == 0 {
        return question();
    }
    let mut after = before;
    after[0].effective &= !lost;
    set(&after);
    let answer = question();
    set(&before);
    answer
}

fn survives(capability: u32, inheritable: u32) -> bool {
    let bit = u64::from(capability);
    // SAFETY: plain questions about the calling thread.
    let (is_ambient, is_root, is_bounded) = unsafe {
        (
            libc::prctl(libc::PR_CAP_AMBIENT, IS_SET, bit, 0u64, 0u64) == 1,
            libc::geteuid() == 0 && libc::prctl(libc::PR_GET_SECUREBITS) & SECBIT_NOROOT == 0,
            libc::prctl(libc::PR_CAPBSET_READ, bit) == 1,
        )
    };
    is_ambient || is_root && (is_bounded || inheritable >> capability & 1 != 0)
}

fn sets() -> Option<[Sets; 2]> {
    let mut sets = [Sets::default(); 2];
    let mut header = header();
    // SAFETY: version 3 fills in two values of ours.
    let result = unsafe { libc::syscall(libc::SYS_capget, &mut header, sets.as_mut_ptr()) };
    (result == 0).then_some(sets)
}

fn set(sets: &[Sets; 2]) {
    let mut header = header();
    // SAFETY: version 3 reads two values of ours.
    unsafe { libc::syscall(libc::SYS_capset, &mut header, sets.as_ptr()) };
}

/// Of the calling thread.
fn header() -> Header {
    Header {
        version: VERSION,
        pid: 0,
    }
}

const _: () = assert!(size_of::<[Sets; 2]>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_there_again_after_the_question() {
        let of_thread = || sets().unwrap().map(|each| each.effective);
        let before = of_thread();
        after_exec(|| ());
        assert_eq!(of_thread(), before);
    }
}
