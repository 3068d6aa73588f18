//! Messages to the recorder: a record of 40 bytes as of capture events, and what belongs to it.
//!
//! The socket keeps messages whole, so that threads, and processes forked from one another, share it without a lock.
//! The socket moves out of the way of system calls; if a program closes all files at once, it is connected anew.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libc::c_int;

use crate::failure::die;
use crate::shared::descriptor::Descriptor;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The instruction at `ip` ends the process; `extra` is the signal and, from bit 32 on, its si_code; `target` its
    /// si_addr.
    Fault = 10,
    Thread = 14,
    Exit = 15,
    Exec = 16,
    Comm = 17,
    Mmap = 18,
    Code = 19,
    Warning = 20,
    /// A process connects; `ip` is its pid. The recorder answers with a byte.
    Hello = 40,
    /// What the thread's unit wrote. Flags: `MORE`.
    Packets = 41,
    /// Records of a truth file.
    Truth = 42,
    /// Of what the thread executed so far, `target` instructions and `extra` branches are traced.
    Traced = 43,
    /// With a file: the counts of the process `ip`, from now on (`tally`). Without: the thread, which goes on in another
    /// program, has executed `target` instructions in this one.
    Counts = 44,
}

/// The message goes on in the next one of this thread.
pub(crate) const MORE: u8 = 1;
/// Of a warning: the process, whose pid `ip` is, is about to run a program without us.
pub(crate) const LEAVES: u8 = 2;
/// Of a warning: the process, whose pid `ip` is, does not leave after all.
pub(crate) const STAYS: u8 = 4;
/// Of a warning: what a program executes is not counted.
pub(crate) const UNCOUNTED: u8 = 8;

/// Of a mapping: the blob goes on with the beginning of the file, and codes that are `OF_MAPPING` have what is mapped:
/// the file may change, or is another to the recorder.
pub(crate) const WITH_CONTENTS: u8 = 1;
/// Of a code: the bytes are those of a mapping `WITH_CONTENTS`.
pub(crate) const OF_MAPPING: u8 = 1;
/// Of an exit: the signal that ends the process is this thread's.
pub(crate) const TOOK_SIGNAL: u8 = 2;
/// Of an exit: the whole process ends.
pub(crate) const OF_PROCESS: u8 = 4;

/// What a message can carry; sockets take twice that by default.
pub(crate) const LARGEST: usize = 96 * 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) tid: u32,
    pub(crate) ip: u64,
    pub(crate) target: u64,
    pub(crate) clock: u64,
    pub(crate) extra: u64,
}

impl Message {
    pub(crate) fn new(kind: Kind, tid: u32, clock: u64) -> Message {
        Message {
            kind,
            flags: 0,
            tid,
            ip: 0,
            target: 0,
            clock,
            extra: 0,
        }
    }

    fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.tid.to_le_bytes());
        let words = [self.ip, self.target, self.clock, self.extra];
        for (into, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

pub(crate) struct Link {
    path: PathBuf,
    pub(crate) socket: Descriptor,
}

/// Milliseconds in which recorders have to take the files that are on their way.
const MOST_WAITS: u32 = 10_000;

impl Link {
    pub(crate) fn connect(folder: &Path) -> io::Result<Link> {
        let link = Link {
            path: folder.join("socket"),
            socket: Descriptor::none(),
        };
        link.reconnect()?;
        Ok(link)
    }

    pub(crate) fn send(&self, message: Message, blob: &[u8]) {
        let mut parts = blob.chunks(LARGEST);
        let mut part = parts.next().unwrap_or_default();
        loop {
            let next = parts.next();
            let more = if next.is_some() { MORE } else { 0 };
            let sent = self.send_one(
                Message {
                    flags: message.flags | more,
                    ..message
                },
                part,
            );
            if let Err(error) = sent {
                // Without a recorder there is nobody to run for: as a ptraced program dies with its tracer.
                die(&format!("the recorder is gone: {error}"));
            }
            match next {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// A message that brings a file with it.
    pub(crate) fn send_file(&self, message: Message, file: c_int) {
        const SIZE: u32 = std::mem::size_of::<c_int>() as u32;
        let head = message.to_bytes();
        let mut part = io_part(&head);
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
            let mut waits = MOST_WAITS;
            loop {
                let sent = self.send_header(&header);
                let error = sent.as_ref().err().and_then(io::Error::raw_os_error);
                if error != Some(libc::ETOOMANYREFS) || waits == 0 {
                    break sent;
                }
                // So many files are on their way to recorders that there may be no more; they are taken soon.
                waits -= 1;
                libc::usleep(1000);
            }
        };
        if let Err(error) = sent {
            die(&format!("the recorder is gone: {error}"));
        }
    }

    fn send_one(&self, message: Message, part: &[u8]) -> io::Result<()> {
        let head = message.to_bytes();
        let mut parts = [io_part(&head), io_part(part)];
        // SAFETY: a header that names two slices that live until the call is over.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = parts.as_mut_ptr();
            header.msg_iovlen = parts.len();
            self.send_header(&header)
        }
    }

    /// # Safety
    /// The header names memory that lives.
    unsafe fn send_header(&self, header: &libc::msghdr) -> io::Result<()> {
        loop {
            let socket = self.socket.get();
            let sent = retry(|| libc::sendmsg(socket, header, libc::MSG_NOSIGNAL));
            // Another thread's system call may have moved it meanwhile.
            if sent.is_ok() || self.socket.get() == socket {
                return sent;
            }
        }
    }

    pub(crate) fn reconnect(&self) -> io::Result<()> {
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
            let connected =
                retry(|| libc::connect(fd, std::ptr::from_ref(&address).cast(), size) as isize);
            if let Err(error) = connected {
                libc::close(fd);
                return Err(error);
            }
            self.socket.set(fd);
            let mut hello = Message::new(Kind::Hello, libc::gettid() as u32, 0);
            hello.ip = libc::getpid() as u64;
            self.send_one(hello, &[])?;
            let mut answer = [0u8; 1];
            let socket = self.socket.get();
            retry(|| libc::recv(socket, answer.as_mut_ptr().cast(), 1, 0))
        }
    }
}

fn io_part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Calls again as long as a signal interrupts.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<()> {
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
