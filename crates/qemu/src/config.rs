//! What the recorder told us, and the guest's environment.
//!
//! QEMU is started with an environment that is good for QEMU: variables that would steer its own loading and libraries
//! carry a prefix. Before `main` copies the environment for the guest, names are put back and ours taken out.

use std::ffi::{c_char, CStr};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use rtit_unit::Settings;

use crate::ranges::Filter;
use crate::window::Window;

/// Folder of the recording: socket, clock, settings, plugin.
const FOLDER: &[u8] = b"RTIT_QEMU_FOLDER";
/// The program's path, for the recorder.
const PROGRAM: &[u8] = b"RTIT_QEMU_PROGRAM";
/// What the kernel would call the thread.
const COMM: &[u8] = b"RTIT_QEMU_COMM";
/// Instructions and hash of the thread's path so far, and 1 if a TraceStop ended its trace.
const CHAIN: &[u8] = b"RTIT_QEMU_CHAIN";
/// The program starts with all signals unblocked.
const UNBLOCK: &[u8] = b"RTIT_QEMU_UNBLOCK";
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Truth {
    None,
    /// From the blocks, as the packets.
    Blocks,
    /// From a callback of its own at each instruction.
    Instructions,
}

/// What a thread that exec left over brings with it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Legacy {
    /// Instructions and hash of its path.
    pub(crate) chain: (u64, u64),
    /// A TraceStop ended its trace.
    pub(crate) stopped: bool,
}

impl Legacy {
    /// No other is longer as text.
    pub(crate) const LONGEST: Legacy = Legacy {
        chain: (u64::MAX, u64::MAX),
        stopped: true,
    };
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) folder: PathBuf,
    pub(crate) program: Vec<u8>,
    pub(crate) comm: Vec<u8>,
    pub(crate) legacy: Legacy,
    pub(crate) settings: Settings,
    pub(crate) truth: Truth,
    pub(crate) filters: Vec<Filter>,
    /// The recorder keeps the last packets alone.
    pub(crate) snapshot: bool,
    /// Instructions that the truth joins into one run, at least.
    pub(crate) joined: u32,
    pub(crate) window: Window,
}

#[derive(Default, Debug)]
struct Given {
    folder: Vec<u8>,
    program: Vec<u8>,
    comm: Vec<u8>,
    chain: Vec<u8>,
}

static GIVEN: OnceLock<Given> = OnceLock::new();

/// Takes our variables out of the environment and gives the guest's their names back. Nothing happens in a process
/// that no recorder started.
pub(crate) fn take_environment() {
    extern "C" {
        static mut environ: *mut *mut c_char;
    }
    let mut given = Given::default();
    let mut unblock = false;
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
                UNBLOCK => unblock = true,
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
        if unblock {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
    }
    let _ = GIVEN.set(given);
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
    config: &Config,
    guest: &[Vec<u8>],
    program: &[u8],
    comm: &[u8],
    legacy: Legacy,
) -> Vec<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let mut all: Vec<Vec<u8>> = guest.iter().map(|entry| hide(entry)).collect();
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let plugin = config.folder.join("plugin.so");
    all.push(pair(FOLDER, config.folder.as_os_str().as_bytes()));
    all.push(pair(PROGRAM, program));
    all.push(pair(COMM, comm));
    let (count, hash) = legacy.chain;
    let text = format!("{count} {hash} {}", u8::from(legacy.stopped));
    all.push(pair(CHAIN, text.as_bytes()));
    all.push(pair(PRELOAD, plugin.as_os_str().as_bytes()));
    all
}

fn hide(entry: &[u8]) -> Vec<u8> {
    if STEERING.iter().any(|start| entry.starts_with(start)) {
        [HIDDEN, entry].concat()
    } else {
        entry.to_vec()
    }
}

impl Config {
    /// What the recorder left in its folder; a sentence if it cannot be used.
    pub(crate) fn load() -> Result<Config, String> {
        use std::os::unix::ffi::OsStrExt;
        let given = GIVEN
            .get()
            .ok_or("this plugin is for `rtit record`, which starts QEMU with it")?;
        let folder = PathBuf::from(std::ffi::OsStr::from_bytes(&given.folder));
        let path = folder.join("settings");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config = Config {
            folder,
            program: given.program.clone(),
            comm: given.comm.clone(),
            legacy: parse_legacy(&given.chain),
            settings: Settings::default(),
            truth: Truth::None,
            filters: Vec::new(),
            snapshot: false,
            joined: 1,
            window: Window::default(),
        };
        for line in text.lines() {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("settings: no value: {line}"))?;
            config.apply(name, value)?;
        }
        config.settings.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// See `SharedClock::tick`.
    pub(crate) fn tick(&self) -> u64 {
        let time = &self.settings.time;
        let per_instruction = u64::from(time.max_non_turbo_ratio) * u64::from(time.cpi);
        u64::from(time.core_ratio).div_ceil(per_instruction)
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "truth" {
            self.truth = match value {
                "none" => Truth::None,
                "blocks" => Truth::Blocks,
                "instructions" => Truth::Instructions,
                _ => {
                    return Err(format!(
                        "truth is none, blocks or instructions, not {value}"
                    ))
                }
            };
            return Ok(());
        }
        match name {
            "joined" => {
                self.joined = value
                    .parse()
                    .map_err(|_| format!("joined is a number of instructions, not {value}"))?;
            }
            "snapshot" => self.snapshot = value == "1",
            "filter" => self.filters.push(Filter::parse(value)?),
            "start" => self.window.set(false, value)?,
            "stop" => self.window.set(true, value)?,
            _ => self
                .settings
                .set(name, value)
                .map_err(|error| error.to_string())?,
        }
        Ok(())
    }
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
