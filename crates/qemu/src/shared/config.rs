//! The settings of the recording: a file in the recorder's folder, and variables of the environment.
//!
//! The recorder starts QEMU with an environment that suits QEMU: variables of the program that would influence QEMU's
//! own loading or libraries have a prefix, and the recorder adds some variables. Before `main` copies the environment
//! for the program, `take_recorder_variables` removes both.

use std::ffi::{c_char, c_int, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::{fs, ptr};

use rtit_unit::{RangeKind, Settings};

use crate::interface::signals::set_signal_mask;
use crate::shared::reported_code::RecorderView;
use crate::shared::trace_selection::{AddressFilter, RecordingWindow};
use crate::thread::executed_path::ExecutedPathSource;
use crate::thread::thread_state::StateKeptOverExec;

/// `ring_blocks`: the largest chunks, if two threads can run at a time.
const AUTO: usize = usize::MAX;

/// Addresses of a Linux kernel as linked, and offsets in its structure task_struct.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelLayout {
    pub(crate) text: u64,
    pub(crate) switch_to: u64,
    pub(crate) task_pid: u64,
    pub(crate) task_tgid: u64,
    pub(crate) task_comm: u64,
}

/// An address filter of a whole system; both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SystemFilter {
    pub(crate) kind: RangeKind,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The addresses are those of the kernel as linked; it moves itself.
    pub(crate) is_linked: bool,
}

/// An edge of the recording window of a whole system. `is_linked`: as that of `SystemFilter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SystemEdge {
    pub(crate) address: u64,
    pub(crate) is_linked: bool,
}

/// The address of `do_init_module` as linked, offsets in struct module, and those in struct mod_kallsyms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ModuleLayout {
    pub(crate) init: u64,
    pub(crate) name: u64,
    pub(crate) kallsyms: u64,
    pub(crate) symbols: u64,
    pub(crate) count: u64,
    pub(crate) names: u64,
}

/// What the mappings of programs are read with: addresses of functions as linked, and offsets in structures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramLayout {
    pub(crate) map: u64,
    pub(crate) wake_new_task: u64,
    pub(crate) set_name: u64,
    pub(crate) task_memory: u64,
    pub(crate) page_table: u64,
    /// In vm_area_struct.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file_page: u64,
    pub(crate) flags: u64,
    pub(crate) file: u64,
    pub(crate) memory: u64,
    /// In struct file.
    pub(crate) file_mount: u64,
    pub(crate) file_dentry: u64,
    /// In struct dentry.
    pub(crate) parent: u64,
    pub(crate) name: u64,
    /// In struct mount, and in the struct vfsmount there.
    pub(crate) mount: u64,
    pub(crate) mount_parent: u64,
    pub(crate) mount_point: u64,
    pub(crate) mount_root: u64,
}

#[derive(Debug)]
pub(crate) struct RecordingConfig {
    pub(crate) folder: PathBuf,
    pub(crate) program: Vec<u8>,
    pub(crate) comm: Vec<u8>,
    /// The descriptor of the program's file, if that file has no name.
    pub(crate) program_fd: Option<c_int>,
    pub(crate) inherited: StateKeptOverExec,
    pub(crate) settings: Settings,
    /// The source of the executed path.
    pub(crate) truth: ExecutedPathSource,
    pub(crate) snapshot: bool,
    pub(crate) min_run: u32,
    pub(crate) filters: Vec<AddressFilter>,
    pub(crate) recorder: RecorderView,
    pub(crate) window: RecordingWindow,
    /// Entries of a chunk of `shared::block_ring`; 0: the program follows each block at once.
    pub(crate) ring_blocks: usize,
    /// Of a whole system, if the recorder knows its kernel.
    pub(crate) kernel: Option<KernelLayout>,
    pub(crate) modules: Option<ModuleLayout>,
    pub(crate) programs: Option<ProgramLayout>,
    /// Of a whole system.
    pub(crate) system_filters: Vec<SystemFilter>,
    /// Start and stop.
    pub(crate) system_edges: [Option<SystemEdge>; 2],
}

impl RecordingConfig {
    /// Reads the settings; fails with a sentence for the user.
    pub(crate) fn load_settings() -> Result<RecordingConfig, String> {
        let given = recorder_variables()
            .ok_or("this plugin is for `rtit record`, which starts QEMU with it")?;
        let folder = PathBuf::from(OsStr::from_bytes(&given.folder));
        let path = folder.join("settings");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config = RecordingConfig {
            folder,
            program: given.program.clone(),
            comm: given.comm.clone(),
            program_fd: given.program_fd,
            inherited: given.state_kept_over_exec(),
            settings: Settings::default(),
            truth: ExecutedPathSource::None,
            filters: Vec::new(),
            recorder: RecorderView::default(),
            snapshot: false,
            min_run: 1,
            window: RecordingWindow::default(),
            ring_blocks: AUTO,
            kernel: None,
            modules: None,
            programs: None,
            system_filters: Vec::new(),
            system_edges: [None; 2],
        };
        for line in text.lines() {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("settings: no value: {line}"))?;
            config.apply_setting(name, value)?;
        }
        // Window edges and instruction callbacks need each block to be followed as it runs.
        let whole = !config.window.is_used()
            && matches!(
                config.truth,
                ExecutedPathSource::None | ExecutedPathSource::Blocks
            );
        if !whole || (config.ring_blocks == AUTO && runs_on_one_cpu()) {
            config.ring_blocks = 0;
        }
        config
            .settings
            .check_settings()
            .map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Returns whether blocks are counted and no trace is made.
    pub(crate) fn counts_without_trace(&self) -> bool {
        self.truth == ExecutedPathSource::Counts
    }

    /// Returns whether some code is not traced.
    pub(crate) fn traces_only_part(&self) -> bool {
        !self.filters.is_empty() || self.window.is_used()
    }

    /// See `SharedClock::tsc_tick`.
    pub(crate) fn tsc_tick(&self) -> u64 {
        let time = &self.settings.time;
        let per_instruction = u64::from(time.max_non_turbo_ratio) * u64::from(time.cpi);
        u64::from(time.core_ratio).div_ceil(per_instruction)
    }

    fn apply_setting(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "truth" {
            self.truth = match value {
                "none" => ExecutedPathSource::None,
                "blocks" => ExecutedPathSource::Blocks,
                "instructions" => ExecutedPathSource::Instructions,
                "counts" => ExecutedPathSource::Counts,
                _ => {
                    return Err(format!(
                        "truth is none, blocks, instructions or counts, not {value}"
                    ))
                }
            };
            return Ok(());
        }
        match name {
            "joined" => self.min_run = parse_number(name, value)?,
            "ahead" => {
                self.ring_blocks = match value {
                    "auto" => AUTO,
                    _ => parse_number(name, value)?,
                }
            }
            "snapshot" => self.snapshot = value == "1",
            "began" => self.recorder.started_at = parse_number(name, value)?,
            "view" => self.recorder.view = value.to_string(),
            "filter" => self
                .filters
                .push(AddressFilter::parse_address_filter(value)?),
            "start" => self.window.set_edge(false, value)?,
            "stop" => self.window.set_edge(true, value)?,
            "kernel" => self.kernel = Some(parse_kernel_layout(value)?),
            "system_filter" => self.system_filters.push(parse_system_filter(value)?),
            "system_start" => self.system_edges[0] = Some(parse_system_edge(value)?),
            "system_stop" => self.system_edges[1] = Some(parse_system_edge(value)?),
            "modules" => self.modules = Some(parse_module_layout(value)?),
            "programs" => self.programs = Some(parse_program_layout(value)?),
            _ => self
                .settings
                .set_by_name(name, value)
                .map_err(|error| error.to_string())?,
        }
        Ok(())
    }
}

fn parse_number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    let wrong = |_| format!("settings: {name} is a number, not {value}");
    value.parse().map_err(wrong)
}

/// Parses the fields of `KernelLayout` in order, with blanks between them.
fn parse_kernel_layout(text: &str) -> Result<KernelLayout, String> {
    match parse_numbers("kernel", text)?[..] {
        [text, switch_to, task_pid, task_tgid, task_comm] => Ok(KernelLayout {
            text,
            switch_to,
            task_pid,
            task_tgid,
            task_comm,
        }),
        _ => Err(format!("settings: kernel has five numbers, not {text}")),
    }
}

/// Parses `filter` or `stop`, the first and last address, and 1 if they are those as linked.
fn parse_system_filter(text: &str) -> Result<SystemFilter, String> {
    let wrong = || format!("settings: no filter of a system: {text}");
    let (kind, numbers) = text.split_once(' ').ok_or_else(wrong)?;
    let kind = match kind {
        "filter" => RangeKind::FilterEn,
        "stop" => RangeKind::TraceStop,
        _ => return Err(wrong()),
    };
    match parse_numbers("system_filter", numbers)?[..] {
        [first, last, linked] => Ok(SystemFilter {
            kind,
            first,
            last,
            is_linked: linked == 1,
        }),
        _ => Err(wrong()),
    }
}

/// Parses an address, and 1 if it is that as linked.
fn parse_system_edge(text: &str) -> Result<SystemEdge, String> {
    match parse_numbers("system_start", text)?[..] {
        [address, linked] => Ok(SystemEdge {
            address,
            is_linked: linked == 1,
        }),
        _ => Err(format!("settings: no edge of a system: {text}")),
    }
}

/// Parses the fields of `ModuleLayout` in order, with blanks between them.
fn parse_module_layout(text: &str) -> Result<ModuleLayout, String> {
    match parse_numbers("modules", text)?[..] {
        [init, name, kallsyms, symbols, count, names] => Ok(ModuleLayout {
            init,
            name,
            kallsyms,
            symbols,
            count,
            names,
        }),
        _ => Err(format!("settings: modules has six numbers, not {text}")),
    }
}

/// Parses the fields of `ProgramLayout` in order, with blanks between them.
fn parse_program_layout(text: &str) -> Result<ProgramLayout, String> {
    let numbers = parse_numbers("programs", text)?;
    let numbers = <[u64; 19]>::try_from(numbers);
    let numbers = numbers.map_err(|_| format!("settings: programs has 19 numbers, not {text}"))?;
    let [map, wake_new_task, set_name, task_memory, page_table, rest @ ..] = numbers;
    let [start, end, file_page, flags, file, memory, rest @ ..] = rest;
    let [file_mount, file_dentry, parent, name, rest @ ..] = rest;
    let [mount, mount_parent, mount_point, mount_root] = rest;
    Ok(ProgramLayout {
        map,
        wake_new_task,
        set_name,
        task_memory,
        page_table,
        start,
        end,
        file_page,
        flags,
        file,
        memory,
        file_mount,
        file_dentry,
        parent,
        name,
        mount,
        mount_parent,
        mount_point,
        mount_root,
    })
}

fn parse_numbers(name: &str, text: &str) -> Result<Vec<u64>, String> {
    text.split(' ')
        .map(|number| parse_number(name, number))
        .collect()
}

/// Returns whether only one thread can run at a time.
fn runs_on_one_cpu() -> bool {
    std::thread::available_parallelism().map_or(true, |count| count.get() == 1)
}

/// The folder of the recording: socket, clock, settings, plugin.
const FOLDER: &[u8] = b"RTIT_QEMU_FOLDER";
/// The path of the program, for the recorder.
const PROGRAM: &[u8] = b"RTIT_QEMU_PROGRAM";
/// The thread name that the kernel would set.
const COMM: &[u8] = b"RTIT_QEMU_COMM";
/// Number and hash of the instructions that the thread has executed, and 1 if a TraceStop ended its trace.
const PATH_HASH: &[u8] = b"RTIT_QEMU_CHAIN";
/// The descriptor of the program's file, if that file has no name.
const PROGRAM_FD: &[u8] = b"RTIT_QEMU_HELD";
/// The signals that the program blocks, as 16 hexadecimal digits.
const MASK: &[u8] = b"RTIT_QEMU_MASK";
/// A file in the recording's folder: variables for QEMU itself, `name=value`, each followed by NUL.
const FOR_QEMU: &str = "qemu-env";
const PRELOAD: &[u8] = b"LD_PRELOAD";
const HIDDEN: &[u8] = b"RTIT_GUEST_";

/// Prefixes of the variables that QEMU or its libraries read.
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
pub(super) struct RecorderVariables {
    pub(super) folder: Vec<u8>,
    pub(super) program: Vec<u8>,
    pub(super) comm: Vec<u8>,
    pub(super) program_fd: Option<c_int>,
    chain: Vec<u8>,
    for_qemu: Vec<u8>,
}

extern "C" {
    static mut environ: *mut *mut c_char;
}

static RECORDER_VARIABLES: OnceLock<RecorderVariables> = OnceLock::new();

/// The value that is longest as text.
pub(crate) const LONGEST_INHERITED: StateKeptOverExec = StateKeptOverExec {
    chain: (u64::MAX, u64::MAX),
    stopped: true,
};

/// Returns what `take_recorder_variables` found; None in a process that no recorder started.
pub(super) fn recorder_variables() -> Option<&'static RecorderVariables> {
    RECORDER_VARIABLES.get()
}

impl RecorderVariables {
    pub(super) fn state_kept_over_exec(&self) -> StateKeptOverExec {
        parse_state_kept_over_exec(&self.chain)
    }
}

/// Removes the recorder's variables from the environment and restores the names of the program's. Does nothing in a
/// process that no recorder started.
pub(crate) fn take_recorder_variables() {
    let mut given = RecorderVariables::default();
    let mut mask = None;
    // SAFETY: before main, in the only thread; the array ends with a null pointer and its strings with NUL.
    unsafe {
        if environ.is_null() || !is_environment_of_recording(environ) {
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
                PATH_HASH => given.chain = value.to_vec(),
                PROGRAM_FD => given.program_fd = take_program_fd(value),
                MASK => mask = parse_signal_mask(value),
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
    let _ = RECORDER_VARIABLES.set(given);
    if let Some(mask) = mask {
        set_signal_mask(mask);
    }
}

/// Returns the descriptor, and closes it for programs that this one runs.
fn take_program_fd(text: &[u8]) -> Option<c_int> {
    let held = std::str::from_utf8(text).ok()?.parse().ok()?;
    // SAFETY: changes a flag of a file that is there for us.
    unsafe { libc::fcntl(held, libc::F_SETFD, libc::FD_CLOEXEC) };
    Some(held)
}

/// Returns a path that leads to an open file.
pub(crate) fn open_file_path(held: c_int) -> Vec<u8> {
    format!("/proc/self/fd/{held}").into_bytes()
}

/// Returns the value of a variable as QEMU and its libraries may see it, or a null pointer.
///
/// # Safety
/// As getenv(3).
pub(crate) unsafe fn getenv_for_qemu(name: &[u8]) -> *mut c_char {
    let value = |entry: &[u8]| {
        let rest = entry.strip_prefix(name)?;
        rest.starts_with(b"=").then_some(name.len() + 1)
    };
    match recorder_variables() {
        // QEMU asks for an empty name where an option has no variable.
        _ if name.is_empty() => ptr::null_mut(),
        Some(given) if is_qemu_variable(name) => {
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

/// Returns the name that the program's file had, if `path` is the path of its descriptor.
pub(crate) fn program_name_of_fd(path: &[u8]) -> Option<CString> {
    let given = recorder_variables()?;
    let is_held = open_file_path(given.program_fd?) == path;
    CString::new(given.program.clone()).ok().filter(|_| is_held)
}

unsafe fn is_environment_of_recording(mut entry: *mut *mut c_char) -> bool {
    while !(*entry).is_null() {
        let text = CStr::from_ptr(*entry).to_bytes();
        if text.starts_with(FOLDER) && text.get(FOLDER.len()) == Some(&b'=') {
            return true;
        }
        entry = entry.add(1);
    }
    false
}

/// Builds the environment of a QEMU that runs a program with the variables `guest` (`name=value`).
pub(crate) fn qemu_environment(
    folder: &Path,
    guest: &[Vec<u8>],
    program: &[u8],
    comm: &[u8],
    held: Option<c_int>,
    inherited: StateKeptOverExec,
    mask: u64,
) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = guest.iter().map(|entry| prefixed_variable(entry)).collect();
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let plugin = folder.join("plugin.so");
    all.push(pair(FOLDER, folder.as_os_str().as_bytes()));
    all.push(pair(PROGRAM, program));
    all.push(pair(COMM, comm));
    all.extend(held.map(|held| pair(PROGRAM_FD, held.to_string().as_bytes())));
    let (count, hash) = inherited.chain;
    let text = format!("{count} {hash} {}", u8::from(inherited.stopped));
    all.push(pair(PATH_HASH, text.as_bytes()));
    all.push(pair(MASK, format!("{mask:016x}").as_bytes()));
    all.push(pair(PRELOAD, plugin.as_os_str().as_bytes()));
    all
}

fn is_qemu_variable(entry: &[u8]) -> bool {
    STEERING.iter().any(|start| entry.starts_with(start))
}

fn prefixed_variable(entry: &[u8]) -> Vec<u8> {
    if is_qemu_variable(entry) {
        [HIDDEN, entry].concat()
    } else {
        entry.to_vec()
    }
}

fn parse_signal_mask(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

fn parse_state_kept_over_exec(text: &[u8]) -> StateKeptOverExec {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    StateKeptOverExec {
        chain: (number(), number()),
        stopped: number() == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_qemu_reads_get_a_prefix() {
        assert_eq!(
            prefixed_variable(b"LD_LIBRARY_PATH=/a,b"),
            b"RTIT_GUEST_LD_LIBRARY_PATH=/a,b"
        );
        assert_eq!(
            prefixed_variable(b"RTIT_QEMU_FOLDER=/x"),
            b"RTIT_GUEST_RTIT_QEMU_FOLDER=/x"
        );
        assert_eq!(prefixed_variable(b"PATH=/bin"), b"PATH=/bin");
    }

    #[test]
    fn inherited_state_is_parsed() {
        let found = parse_state_kept_over_exec(b"12 18446744073709551615 1");
        assert_eq!((found.chain, found.stopped), ((12, u64::MAX), true));
        assert_eq!(
            parse_state_kept_over_exec(b""),
            StateKeptOverExec::default()
        );
    }
}
