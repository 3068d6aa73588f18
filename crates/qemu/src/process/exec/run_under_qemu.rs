//! Runs the program of an execve under a new QEMU. The plugin carries the call out itself, since it cannot change the
//! arguments of a system call.
//!
//! A call that fails the checks here is left to QEMU, which passes it to the kernel and returns the error.

use rtit_events::{flag, EventKind};
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use crate::fatal_error::exit_with_error;
use crate::interface::{guest_memory, signals};
use crate::process::exec::kernel_limits;
use crate::process::exec::kernel_limits::with_capabilities_after_exec;
use crate::process::exec::program_name::{keep_over_exec, stable_name};
use crate::process::exec::target_program::{
    has_access, plan_exec, real_path, resolve_own_program, ExecPlan,
};
use crate::process::process_end::stop_for_exec;
use crate::shared::guest_environment::{qemu_environment, LONGEST_INHERITED};
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::SharedState;
use crate::thread::thread_state::Thread;

/// Runs the program in place of this one. Returns if it cannot be recorded, or if QEMU shall try.
pub(crate) fn run_under_qemu(
    shared: &SharedState,
    thread: &mut Thread,
    path: Option<Vec<u8>>,
    argv: u64,
    envp: u64,
) {
    let (Some(path), Some(argv), Some(variables)) = (
        path,
        guest_memory::read_string_array(argv),
        guest_memory::read_string_array(envp),
    ) else {
        return;
    };
    let (program, arguments) = match plan_exec(resolve_own_program(shared, path.clone()), argv) {
        ExecPlan::Run(program, arguments) => (program, arguments),
        ExecPlan::Unrecorded(why) => return leave_unrecorded(shared, thread, &path, why),
        ExecPlan::Refused => return,
    };
    let comm = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let comm = &comm[..comm.len().min(15)];
    if let Some(what) = kernel_limits::file_privilege(&program) {
        let why = format!("it is {what}, and QEMU cannot give it that privilege");
        return leave_unrecorded(shared, thread, &path, &why);
    }
    let folder = &shared.config.folder;
    let Ok(found) = stable_name(program) else {
        return leave_unrecorded(shared, thread, &path, "no more files can be opened for it");
    };
    let Some(qemu) = with_capabilities_after_exec(|| reachable_qemu(folder)) else {
        let why = "QEMU, the plugin or the recorder is out of its reach";
        return leave_unrecorded(shared, thread, &path, why);
    };
    if !with_capabilities_after_exec(|| has_access(&found.name, libc::R_OK)) {
        return leave_unrecorded(shared, thread, &path, "QEMU may not read it");
    }
    let plugin = in_folder(folder, "plugin.so");
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
    if !kernel_limits::fits_on_stack(&command, &longest) {
        // The kernel reports the error; the recorder's variables and QEMU's options must not make the difference.
        kernel_limits::shrink_stack_limit(&mut thread.call.stack);
        return;
    }
    let mask = signals::hold_signals_for_exec();
    let inherited = stop_for_exec(thread);
    signals::ignore_for_exec();
    let whole = given(inherited, mask);
    keep_over_exec(found.held.as_ref());
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
    let qemu = real_path(b"/proc/self/exe").filter(|qemu| has_access(qemu, libc::X_OK))?;
    needed
        .iter()
        .all(|&(name, how)| has_access(&in_folder(folder, name), how))
        .then_some(qemu)
}

fn in_folder(folder: &Path, name: &str) -> Vec<u8> {
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
fn leave_unrecorded(shared: &SharedState, thread: &mut Thread, path: &[u8], why: &str) {
    let mut message = new_message(EventKind::Warning, thread.tid, thread.now());
    message.flags = flag::WARNING_LEAVES;
    message.ip = shared.pid().into();
    let text = format!("{} runs unrecorded: {why}", String::from_utf8_lossy(path));
    shared.send(message, text.as_bytes());
    thread.flush(shared);
    thread.call.leaves = true;
}

/// Reports that the exec has failed and the program continues, recorded.
pub(crate) fn report_failed_exec(shared: &SharedState, thread: &Thread) {
    let mut message = new_message(EventKind::Warning, thread.tid, thread.now());
    message.flags = flag::WARNING_STAYS;
    message.ip = shared.pid().into();
    shared.send(message, b"its exec failed, and the process stays recorded");
}
