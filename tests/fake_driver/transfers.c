/* Plain device memory, pinned memory, copies and fills: what the diagnostic asks of a driver besides managed memory. */
#include "entry.h"
#include <stdlib.h>
#include <string.h>

#define MAX_PLAIN 256
static struct { devptr_t base; size_t size; int kind; } plain[MAX_PLAIN];
static int plain_count, fills;

static int find_plain(devptr_t pointer) {
    for (int i = 0; i < plain_count; i++)
        if (plain[i].kind && pointer >= plain[i].base && pointer < plain[i].base + plain[i].size) return i;
    return -1;
}
int is_plain(devptr_t pointer) { return find_plain(pointer) >= 0; }

static result_t new_plain(size_t bytes, int kind, devptr_t *out) {
    if (!bytes) return INVALID_VALUE;
    if (plain_count == MAX_PLAIN || bytes > settings.hbm) return OUT_OF_MEMORY;
    void *raw = calloc(1, bytes);
    if (!raw) return OUT_OF_MEMORY;
    plain[plain_count].base = (devptr_t)(uintptr_t)raw;
    plain[plain_count].size = bytes;
    plain[plain_count++].kind = kind;
    *out = (devptr_t)(uintptr_t)raw;
    return OK;
}
result_t free_plain(devptr_t pointer, int kind) {
    int i = find_plain(pointer);
    if (i < 0 || plain[i].base != pointer || plain[i].kind != kind) return INVALID_VALUE;
    plain[i].kind = 0;
    free((void *)(uintptr_t)pointer);
    return OK;
}

/* Whether the GPU may touch a range: its own memory, managed memory, or with ATS anything. */
static int reachable(devptr_t start, size_t bytes) {
    int i = find_plain(start);
    if (i >= 0) return plain[i].kind == DEVICE_ONLY && start + bytes <= plain[i].base + plain[i].size;
    block_t *b = find_block(start);
    return b ? b->live && start + bytes <= b->base + b->size : settings.ats;
}

result_t cuMemAlloc_v2(devptr_t *pointer, size_t bytes) {
    ENTER(1);
    if (!r) r = new_plain(bytes, DEVICE_ONLY, pointer);
    LEAVE("bytes=%zu", bytes);
}
result_t cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER(1);
    devptr_t made = 0;
    if (!r && flags > 7) r = INVALID_VALUE;
    if (!r) r = new_plain(bytes, PINNED, &made);
    if (!r) *pointer = (void *)(uintptr_t)made;
    LEAVE("bytes=%zu flags=%u", bytes, flags);
}
result_t cuMemFreeHost(void *pointer) {
    ENTER(1);
    if (!r) r = free_plain((devptr_t)(uintptr_t)pointer, PINNED);
    LEAVE(".");
}
result_t cuMemcpyHtoDAsync_v2(devptr_t to, const void *from, size_t bytes, void *stream) {
    ENTER(1);
    if (!r && !is_stream(stream)) r = INVALID_HANDLE;
    if (!r && !reachable(to, bytes)) r = INVALID_VALUE;
    if (!r) memcpy((void *)(uintptr_t)to, from, bytes);
    LEAVE("bytes=%zu stream=%zu", bytes, (size_t)(uintptr_t)stream);
}
result_t cuMemcpyDtoHAsync_v2(void *to, devptr_t from, size_t bytes, void *stream) {
    ENTER(1);
    if (!r && !is_stream(stream)) r = INVALID_HANDLE;
    if (!r && !reachable(from, bytes)) r = INVALID_VALUE;
    if (!r) memcpy(to, (const void *)(uintptr_t)from, bytes);
    LEAVE("bytes=%zu stream=%zu", bytes, (size_t)(uintptr_t)stream);
}
/* The GPU writes, so the pages come to it; FAKE_CUDA_CORRUPT=N spoils one byte of the Nth fill. */
result_t cuMemsetD32Async(devptr_t to, unsigned value, size_t count, void *stream) {
    ENTER(1);
    size_t bytes = count * sizeof value;
    if (!r && !is_stream(stream)) r = INVALID_HANDLE;
    if (!r && (to % sizeof value || !count || !reachable(to, bytes))) r = INVALID_VALUE;
    if (!r && !is_plain(to) && find_block(to)) r = touch(to, bytes, (int)(current() - CONTEXT_BASE));
    for (size_t i = 0; !r && i < count; i++) ((unsigned *)(uintptr_t)to)[i] = value;
    const char *corrupt = getenv("FAKE_CUDA_CORRUPT");
    if (!r && ++fills == (corrupt ? atoi(corrupt) : -1)) ((unsigned char *)(uintptr_t)to)[bytes - 1] ^= 1;
    LEAVE("pointer=%llx value=%u bytes=%zu stream=%zu", to, value, bytes, (size_t)(uintptr_t)stream);
}
