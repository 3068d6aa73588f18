//! Traces programs that already run from a process of its own, so that they survive the end of this one: a thread under
//! a single step dies of the step's trap if its tracer is killed.
//!
//! Closing a socket asks that process to detach. Its child, the control watcher, waits for the end of the socket and
//! exits, which the tracing thread sees as it sees any other stop. Events come back through a pipe, as frames of a
//! kind, a size and bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libc::{c_int, pid_t};
use rtit_events::{EventKind, Record};

use crate::event_stream::{lock_despite_poison, RecordBatch, TracerState};
use crate::program_start::{block_all_signals, create_pipe};
use crate::truth_output::TruthOutput;
use crate::{engine, Error};

/// The tracing process, as the reading process sees it.
pub(crate) struct AttachedTracer {
    pid: pid_t,
    frames: File,
    /// Batches that arrived before all programs were attached.
    first: Vec<([u64; 3], RecordBatch)>,
}

/// Attaches to all threads of `pids`. Shutting down the returned socket, or closing all copies of it, detaches from the
/// programs; a process forked since then may have a copy.
pub(crate) fn attach_processes(
    pids: &[pid_t],
    truth: TruthOutput,
) -> Result<(AttachedTracer, UnixStream), Error> {
    let (control_out, control_in) =
        UnixStream::pair().map_err(Error::from_failed_call("socketpair"))?;
    let (frames_out, frames_in) = create_pipe()?;
    let pid = fork_tracing_process()?;
    if pid == 0 {
        drop((control_in, frames_out));
        let code = catch_unwind(AssertUnwindSafe(|| {
            run_tracing_process(pids, truth, control_out, frames_in)
        }));
        // SAFETY: nothing of the reading process's may run here at the end.
        unsafe { libc::_exit(i32::from(code.is_err())) };
    }
    drop((control_out, frames_in));
    let mut attached = AttachedTracer {
        pid,
        frames: File::from(frames_out),
        first: Vec::new(),
    };
    loop {
        let why = match ControlFrame::read_control_frame(&mut attached.frames) {
            Ok(ControlFrame::Started) => return Ok((attached, control_in)),
            Ok(ControlFrame::Batch(counts, batch)) => {
                attached.first.push((counts, batch));
                continue;
            }
            Ok(ControlFrame::Refused(why)) => why,
            Err(error) => format!("the tracing process ended before it began ({error})"),
        };
        drop(control_in);
        attached.reap_tracing_process();
        return Err(Error::Attach { why });
    }
}

impl AttachedTracer {
    /// Forwards the batches of the tracing process until it ends.
    pub(crate) fn forward_batches(mut self, shared: &TracerState) {
        let mut ended = false;
        let mut last = Record::new(EventKind::End, 0);
        let mut take = |counts: [u64; 3], batch: RecordBatch| {
            shared.retired.store(counts[0], Ordering::Relaxed);
            shared.stops.store(counts[1], Ordering::Relaxed);
            shared
                .processes_elsewhere
                .store(counts[2] as usize, Ordering::Relaxed);
            if let Some(record) = batch.iter().last() {
                ended = record.kind == EventKind::End;
                last.clock = record.clock;
                last.tid = record.tid;
                shared.stream.push_batch(batch);
            }
        };
        for (counts, batch) in std::mem::take(&mut self.first) {
            take(counts, batch);
        }
        while let Ok(ControlFrame::Batch(counts, batch)) =
            ControlFrame::read_control_frame(&mut self.frames)
        {
            take(counts, batch);
        }
        if !ended {
            let text = b"the tracing process was killed; the trace ends here".to_vec();
            let warning = Record {
                kind: EventKind::Warning,
                ..last
            };
            shared.stream.push_record(warning, Some(text));
            shared.stream.push_record(last, None);
        }
        self.reap_tracing_process();
    }

    fn reap_tracing_process(&self) {
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

/// Forks a child that no signal disturbs, in a session of its own, so that no signal to a process group kills it.
fn fork_tracing_process() -> Result<pid_t, Error> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the calls only write and read the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), before.as_mut_ptr()) };
    block_all_signals();
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
    let failed = Error::from_last_os_error("fork");
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    if pid < 0 {
        return Err(failed);
    }
    Ok(pid)
}

/// The life of the tracing process.
fn run_tracing_process(pids: &[pid_t], truth: TruthOutput, control: UnixStream, frames: OwnedFd) {
    let frames = Arc::new(Mutex::new(File::from(frames)));
    let control_watcher = match fork_control_watcher(control.as_raw_fd()) {
        Ok(control_watcher) => control_watcher,
        Err(error) => return send_attach_error(&frames, &error),
    };
    drop(control);
    let shared = Arc::new(TracerState::new(true));
    let (from, to) = (shared.clone(), frames.clone());
    let sender = std::thread::Builder::new().spawn(move || send_batches(&from, &to));
    match sender {
        Ok(sender) => {
            let mut refused = false;
            engine::trace_attached(
                &shared,
                pids,
                truth,
                control_watcher,
                |started| match started {
                    Ok(()) => write_locked_frame(&frames, &ControlFrame::Started),
                    Err(error) => {
                        refused = true;
                        send_attach_error(&frames, &error);
                    }
                },
            );
            shared.stream.end_stream();
            if !refused {
                // A panic in there has been printed.
                let _ = sender.join();
            }
        }
        Err(error) => send_attach_error(&frames, &Error::from_failed_call("pthread_create")(error)),
    }
    // SAFETY: it has not been waited for unless it ended; its number is not given away before that matters.
    unsafe { libc::kill(control_watcher, libc::SIGKILL) };
}

fn write_locked_frame(frames: &Mutex<File>, frame: &ControlFrame) {
    let mut file = lock_despite_poison(frames);
    // If the reader is gone, the sender notices.
    let _ = frame
        .write_control_frame(&mut *file)
        .and_then(|()| file.flush());
}

fn send_attach_error(frames: &Mutex<File>, error: &Error) {
    write_locked_frame(frames, &ControlFrame::Refused(error.to_string()));
}

/// Sends every batch. If the reader is gone, the engine notices at its next event.
fn send_batches(shared: &TracerState, frames: &Mutex<File>) {
    while let Some(batch) = shared.stream.next_batch(Duration::from_millis(100)) {
        let counts = [
            shared.retired.load(Ordering::Relaxed),
            shared.stops.load(Ordering::Relaxed),
            shared.process_count() as u64,
        ];
        let frame = ControlFrame::Batch(counts, batch);
        let sent = frame.write_control_frame(&mut *lock_despite_poison(frames));
        if sent.is_err() {
            shared.stream.continue_without_reader();
            return;
        }
    }
}

/// Forks a child that exits when `control` has no other end.
fn fork_control_watcher(control: RawFd) -> Result<pid_t, Error> {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::from_last_os_error("fork"));
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

/// Larger than any batch: a batch exceeds the stream's limit only by the blobs of one event.
const LARGEST: u32 = 1 << 30;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ControlFrame {
    /// All programs are attached.
    Started,
    /// Attaching failed, for this reason.
    Refused(String),
    /// Retired instructions, stops and living processes so far, and a batch.
    Batch([u64; 3], RecordBatch),
}

impl ControlFrame {
    pub(crate) fn write_control_frame(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        let kind = match self {
            ControlFrame::Started => 0u32,
            ControlFrame::Refused(why) => {
                body.extend_from_slice(why.as_bytes());
                1
            }
            ControlFrame::Batch(counts, batch) => {
                for count in counts {
                    body.extend_from_slice(&count.to_le_bytes());
                }
                append_sized_bytes(&mut body, &batch.records);
                for blob in &batch.blobs {
                    append_sized_bytes(&mut body, blob);
                }
                2
            }
        };
        let size = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut frame = [kind.to_le_bytes(), size.to_le_bytes()].concat();
        frame.append(&mut body);
        out.write_all(&frame)
    }

    /// Reads the next frame; fails at the end and for malformed bytes.
    pub(crate) fn read_control_frame(input: &mut impl Read) -> io::Result<ControlFrame> {
        let mut head = [0u8; 8];
        input.read_exact(&mut head)?;
        let (kind, size) = (
            little_endian_value(&head[..4]) as u32,
            little_endian_value(&head[4..]) as u32,
        );
        if size > LARGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0u8; size as usize];
        input.read_exact(&mut body)?;
        match kind {
            0 => Ok(ControlFrame::Started),
            1 => Ok(ControlFrame::Refused(
                String::from_utf8_lossy(&body).into_owned(),
            )),
            2 => parse_batch(&body).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn parse_batch(body: &[u8]) -> Option<ControlFrame> {
    let (counts, mut rest) = (body.get(..24)?, body.get(24..)?);
    let counts = [&counts[..8], &counts[8..16], &counts[16..]].map(little_endian_value);
    let records = take_sized_bytes(&mut rest)?;
    let mut blobs = Vec::new();
    while !rest.is_empty() {
        blobs.push(take_sized_bytes(&mut rest)?);
    }
    Some(ControlFrame::Batch(counts, RecordBatch { records, blobs }))
}

fn append_sized_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn take_sized_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let size = little_endian_value(rest.get(..4)?) as usize;
    let bytes = rest.get(4..size.checked_add(4)?)?.to_vec();
    *rest = &rest[4 + size..];
    Some(bytes)
}

fn little_endian_value(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_frames_are_read() {
        let batch = RecordBatch {
            records: vec![1; 80],
            blobs: vec![vec![], vec![2, 3]],
        };
        let frames = [
            ControlFrame::Started,
            ControlFrame::Refused("no".to_owned()),
            ControlFrame::Batch([1, u64::MAX, 3], batch),
            ControlFrame::Batch([0; 3], RecordBatch::default()),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write_control_frame(&mut bytes).unwrap();
        }
        let mut input = &bytes[..];
        for frame in &frames {
            assert_eq!(
                &ControlFrame::read_control_frame(&mut input).unwrap(),
                frame
            );
        }
        assert!(ControlFrame::read_control_frame(&mut input).is_err());
    }

    #[test]
    fn bad_bytes_are_errors() {
        for bytes in [
            &[9u8, 0, 0, 0, 0, 0, 0, 0][..],
            &[2, 0, 0, 0, 2, 0, 0, 0, 1, 1],
            &[1, 0, 0, 0, 255, 255, 255, 255],
            &[1, 0, 0, 0, 2, 0, 0, 0, 65],
        ] {
            assert!(ControlFrame::read_control_frame(&mut &bytes[..]).is_err());
        }
    }
}
