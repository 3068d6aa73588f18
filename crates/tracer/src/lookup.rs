//! Which file a program name means, as execvp(3) would find it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// Where execvp looks if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file for `program`: itself if it has a slash, else the first executable one in the PATH of `environment`.
/// Relative paths are meant from `directory`, where the program will start.
pub(crate) fn find(
    program: &OsStr,
    environment: &[OsString],
    directory: Option<&Path>,
) -> Result<PathBuf, Error> {
    let not_found = || Error::NotFound {
        program: program.to_string_lossy().into_owned(),
    };
    if program.is_empty() {
        return Err(not_found());
    }
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        let path = environment
            .iter()
            .find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="))
            .unwrap_or(DEFAULT_PATH.as_bytes());
        path.split(|&b| b == b':')
            .map(|part| match part {
                b"" => Path::new(".").join(program),
                _ => Path::new(OsStr::from_bytes(part)).join(program),
            })
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let path = match directory {
            Some(directory) => directory.join(&candidate),
            None => candidate.clone(),
        };
        match check(&path) {
            Ok(()) => return Ok(candidate),
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                refused.get_or_insert(Error::NotExecutable {
                    path: candidate,
                    error,
                });
            }
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

fn check(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` ends with a NUL.
    let allowed =
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    if allowed != 0 || metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    Ok(())
}

/// Whether a file that the kernel does not recognise is text, which execvp gives to /bin/sh.
pub(crate) fn is_script(path: &Path) -> bool {
    let mut head = [0u8; 128];
    let Ok(count) = fs::File::open(path).and_then(|mut file| file.read(&mut head)) else {
        return false;
    };
    !head[..count].contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(path: &str) -> Vec<OsString> {
        vec!["A=1".into(), format!("PATH={path}").into()]
    }

    #[test]
    fn path_is_searched_in_order() {
        let found = find("sh".as_ref(), &environment("/nowhere:/bin:/usr/bin"), None).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
        assert_eq!(
            find("sh".as_ref(), &[], None).unwrap(),
            Path::new("/bin/sh")
        );
    }

    #[test]
    fn a_name_with_a_slash_is_a_path() {
        let root = Some(Path::new("/"));
        assert_eq!(
            find("bin/sh".as_ref(), &environment(""), root).unwrap(),
            Path::new("bin/sh")
        );
    }

    #[test]
    fn what_cannot_run_is_named() {
        let code = |name: &str, path: &str| {
            find(name.as_ref(), &environment(path), None)
                .unwrap_err()
                .exit_code()
        };
        assert_eq!(code("no-such-program", "/bin"), 127);
        assert_eq!(code("", "/bin"), 127);
        assert_eq!(code("/etc/passwd", ""), 126);
        assert_eq!(code("passwd", "/etc:/nowhere"), 126);
        assert_eq!(code("/etc", ""), 126);
        assert_eq!(code("/etc/passwd/x", ""), 127);
    }
}
