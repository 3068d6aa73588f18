//! execve carried out by the plugin, which cannot change a system call's arguments.
//!
//! What fails the checks here is left to QEMU, which passes the call on and brings the error back.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use crate::failure::die;
use crate::interface::{ignored, memory, taken};
use crate::process::ending::leave_for_exec;
use crate::process::exec::held::{keep_over_exec, lasting};
use crate::process::exec::plan::{may, own_program, plan, real_path, Plan};
use crate::process::exec::rights::after_exec;
use crate::process::exec::{privilege, stack};
use crate::shared::environment::{environment, LONGEST};
use crate::shared::link::{Kind, Message, LEAVES, STAYS};
use crate::shared::state::Shared;
use crate::thread::state::Thread;

/// Runs the program in place of this one; returns if it cannot be, or if QEMU is to try.
pub(crate) fn exec(
    shared: &Shared,
    thread: &mut Thread,
    path: Option<Vec<u8>>,
    argv: u64,
    envp: u64,
) {
    let (Some(path), Some(argv), Some(variables)) =
        (path, memory::strings(argv), memory::strings(envp))
    else {
        return;
    };
    let (program, arguments) = match plan(own_program(shared, path.clone()), argv) {
        Plan::Run(program, arguments) => (program, arguments),
        Plan::Unrecorded(why) => return leave(shared, thread, &path, why),
        Plan::Refused => return,
    };
    let comm = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let comm = &comm[..comm.len().min(15)];
    if let Some(what) = privilege::of_file(&program) {
        let why = format!("it is {what}, and QEMU cannot give it that privilege");
        return leave(shared, thread, &path, &why);
    }
    let folder = &shared.config.folder;
    let Ok(found) = lasting(program) else {
        return leave(shared, thread, &path, "no more files can be opened for it");
    };
    let Some(qemu) = after_exec(|| reachable_qemu(folder)) else {
        let why = "QEMU, the plugin or the recorder is out of its reach";
        return leave(shared, thread, &path, why);
    };
    if !after_exec(|| may(&found.name, libc::R_OK)) {
        return leave(shared, thread, &path, "QEMU may not read it");
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
    let given =
        |legacy, mask| environment(folder, &variables, &found.real, comm, held, legacy, mask);
    let longest = given(LONGEST, 0);
    if !stack::holds(&command, &longest) {
        // The error is the kernel's to give; our variables and QEMU's options must not make the difference.
        stack::narrow(&mut thread.call.stack);
        return;
    }
    let mask = taken::keep_for_exec();
    let legacy = leave_for_exec(thread);
    ignored::keep_for_exec();
    let whole = given(legacy, mask);
    keep_over_exec(found.held.as_ref());
    let error = run(&qemu, command, whole);
    // Other threads have been stopped, perhaps; and QEMU would run the program without us.
    die(&format!(
        "cannot run {} under QEMU: {error}",
        String::from_utf8_lossy(&path)
    ));
}

/// The QEMU that runs us, if it finds there what it needs.
fn reachable_qemu(folder: &Path) -> Option<Vec<u8>> {
    let needed = [
        ("plugin.so", libc::R_OK),
        ("settings", libc::R_OK),
        ("clock", libc::R_OK | libc::W_OK),
        ("socket", libc::W_OK),
    ];
    let qemu = real_path(b"/proc/self/exe").filter(|qemu| may(qemu, libc::X_OK))?;
    needed
        .iter()
        .all(|&(name, how)| may(&in_folder(folder, name), how))
        .then_some(qemu)
}

fn in_folder(folder: &Path, name: &str) -> Vec<u8> {
    folder.join(name).into_os_string().into_vec()
}

fn run(qemu: &[u8], command: Vec<Vec<u8>>, environment: Vec<Vec<u8>>) -> io::Error {
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

/// QEMU will run the program itself, without us.
fn leave(shared: &Shared, thread: &mut Thread, path: &[u8], why: &str) {
    let mut message = Message::new(Kind::Warning, thread.tid, thread.now());
    message.flags = LEAVES;
    message.ip = shared.pid().into();
    let text = format!("{} runs unrecorded: {why}", String::from_utf8_lossy(path));
    shared.send(message, text.as_bytes());
    thread.flush(shared);
    thread.call.leaves = true;
}

/// QEMU could not run it either: the program goes on, recorded.
pub(crate) fn stay(shared: &Shared, thread: &Thread) {
    let mut message = Message::new(Kind::Warning, thread.tid, thread.now());
    message.flags = STAYS;
    message.ip = shared.pid().into();
    shared.send(
        message,
        b"it could not be run, and what called for it goes on",
    );
}
