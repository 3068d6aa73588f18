//! Errors that end the process.

/// Prints `rtit: PROBLEM` on standard error and ends the process with status 125.
#[cold]
#[inline(never)]
pub(crate) fn exit_with_error(problem: &str) -> ! {
    print_error(problem);
    // SAFETY: ends the process.
    unsafe { libc::_exit(125) }
}

pub(crate) fn print_error(problem: &str) {
    let text = format!("rtit: {problem}\n");
    // SAFETY: writes bytes that are there.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}
