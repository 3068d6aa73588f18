//! Programs whose files would give them another user or group: under QEMU they keep the one they were started with.

use std::ffi::CString;

/// What is to be said of the program at `path`, if anything.
pub(crate) fn warning(path: &[u8]) -> Option<String> {
    let name = CString::new(path).ok()?;
    // SAFETY: a string that ends with NUL, and a value of our own to fill in.
    let (found, user, group) = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        if libc::stat(name.as_ptr(), &mut found) != 0 {
            return None;
        }
        (found, libc::geteuid(), libc::getegid())
    };
    let both = libc::S_ISGID | libc::S_IXGRP;
    let what = if found.st_mode & libc::S_ISUID != 0 && found.st_uid != user {
        "set-user-ID"
    } else if found.st_mode & both == both && found.st_gid != group {
        "set-group-ID"
    } else {
        return None;
    };
    let path = String::from_utf8_lossy(path);
    Some(format!(
        "{path} is {what} and runs without that privilege: QEMU has none"
    ))
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
        assert_eq!(warning(path.as_os_str().as_bytes()), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(warning(b"/nowhere"), None);
    }
}
