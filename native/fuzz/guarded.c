/*
 * guarded.c - mmap() with a gap before and after each shared mapping (ld --wrap=mmap), so that an
 * access outside of the segment crashes instead of reading other memory.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#define GAP (64UL << 20)

void *__real_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t length);
void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *addr, size_t length);

void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    if (addr != NULL || (flags & MAP_SHARED) == 0)
        return __real_mmap(addr, length, prot, flags, fd, offset);
    uint8_t *space = __real_mmap(NULL, length + 2 * GAP, PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return MAP_FAILED;
    void *inside = __real_mmap(space + GAP, length, prot, flags | MAP_FIXED, fd, offset);
    if (inside == MAP_FAILED)
        __real_munmap(space, length + 2 * GAP);
    return inside;
}

/* Of the engine, which unmaps nothing but what it has mapped shared. */
int __wrap_munmap(void *addr, size_t length)
{
    return __real_munmap((uint8_t *) addr - GAP, length + 2 * GAP);
}
