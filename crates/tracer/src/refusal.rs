//! Why a process that runs cannot be attached to, in one sentence.

use std::io;

use libc::pid_t;

use crate::{procfs, Error};

/// What can be told before anything is stopped.
pub(crate) fn check(pid: pid_t) -> Result<(), Error> {
    match reason(pid) {
        Some(why) => Err(Error::Attach { why }),
        None => Ok(()),
    }
}

fn reason(pid: pid_t) -> Option<String> {
    let Some(process) = procfs::process_of(pid) else {
        return Some(format!("there is no process {pid}"));
    };
    if process != pid {
        return Some(format!(
            "{pid} is a thread of process {process}, which can be recorded as a whole only"
        ));
    }
    let own = std::process::id() as pid_t;
    if pid == own {
        return Some(format!(
            "process {pid} is this one: it cannot record itself"
        ));
    }
    let mut ancestor = own;
    while let Some(parent @ 1..) = procfs::parent(ancestor) {
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
    if procfs::threads(pid).into_iter().all(procfs::has_ended) {
        return Some(format!(
            "process {pid} has ended: only its exit status is left (a zombie)"
        ));
    }
    let (_, tracer) = procfs::restrictions(pid);
    if tracer != 0 {
        return Some(format!(
            "process {pid} is traced by process {tracer} already"
        ));
    }
    procfs::is_32_bit(pid)
        .then(|| format!("process {pid} runs a 32-bit program, whose path cannot be recorded"))
}

/// Why the kernel answered with `error`.
pub(crate) fn why_not(pid: pid_t, error: &io::Error) -> String {
    // It may have become one of these meanwhile.
    if let Some(why) = reason(pid) {
        return why;
    }
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    let owner = procfs::identity(pid).map(|(user, _)| user);
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
