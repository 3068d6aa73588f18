//! Blocks by number, where they are kept in a ring: a number is half as long as an address.

use std::mem::{align_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::thread::block::Block;

/// Blocks beyond have no number.
const MOST: u32 = 1 << 20;

static BASE: AtomicUsize = AtomicUsize::new(0);
/// The next number. No block has the number 0.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The number of a block.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Entry(u32);

impl Entry {
    #[inline(always)]
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Room for blocks, of which only what is used takes memory; false if there is none.
pub(crate) fn prepare() -> bool {
    // SAFETY: new memory of our own.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            MOST as usize * size_of::<Block>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return false;
    }
    BASE.store(at as usize, Ordering::Relaxed);
    true
}

/// Keeps a block for good, with a number if there is one left. One at a time.
pub(crate) fn keep(mut block: Block) -> &'static Block {
    let base = BASE.load(Ordering::Relaxed);
    let number = NEXT.load(Ordering::Relaxed);
    if base != 0 {
        block.lead_outside();
    }
    if base == 0 || number == MOST {
        return Box::leak(Box::new(block));
    }
    NEXT.store(number + 1, Ordering::Relaxed);
    let place = (base + number as usize * size_of::<Block>()) as *mut Block;
    block.enter_as(number);
    // SAFETY: a place that nobody has had, aligned as a page.
    unsafe {
        place.write(block);
        &*place
    }
}

/// Where `Entry::block` looks.
#[derive(Clone, Copy)]
pub(crate) struct Arena(usize);

impl Arena {
    #[inline(always)]
    pub(crate) fn get() -> Arena {
        Arena(BASE.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn block(self, entry: Entry) -> &'static Block {
        // SAFETY: `keep` gave the number.
        unsafe { &*((self.0 + entry.0 as usize * size_of::<Block>()) as *const Block) }
    }
}

const _: () = assert!(align_of::<Block>() <= 4096 && size_of::<Block>() == 192);
