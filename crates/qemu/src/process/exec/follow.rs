//! execve carried out by the plugin, which cannot change a system call's arguments.
//!
//! What fails the checks here is left to QEMU, which passes the call on and brings the error back.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use crate::failure::die;
use crate::interface::{ignored, memory, taken};
use crate::process::ending::leave_for_exec;
use crate::process::exec::plan::{may, own_program, plan, real_path, Plan};
use crate::process::exec::stack;
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
    let path = own_program(shared, path);
    let (program, arguments) = match plan(path.clone(), argv) {
        Plan::Run(program, arguments) => (program, arguments),
        Plan::Unrecorded(why) => return leave(shared, thread, &path, why),
        Plan::Refused => return,
    };
    let comm = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let comm = &comm[..comm.len().min(15)];
    let plugin = shared
        .config
        .folder
        .join("plugin.so")
        .into_os_string()
        .into_vec();
    let qemu = match real_path(b"/proc/self/exe") {
        Some(qemu) if may(&qemu, libc::X_OK) && may(&plugin, libc::R_OK) => qemu,
        _ => {
            let why = "QEMU or the plugin is out of its reach";
            return leave(shared, thread, &path, why);
        }
    };
    let mut command = vec![qemu.clone(), b"-plugin".to_vec(), plugin];
    let mut arguments = arguments.into_iter();
    command.extend([b"-0".to_vec(), arguments.next().unwrap_or_default()]);
    // QEMU takes a path that begins with a dash for an option.
    command.push(if program.starts_with(b"-") {
        [b"./", &program[..]].concat()
    } else {
        program.clone()
    });
    command.extend(arguments);

    let real = real_path(&program).unwrap_or(program);
    let folder = &shared.config.folder;
    let longest = environment(folder, &variables, &real, comm, LONGEST, 0);
    if !stack::holds(&command, &longest) {
        // The error is the kernel's to give; our variables and QEMU's options must not make the difference.
        stack::narrow(&mut thread.call.stack);
        return;
    }
    let mask = taken::keep_for_exec();
    let legacy = leave_for_exec(thread);
    ignored::keep_for_exec();
    let whole = environment(folder, &variables, &real, comm, legacy, mask);
    let error = run(&qemu, command, whole);
    // Other threads have been stopped, perhaps; and QEMU would run the program without us.
    die(&format!(
        "cannot run {} under QEMU: {error}",
        String::from_utf8_lossy(&path)
    ));
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
