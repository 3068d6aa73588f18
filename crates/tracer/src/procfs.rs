//! Facts about a thread from /proc. All of them are None, or false, once the thread is gone.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;

use libc::pid_t;

/// Returns whether the kernel denies access to the process's memory.
pub(crate) fn is_memory_hidden(tid: pid_t) -> bool {
    let opened = fs::File::open(format!("/proc/{tid}/maps"));
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Returns the path of the process's program.
pub(crate) fn executable_path(pid: pid_t) -> Option<Vec<u8>> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.into_os_string().into_vec())
}

/// Returns the thread's name.
pub(crate) fn thread_name(tid: pid_t) -> Option<Vec<u8>> {
    let mut name = fs::read(format!("/proc/{tid}/comm")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(name)
}

/// Returns the threads of a process, the first one first.
pub(crate) fn thread_ids(pid: pid_t) -> Vec<pid_t> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut tids: Vec<pid_t> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_by_key(|&tid| (tid != pid, tid));
    tids
}

/// Returns whether the thread is gone, or a zombie.
pub(crate) fn has_ended(tid: pid_t) -> bool {
    status_field(tid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

pub(crate) fn is_kernel_thread(pid: pid_t) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // pid (name) state ppid pgrp session tty tpgid flags: the name may contain blanks and parentheses
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags: Option<u32> = fields
        .split_whitespace()
        .nth(6)
        .and_then(|f| f.parse().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Returns the parent process; 0 if it is outside of the pid namespace.
pub(crate) fn parent_process(pid: pid_t) -> Option<pid_t> {
    status_field(pid, "PPid")?.parse().ok()
}

/// Returns whether the process runs a 32-bit program.
pub(crate) fn is_32_bit_process(pid: pid_t) -> bool {
    let mut head = [0u8; 20];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut f| f.read_exact(&mut head));
    const EM_386: [u8; 2] = [3, 0];
    read.is_ok() && head[18..20] == EM_386
}

fn status_field(tid: pid_t, field: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// Returns whether the process has a handler for `signal`.
pub(crate) fn handles_signal(tid: pid_t, signal: i32) -> bool {
    signal_set_contains(tid, "SigCgt", signal)
}

/// Returns whether the process ignores `signal`.
pub(crate) fn ignores_signal(tid: pid_t, signal: i32) -> bool {
    signal_set_contains(tid, "SigIgn", signal)
}

/// Returns whether `signal` is pending for the thread itself.
pub(crate) fn is_signal_pending(tid: pid_t, signal: i32) -> bool {
    signal_set_contains(tid, "SigPnd", signal)
}

/// The signal state of a thread, as bit sets.
pub(crate) struct SignalSets {
    /// For the thread or its process.
    pub(crate) pending: u64,
    pub(crate) blocked: u64,
    pub(crate) ignored: u64,
    pub(crate) caught: u64,
}

pub(crate) fn signal_sets(tid: pid_t) -> Option<SignalSets> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let set = |field: &str| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        u64::from_str_radix(value.trim(), 16).ok()
    };
    Some(SignalSets {
        pending: set("SigPnd")? | set("ShdPnd")?,
        blocked: set("SigBlk")?,
        ignored: set("SigIgn")?,
        caught: set("SigCgt")?,
    })
}

fn signal_set_contains(tid: pid_t, set: &str, signal: i32) -> bool {
    let set = status_field(tid, set).and_then(|value| u64::from_str_radix(&value, 16).ok());
    match (set, signal) {
        (Some(set), 1..=64) => set >> (signal - 1) & 1 == 1,
        _ => false,
    }
}

/// Returns whether descriptor `fd` is a signalfd for one of these signals.
pub(crate) fn is_signalfd_for(tid: pid_t, fd: i32, signals: u64) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")) else {
        return false;
    };
    let mask = text.lines().find_map(|line| line.strip_prefix("sigmask:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & signals != 0)
}

/// Returns the descriptors that epoll descriptor `fd` watches.
pub(crate) fn epoll_targets(tid: pid_t, fd: i32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).unwrap_or_default();
    let files = text.lines().filter_map(|line| {
        let word = line.strip_prefix("tfd:")?.split_whitespace().next()?;
        word.parse().ok()
    });
    files.collect()
}

/// Returns the process of the thread.
pub(crate) fn process_id_of_thread(tid: pid_t) -> Option<pid_t> {
    status_field(tid, "Tgid")?.parse().ok()
}

/// Returns the effective user and group of the process.
pub(crate) fn effective_ids(pid: pid_t) -> Option<(u32, u32)> {
    let effective = |field| {
        status_field(pid, field)?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    Some((effective("Uid")?, effective("Gid")?))
}

/// Returns whether a seccomp filter applies to the thread, and its tracer (0: none).
pub(crate) fn seccomp_filter_and_tracer(tid: pid_t) -> (bool, u32) {
    let number = |field| status_field(tid, field).and_then(|value| value.parse().ok());
    (
        number("Seccomp").unwrap_or(0) != 0,
        number("TracerPid").unwrap_or(0),
    )
}

const PAGE: u64 = 4096;

/// Returns the addresses of the pages of a private file mapping that differ from the file.
pub(crate) fn modified_pages(pid: pid_t, start: u64, end: u64) -> Vec<u64> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    let mut modified = Vec::new();
    let Ok(mut file) = fs::File::open(format!("/proc/{pid}/pagemap")) else {
        return modified;
    };
    if file.seek(SeekFrom::Start(start / PAGE * 8)).is_err() {
        return modified;
    }
    let mut page = start;
    let mut chunk = [0u8; 4096];
    while page < end {
        let wanted = (((end - page) / PAGE * 8) as usize).min(chunk.len());
        if wanted == 0 || file.read_exact(&mut chunk[..wanted]).is_err() {
            break;
        }
        for entry in chunk[..wanted].chunks_exact(8) {
            let flags = entry
                .iter()
                .rev()
                .fold(0, |value, &b| value << 8 | u64::from(b));
            if flags & (PRESENT | SWAPPED) != 0 && flags & OF_FILE == 0 {
                modified.push(page);
            }
            page += PAGE;
        }
    }
    modified
}
