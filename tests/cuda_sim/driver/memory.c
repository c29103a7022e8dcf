#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contexts.h"
#include "managed.h"

#define FREED_KEPT 1024

static allocation_t **by_address; /* sorted */
static size_t allocation_count, allocation_capacity, freed_count;
static size_t device_bytes[MAX_DEVICES], device_peak[MAX_DEVICES];

static size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static size_t system_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* How many allocations begin at or below an address. */
static size_t position_above(address_t address) {
    size_t low = 0, high = allocation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (by_address[middle]->base <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

allocation_t *find_allocation(address_t address) {
    size_t above = position_above(address);
    if (!above) return NULL;
    allocation_t *below = by_address[above - 1];
    return address < below->base + below->size ? below : NULL;
}

allocation_t *next_managed(size_t *position) {
    while (*position < allocation_count) {
        allocation_t *candidate = by_address[(*position)++];
        if (candidate->live && candidate->kind == MANAGED_MEMORY) return candidate;
    }
    return NULL;
}

static void forget_at(size_t position) {
    free(by_address[position]);
    memmove(by_address + position, by_address + position + 1, (--allocation_count - position) * sizeof *by_address);
}

static result_t remember(allocation_t made, address_t *out) {
    if (allocation_count == allocation_capacity) {
        size_t capacity = allocation_capacity ? allocation_capacity * 2 : 256;
        allocation_t **grown = realloc(by_address, capacity * sizeof *by_address);
        if (!grown) return OUT_OF_MEMORY;
        by_address = grown;
        allocation_capacity = capacity;
    }
    allocation_t *kept = malloc(sizeof *kept);
    if (!kept) return OUT_OF_MEMORY;
    *kept = made;
    if (kept->kind == MANAGED_MEMORY && make_pages(kept)) {
        free(kept);
        return OUT_OF_MEMORY;
    }
    size_t position = position_above(kept->base);
    memmove(by_address + position + 1, by_address + position, (allocation_count++ - position) * sizeof *by_address);
    by_address[position] = kept;
    *out = kept->base;
    return OK;
}

/* Address space for the program and, elsewhere, the bytes behind it; neither reaches a forked child. */
static result_t map_twice(allocation_t *made, size_t alignment, int protection) {
    made->reserved = rounded_up(made->size, alignment);
    int file = memfd_create("cuda-sim", MFD_CLOEXEC);
    if (file < 0) return OUT_OF_MEMORY;
    char *space = MAP_FAILED, *view = MAP_FAILED;
    if (!ftruncate(file, (off_t)made->reserved)) {
        space = mmap(NULL, made->reserved + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        view = mmap(NULL, made->reserved, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    char *base = space == MAP_FAILED ? MAP_FAILED : (char *)rounded_up((size_t)space, alignment);
    if (base != MAP_FAILED) base = mmap(base, made->reserved, protection, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    if (base == MAP_FAILED || view == MAP_FAILED) return OUT_OF_MEMORY;
    if (base > space) munmap(space, (size_t)(base - space));
    if (space + alignment > base) munmap(base + made->reserved, (size_t)(space + alignment - base));
    madvise(base, made->reserved, MADV_DONTFORK);
    madvise(view, made->reserved, MADV_DONTFORK);
    made->base = (address_t)(uintptr_t)base;
    made->view = view;
    return OK;
}

static result_t map_pinned(allocation_t *made) {
    made->reserved = rounded_up(made->size, system_page());
    void *raw = mmap(NULL, made->reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return OUT_OF_MEMORY;
    made->base = (address_t)(uintptr_t)raw;
    made->view = raw;
    return OK;
}

static size_t managed_bytes(void) {
    size_t position = 0, total = 0;
    for (allocation_t *managed; (managed = next_managed(&position));) total += managed->size;
    return total;
}

static int fits_into_hbm(int device, size_t bytes) {
    size_t fixed = device_bytes[device];
    if (bytes > settings.hbm_bytes - fixed) return 0;
    settle_all_first_touches();
    evict_for(device, bytes);
    return fixed + managed_bytes_on(device) + bytes <= settings.hbm_bytes;
}

result_t allocate(memory_kind_t kind, size_t bytes, api_t owner, address_t *out) {
    if (!bytes) return INVALID_VALUE;
    allocation_t made = {.size = bytes, .kind = kind, .owner = owner, .device = current_device(), .live = 1};
    if (kind == DEVICE_MEMORY && !fits_into_hbm(made.device, bytes)) return OUT_OF_MEMORY;
    if (kind == MANAGED_MEMORY && managed_bytes() + bytes > settings.managed_limit_bytes) return OUT_OF_MEMORY;
    result_t bad;
    if (kind == PINNED_MEMORY) bad = map_pinned(&made);
    else if (kind == MANAGED_MEMORY) bad = map_twice(&made, settings.page_bytes, PROT_READ | PROT_WRITE);
    else bad = map_twice(&made, system_page(), PROT_NONE);
    if (bad || (bad = remember(made, out))) return bad;
    if (kind == DEVICE_MEMORY) {
        device_bytes[made.device] += bytes;
        size_t used = device_bytes[made.device];
        if (used > device_peak[made.device]) device_peak[made.device] = used;
    }
    return OK;
}

const char *kind_name(memory_kind_t kind) {
    static const char *const names[] = {"the GPU's own", "pinned", "registered", "managed"};
    return names[kind];
}

static result_t find_to_free(address_t base, allocation_t **out) {
    allocation_t *found = find_allocation(base);
    if (!found || found->base != base) {
        violation(found ? "a pointer into the middle of an allocation is freed" : "memory that CUDA never gave is freed");
        return INVALID_VALUE;
    }
    if (!found->live) {
        violation("%s memory is freed twice", kind_name(found->kind));
        return INVALID_VALUE;
    }
    *out = found;
    return OK;
}

/* A freed range stays reserved and unreadable for a while: a use after free is a fault, and no other allocation. */
static void bury(allocation_t *dead) {
    void *base = (void *)(uintptr_t)dead->base;
    mmap(base, dead->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (dead->view != base) munmap(dead->view, dead->reserved);
    dead->view = NULL;
    dead->live = 0;
    if (++freed_count <= FREED_KEPT) return;
    for (size_t i = 0; i < allocation_count; i++) {
        if (by_address[i]->live || by_address[i] == dead) continue;
        munmap((void *)(uintptr_t)by_address[i]->base, by_address[i]->reserved);
        forget_at(i);
        freed_count--;
        return;
    }
}

static void release_found(allocation_t *found) {
    if (found->kind == DEVICE_MEMORY) device_bytes[found->device] -= found->size;
    if (found->kind == MANAGED_MEMORY) drop_pages(found);
    bury(found);
}

result_t release(address_t base, memory_kind_t kind) {
    allocation_t *found;
    result_t bad = find_to_free(base, &found);
    if (bad) return bad;
    if (found->kind != kind) {
        violation("%s memory is freed as %s memory", kind_name(found->kind), kind_name(kind));
        return INVALID_VALUE;
    }
    release_found(found);
    return OK;
}

result_t release_device_memory(address_t base) {
    allocation_t *found;
    result_t bad = find_to_free(base, &found);
    if (bad) return bad;
    if (found->kind != DEVICE_MEMORY && found->kind != MANAGED_MEMORY) {
        violation("%s memory is freed as the GPU's own memory", kind_name(found->kind));
        return INVALID_VALUE;
    }
    release_found(found);
    return OK;
}

result_t register_host_memory(void *start, size_t bytes, api_t owner) {
    address_t base = (address_t)(uintptr_t)start;
    if (!base || !bytes) return INVALID_VALUE;
    allocation_t *known = find_allocation(base);
    if (known && known->live) {
        violation("%s memory is registered as host memory", kind_name(known->kind));
        return known->kind == REGISTERED_MEMORY ? HOST_MEMORY_ALREADY_REGISTERED : INVALID_VALUE;
    }
    if (!is_mapped(base, bytes)) {
        violation("a range that is not mapped is registered");
        return INVALID_VALUE;
    }
    allocation_t made = {.base = base, .size = bytes, .reserved = bytes, .view = start, .kind = REGISTERED_MEMORY,
                         .owner = owner, .device = current_device(), .live = 1};
    return remember(made, &base);
}

result_t unregister_host_memory(void *start) {
    address_t base = (address_t)(uintptr_t)start;
    size_t above = position_above(base);
    allocation_t *found = above ? by_address[above - 1] : NULL;
    if (!found || found->base != base || found->kind != REGISTERED_MEMORY) {
        violation("memory that is not registered is unregistered");
        return HOST_MEMORY_NOT_REGISTERED;
    }
    forget_at(above - 1); /* the range goes on being the program's */
    return OK;
}

int is_mapped(address_t start, size_t bytes) {
    size_t page = system_page();
    address_t first = start / page * page;
    size_t length = (size_t)rounded_up((size_t)(start + bytes - first), page);
    unsigned char resident[1024];
    for (size_t done = 0; done < length; done += sizeof resident * page) {
        size_t part = length - done < sizeof resident * page ? length - done : sizeof resident * page;
        if (mincore((void *)(uintptr_t)(first + done), part, resident) && errno == ENOMEM) return 0;
    }
    return 1;
}

size_t own_bytes_on(int device) { return device_bytes[device]; }

void memory_info(int device, size_t *free_bytes, size_t *total) {
    settle_all_first_touches();
    *total = settings.hbm_bytes;
    *free_bytes = settings.hbm_bytes - device_bytes[device] - managed_bytes_on(device);
    if (settings.mode == MODE_POOL) *free_bytes = machine_memory("MemFree"); /* page cache counts as used */
    if (settings.mode == MODE_NUMA) *free_bytes -= *free_bytes < settings.page_cache_bytes ? *free_bytes : settings.page_cache_bytes;
}

size_t bytes_left(memory_kind_t kind, api_t owner) {
    size_t total = 0;
    for (size_t i = 0; i < allocation_count; i++) {
        allocation_t *a = by_address[i];
        if (a->live && a->kind == kind && a->owner == owner) total += a->size;
    }
    return total;
}

size_t device_bytes_peak(int device) { return device_peak[device]; }
