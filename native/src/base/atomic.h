/*
 * atomic.h - the named atomics that the engine uses, over <stdatomic.h>.
 *
 * A dozen names instead of a zoo.  Each says which order it gives; at the call a comment names
 * the access it pairs with.  Words in shared memory must be lock-free: a lock inside libatomic
 * would be private to a process.
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
#define pn_exchange(p, v)          atomic_exchange_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_or(p, v)          atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_and(p, v)         atomic_fetch_and_explicit((p), (v), memory_order_seq_cst)
#define pn_fetch_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)

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

static inline void pn_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#endif
