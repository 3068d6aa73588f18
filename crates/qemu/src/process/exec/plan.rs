//! What the kernel would run for an execve: scripts are followed to a program.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::exec::elf::{self, Elf};
use crate::shared::environment::held_name;
use crate::shared::state::Shared;

/// Scripts whose interpreters are scripts, as deep as the kernel goes.
const SCRIPTS: usize = 5;
const HEAD: usize = 256;
const AT_EMPTY_PATH: u64 = 0x1000;
const AT_FDCWD: i32 = -100;

/// What becomes of an execve.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// This program, with these arguments.
    Run(Vec<u8>, Vec<Vec<u8>>),
    /// It cannot be followed, and why.
    Unrecorded(&'static str),
    /// The kernel will refuse it.
    Refused,
}

/// The path that execveat means.
pub(crate) fn path_at(directory: u64, path: Vec<u8>, flags: u64) -> Option<Vec<u8>> {
    let directory = directory as i32;
    if path.starts_with(b"/") || directory == AT_FDCWD {
        return Some(path);
    }
    if path.is_empty() && flags & AT_EMPTY_PATH == 0 {
        return None;
    }
    let open = format!("/proc/self/fd/{directory}").into_bytes();
    let base = real_path(&open).unwrap_or(open);
    Some(if path.is_empty() {
        base
    } else {
        [&base[..], b"/", &path[..]].concat()
    })
}

/// The path of the program that the kernel would run for `/proc/self/exe` and its like.
pub(super) fn real_path(path: &[u8]) -> Option<Vec<u8>> {
    let real = fs::canonicalize(as_path(path)).ok()?;
    Some(real.into_os_string().into_vec())
}

pub(super) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// The program itself for /proc/self/exe and its like, which name QEMU.
pub(super) fn own_program(shared: &Shared, path: Vec<u8>) -> Vec<u8> {
    let own = [
        "/proc/self/exe".to_string(),
        "/proc/thread-self/exe".to_string(),
        format!("/proc/{}/exe", shared.pid()),
    ];
    if !own.iter().any(|name| name.as_bytes() == path) {
        return path;
    }
    match shared.config.held {
        Some(held) => held_name(held),
        None => shared.config.program.clone(),
    }
}

/// Follows `#!` lines to a program.
pub(super) fn plan(mut path: Vec<u8>, mut argv: Vec<Vec<u8>>) -> Plan {
    for _ in 0..=SCRIPTS {
        let (file, head) = match executable(&path) {
            Ok(Some(found)) => found,
            Err(error) if out_of_files(&error) => {
                return Plan::Unrecorded("no more files can be opened to look at it")
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Plan::Unrecorded("QEMU may not read it")
            }
            Ok(None) | Err(_) => return Plan::Refused,
        };
        if head.starts_with(b"\x7fELF") {
            return match elf::look_at(&file) {
                Elf::Program(Some(loader)) if !may(&loader, libc::X_OK) => Plan::Refused,
                Elf::Program(_) => Plan::Run(path, argv),
                Elf::Foreign => Plan::Unrecorded("it is no 64-bit x86-64 program"),
                Elf::Broken => Plan::Refused,
            };
        }
        let Some((interpreter, argument)) = interpreter(&head) else {
            return Plan::Refused;
        };
        let rest = argv.into_iter().skip(1);
        argv = [interpreter.clone()]
            .into_iter()
            .chain(argument)
            .chain([path])
            .chain(rest)
            .collect();
        path = interpreter;
    }
    Plan::Refused
}

fn out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A file that the kernel would look at to execute it, and its first bytes.
fn executable(path: &[u8]) -> io::Result<Option<(File, Vec<u8>)>> {
    if !may(path, libc::X_OK) {
        return Ok(None);
    }
    let file = File::open(as_path(path))?;
    if file.metadata()?.mode() & libc::S_IFMT != libc::S_IFREG {
        return Ok(None);
    }
    let mut head = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut head)?;
    Ok(Some((file, head)))
}

/// Whether a line that is cut has the interpreter's name whole: a blank follows it.
fn names_an_interpreter(line: &[u8]) -> bool {
    let name = line
        .iter()
        .skip_while(|&&byte| matches!(byte, b' ' | b'\t'));
    name.into_iter().any(|byte| matches!(byte, b' ' | b'\t'))
}

/// The interpreter of a script, and its one argument.
fn interpreter(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = match line.iter().position(|&byte| byte == b'\n') {
        Some(end) => &line[..end],
        // A line that goes on behind what the kernel reads is cut there, unless that cuts the interpreter.
        None if head.len() < HEAD || names_an_interpreter(line) => line,
        None => return None,
    };
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte))?;
    let end = line.iter().rposition(|byte| !blank(byte))?;
    let line = &line[start..=end];
    let name_end = line
        .iter()
        .position(|byte| blank(byte) || *byte == 0)
        .unwrap_or(line.len());
    let (name, rest) = line.split_at(name_end);
    let argument = rest
        .iter()
        .position(|byte| !blank(byte))
        .map(|at| rest[at..].to_vec());
    Some((name.to_vec(), argument))
}

pub(super) fn may(path: &[u8], how: libc::c_int) -> bool {
    CString::new(path).is_ok_and(|path| {
        // SAFETY: a string that ends with NUL.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_scripts_as_the_kernel_reads_them() {
        let parse = |line: &str| {
            let (name, argument) = interpreter(line.as_bytes())?;
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            Some((text(name), argument.map(text)))
        };
        let some = |name: &str, argument: Option<&str>| {
            Some((name.to_string(), argument.map(str::to_string)))
        };
        assert_eq!(parse("#!/bin/sh\nx"), some("/bin/sh", None));
        assert_eq!(
            parse("#! /usr/bin/env  -S python3 -I \n"),
            some("/usr/bin/env", Some("-S python3 -I"))
        );
        assert_eq!(parse("#!/bin/sh"), some("/bin/sh", None));
        assert_eq!(parse("#!  \n"), None);
        assert_eq!(parse("echo"), None);
        let long = format!("#!/{}", "a".repeat(300));
        assert_eq!(interpreter(&long.as_bytes()[..HEAD]), None);
    }

    #[test]
    fn what_is_no_program_is_left_to_the_kernel() {
        let plan = |path: &str| plan(path.as_bytes().to_vec(), vec![b"x".to_vec()]);
        assert_eq!(plan("/nowhere"), Plan::Refused);
        assert_eq!(plan("/"), Plan::Refused);
        assert_eq!(
            plan("/proc/self/exe"),
            Plan::Run(b"/proc/self/exe".to_vec(), vec![b"x".to_vec()])
        );
    }

    #[test]
    fn paths_of_execveat() {
        assert_eq!(
            path_at(0, b"/bin/sh".to_vec(), 0),
            Some(b"/bin/sh".to_vec())
        );
        assert_eq!(
            path_at(-100i64 as u64, b"x".to_vec(), 0),
            Some(b"x".to_vec())
        );
        assert_eq!(
            path_at(1 << 20, b"x".to_vec(), 0),
            Some(b"/proc/self/fd/1048576/x".to_vec())
        );
        assert_eq!(path_at(1 << 20, Vec::new(), 0), None);
    }
}
