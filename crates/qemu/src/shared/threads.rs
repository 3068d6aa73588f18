//! Which thread runs on which vCPU, and which one here.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::failure::die;
use crate::thread::block::OUT;
use crate::thread::state::Thread;

/// vCPU indices are reused, and no more threads than this can exist.
const VCPUS: usize = 1 << 16;
#[allow(clippy::declare_interior_mutable_const)] // only the array is ever used
const NO_THREAD: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
static THREADS: [AtomicPtr<Thread>; VCPUS] = [NO_THREAD; VCPUS];

thread_local! {
    static CURRENT: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
}

/// The process's first thread, whose place generated code knows.
pub(crate) static FIRST: First = First(UnsafeCell::new(MaybeUninit::uninit()));

#[repr(transparent)]
pub(crate) struct First(UnsafeCell<MaybeUninit<Thread>>);

// SAFETY: as any thread's, it is its own.
unsafe impl Sync for First {}

impl First {
    /// It is in no block. Before any callback.
    pub(crate) fn prepare(&self) {
        let thread: *mut Thread = self.0.get().cast();
        // SAFETY: nobody else is there yet; the field has no value that would have to be dropped.
        unsafe { std::ptr::addr_of_mut!((*thread).block).write(&OUT) };
    }

    /// It begins.
    pub(crate) fn begin(&self, thread: Thread) -> *mut Thread {
        // SAFETY: once, by the thread itself.
        unsafe { (*self.0.get()).write(thread) }
    }
}

/// The process has, or has had, more threads than one. QEMU translates all blocks anew for the second.
static MANY: AtomicBool = AtomicBool::new(false);

pub(crate) fn many() -> bool {
    MANY.load(Ordering::Relaxed)
}

pub(crate) fn become_many() {
    MANY.store(true, Ordering::Relaxed);
}

/// The thread that runs on a vCPU; null before its first block.
#[inline(always)]
pub(crate) fn thread_of(vcpu: u32) -> *mut Thread {
    match THREADS.get(vcpu as usize) {
        Some(thread) => thread.load(Ordering::Relaxed),
        None => die("more threads than the plugin can record"),
    }
}

/// The thread that runs here; null outside of the program's threads.
pub(crate) fn current() -> *mut Thread {
    CURRENT.get()
}

/// The calling thread runs on this vCPU; null: it does no more.
pub(crate) fn set(vcpu: u32, thread: *mut Thread) {
    if let Some(place) = THREADS.get(vcpu as usize) {
        place.store(thread, Ordering::Relaxed);
    }
    CURRENT.set(thread);
}

/// None but this one runs any more.
pub(crate) fn keep_only(thread: *mut Thread) {
    for place in &THREADS {
        if place.load(Ordering::Relaxed) != thread {
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}
