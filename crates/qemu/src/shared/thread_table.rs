//! The recorded thread of each vCPU, and of the calling host thread.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::fatal_error::exit_with_error;
use crate::thread::thread_state::Thread;
use crate::thread::translation_block::OUTSIDE;

/// Indices of vCPUs are reused, and the kernel allows no more threads.
const VCPUS: usize = 1 << 16;
#[allow(clippy::declare_interior_mutable_const)] // only the array is ever used
const NO_THREAD: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
static THREADS: [AtomicPtr<Thread>; VCPUS] = [NO_THREAD; VCPUS];

thread_local! {
    static CURRENT: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
}

/// The process's first thread. Generated code contains its address.
pub(crate) static FIRST_THREAD: FirstThread = FirstThread(UnsafeCell::new(MaybeUninit::uninit()));

#[repr(transparent)]
pub(crate) struct FirstThread(UnsafeCell<MaybeUninit<Thread>>);

// SAFETY: only the thread itself uses it.
unsafe impl Sync for FirstThread {}

impl FirstThread {
    /// Marks the thread as outside of user code. Call it before any callback.
    pub(crate) fn prepare(&self) {
        let thread: *mut Thread = self.0.get().cast();
        // SAFETY: no other thread exists; the field has no value that would have to be dropped.
        unsafe { std::ptr::addr_of_mut!((*thread).block).write(&OUTSIDE) };
    }

    /// Stores the thread when it starts.
    pub(crate) fn initialize(&self, thread: Thread) -> *mut Thread {
        // SAFETY: once, by the thread itself.
        unsafe { (*self.0.get()).write(thread) }
    }
}

/// Whether the process has had more than one thread. QEMU translates all blocks again for the second one.
static MULTITHREADED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_multithreaded() -> bool {
    MULTITHREADED.load(Ordering::Relaxed)
}

pub(crate) fn set_multithreaded() {
    MULTITHREADED.store(true, Ordering::Relaxed);
}

/// Returns the thread of a vCPU; null before its first block.
#[inline(always)]
pub(crate) fn thread_of(vcpu: u32) -> *mut Thread {
    match THREADS.get(vcpu as usize) {
        Some(thread) => thread.load(Ordering::Relaxed),
        None => exit_with_error("more threads than the plugin can record"),
    }
}

/// Returns the calling thread; null outside of the program's threads.
pub(crate) fn current_thread() -> *mut Thread {
    CURRENT.get()
}

/// Sets the thread of a vCPU, which is the calling one; null when it ends.
pub(crate) fn set_thread(vcpu: u32, thread: *mut Thread) {
    if let Some(place) = THREADS.get(vcpu as usize) {
        place.store(thread, Ordering::Relaxed);
    }
    CURRENT.set(thread);
}

/// Removes all threads but this one.
pub(crate) fn keep_only_thread(thread: *mut Thread) {
    for place in &THREADS {
        if place.load(Ordering::Relaxed) != thread {
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}
