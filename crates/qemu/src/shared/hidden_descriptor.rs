//! A file descriptor that the program does not notice.
//!
//! The plugin shares the descriptor table with the program, which may use any number. Before a system call that has the
//! plugin's number among its arguments, the plugin's file moves to another number. The call then finds no open file, as
//! it would without a recorder.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

/// Programs seldom use numbers from here on.
const HIGH: c_int = 900;
/// Distance of the new number, for programs that go through all numbers.
const STRIDE: c_int = 64;

pub(crate) struct HiddenDescriptor(AtomicI32);

impl HiddenDescriptor {
    pub(crate) const fn none() -> HiddenDescriptor {
        HiddenDescriptor(AtomicI32::new(-1))
    }

    pub(crate) fn get(&self) -> c_int {
        self.0.load(Ordering::Acquire)
    }

    /// Takes over an open file, and moves it to a high number. A file adopted before stays open.
    pub(crate) fn adopt(&self, file: c_int) {
        let high = duplicate_from(file, HIGH);
        if high >= 0 {
            close(file);
        }
        self.0
            .store(if high >= 0 { high } else { file }, Ordering::Release);
    }

    /// Gives the file up without closing it.
    pub(crate) fn release(&self) -> c_int {
        self.0.swap(-1, Ordering::AcqRel)
    }

    /// Moves the file away from the numbers in the arguments of a system call that is about to begin. Calls that name
    /// more files than they have arguments (poll) do not name ours.
    pub(crate) fn move_away_from(&self, arguments: &[u64; 6]) {
        let ours = self.get();
        if ours < 0 || !contains_descriptor(arguments, ours) {
            return;
        }
        let starts = [ours.saturating_add(STRIDE), HIGH, 3];
        let free = starts.into_iter().find_map(|start| {
            let mut moved = duplicate_from(ours, start);
            while contains_descriptor(arguments, moved) {
                close(moved);
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
        close(if left.is_ok() { ours } else { moved });
    }

    /// Returns whether its number is in the range.
    pub(crate) fn is_in_range(&self, first: u64, last: u64) -> bool {
        u64::try_from(self.get()).is_ok_and(|ours| (first..=last).contains(&ours))
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
    fn descriptor_moves_away_from_the_arguments_of_a_call() {
        let ours = HiddenDescriptor::none();
        ours.move_away_from(&[u64::MAX; 6]);
        assert!(ours.get() < 0 && !ours.is_in_range(0, u64::MAX));
        let low = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap();
        ours.adopt(low.into_raw_fd());
        let first = ours.get();
        assert!(first >= HIGH && is_open(first));
        ours.move_away_from(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(ours.get(), first);
        let number = first as u64;
        // The kernel reads 32 bits, and the next candidate is taken too.
        ours.move_away_from(&[1 << 32 | number, number + STRIDE as u64, 0, 0, 0, 0]);
        let second = ours.get();
        assert!(!is_open(first) && is_open(second) && second > first + STRIDE);
        assert!(ours.is_in_range(second as u64, second as u64) && !ours.is_in_range(0, number));
        // SAFETY: the test owns it.
        let mut file = unsafe { std::fs::File::from_raw_fd(second) };
        file.write_all(b"as before").unwrap();
    }
}
