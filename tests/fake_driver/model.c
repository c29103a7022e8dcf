/* Pages, residency, advice and capacity, checked at least as strictly as a driver would. */
#include "model.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_BLOCKS 4096
static block_t blocks[MAX_BLOCKS];
static int block_count;
static uint32_t clock_ticks;
settings_t settings;

static long number(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : fallback;
}

void read_settings(void) {
    settings.devices = (int)number("FAKE_CUDA_DEVICES", 1);
    settings.ats = (int)number("FAKE_CUDA_ATS", 0);
    settings.concurrent = (int)number("FAKE_CUDA_CONCURRENT", 1);
    settings.version = (int)number("FAKE_CUDA_VERSION", 13000);
    settings.init_error = (int)number("FAKE_CUDA_INIT_ERROR", 0);
    settings.events_never_ready = (int)number("FAKE_CUDA_EVENTS_NEVER_READY", 0);
    settings.page = (size_t)number("FAKE_CUDA_PAGE", 65536);
    settings.hbm = (size_t)number("FAKE_CUDA_HBM", 64L << 20);
    settings.managed_limit = (size_t)number("FAKE_CUDA_MANAGED", 1L << 30);
    settings.fail_name = getenv("FAKE_CUDA_FAIL");
    settings.fail_code = (int)number("FAKE_CUDA_FAIL_CODE", 999);
    settings.fail_after = (int)number("FAKE_CUDA_FAIL_AFTER", 0);
}

block_t *find_block(devptr_t pointer) {
    for (int i = block_count - 1; i >= 0; i--)
        if (pointer >= blocks[i].base && pointer < blocks[i].base + blocks[i].size) return &blocks[i];
    return NULL;
}

static size_t managed_used(void) {
    size_t total = 0;
    for (int i = 0; i < block_count; i++) total += blocks[i].live ? blocks[i].size : 0;
    return total;
}

size_t device_used(int device) {
    size_t pages = 0;
    for (int i = 0; i < block_count; i++)
        for (size_t p = 0; blocks[i].live && p < blocks[i].pages; p++) pages += blocks[i].place[p] == device;
    return pages * settings.page;
}

result_t new_block(size_t size, devptr_t *out) {
    if (block_count == MAX_BLOCKS || managed_used() + size > settings.managed_limit) return OUT_OF_MEMORY;
    size_t pages = (size + settings.page - 1) / settings.page;
    char *raw = mmap(NULL, (pages + 1) * settings.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return OUT_OF_MEMORY;
    block_t *b = &blocks[block_count++];
    memset(b, 0, sizeof *b);
    b->base = ((devptr_t)(uintptr_t)raw + settings.page - 1) / settings.page * settings.page;
    b->size = size;
    b->pages = pages;
    b->live = 1;
    b->place = malloc(pages);
    b->arrival = calloc(pages, sizeof *b->arrival);
    memset(b->place, ON_HOST, pages);
    *out = b->base;
    return OK;
}

result_t free_block(devptr_t base) {
    block_t *b = find_block(base);
    if (!b || b->base != base || !b->live) return INVALID_VALUE;
    b->live = 0;
    /* The address range stays reserved and unreadable, so that a use after free is a fault and not another block. */
    return mprotect((void *)(uintptr_t)b->base, b->pages * settings.page, PROT_NONE) ? INVALID_VALUE : OK;
}

result_t check_range(devptr_t start, size_t bytes, block_t **out) {
    *out = NULL;
    if (!start || !bytes || start % settings.page) return INVALID_VALUE;
    block_t *b = find_block(start);
    if (!b) return settings.ats && bytes % settings.page == 0 ? OK : INVALID_VALUE;
    devptr_t end = start + bytes, block_end = b->base + b->size;
    if (!b->live || end > block_end || (end % settings.page && end != block_end)) return INVALID_VALUE;
    *out = b;
    return OK;
}

static result_t check_device(int id) {
    if (id < 0 || id >= settings.devices || !settings.concurrent) return INVALID_DEVICE;
    return OK;
}

static result_t check_location(location_t where, int numa_allowed) {
    if (where.type == LOC_DEVICE) return check_device(where.id);
    if (where.type == LOC_HOST) return OK;
    if (numa_allowed && where.type == LOC_HOST_NUMA && where.id == 0) return OK;
    return numa_allowed && where.type == LOC_HOST_NUMA_CURRENT ? OK : INVALID_VALUE;
}

result_t advise(devptr_t start, size_t bytes, int advice, location_t where) {
    block_t *b;
    result_t bad = check_range(start, bytes, &b);
    if (bad) return bad;
    if (advice < SET_READ_MOSTLY || advice > UNSET_ACCESSED_BY) return INVALID_VALUE;
    int has_location = advice >= SET_PREFERRED && advice != UNSET_PREFERRED;
    if (has_location && (bad = check_location(where, advice == SET_PREFERRED))) return bad;
    if (!b) return OK;
    unsigned bit = where.type == LOC_DEVICE ? 1u << where.id : 0;
    switch (advice) {
    case SET_READ_MOSTLY: b->read_mostly = 1; break;
    case UNSET_READ_MOSTLY: b->read_mostly = 0; break;
    case SET_PREFERRED: b->preferred = where; break;
    case UNSET_PREFERRED: b->preferred = (location_t){0, 0}; break;
    case SET_ACCESSED_BY: b->accessed_by_devices |= bit; b->accessed_by_host |= where.type == LOC_HOST; break;
    case UNSET_ACCESSED_BY: b->accessed_by_devices &= ~bit; b->accessed_by_host &= where.type != LOC_HOST; break;
    }
    return OK;
}

static void evict_oldest(int device) {
    block_t *from = NULL;
    size_t page = 0;
    for (int i = 0; i < block_count; i++)
        for (size_t p = 0; blocks[i].live && p < blocks[i].pages; p++)
            if (blocks[i].place[p] == device && (!from || blocks[i].arrival[p] < from->arrival[page]))
                from = &blocks[i], page = p;
    if (from) from->place[page] = ON_HOST;
}

static void bring(block_t *b, devptr_t start, size_t bytes, int target) {
    size_t first = (start - b->base) / settings.page, last = (start - b->base + bytes - 1) / settings.page;
    size_t used = target == ON_HOST ? 0 : device_used(target);
    for (size_t p = first; p <= last; p++) {
        if (b->place[p] == target) continue;
        if (target != ON_HOST && used + settings.page > settings.hbm) evict_oldest(target), used -= settings.page;
        b->place[p] = (int8_t)target;
        b->arrival[p] = ++clock_ticks;
        used += settings.page;
    }
}

result_t prefetch(devptr_t start, size_t bytes, location_t where) {
    block_t *b;
    result_t bad = check_range(start, bytes, &b);
    if (bad || (bad = check_location(where, 1))) return bad;
    if (!b) return OK;
    b->last_prefetch = where;
    bring(b, start, bytes, where.type == LOC_DEVICE ? where.id : ON_HOST);
    return OK;
}

result_t touch(devptr_t start, size_t bytes, int device) {
    block_t *b = find_block(start);
    if (!b || !b->live || start + bytes > b->base + b->size) return INVALID_VALUE;
    bring(b, start, bytes, device);
    return OK;
}
