//! Predicts which program the kernel runs for an execve: follows `#!` lines to an interpreter, and checks that ELF
//! files are x86-64 programs with an existing loader.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::shared::guest_environment::open_file_path;
use crate::shared::shared_state::SharedState;

/// Scripts with scripts as interpreters, as many as the kernel follows.
const SCRIPTS: usize = 5;
const HEAD: usize = 256;
const AT_EMPTY_PATH: u64 = 0x1000;
const AT_FDCWD: i32 = -100;

/// The outcome of an execve.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExecPlan {
    /// The kernel runs this program with these arguments.
    Run(Vec<u8>, Vec<Vec<u8>>),
    /// It cannot be recorded, for this reason.
    Unrecorded(&'static str),
    /// The kernel will refuse it.
    Refused,
}

/// Returns the path that an execveat means.
pub(crate) fn execveat_path(directory: u64, path: Vec<u8>, flags: u64) -> Option<Vec<u8>> {
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

/// Returns the path without symbolic links.
pub(super) fn real_path(path: &[u8]) -> Option<Vec<u8>> {
    let real = fs::canonicalize(as_path(path)).ok()?;
    Some(real.into_os_string().into_vec())
}

pub(super) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Replaces `/proc/self/exe` and similar paths, which lead to QEMU, by the program.
pub(super) fn resolve_own_program(shared: &SharedState, path: Vec<u8>) -> Vec<u8> {
    let own = [
        "/proc/self/exe".to_string(),
        "/proc/thread-self/exe".to_string(),
        format!("/proc/{}/exe", shared.pid()),
    ];
    if !own.iter().any(|name| name.as_bytes() == path) {
        return path;
    }
    match shared.config.program_fd {
        Some(held) => open_file_path(held),
        None => shared.config.program.clone(),
    }
}

/// Predicts the outcome of an execve of `path`.
pub(super) fn plan_exec(mut path: Vec<u8>, mut argv: Vec<Vec<u8>>) -> ExecPlan {
    for _ in 0..=SCRIPTS {
        let (file, head) = match open_executable(&path) {
            Ok(Some(found)) => found,
            Err(error) if is_out_of_descriptors(&error) => {
                return ExecPlan::Unrecorded("no more files can be opened to look at it")
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return ExecPlan::Unrecorded("QEMU may not read it")
            }
            Ok(None) | Err(_) => return ExecPlan::Refused,
        };
        if head.starts_with(b"\x7fELF") {
            return match classify_elf(&file) {
                ElfKind::Program(Some(loader)) if !has_access(&loader, libc::X_OK) => {
                    ExecPlan::Refused
                }
                ElfKind::Program(_) => ExecPlan::Run(path, argv),
                ElfKind::Foreign => ExecPlan::Unrecorded("it is no 64-bit x86-64 program"),
                ElfKind::Broken => ExecPlan::Refused,
            };
        }
        let Some((interpreter, argument)) = parse_shebang(&head) else {
            return ExecPlan::Refused;
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
    ExecPlan::Refused
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Opens a file that the kernel would execute, and reads its first bytes.
fn open_executable(path: &[u8]) -> io::Result<Option<(File, Vec<u8>)>> {
    if !has_access(path, libc::X_OK) {
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

/// Returns whether a line that is cut off contains the whole interpreter name: a blank follows it.
fn has_complete_interpreter(line: &[u8]) -> bool {
    let name = line
        .iter()
        .skip_while(|&&byte| matches!(byte, b' ' | b'\t'));
    name.into_iter().any(|byte| matches!(byte, b' ' | b'\t'))
}

/// Returns the interpreter of a script and its argument.
fn parse_shebang(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = match line.iter().position(|&byte| byte == b'\n') {
        Some(end) => &line[..end],
        // The kernel cuts a longer line, unless that cuts the name of the interpreter.
        None if head.len() < HEAD || has_complete_interpreter(line) => line,
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

pub(super) fn has_access(path: &[u8], how: libc::c_int) -> bool {
    CString::new(path).is_ok_and(|path| {
        // SAFETY: a string that ends with NUL.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
    })
}

const EM_X86_64: [u8; 2] = [62, 0];
const ELFCLASS64: u8 = 2;
const PT_INTERP: u32 = 3;
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The kernel accepts at most 64 KiB of program headers.
const MOST: usize = 65536 / SEGMENT;
const LONGEST: u64 = 4096;

/// The kind of an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ElfKind {
    /// A 64-bit x86-64 program, with the path of its loader if it has one.
    Program(Option<Vec<u8>>),
    /// A program for another architecture.
    Foreign,
    /// The kernel will refuse it.
    Broken,
}

/// Classifies a file that begins with the ELF magic.
pub(crate) fn classify_elf(file: &File) -> ElfKind {
    let mut head = [0; HEADER];
    let whole = file.read_exact_at(&mut head, 0).is_ok();
    if head[4] != ELFCLASS64 || head[18..20] != EM_X86_64 {
        return ElfKind::Foreign;
    }
    match interpreter_path(file, &head) {
        Some(interpreter_path) if whole => ElfKind::Program(interpreter_path),
        _ => ElfKind::Broken,
    }
}

fn interpreter_path(file: &File, head: &[u8; HEADER]) -> Option<Option<Vec<u8>>> {
    let half = |at: usize| {
        Some(usize::from(u16::from_le_bytes(
            head.get(at..at + 2)?.try_into().ok()?,
        )))
    };
    let (size, count) = (half(54)?, half(56)?);
    if size != SEGMENT || !(1..=MOST).contains(&count) {
        return None;
    }
    let mut segments = vec![0; count * SEGMENT];
    file.read_exact_at(&mut segments, word(head, 32)?).ok()?;
    let is_loader = |segment: &&[u8]| segment.starts_with(&PT_INTERP.to_le_bytes());
    let Some(segment) = segments.chunks_exact(SEGMENT).find(is_loader) else {
        return Some(None);
    };
    let mut path = vec![0; word(segment, 32)?.min(LONGEST) as usize];
    file.read_exact_at(&mut path, word(segment, 8)?).ok()?;
    path.truncate(path.iter().position(|&byte| byte == 0)?);
    Some(Some(path))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shebang_lines_are_parsed_as_the_kernel_does() {
        let parse = |line: &str| {
            let (name, argument) = parse_shebang(line.as_bytes())?;
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
        assert_eq!(parse_shebang(&long.as_bytes()[..HEAD]), None);
    }

    #[test]
    fn non_executable_files_are_refused() {
        let plan_for = |path: &str| plan_exec(path.as_bytes().to_vec(), vec![b"x".to_vec()]);
        assert_eq!(plan_for("/nowhere"), ExecPlan::Refused);
        assert_eq!(plan_for("/"), ExecPlan::Refused);
        assert_eq!(
            plan_for("/proc/self/exe"),
            ExecPlan::Run(b"/proc/self/exe".to_vec(), vec![b"x".to_vec()])
        );
    }

    #[test]
    fn execveat_paths_are_resolved() {
        assert_eq!(
            execveat_path(0, b"/bin/sh".to_vec(), 0),
            Some(b"/bin/sh".to_vec())
        );
        assert_eq!(
            execveat_path(-100i64 as u64, b"x".to_vec(), 0),
            Some(b"x".to_vec())
        );
        assert_eq!(
            execveat_path(1 << 20, b"x".to_vec(), 0),
            Some(b"/proc/self/fd/1048576/x".to_vec())
        );
        assert_eq!(execveat_path(1 << 20, Vec::new(), 0), None);
    }

    #[test]
    fn own_program_has_an_existing_loader() {
        let file = File::open("/proc/self/exe").unwrap();
        let ElfKind::Program(Some(interpreter_path)) = classify_elf(&file) else {
            panic!("{:?}", classify_elf(&file));
        };
        let path = String::from_utf8(interpreter_path).unwrap();
        assert!(std::path::Path::new(&path).is_file(), "{path}");
    }

    #[test]
    fn truncated_elf_is_broken() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let path = std::env::temp_dir().join(format!("rtit-elf-{}", std::process::id()));
        for (size, wanted) in [
            (18, ElfKind::Foreign),
            (63, ElfKind::Broken),
            (100, ElfKind::Broken),
        ] {
            std::fs::write(&path, &whole[..size]).unwrap();
            assert_eq!(classify_elf(&File::open(&path).unwrap()), wanted, "{size}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
