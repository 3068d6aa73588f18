//! Signals that end the process because nobody handles them.
//!
//! QEMU up to 8 catches them all and ends the process itself, which is where the end of a thread is seen. Later ones
//! leave them to the kernel, which ends the process without a word: there they get the handler that QEMU still has for
//! those that dump core.

use libc::c_int;

use crate::interface::real_time;

/// The default action of each is to end the process without a core.
const DEADLY: [c_int; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Lets QEMU catch all of them; once it has set up its own handlers.
pub(crate) fn catch_all() {
    DEADLY
        .into_iter()
        .chain(real_time::OF_KERNEL)
        .for_each(catch);
}

/// Lets QEMU catch the program's `signal`, for which an action has been installed.
pub(crate) fn installed(signal: c_int) {
    if real_time::may_be(signal) {
        real_time::OF_KERNEL.for_each(catch);
    } else if DEADLY.contains(&signal) {
        catch(signal);
    }
}

/// Lets QEMU catch this one, if it has its default action.
fn catch(signal: c_int) {
    // SAFETY: actions are read into and from values that live long enough.
    unsafe {
        let mut of_qemu: libc::sigaction = std::mem::zeroed();
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGQUIT, std::ptr::null(), &mut of_qemu);
        libc::sigaction(signal, std::ptr::null(), &mut now);
        let catches = !matches!(of_qemu.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        if catches && now.sa_sigaction == libc::SIG_DFL {
            libc::sigaction(signal, &of_qemu, std::ptr::null_mut());
        }
    }
}
