//! execve. The kernel would replace QEMU by the new program, which would then run unrecorded. The plugin starts a QEMU
//! that runs the new program instead. It carries the call out itself, since it cannot change the arguments of a system
//! call.
//!
//! The parts, in order: `run_under_qemu` does it, or decides that the new program runs unrecorded; `plan_exec` predicts
//! which program the kernel would run: it follows `#!` lines to an interpreter, and checks that ELF files are x86-64
//! programs with an existing loader; `stable_name` finds a path of that program that is still valid after the exec;
//! then the stack size and the set-user-ID privileges that the kernel applies.
//!
//! A call that fails the checks here is left to QEMU, which passes it to the kernel and returns the error.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use libc::c_int;
use rtit_events::{flag, EventKind};

use crate::fatal_error::exit_with_error;
use crate::interface::{guest_state, signals};
use crate::process::lifecycle::stop_recording_for_exec;
use crate::shared::config::{open_file_path, qemu_environment, LONGEST_INHERITED};
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::SharedState;
use crate::thread::thread_state::RecordedThread;

/// Replaces this program by the new one. Returns if it cannot be recorded, or if QEMU shall try.
pub(crate) fn run_under_qemu(
    shared: &SharedState,
    thread: &mut RecordedThread,
    path: Option<Vec<u8>>,
    argv: u64,
    envp: u64,
) {
    let (Some(path), Some(argv), Some(variables)) = (
        path,
        guest_state::read_string_array(argv),
        guest_state::read_string_array(envp),
    ) else {
        return;
    };
    let (program, arguments) = match plan_exec(resolve_own_program(shared, path.clone()), argv) {
        ExecPlan::Run(program, arguments) => (program, arguments),
        ExecPlan::Unrecorded(why) => return warn_of_unrecorded_program(shared, thread, &path, why),
        ExecPlan::Refused => return,
    };
    let comm = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let comm = &comm[..comm.len().min(15)];
    if let Some(what) = file_privilege(&program) {
        let why = format!("it is {what}, and QEMU cannot give it that privilege");
        return warn_of_unrecorded_program(shared, thread, &path, &why);
    }
    let folder = &shared.config.folder;
    let Ok(found) = stable_name(program) else {
        return warn_of_unrecorded_program(
            shared,
            thread,
            &path,
            "no more files can be opened for it",
        );
    };
    let Some(qemu) = reachable_qemu(folder) else {
        let why = "QEMU, the plugin or the recorder is out of its reach";
        return warn_of_unrecorded_program(shared, thread, &path, why);
    };
    if !has_access_after_exec(&found.name, libc::R_OK) {
        return warn_of_unrecorded_program(shared, thread, &path, "QEMU may not read it");
    }
    let plugin = path_in_folder(folder, "plugin.so");
    let mut command = vec![qemu.clone(), b"-plugin".to_vec(), plugin];
    let mut arguments = arguments.into_iter();
    command.extend([b"-0".to_vec(), arguments.next().unwrap_or_default()]);
    // QEMU takes a path that begins with a dash for an option.
    command.push(if found.name.starts_with(b"-") {
        [b"./", &found.name[..]].concat()
    } else {
        found.name
    });
    command.extend(arguments);

    let held = found.held.as_ref().map(AsRawFd::as_raw_fd);
    let given = |inherited, mask| {
        qemu_environment(folder, &variables, &found.real, comm, held, inherited, mask)
    };
    let longest = given(LONGEST_INHERITED, 0);
    if !arguments_fit_on_stack(&command, &longest) {
        // The kernel reports the error; the recorder's variables and QEMU's options must not make the difference.
        shrink_stack_limit(&mut thread.call.stack);
        return;
    }
    let mask = signals::hold_signals_for_exec();
    let inherited = stop_recording_for_exec(thread);
    signals::ignore_signals_for_next_program();
    let whole = given(inherited, mask);
    keep_file_open_over_exec(found.held.as_ref());
    let error = exec_qemu(&qemu, command, whole);
    // Other threads may have been stopped, and QEMU would run the program unrecorded.
    exit_with_error(&format!(
        "cannot run {} under QEMU: {error}",
        String::from_utf8_lossy(&path)
    ));
}

/// Returns the running QEMU, if the new program can access it and all that it needs.
fn reachable_qemu(folder: &Path) -> Option<Vec<u8>> {
    let needed = [
        ("plugin.so", libc::R_OK),
        ("settings", libc::R_OK),
        ("clock", libc::R_OK | libc::W_OK),
        ("socket", libc::W_OK),
    ];
    let qemu = path_without_links(b"/proc/self/exe")
        .filter(|qemu| has_access_after_exec(qemu, libc::X_OK))?;
    needed
        .iter()
        .all(|&(name, how)| has_access_after_exec(&path_in_folder(folder, name), how))
        .then_some(qemu)
}

fn path_in_folder(folder: &Path, name: &str) -> Vec<u8> {
    folder.join(name).into_os_string().into_vec()
}

fn exec_qemu(qemu: &[u8], command: Vec<Vec<u8>>, environment: Vec<Vec<u8>>) -> io::Error {
    let strings = |all: Vec<Vec<u8>>| -> Vec<CString> {
        all.into_iter()
            .filter_map(|text| CString::new(text).ok())
            .collect()
    };
    let pointers = |all: &[CString]| -> Vec<*const libc::c_char> {
        all.iter()
            .map(|text| text.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let (command, environment) = (strings(command), strings(environment));
    let qemu = match CString::new(qemu) {
        Ok(qemu) => qemu,
        Err(error) => return error.into(),
    };
    // SAFETY: arrays of strings that end with null pointers and live until the call fails.
    unsafe {
        libc::execve(
            qemu.as_ptr(),
            pointers(&command).as_ptr(),
            pointers(&environment).as_ptr(),
        )
    };
    io::Error::last_os_error()
}

/// Warns that QEMU will run the program unrecorded.
fn warn_of_unrecorded_program(
    shared: &SharedState,
    thread: &mut RecordedThread,
    path: &[u8],
    why: &str,
) {
    let mut message = new_message(
        EventKind::Warning,
        thread.tid,
        thread.clock_in_instructions(),
    );
    message.flags = flag::WARNING_LEAVES;
    message.ip = shared.pid().into();
    let text = format!("{} runs unrecorded: {why}", String::from_utf8_lossy(path));
    shared.send_message(message, text.as_bytes());
    thread.send_buffered_records(shared);
    thread.call.leaves = true;
}

/// Reports that the exec has failed and the program continues, recorded.
pub(crate) fn report_failed_exec(shared: &SharedState, thread: &RecordedThread) {
    let mut message = new_message(
        EventKind::Warning,
        thread.tid,
        thread.clock_in_instructions(),
    );
    message.flags = flag::WARNING_STAYS;
    message.ip = shared.pid().into();
    shared.send_message(message, b"its exec failed, and the process stays recorded");
}

/// Scripts with scripts as interpreters, as many as the kernel follows.
const MAX_SCRIPTS: usize = 5;
const HEAD_SIZE: usize = 256;
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
    let base = path_without_links(&open).unwrap_or(open);
    Some(if path.is_empty() {
        base
    } else {
        [&base[..], b"/", &path[..]].concat()
    })
}

/// Returns the path without symbolic links.
pub(super) fn path_without_links(path: &[u8]) -> Option<Vec<u8>> {
    let real = fs::canonicalize(bytes_as_path(path)).ok()?;
    Some(real.into_os_string().into_vec())
}

pub(super) fn bytes_as_path(path: &[u8]) -> &Path {
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
    for _ in 0..=MAX_SCRIPTS {
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
                ElfKind::Program(Some(loader)) if !thread_has_access(&loader, libc::X_OK) => {
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
    if !thread_has_access(path, libc::X_OK) {
        return Ok(None);
    }
    let file = File::open(bytes_as_path(path))?;
    if file.metadata()?.mode() & libc::S_IFMT != libc::S_IFREG {
        return Ok(None);
    }
    let mut head = Vec::new();
    (&file).take(HEAD_SIZE as u64).read_to_end(&mut head)?;
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
        None if head.len() < HEAD_SIZE || has_complete_interpreter(line) => line,
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

/// Returns whether this thread may access a file.
fn thread_has_access(path: &[u8], how: libc::c_int) -> bool {
    check_access(path, how, libc::AT_EACCESS)
}

/// Returns whether the thread may access a file after an exec, which may take its capabilities: the kernel answers for
/// the real user, with the capabilities that this user has.
fn has_access_after_exec(path: &[u8], how: libc::c_int) -> bool {
    // SAFETY: no arguments.
    let same_user = unsafe { libc::getuid() == libc::geteuid() };
    check_access(path, how, if same_user { 0 } else { libc::AT_EACCESS })
}

fn check_access(path: &[u8], how: libc::c_int, flags: libc::c_int) -> bool {
    CString::new(path).is_ok_and(|path| {
        // SAFETY: a string that ends with NUL.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, flags) == 0 }
    })
}

const EM_X86_64: [u8; 2] = [62, 0];
const ELFCLASS64: u8 = 2;
const PT_INTERP: u32 = 3;
const ELF_HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
/// The kernel accepts at most 64 KiB of program headers.
const MAX_SEGMENTS: usize = 65536 / PROGRAM_HEADER_SIZE;
const MAX_INTERPRETER_PATH: u64 = 4096;

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
    let mut head = [0; ELF_HEADER_SIZE];
    let whole = file.read_exact_at(&mut head, 0).is_ok();
    if head[4] != ELFCLASS64 || head[18..20] != EM_X86_64 {
        return ElfKind::Foreign;
    }
    match interpreter_path(file, &head) {
        Some(interpreter_path) if whole => ElfKind::Program(interpreter_path),
        _ => ElfKind::Broken,
    }
}

fn interpreter_path(file: &File, head: &[u8; ELF_HEADER_SIZE]) -> Option<Option<Vec<u8>>> {
    let half = |at: usize| {
        Some(usize::from(u16::from_le_bytes(
            head.get(at..at + 2)?.try_into().ok()?,
        )))
    };
    let (size, count) = (half(54)?, half(56)?);
    if size != PROGRAM_HEADER_SIZE || !(1..=MAX_SEGMENTS).contains(&count) {
        return None;
    }
    let mut segments = vec![0; count * PROGRAM_HEADER_SIZE];
    file.read_exact_at(&mut segments, read_u64_at(head, 32)?)
        .ok()?;
    let is_loader = |segment: &&[u8]| segment.starts_with(&PT_INTERP.to_le_bytes());
    let Some(segment) = segments.chunks_exact(PROGRAM_HEADER_SIZE).find(is_loader) else {
        return Some(None);
    };
    let mut path = vec![0; read_u64_at(segment, 32)?.min(MAX_INTERPRETER_PATH) as usize];
    file.read_exact_at(&mut path, read_u64_at(segment, 8)?)
        .ok()?;
    path.truncate(path.iter().position(|&byte| byte == 0)?);
    Some(Some(path))
}

fn read_u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Programs seldom use numbers from here on.
const HIGH_DESCRIPTOR: c_int = 920;

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
    let real = path_without_links(&path);
    if !names_open_file(&path) {
        let real = real.unwrap_or_else(|| path.clone());
        return Ok(StableName {
            name: path,
            real,
            held: None,
        });
    }
    let file = File::open(bytes_as_path(&path))?;
    if let Some(real) = real.filter(|real| is_same_file(real, &file)) {
        return Ok(StableName {
            name: real.clone(),
            real,
            held: None,
        });
    }
    let held = duplicate_high(&file)?;
    let name = open_file_path(held.as_raw_fd());
    let real = fs::read_link(bytes_as_path(&name))?
        .into_os_string()
        .into_vec();
    Ok(StableName {
        name,
        real,
        held: Some(held),
    })
}

/// Keeps the file open over the next exec.
pub(super) fn keep_file_open_over_exec(held: Option<&OwnedFd>) {
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
        let (one, other) = (fs::metadata(bytes_as_path(path))?, file.metadata()?);
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
    with_number(HIGH_DESCRIPTOR)
        .or_else(|| with_number(3))
        .ok_or_else(io::Error::last_os_error)
}

const POINTER_SIZE: usize = 8;
/// Size limit of one string, with its NUL.
const MAX_STRING: usize = 32 * 4096;
/// Room that a stack of any size has.
const MIN_STACK_ROOM: u64 = 32 * 4096;
/// Room that a stack of any size has at most: three quarters of the default limit of 8 MiB.
const MAX_STACK_ROOM: u64 = 6 << 20;
/// For the path, random bytes and alignment.
const STACK_SLACK: u64 = 3 * 4096;

/// Returns whether execve accepts these strings under the current stack limit.
pub(crate) fn arguments_fit_on_stack(arguments: &[Vec<u8>], environment: &[Vec<u8>]) -> bool {
    arguments_fit_in_limit(arguments, environment, stack_limit().rlim_cur)
}

fn arguments_fit_in_limit(arguments: &[Vec<u8>], environment: &[Vec<u8>], stack: u64) -> bool {
    let all = || arguments.iter().chain(environment);
    let size: usize = all().map(|text| text.len() + 1 + POINTER_SIZE).sum();
    let room = (stack / 4).clamp(MIN_STACK_ROOM, MAX_STACK_ROOM);
    all().all(|text| text.len() < MAX_STRING) && size as u64 + STACK_SLACK <= room
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
        assert_eq!(parse_shebang(&long.as_bytes()[..HEAD_SIZE]), None);
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

    fn path_of_descriptor(number: c_int) -> Vec<u8> {
        format!("/proc/self/fd/{number}").into_bytes()
    }

    #[test]
    fn open_file_with_a_name_is_found_by_its_name() {
        let path = fs::canonicalize("/proc/self/exe").unwrap();
        let file = File::open(&path).unwrap();
        let found = stable_name(path_of_descriptor(file.as_raw_fd())).unwrap();
        assert_eq!(found.name, path.as_os_str().as_bytes());
        assert!(found.held.is_none());
    }

    #[test]
    fn unlinked_file_is_held_open() {
        let path = std::env::temp_dir().join(format!("rtit-held-{}", std::process::id()));
        fs::write(&path, "text").unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let found = stable_name(path_of_descriptor(file.as_raw_fd())).unwrap();
        drop(file);
        assert_eq!(fs::read(bytes_as_path(&found.name)).unwrap(), b"text");
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
        let found = stable_name(path_of_descriptor(file.as_raw_fd())).unwrap();
        fs::remove_file(&deleted).unwrap();
        assert_eq!(fs::read(bytes_as_path(&found.name)).unwrap(), b"old");
    }

    #[test]
    fn stack_limits_of_execve() {
        let text = |size: usize| vec![b'x'; size];
        assert!(arguments_fit_in_limit(
            &[text(100)],
            &[text(MAX_STRING - 1 - 4096 * 5)],
            0
        ));
        // execve(2): 128 KiB for one string; a quarter of the stack for all, but at least 128 KiB and at most 6 MiB.
        assert!(!arguments_fit_in_limit(&[text(MAX_STRING)], &[], 8 << 20));
        assert!(!arguments_fit_in_limit(
            &[text(70_000), text(70_000)],
            &[],
            0
        ));
        assert!(arguments_fit_in_limit(
            &[text(70_000), text(70_000)],
            &[],
            8 << 20
        ));
        let many = vec![text(100_000); 30];
        assert!(!arguments_fit_in_limit(&many, &[], 8 << 20));
        assert!(arguments_fit_in_limit(&many, &[], u64::MAX));
        assert!(!arguments_fit_in_limit(
            &vec![text(100_000); 63],
            &[],
            u64::MAX
        ));
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
