//! The guest's environment, and what the recorder has put into it.
//!
//! QEMU is started with an environment that is good for QEMU: variables that would steer its own loading and libraries
//! carry a prefix. Before `main` copies the environment for the guest, names are put back and ours taken out.

use std::ffi::{c_char, c_int, CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use crate::interface::taken::set_mask;
use crate::thread::state::Legacy;

/// Folder of the recording: socket, clock, settings, plugin.
const FOLDER: &[u8] = b"RTIT_QEMU_FOLDER";
/// The program's path, for the recorder.
const PROGRAM: &[u8] = b"RTIT_QEMU_PROGRAM";
/// What the kernel would call the thread.
const COMM: &[u8] = b"RTIT_QEMU_COMM";
/// Instructions and hash of the thread's path so far, and 1 if a TraceStop ended its trace.
const CHAIN: &[u8] = b"RTIT_QEMU_CHAIN";
/// The number of the open file that the program is in, where that has no name.
const HELD: &[u8] = b"RTIT_QEMU_HELD";
/// The signals that the program blocks, as a number in hexadecimal of 16 digits.
const MASK: &[u8] = b"RTIT_QEMU_MASK";
/// In the folder of the recording: variables for QEMU itself, `name=value`, each with a NUL after it.
const FOR_QEMU: &str = "qemu-env";
const PRELOAD: &[u8] = b"LD_PRELOAD";
const HIDDEN: &[u8] = b"RTIT_GUEST_";

/// Variables that QEMU or its libraries would heed.
const STEERING: [&[u8]; 8] = [
    b"LD_",
    b"GLIBC_",
    b"GCONV_PATH",
    b"MALLOC_",
    b"G_",
    b"QEMU_",
    b"RTIT_",
    b"LOCPATH",
];

#[derive(Default, Debug)]
pub(super) struct Given {
    pub(super) folder: Vec<u8>,
    pub(super) program: Vec<u8>,
    pub(super) comm: Vec<u8>,
    pub(super) held: Option<c_int>,
    chain: Vec<u8>,
    for_qemu: Vec<u8>,
}

extern "C" {
    static mut environ: *mut *mut c_char;
}

static GIVEN: OnceLock<Given> = OnceLock::new();

/// No other is longer as text.
pub(crate) const LONGEST: Legacy = Legacy {
    chain: (u64::MAX, u64::MAX),
    stopped: true,
};

/// What `take_environment` found; None in a process that no recorder started.
pub(super) fn given() -> Option<&'static Given> {
    GIVEN.get()
}

impl Given {
    pub(super) fn legacy(&self) -> Legacy {
        parse_legacy(&self.chain)
    }
}

/// Takes our variables out of the environment and gives the guest's their names back. Nothing happens in a process
/// that no recorder started.
pub(crate) fn take_environment() {
    let mut given = Given::default();
    let mut mask = None;
    // SAFETY: before main, in the only thread; the array ends with a null pointer and its strings with NUL.
    unsafe {
        if environ.is_null() || !is_recorded(environ) {
            return;
        }
        let (mut from, mut into) = (environ, environ);
        while !(*from).is_null() {
            let text = CStr::from_ptr(*from).to_bytes();
            let equals = text
                .iter()
                .position(|&byte| byte == b'=')
                .unwrap_or(text.len());
            let (name, value) = (&text[..equals], text.get(equals + 1..).unwrap_or_default());
            match name {
                FOLDER => given.folder = value.to_vec(),
                PROGRAM => given.program = value.to_vec(),
                COMM => given.comm = value.to_vec(),
                CHAIN => given.chain = value.to_vec(),
                HELD => given.held = take_held(value),
                MASK => mask = parse_mask(value),
                PRELOAD => {}
                _ => {
                    let hidden = if name.starts_with(HIDDEN) {
                        HIDDEN.len()
                    } else {
                        0
                    };
                    *into = (*from).add(hidden);
                    into = into.add(1);
                }
            }
            from = from.add(1);
        }
        *into = std::ptr::null_mut();
    }
    let folder = Path::new(OsStr::from_bytes(&given.folder));
    given.for_qemu = fs::read(folder.join(FOR_QEMU)).unwrap_or_default();
    let _ = GIVEN.set(given);
    if let Some(mask) = mask {
        set_mask(mask);
    }
}

/// The file's number. A program that this one runs does not get it.
fn take_held(text: &[u8]) -> Option<c_int> {
    let held = std::str::from_utf8(text).ok()?.parse().ok()?;
    // SAFETY: changes a flag of a file that is there for us.
    unsafe { libc::fcntl(held, libc::F_SETFD, libc::FD_CLOEXEC) };
    Some(held)
}

/// The name by which an open file is found.
pub(crate) fn held_name(held: c_int) -> Vec<u8> {
    format!("/proc/self/fd/{held}").into_bytes()
}

/// The value of a variable as QEMU and its libraries may see it, or a null pointer.
///
/// # Safety
/// As getenv(3).
pub(crate) unsafe fn value_for_qemu(name: &[u8]) -> *mut c_char {
    let value = |entry: &[u8]| {
        let rest = entry.strip_prefix(name)?;
        rest.starts_with(b"=").then_some(name.len() + 1)
    };
    match given() {
        // QEMU asks for it, too, where an option has no variable.
        _ if name.is_empty() => ptr::null_mut(),
        Some(given) if steers(name) => {
            let mut entries = given.for_qemu.split_inclusive(|&byte| byte == 0);
            let found = entries.find_map(|entry| Some(&entry[value(entry)?..]));
            found.map_or(ptr::null_mut(), |text| text.as_ptr().cast_mut().cast())
        }
        _ => {
            let mut entry = environ;
            while !entry.is_null() && !(*entry).is_null() {
                if let Some(begin) = value(CStr::from_ptr(*entry).to_bytes()) {
                    return (*entry).add(begin);
                }
                entry = entry.add(1);
            }
            ptr::null_mut()
        }
    }
}

/// What the kernel calls the program if `path` is that of the open file which it is in.
pub(crate) fn name_of_held(path: &[u8]) -> Option<CString> {
    let given = given()?;
    let is_held = held_name(given.held?) == path;
    CString::new(given.program.clone()).ok().filter(|_| is_held)
}

unsafe fn is_recorded(mut entry: *mut *mut c_char) -> bool {
    while !(*entry).is_null() {
        let text = CStr::from_ptr(*entry).to_bytes();
        if text.starts_with(FOLDER) && text.get(FOLDER.len()) == Some(&b'=') {
            return true;
        }
        entry = entry.add(1);
    }
    false
}

/// The environment of a QEMU that is to run a program with `guest`, a list of `name=value`.
pub(crate) fn environment(
    folder: &Path,
    guest: &[Vec<u8>],
    program: &[u8],
    comm: &[u8],
    held: Option<c_int>,
    legacy: Legacy,
    mask: u64,
) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = guest.iter().map(|entry| hide(entry)).collect();
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let plugin = folder.join("plugin.so");
    all.push(pair(FOLDER, folder.as_os_str().as_bytes()));
    all.push(pair(PROGRAM, program));
    all.push(pair(COMM, comm));
    all.extend(held.map(|held| pair(HELD, held.to_string().as_bytes())));
    let (count, hash) = legacy.chain;
    let text = format!("{count} {hash} {}", u8::from(legacy.stopped));
    all.push(pair(CHAIN, text.as_bytes()));
    all.push(pair(MASK, format!("{mask:016x}").as_bytes()));
    all.push(pair(PRELOAD, plugin.as_os_str().as_bytes()));
    all
}

fn steers(entry: &[u8]) -> bool {
    STEERING.iter().any(|start| entry.starts_with(start))
}

fn hide(entry: &[u8]) -> Vec<u8> {
    if steers(entry) {
        [HIDDEN, entry].concat()
    } else {
        entry.to_vec()
    }
}

fn parse_mask(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

fn parse_legacy(text: &[u8]) -> Legacy {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    Legacy {
        chain: (number(), number()),
        stopped: number() == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_steer_qemu_are_hidden() {
        assert_eq!(
            hide(b"LD_LIBRARY_PATH=/a,b"),
            b"RTIT_GUEST_LD_LIBRARY_PATH=/a,b"
        );
        assert_eq!(
            hide(b"RTIT_QEMU_FOLDER=/x"),
            b"RTIT_GUEST_RTIT_QEMU_FOLDER=/x"
        );
        assert_eq!(hide(b"PATH=/bin"), b"PATH=/bin");
    }

    #[test]
    fn a_chain_survives_exec() {
        let found = parse_legacy(b"12 18446744073709551615 1");
        assert_eq!((found.chain, found.stopped), ((12, u64::MAX), true));
        assert_eq!(parse_legacy(b""), Legacy::default());
    }
}
