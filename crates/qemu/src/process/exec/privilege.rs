//! Programs whose files give them rights: the kernel gives them to who executes the file, and it executes QEMU.

use std::ffi::{CStr, CString};

/// The privilege that the kernel would give the program at `path` by its file, if the caller does not have it.
pub(crate) fn of_file(path: &[u8]) -> Option<&'static str> {
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

/// What is to be said of the first program of a recording, whose file is at `path`.
pub(crate) fn warning(path: &[u8]) -> Option<String> {
    let what = of_file(path)?;
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
    fn a_file_of_our_own_gives_nothing_that_we_lack() {
        let path = std::env::temp_dir().join(format!("rtit-privilege-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
        assert_eq!(of_file(path.as_os_str().as_bytes()), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(warning(b"/nowhere"), None);
    }
}
