//! How the C library's allocator keeps what was freed.
//!
//! Left to itself, glibc raises both of its bounds with every large block that is freed: after one message of 20 MB, blocks below
//! 20 MB come from its heaps, and each of these keeps up to 40 MB that nobody uses. A host that has met a few messages with large
//! payloads or results would stay large, and grow by their sum (see `mallopt(3)`, `M_MMAP_THRESHOLD`).

#![allow(
    unsafe_code,
    reason = "the one call that sets the bounds is the C library's"
)]

/// What a heap keeps at its end before it gives memory back: enough that the messages of usual sizes cost no system call.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 4 << 20;

/// Large blocks go back to the system as they are freed, from now on. To be called before there are threads.
///
/// Does nothing where the C library is not glibc.
pub fn give_back_what_is_freed() {
    // Setting one of the bounds holds both where they are: blocks of 128 KiB or more are mapped, each for itself.
    // SAFETY: `mallopt` takes two numbers, and touches nothing but the allocator's own settings.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES) };
}
