//! Messages to the recorder: a record of 40 bytes as of capture events, and a blob.
//!
//! A SOCK_SEQPACKET socket keeps messages whole, so that threads and forked processes share it without a lock. If the
//! program closes all descriptors at once, the plugin connects again.
//!
//! The program does not notice the descriptor. The plugin shares the descriptor table with the program, which may use
//! any number. Before a system call that has the plugin's number among its arguments, the plugin's file moves to
//! another number. The call then finds no open file, as it would without a recorder.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use rtit_events::{flag, MessageKind, Record};

use crate::fatal_error::exit_with_error;

/// Bytes of a blob in one message. The default socket buffer holds twice as much.
pub(crate) const MAX_MESSAGE: usize = 96 * 1024;

pub(crate) type Message = Record<u8>;

pub(crate) fn new_message(kind: impl Into<u8>, tid: u32, clock: u64) -> Message {
    Message {
        clock,
        ..Message::new(kind.into(), tid)
    }
}

pub(crate) struct RecorderLink {
    path: PathBuf,
    pub(crate) socket: HiddenDescriptor,
}

/// Milliseconds that `send_file` waits for recorders to receive descriptors that are in flight.
const MAX_SEND_RETRIES: u32 = 10_000;

impl RecorderLink {
    pub(crate) fn connect_to_recorder(folder: &Path) -> io::Result<RecorderLink> {
        let link = RecorderLink {
            path: folder.join("socket"),
            socket: HiddenDescriptor::no_descriptor(),
        };
        link.reconnect_to_recorder()?;
        Ok(link)
    }

    pub(crate) fn send_message(&self, message: Message, blob: &[u8]) {
        let mut parts = blob.chunks(MAX_MESSAGE);
        let mut part = parts.next().unwrap_or_default();
        loop {
            let next = parts.next();
            let more = if next.is_some() {
                flag::PACKETS_CONTINUE
            } else {
                0
            };
            let sent = self.send_one_message(
                Message {
                    flags: message.flags | more,
                    ..message
                },
                part,
            );
            if let Err(error) = sent {
                // As a traced program dies with its tracer.
                exit_with_error(&format!("the recorder is gone: {error}"));
            }
            match next {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// Sends a message with an open file.
    pub(crate) fn send_file(&self, message: Message, file: c_int) {
        const SIZE: u32 = std::mem::size_of::<c_int>() as u32;
        let head = message.to_bytes();
        let mut part = io_slice(&head);
        // SAFETY: a header that names a slice and room for one file, which live until the call is over.
        let sent = unsafe {
            let mut room = [0u64; 4];
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &mut part;
            header.msg_iovlen = 1;
            header.msg_control = room.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(SIZE) as usize;
            let control = libc::CMSG_FIRSTHDR(&header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(SIZE) as usize;
            std::ptr::write_unaligned(libc::CMSG_DATA(control).cast(), file);
            let mut waits = MAX_SEND_RETRIES;
            loop {
                let sent = self.send_header(&header);
                let error = sent.as_ref().err().and_then(io::Error::raw_os_error);
                if error != Some(libc::ETOOMANYREFS) || waits == 0 {
                    break sent;
                }
                // Too many descriptors are in flight; recorders will soon receive them.
                waits -= 1;
                libc::usleep(1000);
            }
        };
        if let Err(error) = sent {
            exit_with_error(&format!("the recorder is gone: {error}"));
        }
    }

    fn send_one_message(&self, message: Message, part: &[u8]) -> io::Result<()> {
        let head = message.to_bytes();
        let mut parts = [io_slice(&head), io_slice(part)];
        // SAFETY: a header that names two slices that live until the call is over.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = parts.as_mut_ptr();
            header.msg_iovlen = parts.len();
            self.send_header(&header)
        }
    }

    /// # Safety
    /// The header points at live memory.
    unsafe fn send_header(&self, header: &libc::msghdr) -> io::Result<()> {
        loop {
            let socket = self.socket.descriptor_number();
            let sent = retry_interrupted(|| libc::sendmsg(socket, header, libc::MSG_NOSIGNAL));
            // Another thread's system call may have moved the descriptor.
            if sent.is_ok() || self.socket.descriptor_number() == socket {
                return sent;
            }
        }
    }

    pub(crate) fn reconnect_to_recorder(&self) -> io::Result<()> {
        let name = self.path.as_os_str().as_bytes();
        // SAFETY: plain socket calls on values that live long enough; the name's length is checked.
        unsafe {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            if name.len() >= address.sun_path.len() {
                return Err(io::Error::other("the socket's path is too long"));
            }
            for (into, byte) in address.sun_path.iter_mut().zip(name) {
                *into = *byte as libc::c_char;
            }
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let size = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
            let connected = retry_interrupted(|| {
                libc::connect(fd, std::ptr::from_ref(&address).cast(), size) as isize
            });
            if let Err(error) = connected {
                libc::close(fd);
                return Err(error);
            }
            self.socket.take_over_file(fd);
            let mut hello = new_message(MessageKind::Hello, libc::gettid() as u32, 0);
            hello.ip = libc::getpid() as u64;
            self.send_one_message(hello, &[])?;
            let mut answer = [0u8; 1];
            let socket = self.socket.descriptor_number();
            retry_interrupted(|| libc::recv(socket, answer.as_mut_ptr().cast(), 1, 0))
        }
    }
}

fn io_slice(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Repeats the call while a signal interrupts it.
fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Programs seldom use numbers from here on.
const HIGH: c_int = 900;
/// Distance of the new number, for programs that go through all numbers.
const STRIDE: c_int = 64;

pub(crate) struct HiddenDescriptor(AtomicI32);

impl HiddenDescriptor {
    pub(crate) const fn no_descriptor() -> HiddenDescriptor {
        HiddenDescriptor(AtomicI32::new(-1))
    }

    pub(crate) fn descriptor_number(&self) -> c_int {
        self.0.load(Ordering::Acquire)
    }

    /// Takes over an open file, and moves it to a high number. A file adopted before stays open.
    pub(crate) fn take_over_file(&self, file: c_int) {
        let high = duplicate_from(file, HIGH);
        if high >= 0 {
            close_file(file);
        }
        self.0
            .store(if high >= 0 { high } else { file }, Ordering::Release);
    }

    /// Gives the file up without closing it.
    pub(crate) fn release_file(&self) -> c_int {
        self.0.swap(-1, Ordering::AcqRel)
    }

    /// Moves the file away from the numbers in the arguments of a system call that is about to begin. Calls that name
    /// more files than they have arguments (poll) do not name ours.
    pub(crate) fn move_away_from_arguments(&self, arguments: &[u64; 6]) {
        let ours = self.descriptor_number();
        if ours < 0 || !contains_descriptor(arguments, ours) {
            return;
        }
        let starts = [ours.saturating_add(STRIDE), HIGH, 3];
        let free = starts.into_iter().find_map(|start| {
            let mut moved = duplicate_from(ours, start);
            while contains_descriptor(arguments, moved) {
                close_file(moved);
                moved = duplicate_from(ours, moved + 1);
            }
            (moved >= 0).then_some(moved)
        });
        let Some(moved) = free else {
            return;
        };
        let order = Ordering::AcqRel;
        let left = self
            .0
            .compare_exchange(ours, moved, order, Ordering::Relaxed);
        close_file(if left.is_ok() { ours } else { moved });
    }

    /// Returns whether its number is in the range.
    pub(crate) fn is_number_in_range(&self, first: u64, last: u64) -> bool {
        u64::try_from(self.descriptor_number()).is_ok_and(|ours| (first..=last).contains(&ours))
    }
}

/// The kernel reads 32 bits of a descriptor argument.
fn contains_descriptor(arguments: &[u64; 6], file: c_int) -> bool {
    file >= 0 && arguments.iter().any(|&argument| argument as c_int == file)
}

/// Duplicates the file to the first free number from `start` on; -1 if there is none.
fn duplicate_from(file: c_int, start: c_int) -> c_int {
    // SAFETY: duplicates a file of our own.
    unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, start) }
}

fn close_file(file: c_int) {
    // SAFETY: closes a file of our own.
    unsafe { libc::close(file) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{FromRawFd, IntoRawFd};

    use super::*;

    fn is_open(file: c_int) -> bool {
        // SAFETY: asks for flags.
        unsafe { libc::fcntl(file, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn descriptor_moves_away_from_the_arguments_of_a_call() {
        let ours = HiddenDescriptor::no_descriptor();
        ours.move_away_from_arguments(&[u64::MAX; 6]);
        assert!(ours.descriptor_number() < 0 && !ours.is_number_in_range(0, u64::MAX));
        let low = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap();
        ours.take_over_file(low.into_raw_fd());
        let first = ours.descriptor_number();
        assert!(first >= HIGH && is_open(first));
        ours.move_away_from_arguments(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(ours.descriptor_number(), first);
        let number = first as u64;
        // The kernel reads 32 bits, and the next candidate is taken too.
        ours.move_away_from_arguments(&[1 << 32 | number, number + STRIDE as u64, 0, 0, 0, 0]);
        let second = ours.descriptor_number();
        assert!(!is_open(first) && is_open(second) && second > first + STRIDE);
        assert!(
            ours.is_number_in_range(second as u64, second as u64)
                && !ours.is_number_in_range(0, number)
        );
        // SAFETY: the test owns it.
        let mut file = unsafe { std::fs::File::from_raw_fd(second) };
        file.write_all(b"as before").unwrap();
    }
}
