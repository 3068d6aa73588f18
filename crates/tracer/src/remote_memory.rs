//! Reads and writes the memory of a traced thread.

use std::io;

use libc::{c_void, iovec, pid_t};

use crate::ptrace;

const PAGE: u64 = 4096;

fn io_vectors(local: *mut u8, address: u64, length: usize) -> (iovec, iovec) {
    let local = iovec {
        iov_base: local.cast::<c_void>(),
        iov_len: length,
    };
    let remote = iovec {
        iov_base: address as *mut c_void,
        iov_len: length,
    };
    (local, remote)
}

/// Reads from `address` to the first unreadable page and returns the number of bytes.
pub(crate) fn read_bytes(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    while done < out.len() {
        let at = address.wrapping_add(done as u64);
        // Page by page: a transfer over a missing page may fail as a whole.
        let in_page = (PAGE - at % PAGE) as usize;
        let end = out.len().min(done + in_page);
        let got = read_page(tid, at, &mut out[done..end]);
        done += got;
        if done < end {
            break;
        }
    }
    done
}

fn read_page(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let (local, remote) = io_vectors(out.as_mut_ptr(), address, out.len());
    // SAFETY: `local` describes `out`.
    let got = unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) };
    if got > 0 {
        return got as usize;
    }
    peek_words(tid, address, out)
}

/// A tracer can read execute-only pages by words.
fn peek_words(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    while done < out.len() {
        let at = address.wrapping_add(done as u64);
        let Ok(word) = ptrace::peek_word(tid, at & !7) else {
            break;
        };
        let skip = (at & 7) as usize;
        let bytes = word.to_le_bytes();
        let count = (8 - skip).min(out.len() - done);
        out[done..done + count].copy_from_slice(&bytes[skip..skip + count]);
        done += count;
    }
    done
}

pub(crate) fn read_u64(tid: pid_t, address: u64) -> Option<u64> {
    let mut bytes = [0u8; 8];
    (read_bytes(tid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// Writes to memory that the thread itself may write.
pub(crate) fn write_bytes(tid: pid_t, address: u64, bytes: &[u8]) -> io::Result<()> {
    let (local, remote) = io_vectors(bytes.as_ptr().cast_mut(), address, bytes.len());
    // SAFETY: `local` describes `bytes`, which the call only reads.
    let put = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    if put < 0 || put as usize != bytes.len() {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
