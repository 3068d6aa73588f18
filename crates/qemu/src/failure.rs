//! What ends the process: one sentence.

/// Ends the process in one sentence.
#[cold]
#[inline(never)]
pub(crate) fn die(problem: &str) -> ! {
    complain(problem);
    // SAFETY: ends the process; the recorder sees that its socket is closed.
    unsafe { libc::_exit(125) }
}

pub(crate) fn complain(problem: &str) {
    let text = format!("rtit: {problem}\n");
    // SAFETY: writes bytes that are there.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}
