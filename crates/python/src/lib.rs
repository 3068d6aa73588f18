//! The native module `rtit._core`: its classes and functions, one file for each topic.
//!
//! `python/rtit/_core.pyi` documents the classes and functions for Python: shapes, units and errors.

mod arguments;
mod arrow;
mod columns;
mod decoder_input;
mod errors;
mod image;
mod listing;
mod packets;
mod process_calls;
mod results;
mod reusable_decoder;
mod stream_decoder;
mod symbols;
mod timeline;
mod trace_unit;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tracer;
mod truth;
mod unlz4;
mod unzstd;
mod x86;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rtit_packet::table::ROWS;

// Free-threaded Python is not supported: the stable ABI has no such build before 3.15, and no test covers one.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the GIL is held, so this thread has a current interpreter.
    if unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) } != 0 {
        // PyO3 keeps type objects in statics, which interpreters must not share.
        return Err(PyImportError::new_err(
            "rtit does not support subinterpreters",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DEFAULT_MAX_COUNTERS", rtit_flow::DEFAULT_MAX_COUNTERS)?;
    let packets = ROWS.iter().map(|row| row.name);
    module.add("PACKETS", PyTuple::new(module.py(), packets)?)?;
    module.add_function(wrap_pyfunction!(return_freed_memory, module)?)?;
    module.add_function(wrap_pyfunction!(read_truncated_maps_as_zeros, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::arrow_schema, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::arrow_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::arrow_stream, module)?)?;
    module.add_class::<columns::Column>()?;
    module.add_class::<image::Code>()?;
    module.add_class::<image::Space>()?;
    module.add_class::<listing::Listing>()?;
    module.add_function(wrap_pyfunction!(listing::table_lines, module)?)?;
    module.add_class::<packets::PacketScan>()?;
    module.add_class::<process_calls::ProcessCalls>()?;
    module.add_class::<reusable_decoder::ReusableDecoder>()?;
    module.add_class::<stream_decoder::StreamDecoder>()?;
    module.add_class::<symbols::ElfFile>()?;
    module.add_class::<symbols::Functions>()?;
    module.add_class::<symbols::Names>()?;
    module.add_function(wrap_pyfunction!(results::recursive_calls, module)?)?;
    module.add_function(wrap_pyfunction!(symbols::demangle, module)?)?;
    module.add_function(wrap_pyfunction!(timeline::encode_perfetto_events, module)?)?;
    module.add_function(wrap_pyfunction!(timeline::encode_chrome_events, module)?)?;
    module.add_class::<trace_unit::BulkUnit>()?;
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        module.add_class::<tracer::Tracer>()?;
        module.add_function(wrap_pyfunction!(tracer::check_program, module)?)?;
        module.add_function(wrap_pyfunction!(tracer::check_processes, module)?)?;
    }
    module.add_class::<truth::TruthFile>()?;
    module.add_function(wrap_pyfunction!(unlz4::unlz4, module)?)?;
    module.add_function(wrap_pyfunction!(unzstd::unzstd, module)?)?;
    module.add_function(wrap_pyfunction!(x86::decode_instruction, module)?)?;
    module.add_function(wrap_pyfunction!(x86::disassemble, module)?)?;
    module.add_function(wrap_pyfunction!(x86::count_instructions, module)?)?;
    module.add_function(wrap_pyfunction!(x86::conditional_branches, module)?)?;
    Ok(())
}

// Settings of the whole process, for the `rtit` command only: importing the module sets none of them.

/// Bytes of a block that goes back to the system when it is freed. Smaller columns and buffers are mostly used again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 1 << 20;

/// Makes malloc return large blocks to the system when they are freed. By default glibc keeps up to 32 MB of each size.
#[pyfunction]
fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt sets a number.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE)
    };
}

/// Makes pages of a mapped file read as zeros once the file has been truncated. By default SIGBUS kills the process.
///
/// The reader must check the size of the file afterwards.
#[pyfunction]
fn read_truncated_maps_as_zeros() {
    #[cfg(target_os = "linux")]
    // SAFETY: all zeros are a valid sigaction, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Maps a page of zeros over the one that faulted. Any other SIGBUS gets the default action, which ends the process.
#[cfg(target_os = "linux")]
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the kernel passes a valid siginfo. A page that faults with BUS_ADRERR has no contents to lose. sysconf,
    // mmap and signal are system calls or read a constant, and errno is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let address = (*info).si_addr() as usize;
        let page = (address - address % size) as *mut libc::c_void;
        let is_mapped = (*info).si_code == libc::BUS_ADRERR
            && libc::mmap(page, size, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED;
        if !is_mapped {
            // a fault comes again when the instruction is repeated; a signal that a process sent does not
            libc::signal(signal, libc::SIG_DFL);
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        *libc::__errno_location() = errno;
    }
}
