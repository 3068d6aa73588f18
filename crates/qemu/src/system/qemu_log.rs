//! QEMU's log, read while QEMU writes it.
//!
//! `-D FOLDER/log` names a file in the recorder's folder. QEMU opens the log with `fopen64`, which this library
//! replaces: for that name it returns a stream that hands the text over. QEMU flushes the log after each write, so that
//! the text arrives in the thread that runs the processor, before its next block starts. One thread may run several
//! processors: QEMU's variable `current_cpu` says which one the text is of.

use std::ffi::{c_char, c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use libc::{size_t, ssize_t, FILE};
use rtit_unit::{CodeWidth, ProcessorState};

use super::cpu_state::{current_cpu, SystemCpuState, UNKNOWN_LAYOUT};
use crate::fatal_error::exit_with_error;

/// The name of the log in the recorder's folder.
const LOG_NAME: &[u8] = b"/rtit-log";

static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// The last register that QEMU writes for an interrupt. Firmware logs thousands of other lines before its first one.
const LAST_REGISTER: &[u8] = b"EFER=";
/// Whether the registers in the log have been compared with the state of the processor.
static IS_LAYOUT_PROVEN: AtomicBool = AtomicBool::new(false);
/// By number of the processor.
static LOGS: OnceLock<Vec<ProcessorLog>> = OnceLock::new();
/// Text of an event has at most 2 KiB. More than this is of a processor that is not recorded yet.
const LIMIT: usize = 1 << 20;

type CookieWrite = extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t;

/// cookie_io_functions_t of the C library.
#[repr(C)]
struct CookieFunctions {
    read: *const c_void,
    write: CookieWrite,
    seek: *const c_void,
    close: *const c_void,
}

extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut FILE;
}

/// Opens a file as the C library does, or the log.
///
/// # Safety
/// As fopen(3).
#[no_mangle]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
    if CStr::from_ptr(path).to_bytes().ends_with(LOG_NAME) {
        IS_OPEN.store(true, Ordering::Release);
        let functions = CookieFunctions {
            read: std::ptr::null(),
            write: take_text,
            seek: std::ptr::null(),
            close: std::ptr::null(),
        };
        return fopencookie(std::ptr::null_mut(), c"w".as_ptr(), functions);
    }
    let next = libc::dlsym(libc::RTLD_NEXT, c"fopen64".as_ptr());
    match std::mem::transmute::<*mut c_void, Option<Function>>(next) {
        Some(function) => function(path, mode),
        None => std::ptr::null_mut(),
    }
}

extern "C" fn take_text(_: *mut c_void, bytes: *const c_char, size: size_t) -> ssize_t {
    // SAFETY: the C library passes a buffer of this size.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
    if let Some(log) = current_processor().and_then(|number| logs().get(number)) {
        log.add_text(bytes);
    }
    size as ssize_t
}

/// The log of one processor, from its first block on.
#[derive(Default)]
pub(super) struct ProcessorLog {
    /// The address of QEMU's CPUState; 0 before the first block.
    cpu: AtomicUsize,
    state: OnceLock<SystemCpuState>,
    /// Text that the recorder has not taken yet.
    text: Mutex<Vec<u8>>,
    has_text: AtomicBool,
}

impl ProcessorLog {
    /// Assigns the processor that this thread runs to the log, if it has none.
    pub(super) fn assign_current_cpu(&self, state: SystemCpuState) {
        if self.cpu.load(Ordering::Relaxed) == 0 {
            let _ = self.state.set(state);
            self.cpu.store(current_cpu() as usize, Ordering::Release);
        }
    }

    fn add_text(&self, bytes: &[u8]) {
        if let Ok(mut text) = self.text.lock() {
            if text.len() > LIMIT {
                text.clear();
            }
            text.extend_from_slice(bytes);
            let is_proven = IS_LAYOUT_PROVEN.load(Ordering::Relaxed);
            if !is_proven
                && bytes
                    .windows(LAST_REGISTER.len())
                    .any(|each| each == LAST_REGISTER)
            {
                self.prove_layout(&text);
            }
        }
        self.has_text.store(true, Ordering::Release);
    }

    /// Compares the state of the processor with the registers of the last interrupt. QEMU writes them before it changes
    /// the state.
    #[cold]
    fn prove_layout(&self, text: &[u8]) {
        let events = parse_log(&String::from_utf8_lossy(text));
        let (Some(LogEvent::Interrupt(last)), Some(cpu)) = (events.last(), self.state.get()) else {
            return;
        };
        if last.cr3.is_some() {
            if !cpu.is_state_before(last) {
                exit_with_error(UNKNOWN_LAYOUT);
            }
            IS_LAYOUT_PROVEN.store(true, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn has_text(&self) -> bool {
        self.has_text.load(Ordering::Relaxed)
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&self) -> Vec<LogEvent> {
        if !self.has_text() {
            return Vec::new();
        }
        parse_log(&String::from_utf8_lossy(&self.take_text()))
    }

    /// Returns the text since the last call.
    pub(super) fn take_text(&self) -> Vec<u8> {
        self.has_text.store(false, Ordering::Release);
        self.text
            .lock()
            .map(|mut text| std::mem::take(&mut *text))
            .unwrap_or_default()
    }
}

/// Creates the logs of all processors. Call it once.
pub(super) fn create_logs(processors: usize) -> &'static [ProcessorLog] {
    LOGS.get_or_init(|| (0..processors).map(|_| ProcessorLog::default()).collect())
}

fn logs() -> &'static [ProcessorLog] {
    LOGS.get().map_or(&[], Vec::as_slice)
}

/// Returns the number of the processor that this thread runs; None before its first block.
pub(super) fn current_processor() -> Option<usize> {
    let cpu = current_cpu() as usize;
    let is_current = |log: &ProcessorLog| log.cpu.load(Ordering::Acquire) == cpu;
    logs().iter().position(is_current).filter(|_| cpu != 0)
}

/// Returns whether QEMU has opened the log through this library.
pub(super) fn is_log_open() -> bool {
    IS_OPEN.load(Ordering::Acquire)
}

/// An event of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogEvent {
    Interrupt(LoggedInterrupt),
    /// MOV to CR3, or another write of CR3.
    Cr3(u64),
    /// Entry into system management mode, and the state before it.
    SmmEntry(LoggedInterrupt),
    /// RSM, and the state after it.
    SmmExit(LoggedInterrupt),
}

/// An interrupt or exception, with the state of the processor before it. Of system management mode, only the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LoggedInterrupt {
    pub(super) vector: u8,
    pub(super) error: u32,
    /// INT n, INT3, INT1 or INTO.
    pub(super) is_software: bool,
    /// From a device.
    pub(super) is_hardware: bool,
    pub(super) user: bool,
    /// The address of the faulting instruction, or of the next one.
    pub(super) ip: u64,
    /// The faulting address of a page fault.
    pub(super) cr2: Option<u64>,
    pub(super) cr3: Option<u64>,
    pub(super) interrupt_flag: bool,
    /// CS.L & LMA; else CS.D.
    pub(super) is_64_bit: bool,
    pub(super) is_32_bit: bool,
}

impl LoggedInterrupt {
    pub(super) fn state_before(&self) -> ProcessorState {
        ProcessorState {
            user: self.user,
            code: match (self.is_64_bit, self.is_32_bit) {
                (true, _) => CodeWidth::Bits64,
                (_, true) => CodeWidth::Bits32,
                _ => CodeWidth::Bits16,
            },
            interrupt_flag: self.interrupt_flag,
        }
    }
}

/// Parses the events of a text, in order.
pub(super) fn parse_log(text: &str) -> Vec<LogEvent> {
    let mut events = Vec::new();
    let mut is_hardware = false;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("CR3 update: CR3=") {
            events.extend(parse_hex(value).map(LogEvent::Cr3));
        } else if line.starts_with("Servicing hardware INT=") {
            is_hardware = true;
        } else if line.starts_with("SMM: enter") {
            events.push(LogEvent::SmmEntry(LoggedInterrupt::default()));
        } else if line.starts_with("SMM: after RSM") {
            events.push(LogEvent::SmmExit(LoggedInterrupt::default()));
        } else if let Some(found) = parse_interrupt_line(line, is_hardware) {
            is_hardware = false;
            events.push(LogEvent::Interrupt(found));
        } else {
            match events.last_mut() {
                Some(LogEvent::Interrupt(last)) => add_register_line(last, line),
                Some(LogEvent::SmmEntry(last) | LogEvent::SmmExit(last)) => {
                    add_instruction_pointer(last, line);
                    add_register_line(last, line);
                }
                _ => {}
            }
        }
    }
    events
}

/// Parses a line such as `     5: v=0e e=0004 i=0 cpl=3 IP=0033:00007f.. pc=.. SP=.. CR2=..`.
fn parse_interrupt_line(line: &str, is_hardware: bool) -> Option<LoggedInterrupt> {
    let (_, rest) = line.split_once(": v=")?;
    let field = |name: &str| {
        let (_, value) = rest.split_once(name)?;
        parse_hex(value)
    };
    Some(LoggedInterrupt {
        vector: parse_hex(rest)? as u8,
        error: field(" e=")? as u32,
        is_software: field(" i=")? != 0,
        is_hardware,
        user: field(" cpl=")? == 3,
        ip: field(" pc=")?,
        cr2: field(" CR2="),
        ..LoggedInterrupt::default()
    })
}

/// Adds IP and CPL of a line such as `RIP=ffffffff81a0b2c0 RFL=00000202 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0`.
fn add_instruction_pointer(event: &mut LoggedInterrupt, line: &str) {
    let digits = line.strip_prefix("RIP=").or(line.strip_prefix("EIP="));
    if let Some(ip) = digits.and_then(parse_hex) {
        event.ip = ip;
        event.user = line.contains(" CPL=3");
    }
}

/// Adds a line of the dump of the registers.
fn add_register_line(event: &mut LoggedInterrupt, line: &str) {
    if let Some((_, flags)) = line.split_once("RFL=").or(line.split_once("EFL=")) {
        event.interrupt_flag = parse_hex(flags).is_some_and(|flags| flags & 1 << 9 != 0);
    } else if line.starts_with("CS =") {
        event.is_64_bit = line.contains(" CS64");
        event.is_32_bit = line.contains(" CS32");
    } else if let Some((_, value)) = line.split_once(" CR3=") {
        event.cr3 = parse_hex(value);
    }
}

/// Parses the hexadecimal digits at the start of a text.
fn parse_hex(text: &str) -> Option<u64> {
    let end = text
        .find(|letter: char| !letter.is_ascii_hexdigit())
        .unwrap_or(text.len());
    u64::from_str_radix(&text[..end], 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian's QEMU 7.2 writes it.
    const PAGE_FAULT: &str = "check_exception old: 0xffffffff new 0xe
     7: v=0e e=0014 i=0 cpl=3 IP=0033:0000000000401a20 pc=0000000000401a20 SP=002b:00007ffd40a1f2b0 CR2=0000000000401a20
RAX=0000000000000000 RBX=0000000000000000 RCX=0000000000000000 RDX=0000000000000000
RIP=0000000000401a20 RFL=00000202 [-------] CPL=3 II=0 A20=1 SMM=0 HLT=0
CS =0033 0000000000000000 ffffffff 00affb00 DPL=3 CS64 [-RA]
SS =002b 0000000000000000 ffffffff 00cff300 DPL=3 DS   [-WA]
CR0=80050033 CR2=0000000000401a20 CR3=0000000002a1c000 CR4=003506f0
EFER=0000000000000d01
";

    #[test]
    fn page_fault_is_parsed_with_the_registers_before_it() {
        let expected = LoggedInterrupt {
            vector: 14,
            error: 0x14,
            user: true,
            ip: 0x40_1a20,
            cr2: Some(0x40_1a20),
            cr3: Some(0x2a1_c000),
            interrupt_flag: true,
            is_64_bit: true,
            ..LoggedInterrupt::default()
        };
        assert_eq!(parse_log(PAGE_FAULT), [LogEvent::Interrupt(expected)]);
    }

    #[test]
    fn events_keep_their_order() {
        let text = "CR3 update: CR3=2a1c000\nServicing hardware INT=0xec
     8: v=ec e=0000 i=0 cpl=0 IP=0010:ffffffff81a0b2c0 pc=ffffffff81a0b2c0 SP=0018:fffffe0000003ff0 env->regs[R_EAX]=0
     9: v=03 e=0000 i=1 cpl=0 IP=0010:ffffffff81000010 pc=ffffffff81000010 SP=0018:0000000000000000 env->regs[R_EAX]=0
SMM: enter
RAX=0000000000000000 RBX=0000000000000000 RCX=0000000000000000 RDX=00000000000000b2
RIP=ffffffffc0000010 RFL=00000202 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0
CS =0010 0000000000000000 ffffffff 00af9b00 DPL=0 CS64 [-RA]
CR0=80050033 CR2=0000000000401a20 CR3=0000000002a1c000 CR4=003506f0
";
        let events = parse_log(text);
        let is_hardware = |event: &LogEvent| match event {
            LogEvent::Interrupt(found) => Some((found.is_hardware, found.is_software)),
            _ => None,
        };
        assert_eq!(events[0], LogEvent::Cr3(0x2a1_c000));
        assert_eq!(is_hardware(&events[1]), Some((true, false)));
        assert_eq!(is_hardware(&events[2]), Some((false, true)));
        let before = LoggedInterrupt {
            ip: 0xffff_ffff_c000_0010,
            cr3: Some(0x2a1_c000),
            interrupt_flag: true,
            is_64_bit: true,
            ..LoggedInterrupt::default()
        };
        assert_eq!(events[3], LogEvent::SmmEntry(before));
    }
}
