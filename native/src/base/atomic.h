/*
 * atomic.h - the named atomics that the engine uses, over <stdatomic.h>.
 *
 * A few names instead of a zoo, and none of <stdatomic.h> elsewhere.  Each says which order it
 * gives.  A fence names the function with the access that it pairs with, and so does another access
 * where it is not plain from the word's declaration, which says what writes and what reads it.
 * Words in shared memory must be lock-free: a lock inside libatomic would be private to a process.
 */
#ifndef PN_ATOMIC_H
#define PN_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free across processes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free across processes");

typedef _Atomic(uint64_t) pn_atomic_u64;
typedef _Atomic(uint32_t) pn_atomic_u32;
typedef _Atomic(int32_t) pn_atomic_i32;

#define pn_load_relaxed(p)         atomic_load_explicit((p), memory_order_relaxed)
#define pn_load_acquire(p)         atomic_load_explicit((p), memory_order_acquire)
#define pn_load_seq_cst(p)         atomic_load_explicit((p), memory_order_seq_cst)
#define pn_store_relaxed(p, v)     atomic_store_explicit((p), (v), memory_order_relaxed)
#define pn_store_release(p, v)     atomic_store_explicit((p), (v), memory_order_release)
#define pn_store_seq_cst(p, v)     atomic_store_explicit((p), (v), memory_order_seq_cst)
#define pn_exchange(p, v)          atomic_exchange_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_or(p, v)          atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_and(p, v)         atomic_fetch_and_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_add(p, v)         atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define pn_fetch_add_release(p, v) atomic_fetch_add_explicit((p), (v), memory_order_release)
#define pn_fetch_sub(p, v)         atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_sub_acq_rel(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_acq_rel)
/* Sequentially consistent; a failure stores what stands there in *e.  _weak: in a loop. */
#define pn_cas(p, e, v)      atomic_compare_exchange_strong((p), (e), (v))
#define pn_cas_weak(p, e, v) atomic_compare_exchange_weak((p), (e), (v))
/* Of a word that is no _Atomic, since most of its accesses have no other thread to fear. */
#define pn_store_release_plain(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

static inline bool pn_cas_u64(pn_atomic_u64 *p, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(p, expected, desired, memory_order_acq_rel,
                                                   memory_order_acquire);
}

/*
 * The store->load fence of the sleep/wake handshake.  ThreadSanitizer does not model
 * atomic_thread_fence, so under it the fence is a read-modify-write that it does understand.
 */
static inline void pn_fence_seq_cst(void)
{
#if defined(__SANITIZE_THREAD__)
    static pn_atomic_u32 tsan_fence;
    atomic_fetch_add_explicit(&tsan_fence, 0, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline void pn_fence_acquire(void)
{
    atomic_thread_fence(memory_order_acquire);
}

static inline void pn_fence_release(void)
{
    atomic_thread_fence(memory_order_release);
}

/* What a signal handler of this thread, or the repair after its death, sees in this order. */
static inline void pn_compiler_fence(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void pn_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#endif
