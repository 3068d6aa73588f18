//! A file descriptor of the plugin's own, in a process whose program believes that all descriptors are its own.
//!
//! The program shares the table of descriptors with us, and may use any number. Before a system call that has ours among
//! its arguments ours moves to another number: the call finds that no file is open there, as without a recorder.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

/// Programs rarely reach for files with numbers from here on.
const HIGH: c_int = 900;
/// A program that goes through all numbers meets ours again after as many.
const STRIDE: c_int = 64;

pub(crate) struct Descriptor(AtomicI32);

impl Descriptor {
    pub(crate) const fn none() -> Descriptor {
        Descriptor(AtomicI32::new(-1))
    }

    pub(crate) fn get(&self) -> c_int {
        self.0.load(Ordering::Acquire)
    }

    /// Takes a file over, and moves it away from the numbers that programs use. The one that it was before stays open.
    pub(crate) fn set(&self, file: c_int) {
        let high = duplicate(file, HIGH);
        if high >= 0 {
            close(file);
        }
        self.0
            .store(if high >= 0 { high } else { file }, Ordering::Release);
    }

    /// Forgets the file, which stays open.
    pub(crate) fn take(&self) -> c_int {
        self.0.swap(-1, Ordering::AcqRel)
    }

    /// A system call is about to begin. It may name more files than there are arguments, but then not ours.
    pub(crate) fn avoid(&self, arguments: &[u64; 6]) {
        let ours = self.get();
        if ours < 0 || !names(arguments, ours) {
            return;
        }
        let starts = [ours.saturating_add(STRIDE), HIGH, 3];
        let free = starts.into_iter().find_map(|start| {
            let mut moved = duplicate(ours, start);
            while names(arguments, moved) {
                close(moved);
                moved = duplicate(ours, moved + 1);
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
        close(if left.is_ok() { ours } else { moved });
    }

    /// Whether it is among these.
    pub(crate) fn is_within(&self, first: u64, last: u64) -> bool {
        u64::try_from(self.get()).is_ok_and(|ours| (first..=last).contains(&ours))
    }
}

/// The kernel looks at 32 bits of an argument that is a descriptor.
fn names(arguments: &[u64; 6], file: c_int) -> bool {
    file >= 0 && arguments.iter().any(|&argument| argument as c_int == file)
}

/// The first free number from `start` on, -1 if there is none.
fn duplicate(file: c_int, start: c_int) -> c_int {
    // SAFETY: duplicates a file of our own.
    unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, start) }
}

fn close(file: c_int) {
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
    fn a_descriptor_leaves_the_numbers_that_a_call_names() {
        let ours = Descriptor::none();
        ours.avoid(&[u64::MAX; 6]);
        assert!(ours.get() < 0 && !ours.is_within(0, u64::MAX));
        let low = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap();
        ours.set(low.into_raw_fd());
        let first = ours.get();
        assert!(first >= HIGH && is_open(first));
        ours.avoid(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(ours.get(), first);
        let number = first as u64;
        // the kernel looks at 32 bits; the next place is named, too
        ours.avoid(&[1 << 32 | number, number + STRIDE as u64, 0, 0, 0, 0]);
        let second = ours.get();
        assert!(!is_open(first) && is_open(second) && second > first + STRIDE);
        assert!(ours.is_within(second as u64, second as u64) && !ours.is_within(0, number));
        // SAFETY: nobody else has it.
        let mut file = unsafe { std::fs::File::from_raw_fd(second) };
        file.write_all(b"as before").unwrap();
    }
}
