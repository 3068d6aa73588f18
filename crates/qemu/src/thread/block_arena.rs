//! Blocks by number, for the ring: a number is half as long as an address.

use std::mem::{align_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::thread::translation_block::TranslationBlock;

/// Blocks beyond this limit have no number.
const MAX_BLOCKS: u32 = 1 << 20;

static BASE: AtomicUsize = AtomicUsize::new(0);
/// The next number. 0 means no block.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The number of a block.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct BlockId(u32);

impl BlockId {
    #[inline(always)]
    pub(crate) fn block_number(self) -> u32 {
        self.0
    }
}

/// Reserves address space for all blocks; false if there is none. Only used pages take memory.
pub(crate) fn reserve_address_space() -> bool {
    // SAFETY: new memory of our own.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            MAX_BLOCKS as usize * size_of::<TranslationBlock>(),
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

/// Keeps a block for the life of the process, and numbers it if a number is left. Callers hold the lock.
pub(crate) fn keep_block(mut block: TranslationBlock) -> &'static TranslationBlock {
    let base = BASE.load(Ordering::Relaxed);
    let number = NEXT.load(Ordering::Relaxed);
    if base != 0 {
        block.drop_inner_targets();
    }
    if base == 0 || number == MAX_BLOCKS {
        return Box::leak(Box::new(block));
    }
    NEXT.store(number + 1, Ordering::Relaxed);
    let slot = (base + number as usize * size_of::<TranslationBlock>()) as *mut TranslationBlock;
    block.set_ring_id(number);
    // SAFETY: an unused slot, aligned as a page.
    unsafe {
        slot.write(block);
        &*slot
    }
}

/// The base address, kept in a register by loops over many blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockArena(usize);

impl BlockArena {
    #[inline(always)]
    pub(crate) fn load_block_arena() -> BlockArena {
        BlockArena(BASE.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn block_of_id(self, entry: BlockId) -> &'static TranslationBlock {
        // SAFETY: `keep_block` assigned the number.
        unsafe {
            &*((self.0 + entry.0 as usize * size_of::<TranslationBlock>())
                as *const TranslationBlock)
        }
    }
}

const _: () =
    assert!(align_of::<TranslationBlock>() <= 4096 && size_of::<TranslationBlock>() == 192);
