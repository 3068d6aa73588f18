//! Programs that run already are traced by a process of its own, so that they survive whatever ends this one: a thread
//! that is under a single step when its tracer is killed dies of the step's trap.
//!
//! That process is told to let go of the programs by the end of a socket: its child, the bell, waits for that and ends,
//! which the tracing thread sees as it sees every other stop.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libc::{c_int, pid_t};

use crate::child::{block_signals, pipe};
use crate::event::{Kind, Record};
use crate::shared::Shared;
use crate::stream::Batch;
use crate::truth::Truth;
use crate::wire::Frame;
use crate::{engine, Error};

/// The tracing process, as the reading one sees it.
pub(crate) struct Attached {
    pid: pid_t,
    frames: File,
    /// What came before it was certain that all programs are attached to.
    first: Vec<([u64; 3], Batch)>,
}

/// Attaches to all threads of `pids`. The programs are let go when the socket that comes with it is shut down, or
/// closed everywhere: a process that was forked meanwhile may have it, too.
pub(crate) fn attach(pids: &[pid_t], truth: Truth) -> Result<(Attached, UnixStream), Error> {
    let (control_out, control_in) = UnixStream::pair().map_err(|error| Error::System {
        call: "socketpair",
        error,
    })?;
    let (frames_out, frames_in) = pipe()?;
    let pid = fork_silently()?;
    if pid == 0 {
        drop((control_in, frames_out));
        let code = catch_unwind(AssertUnwindSafe(|| {
            trace(pids, truth, control_out, frames_in)
        }));
        // SAFETY: nothing of the reading process's may run here at the end.
        unsafe { libc::_exit(i32::from(code.is_err())) };
    }
    drop((control_out, frames_in));
    let mut attached = Attached {
        pid,
        frames: File::from(frames_out),
        first: Vec::new(),
    };
    loop {
        let why = match Frame::read(&mut attached.frames) {
            Ok(Frame::Started) => return Ok((attached, control_in)),
            Ok(Frame::Batch(counts, batch)) => {
                attached.first.push((counts, batch));
                continue;
            }
            Ok(Frame::Refused(why)) => why,
            Err(error) => format!("the tracing process ended before it began ({error})"),
        };
        drop(control_in);
        attached.reap();
        return Err(Error::Attach { why });
    }
}

impl Attached {
    /// Hands on what the tracing process reports, to its end.
    pub(crate) fn read(mut self, shared: &Shared) {
        let mut ended = false;
        let mut last = Record::new(Kind::End, 0);
        let mut take = |counts: [u64; 3], batch: Batch| {
            shared.retired.store(counts[0], Ordering::Relaxed);
            shared.stops.store(counts[1], Ordering::Relaxed);
            shared
                .elsewhere
                .store(counts[2] as usize, Ordering::Relaxed);
            if let Some(record) = batch.iter().last() {
                ended = record.kind == Kind::End;
                last.clock = record.clock;
                last.tid = record.tid;
                shared.stream.push_batch(batch);
            }
        };
        for (counts, batch) in std::mem::take(&mut self.first) {
            take(counts, batch);
        }
        while let Ok(Frame::Batch(counts, batch)) = Frame::read(&mut self.frames) {
            take(counts, batch);
        }
        if !ended {
            let text = b"the tracing process was killed; the trace ends here".to_vec();
            let warning = Record {
                kind: Kind::Warning,
                ..last
            };
            shared.stream.push(warning, Some(text));
            shared.stream.push(last, None);
        }
        self.reap();
    }

    fn reap(&self) {
        let mut status = 0;
        loop {
            // SAFETY: `status` outlives the call.
            let got = unsafe { libc::waitpid(self.pid, &mut status, 0) };
            if got >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return;
            }
        }
    }
}

/// Forks a child that no signal disturbs, and that is in no group whose members are killed together.
fn fork_silently() -> Result<pid_t, Error> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the calls only write and read the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), before.as_mut_ptr()) };
    block_signals();
    // SAFETY: the child runs code of this crate alone; glibc keeps its allocator usable.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain values and a string with its NUL.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"rtit-tracer".as_ptr());
        }
        return Ok(0);
    }
    let failed = Error::system("fork");
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    if pid < 0 {
        return Err(failed);
    }
    Ok(pid)
}

/// The life of the tracing process.
fn trace(pids: &[pid_t], truth: Truth, control: UnixStream, frames: OwnedFd) {
    let frames = Arc::new(Mutex::new(File::from(frames)));
    let bell = match bell(control.as_raw_fd()) {
        Ok(bell) => bell,
        Err(error) => return refuse(&frames, &error),
    };
    drop(control);
    let shared = Arc::new(Shared::new(true));
    let (from, to) = (shared.clone(), frames.clone());
    let sender = std::thread::Builder::new().spawn(move || send(&from, &to));
    match sender {
        Ok(sender) => {
            let mut refused = false;
            engine::attached(&shared, pids, truth, bell, |started| match started {
                Ok(()) => write(&frames, &Frame::Started),
                Err(error) => {
                    refused = true;
                    refuse(&frames, &error);
                }
            });
            shared.stream.end();
            if !refused {
                // A panic in there has been printed.
                let _ = sender.join();
            }
        }
        Err(error) => refuse(
            &frames,
            &Error::System {
                call: "pthread_create",
                error,
            },
        ),
    }
    // SAFETY: it has not been waited for unless it ended; its number is not given away before that matters.
    unsafe { libc::kill(bell, libc::SIGKILL) };
}

fn write(frames: &Mutex<File>, frame: &Frame) {
    let mut file = frames
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // If nobody reads any more, the sender notices.
    let _ = frame.write(&mut *file).and_then(|()| file.flush());
}

fn refuse(frames: &Mutex<File>, error: &Error) {
    write(frames, &Frame::Refused(error.to_string()));
}

/// Sends every batch; if nobody takes them, the engine gets to know at its next event.
fn send(shared: &Shared, frames: &Mutex<File>) {
    while let Some(batch) = shared.stream.next(Duration::from_millis(100)) {
        let counts = [
            shared.retired.load(Ordering::Relaxed),
            shared.stops.load(Ordering::Relaxed),
            shared.living() as u64,
        ];
        let frame = Frame::Batch(counts, batch);
        let sent = {
            let mut file = frames
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            frame.write(&mut *file)
        };
        if sent.is_err() {
            shared.stream.abandon();
            return;
        }
    }
}

/// A child that ends when `control` has no other end any more.
fn bell(control: RawFd) -> Result<pid_t, Error> {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("fork"));
    }
    if pid == 0 {
        let keep = control as u32;
        let mut byte = 0u8;
        // SAFETY: as above; `byte` outlives the calls.
        unsafe {
            let close =
                |first: u32, last: u32| libc::syscall(libc::SYS_close_range, first, last, 0);
            if keep > 0 {
                close(0, keep - 1);
            }
            close(keep + 1, u32::MAX);
            let again = |got: isize| got > 0 || got < 0 && *libc::__errno_location() == libc::EINTR;
            while again(libc::read(
                control as c_int,
                ptr::from_mut(&mut byte).cast(),
                1,
            )) {}
            libc::_exit(0);
        }
    }
    Ok(pid)
}
