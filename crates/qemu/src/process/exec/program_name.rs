//! Finds a path of a program that is still valid after the exec. A memfd or an unlinked file has none.
//!
//! QEMU opens its program by path, after the exec has closed the descriptor through which the path may lead. The plugin
//! keeps such a file open over the exec, and it stays open: QEMU opens it again for `/proc/self/exe`.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use libc::c_int;

use crate::process::exec::target_program::{as_path, real_path};
use crate::shared::guest_environment::open_file_path;

/// Programs seldom use numbers from here on.
const HIGH: c_int = 920;

/// A path of the program that is valid after the exec.
pub(super) struct StableName {
    /// The path for QEMU.
    pub(super) name: Vec<u8>,
    /// The path for the recorder, as `/proc/PID/exe` shows it.
    pub(super) real: Vec<u8>,
    /// The open file that `name` leads to, if it must stay open.
    pub(super) held: Option<OwnedFd>,
}

/// Finds a path for the program at `path` that is valid after the exec.
pub(super) fn stable_name(path: Vec<u8>) -> io::Result<StableName> {
    let real = real_path(&path);
    if !names_open_file(&path) {
        let real = real.unwrap_or_else(|| path.clone());
        return Ok(StableName {
            name: path,
            real,
            held: None,
        });
    }
    let file = File::open(as_path(&path))?;
    if let Some(real) = real.filter(|real| is_same_file(real, &file)) {
        return Ok(StableName {
            name: real.clone(),
            real,
            held: None,
        });
    }
    let held = duplicate_high(&file)?;
    let name = open_file_path(held.as_raw_fd());
    let real = fs::read_link(as_path(&name))?.into_os_string().into_vec();
    Ok(StableName {
        name,
        real,
        held: Some(held),
    })
}

/// Keeps the file open over the next exec.
pub(super) fn keep_over_exec(held: Option<&OwnedFd>) {
    if let Some(held) = held {
        // SAFETY: changes a flag of a file of our own.
        unsafe { libc::fcntl(held.as_raw_fd(), libc::F_SETFD, 0) };
    }
}

fn names_open_file(path: &[u8]) -> bool {
    path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/")
}

fn is_same_file(path: &[u8], file: &File) -> bool {
    let same = || -> io::Result<bool> {
        let (one, other) = (fs::metadata(as_path(path))?, file.metadata()?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    };
    same().unwrap_or(false)
}

fn duplicate_high(file: &File) -> io::Result<OwnedFd> {
    let with_number = |least: c_int| {
        // SAFETY: duplicates a file of our own; the number is new.
        unsafe {
            let number = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
            (number >= 0).then(|| OwnedFd::from_raw_fd(number))
        }
    };
    with_number(HIGH)
        .or_else(|| with_number(3))
        .ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn named(number: c_int) -> Vec<u8> {
        format!("/proc/self/fd/{number}").into_bytes()
    }

    #[test]
    fn open_file_with_a_name_is_found_by_its_name() {
        let path = fs::canonicalize("/proc/self/exe").unwrap();
        let file = File::open(&path).unwrap();
        let found = stable_name(named(file.as_raw_fd())).unwrap();
        assert_eq!(found.name, path.as_os_str().as_bytes());
        assert!(found.held.is_none());
    }

    #[test]
    fn unlinked_file_is_held_open() {
        let path = std::env::temp_dir().join(format!("rtit-held-{}", std::process::id()));
        fs::write(&path, "text").unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let found = stable_name(named(file.as_raw_fd())).unwrap();
        drop(file);
        assert_eq!(fs::read(as_path(&found.name)).unwrap(), b"text");
        assert!(found.real.ends_with(b" (deleted)"));
    }

    #[test]
    fn file_with_a_reused_name_is_held_open() {
        let path = std::env::temp_dir().join(format!("rtit-held-new-{}", std::process::id()));
        fs::write(&path, "old").unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let deleted = format!("{} (deleted)", path.display());
        fs::write(&deleted, "new").unwrap();
        let found = stable_name(named(file.as_raw_fd())).unwrap();
        fs::remove_file(&deleted).unwrap();
        assert_eq!(fs::read(as_path(&found.name)).unwrap(), b"old");
    }
}
