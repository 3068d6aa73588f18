//! What the processors of a system share: the connection, their clocks, and the code that the reader has.
//!
//! Each processor has a clock of its own, the number of its retired instructions. It is raised to the latest clock of
//! the others after an atomic instruction, PAUSE, or interrupt, so that what one processor did before it let another
//! one go on has an earlier time there.
//!
//! Changed code has a time that separates what ran before from what runs after, on all processors. The processor that
//! first runs changed code chooses a time later than all clocks. Each other processor sees the change before its next
//! block, disables its trace, and enables it at a time after the change. A block that runs at that moment still belongs
//! to the time before, so the times have a margin.

use std::collections::HashMap;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::code_spaces::CodeSpace;
use super::program_mappings::DirectMap;
use crate::shared::recorder_link::RecorderLink;
use crate::shared::shared_state::SharedClock;

/// The value of `change_time` while a processor chooses the time of a change.
const UNDECIDED: u64 = u64::MAX;
/// No distance: the kernel moves itself by whole pages.
const UNKNOWN: u64 = 1;
/// Time before and after a change of code, with one processor and with several. A processor publishes its clock at each
/// block, but another one may see it some blocks later; blocks have at most 512 instructions.
const MARGIN: u64 = 1 << 10;
const MARGIN_OF_SEVERAL: u64 = 1 << 14;

/// On a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct PublishedClock(AtomicU64);

/// The code that the reader has, by address space.
pub(super) type CodeSpaces = HashMap<u64, CodeSpace>;

pub(super) struct SharedByProcessors {
    pub(super) link: RecorderLink,
    /// The recorder asks for the packets with it.
    pub(super) shared_clock: SharedClock,
    clocks: Vec<PublishedClock>,
    /// Whether the first processor has reached the kernel's entry.
    pub(super) has_kernel_started: AtomicBool,
    /// The address of the kernel's `_text`; 0 while it is unknown.
    pub(super) kernel_text: AtomicU64,
    pub(super) direct_map: DirectMap,
    /// By how much the kernel has moved itself; `UNKNOWN` before that.
    kernel_move: AtomicU64,
    /// The time after the last change of code. A change also needs the lock of `spaces`.
    change_time: AtomicU64,
    spaces: Mutex<CodeSpaces>,
}

impl SharedByProcessors {
    pub(super) fn new(
        link: RecorderLink,
        shared_clock: SharedClock,
        processors: usize,
    ) -> SharedByProcessors {
        SharedByProcessors {
            link,
            shared_clock,
            clocks: (0..processors).map(|_| PublishedClock::default()).collect(),
            has_kernel_started: AtomicBool::new(false),
            kernel_text: AtomicU64::new(0),
            direct_map: DirectMap::default(),
            kernel_move: AtomicU64::new(UNKNOWN),
            change_time: AtomicU64::new(0),
            spaces: Mutex::default(),
        }
    }

    pub(super) fn has_several_processors(&self) -> bool {
        self.clocks.len() > 1
    }

    pub(super) fn margin(&self) -> u64 {
        if self.has_several_processors() {
            MARGIN_OF_SEVERAL
        } else {
            MARGIN
        }
    }

    /// Returns by how much the kernel has moved itself from the addresses as linked, if that is known.
    pub(super) fn kernel_move(&self) -> Option<u64> {
        Some(self.kernel_move.load(Ordering::Acquire)).filter(|&moved| moved != UNKNOWN)
    }

    pub(super) fn set_kernel_move(&self, moved: u64) {
        self.kernel_move.store(moved, Ordering::Release);
    }

    // Clocks

    #[inline(always)]
    pub(super) fn publish_clock(&self, processor: u32, clock: u64) {
        if let Some(published) = self.clocks.get(processor as usize) {
            published.0.store(clock, Ordering::Release);
        }
    }

    pub(super) fn latest_clock(&self) -> u64 {
        let clocks = self.clocks.iter();
        clocks
            .map(|clock| clock.0.load(Ordering::Acquire))
            .max()
            .unwrap_or_default()
    }

    // Changes of code

    /// Returns the time after the last change of code, at which a processor must be before it goes on. While another
    /// processor changes code, the value differs from all times.
    #[inline(always)]
    pub(super) fn change_time(&self) -> u64 {
        self.change_time.load(Ordering::Acquire)
    }

    /// Returns the code spaces, after any change that has begun.
    pub(super) fn lock_spaces(&self) -> MutexGuard<'_, CodeSpaces> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the version of a space.
    pub(super) fn version_of_space(&self, name: u64) -> Arc<AtomicU32> {
        self.lock_spaces().entry(name).or_default().version.clone()
    }

    /// Stops the other processors before their next blocks. The caller holds the lock.
    pub(super) fn begin_change(&self) {
        self.change_time.store(UNDECIDED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Lets the others go on, at `time` or later, or as before.
    pub(super) fn end_change(&self, time: u64) {
        self.change_time.store(time, Ordering::Release);
    }
}
