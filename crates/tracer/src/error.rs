//! The errors of this crate, and the reasons for which a running process cannot be traced.

use std::path::PathBuf;
use std::{fmt, io};

use libc::pid_t;

use crate::procfs;

#[derive(Debug)]
pub enum Error {
    /// There is no such program, as a path or in PATH.
    NotFound { program: String },
    /// The kernel does not run the program.
    NotExecutable { path: PathBuf, error: io::Error },
    /// The directory to start in cannot be entered.
    Directory { path: PathBuf, error: io::Error },
    /// An argument or environment entry contains a NUL byte, or there is no argument.
    Argument { what: String },
    /// The kernel does not allow tracing.
    PtraceForbidden { why: String },
    /// A running program cannot be attached to.
    Attach { why: String },
    /// The truth file cannot be written.
    Truth { path: PathBuf, error: String },
    /// A system call that should not fail has failed.
    System {
        call: &'static str,
        error: io::Error,
    },
}

impl Error {
    /// Returns the exit status of a command, as `env` and `sh` have it: 127 not found, 126 not executable, 125 other.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotFound { .. } => 127,
            Error::NotExecutable { .. } => 126,
            _ => 125,
        }
    }

    pub(crate) fn from_last_os_error(call: &'static str) -> Error {
        Error::from_failed_call(call)(io::Error::last_os_error())
    }

    /// Returns a conversion of the errors of a system call.
    pub(crate) fn from_failed_call(call: &'static str) -> impl Fn(io::Error) -> Error {
        move |error| Error::System { call, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { program } => write!(f, "{program}: no such program"),
            Error::NotExecutable { path, error } => {
                write!(f, "{}: cannot be executed: {error}", path.display())
            }
            Error::Directory { path, error } => {
                write!(f, "{}: cannot start there: {error}", path.display())
            }
            Error::Argument { what } => f.write_str(what),
            Error::PtraceForbidden { why } => write!(f, "tracing is forbidden here: {why}"),
            Error::Attach { why } => f.write_str(why),
            Error::Truth { path, error } => write!(f, "{}: {error}", path.display()),
            Error::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Fails if a process cannot be attached to, as far as that is known before anything is stopped.
pub(crate) fn check_attachable(pid: pid_t) -> Result<(), Error> {
    match refusal_reason(pid) {
        Some(why) => Err(Error::Attach { why }),
        None => Ok(()),
    }
}

fn refusal_reason(pid: pid_t) -> Option<String> {
    let Some(process) = procfs::process_id_of_thread(pid) else {
        return Some(format!("there is no process {pid}"));
    };
    if process != pid {
        return Some(format!(
            "{pid} is a thread of process {process}: record the process (--pid {process}), \
             then select the thread (rtit report --tid {pid})"
        ));
    }
    let own = std::process::id() as pid_t;
    if pid == own {
        return Some(format!(
            "process {pid} is this one: it cannot record itself"
        ));
    }
    let mut ancestor = own;
    while let Some(parent @ 1..) = procfs::parent_process(ancestor) {
        if parent == pid {
            return Some(format!(
                "process {pid} is an ancestor of this one, and would wait for itself if it were recorded"
            ));
        }
        ancestor = parent;
    }
    if procfs::is_kernel_thread(pid) {
        return Some(format!(
            "process {pid} is a kernel thread: it has no user code to record"
        ));
    }
    if procfs::thread_ids(pid).into_iter().all(procfs::has_ended) {
        return Some(format!(
            "process {pid} has ended: only its exit status is left (a zombie)"
        ));
    }
    let (_, tracer) = procfs::seccomp_filter_and_tracer(pid);
    if tracer != 0 {
        return Some(format!(
            "process {pid} is traced by process {tracer} already"
        ));
    }
    procfs::is_32_bit_process(pid)
        .then(|| format!("process {pid} runs a 32-bit program, whose path cannot be recorded"))
}

/// Explains the kernel's `error` on an attempt to attach.
pub(crate) fn explain_attach_error(pid: pid_t, error: &io::Error) -> String {
    // The process may have changed since the check.
    if let Some(why) = refusal_reason(pid) {
        return why;
    }
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    let owner = procfs::effective_ids(pid).map(|(user, _)| user);
    if let (Some(owner), 1..) = (owner, own) {
        if owner != own {
            return format!("process {pid} belongs to user {owner}: only root may trace it");
        }
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        if let Ok("1" | "2" | "3") = scope.as_deref().map(str::trim) {
            return format!(
                "process {pid} may not be traced: kernel.yama.ptrace_scope is {} ({error})",
                scope.unwrap_or_default().trim()
            );
        }
    }
    format!("the kernel does not let us trace process {pid} ({error})")
}
