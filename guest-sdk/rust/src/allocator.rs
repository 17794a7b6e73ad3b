//! The global allocator: what a handler allocates first lies in memory that its instance has from the start.
//!
//! The standard allocator begins by growing the memory, even if it needs but a few bytes. For each call the host then has the kernel open
//! that memory and close it again, which takes longer than most handlers do. Here the first `ARENA_BYTES` come from a static array, one
//! block behind the other; only what does not fit goes to the standard allocator. Blocks in the array are used again only if they were the
//! last ones: an instance lives for one call.
//!
//! **Invariant**: the array's blocks never overlap, and `used` is where the last one ends.
#![allow(
    unsafe_code,
    reason = "an allocator is an unsafe trait; a handler has one thread, and nothing here calls back"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// Untouched, these cost nothing.
const ARENA_BYTES: usize = 64 << 10;

#[repr(align(16))]
struct Arena {
    bytes: UnsafeCell<[MaybeUninit<u8>; ARENA_BYTES]>,
    used: Cell<usize>,
}

// SAFETY: `wasm32-unknown-unknown` without atomics has one thread.
unsafe impl Sync for Arena {}

#[global_allocator]
static ARENA: Arena = Arena {
    bytes: UnsafeCell::new([MaybeUninit::uninit(); ARENA_BYTES]),
    used: Cell::new(0),
};

impl Arena {
    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Returns where a block begins in the array, if it lies there.
    fn offset_of(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.start().addr());
        (offset < ARENA_BYTES).then_some(offset)
    }
}

// SAFETY: blocks are aligned and disjoint, as the invariant says, and live until they are given back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.start();
        let align = layout.align() - 1;
        let begin = ((start.addr() + self.used.get() + align) & !align) - start.addr();
        match begin.checked_add(layout.size()) {
            // A block without bytes at the very end would not be known as one of the array's.
            Some(end) if end < ARENA_BYTES => {
                self.used.set(end);
                // SAFETY: `begin` lies in the array.
                unsafe { start.add(begin) }
            }
            // SAFETY: the caller's promises are the same.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset_of(block) {
            Some(begin) if begin + layout.size() == self.used.get() => self.used.set(begin),
            Some(_) => {}
            // SAFETY: it came from there.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(begin) = self.offset_of(block) else {
            // SAFETY: it came from there.
            return unsafe { System.realloc(block, layout, size) };
        };
        if size <= layout.size() {
            return block;
        }
        let is_last = begin + layout.size() == self.used.get();
        if is_last && let Some(end) = begin.checked_add(size).filter(|end| *end < ARENA_BYTES) {
            self.used.set(end);
            return block;
        }
        // SAFETY: the alignment is that of a layout, and the caller promises that the size fits; the new block is another one and holds
        // at least as many bytes.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(block, new, layout.size());
            }
            new
        }
    }
}
