//! The rules of execve that the plugin must predict.
//!
//! * Arguments and environment must fit on the stack. QEMU's options and the recorder's variables take room too; where
//!   they make the difference the call must fail as it would without a recorder (`fits_on_stack`,
//!   `shrink_stack_limit`).
//! * A thread may lose capabilities, and with them access to QEMU, plugin and recorder
//!   (`with_capabilities_after_exec`).
//! * A set-user-ID program gets its privilege from its own file, but the kernel executes QEMU's (`file_privilege`).

use std::ffi::{CStr, CString};
use std::mem::size_of;

const POINTER: usize = 8;
/// Size limit of one string, with its NUL.
const LONGEST: usize = 32 * 4096;
/// Room that a stack of any size has.
const SMALLEST: u64 = 32 * 4096;
/// Room that a stack of any size has at most: three quarters of the default limit of 8 MiB.
const LARGEST: u64 = 6 << 20;
/// For the path, random bytes and alignment.
const SLACK: u64 = 3 * 4096;

/// Returns whether execve accepts these strings under the current stack limit.
pub(crate) fn fits_on_stack(arguments: &[Vec<u8>], environment: &[Vec<u8>]) -> bool {
    fits_in_limit(arguments, environment, stack_limit().rlim_cur)
}

fn fits_in_limit(arguments: &[Vec<u8>], environment: &[Vec<u8>], stack: u64) -> bool {
    let all = || arguments.iter().chain(environment);
    let size: usize = all().map(|text| text.len() + 1 + POINTER).sum();
    let room = (stack / 4).clamp(SMALLEST, LARGEST);
    all().all(|text| text.len() < LONGEST) && size as u64 + SLACK <= room
}

/// Makes the next execve fail with E2BIG if it is near the limit. `restore_stack_limit` restores the limit in `kept`.
pub(crate) fn shrink_stack_limit(kept: &mut Option<u64>) {
    let old = stack_limit();
    *kept = Some(old.rlim_cur);
    set_stack_limit(old, 0);
}

/// Restores the limit after the system call.
pub(crate) fn restore_stack_limit(kept: Option<u64>) {
    if let Some(stack) = kept {
        set_stack_limit(stack_limit(), stack);
    }
}

fn stack_limit() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills in a value of our own.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    limit
}

fn set_stack_limit(old: libc::rlimit, stack: u64) {
    let new = libc::rlimit {
        rlim_cur: stack,
        ..old
    };
    // SAFETY: reads a value of our own.
    unsafe { libc::setrlimit(libc::RLIMIT_STACK, &new) };
}

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const VERSION: u32 = 0x2008_0522;
const SECBIT_NOROOT: i32 = 1;
const IS_SET: u64 = libc::PR_CAP_AMBIENT_IS_SET as u64;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// Capabilities below 32, then those from 32 on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilitySets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Runs `question`, about access to files, with the capabilities that the thread has after an exec of a file without
/// capabilities (capabilities(7)).
pub(super) fn with_capabilities_after_exec<T>(question: impl FnOnce() -> T) -> T {
    let Some(before) = read_capabilities() else {
        return question();
    };
    let lost = [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH]
        .into_iter()
        .filter(|&capability| !survives_exec(capability, before[0].inheritable))
        .fold(0, |lost, capability| lost | 1 << capability);
    if before[0].effective & lost == 0 {
        return question();
    }
    let mut after = before;
    after[0].effective &= !lost;
    write_capabilities(&after);
    let answer = question();
    write_capabilities(&before);
    answer
}

fn survives_exec(capability: u32, inheritable: u32) -> bool {
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

fn read_capabilities() -> Option<[CapabilitySets; 2]> {
    let mut sets = [CapabilitySets::default(); 2];
    let mut header = capability_header();
    // SAFETY: version 3 fills in two values of ours.
    let result = unsafe { libc::syscall(libc::SYS_capget, &mut header, sets.as_mut_ptr()) };
    (result == 0).then_some(sets)
}

fn write_capabilities(sets: &[CapabilitySets; 2]) {
    let mut header = capability_header();
    // SAFETY: version 3 reads two values of ours.
    unsafe { libc::syscall(libc::SYS_capset, &mut header, sets.as_ptr()) };
}

/// The header for the calling thread.
fn capability_header() -> CapabilityHeader {
    CapabilityHeader {
        version: VERSION,
        pid: 0,
    }
}

const _: () = assert!(size_of::<[CapabilitySets; 2]>() == 24);

/// Returns the privilege that the kernel would give the program by its file, if the caller lacks it.
pub(crate) fn file_privilege(path: &[u8]) -> Option<&'static str> {
    let name = CString::new(path).ok()?;
    // SAFETY: a string that ends with NUL, and values of our own to fill in.
    let (file, system, user, group) = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        let mut system: libc::statvfs = std::mem::zeroed();
        let found = libc::stat(name.as_ptr(), &mut file) == 0
            && libc::statvfs(name.as_ptr(), &mut system) == 0;
        let may_gain = libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0u64, 0u64, 0u64, 0u64) == 0;
        if !found || !may_gain {
            return None;
        }
        (file, system, libc::geteuid(), libc::getegid())
    };
    let both = libc::S_ISGID | libc::S_IXGRP;
    if system.f_flag & libc::ST_NOSUID != 0 {
        None
    } else if file.st_mode & libc::S_ISUID != 0 && file.st_uid != user {
        Some("set-user-ID")
    } else if file.st_mode & both == both && file.st_gid != group {
        Some("set-group-ID")
    } else if user != 0 && has_capabilities(&name) {
        Some("privileged by file capabilities")
    } else {
        None
    }
}

/// Returns a warning if the first program of a recording loses a privilege.
pub(crate) fn privilege_warning(path: &[u8]) -> Option<String> {
    let what = file_privilege(path)?;
    let path = String::from_utf8_lossy(path);
    Some(format!(
        "{path} is {what} and runs without that privilege: QEMU has none"
    ))
}

fn has_capabilities(name: &CStr) -> bool {
    let attribute = c"security.capability".as_ptr();
    // SAFETY: strings that end with NUL; only the size is asked for.
    unsafe { libc::getxattr(name.as_ptr(), attribute, std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn stack_limits_of_execve() {
        let text = |size: usize| vec![b'x'; size];
        assert!(fits_in_limit(
            &[text(100)],
            &[text(LONGEST - 1 - 4096 * 5)],
            0
        ));
        // execve(2): 128 KiB for one string; a quarter of the stack for all, but at least 128 KiB and at most 6 MiB.
        assert!(!fits_in_limit(&[text(LONGEST)], &[], 8 << 20));
        assert!(!fits_in_limit(&[text(70_000), text(70_000)], &[], 0));
        assert!(fits_in_limit(&[text(70_000), text(70_000)], &[], 8 << 20));
        let many = vec![text(100_000); 30];
        assert!(!fits_in_limit(&many, &[], 8 << 20));
        assert!(fits_in_limit(&many, &[], u64::MAX));
        assert!(!fits_in_limit(&vec![text(100_000); 63], &[], u64::MAX));
    }

    #[test]
    fn capabilities_are_restored_after_the_question() {
        let of_thread = || read_capabilities().unwrap().map(|each| each.effective);
        let before = of_thread();
        with_capabilities_after_exec(|| ());
        assert_eq!(of_thread(), before);
    }

    #[test]
    fn own_set_user_id_file_gives_no_privilege() {
        let path = std::env::temp_dir().join(format!("rtit-privilege-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
        assert_eq!(file_privilege(path.as_os_str().as_bytes()), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(privilege_warning(b"/nowhere"), None);
    }
}
