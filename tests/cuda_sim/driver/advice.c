/* What a program says about ranges: advice, prefetches, and the questions what was said. */
#include "advice.h"

#include "contexts.h"
#include "handles.h"
#include "managed.h"

static unsigned long prefetches_without_effect;
static size_t system_bytes_moved;

size_t system_bytes_moved_to_hbm(void) { return system_bytes_moved; }
unsigned long system_prefetches_without_effect(void) { return prefetches_without_effect; }

/* *out is NULL for system memory that the GPU can reach. */
static result_t check_range(address_t start, size_t bytes, allocation_t **out) {
    *out = NULL;
    if (!start || !bytes) return INVALID_VALUE;
    allocation_t *found = find_allocation(start);
    if (!found) {
        if (!is_coherent() || start % settings.page_bytes || bytes % settings.page_bytes) return INVALID_VALUE;
        if (is_mapped(start, bytes)) return OK;
        violation("the range of system memory is not mapped to its end");
        return INVALID_VALUE;
    }
    if (!found->live) {
        violation("the memory has been freed");
        return INVALID_VALUE;
    }
    if (found->kind != MANAGED_MEMORY) {
        violation("the memory is %s, neither managed nor the system's",
                  found->kind == DEVICE_MEMORY ? "the GPU's own" : "pinned");
        return INVALID_VALUE;
    }
    if (start % settings.page_bytes) return INVALID_VALUE;
    address_t end = start + bytes, block_end = found->base + found->size;
    if (end > block_end || (end % settings.page_bytes && end != block_end)) {
        violation("the range ends outside the managed allocation, or inside one of its pages");
        return INVALID_VALUE;
    }
    *out = found;
    return OK;
}

static result_t check_location(location_t where, int numa_nodes_allowed) {
    if (where.type == LOCATION_DEVICE)
        return settings.concurrent_managed_access ? check_device(where.id) : INVALID_DEVICE;
    if (where.type == LOCATION_HOST) return OK;
    if (numa_nodes_allowed && where.type == LOCATION_HOST_NUMA && where.id == 0) return OK;
    return numa_nodes_allowed && where.type == LOCATION_HOST_NUMA_CURRENT ? OK : INVALID_VALUE;
}

static int8_t place_named(location_t where) { return (int8_t)(where.type == LOCATION_DEVICE ? where.id : ON_HOST); }

static void apply_advice(page_t *page, int advice, location_t where) {
    uint32_t bit = where.type == LOCATION_DEVICE ? 1u << where.id : 0;
    switch (advice) {
    case SET_READ_MOSTLY: page->read_mostly = 1; break;
    case UNSET_READ_MOSTLY: page->read_mostly = 0; break;
    case SET_PREFERRED_LOCATION: page->preferred = place_named(where); break;
    case UNSET_PREFERRED_LOCATION: page->preferred = NOWHERE; break;
    case SET_ACCESSED_BY: page->accessed_by_devices |= bit; break;
    case UNSET_ACCESSED_BY: page->accessed_by_devices &= ~bit; break;
    }
}

result_t advise(address_t start, size_t bytes, int advice, location_t where) {
    allocation_t *managed;
    result_t bad = check_range(start, bytes, &managed);
    if (bad) return bad;
    if (advice < SET_READ_MOSTLY || advice > UNSET_ACCESSED_BY) return INVALID_VALUE;
    int has_location = advice >= SET_PREFERRED_LOCATION && advice != UNSET_PREFERRED_LOCATION;
    if (has_location && (bad = check_location(where, advice == SET_PREFERRED_LOCATION))) return bad;
    if (!managed) return OK;
    size_t first = page_of(managed, start), last = page_of(managed, start + bytes - 1);
    settle_first_touches(managed, first, last - first + 1); /* touches of before follow the advice of before */
    for (size_t i = first; i <= last; i++) apply_advice(&managed->pages[i], advice, where);
    return OK;
}

static void prefetch_system_memory(size_t bytes, location_t where) {
    if (where.type != LOCATION_DEVICE) return;
    if (settings.mode == MODE_NUMA) system_bytes_moved += bytes;
    else prefetches_without_effect++; /* redirected to the CPU's own node */
}

static result_t check_prefetch(address_t start, size_t bytes, location_t where, allocation_t **managed) {
    result_t bad = check_range(start, bytes, managed);
    return bad ? bad : check_location(where, 1);
}

static void move_range(allocation_t *managed, address_t start, size_t bytes, location_t where) {
    if (!managed) {
        prefetch_system_memory(bytes, where);
        return;
    }
    size_t first = page_of(managed, start), last = page_of(managed, start + bytes - 1);
    settle_first_touches(managed, first, last - first + 1);
    for (size_t i = first; i <= last; i++) {
        managed->pages[i].prefetched_to = place_named(where);
        if (settings.idle_prefetch) continue;
        if (where.type == LOCATION_DEVICE) place_on_device(managed, i, where.id);
        else place_on_host(managed, i);
    }
}

result_t prefetch(address_t start, size_t bytes, location_t where, const void *stream) {
    allocation_t *managed;
    result_t bad = check_stream(stream, NULL);
    if (bad || (bad = check_prefetch(start, bytes, where, &managed))) return bad;
    move_range(managed, start, bytes, where);
    return OK;
}

static size_t place_of_operation(size_t operation, const size_t *first_of_place, size_t place_count) {
    size_t place = 0;
    while (place + 1 < place_count && first_of_place[place + 1] <= operation) place++;
    return place;
}

result_t prefetch_batch(const address_t *starts, const size_t *sizes, size_t count, const location_t *places,
                        const size_t *first_of_place, size_t place_count, unsigned long long flags, const void *stream) {
    if (flags || !count || !place_count || place_count > count || first_of_place[0]) return INVALID_VALUE;
    for (size_t i = 1; i < place_count; i++)
        if (first_of_place[i] <= first_of_place[i - 1] || first_of_place[i] >= count) return INVALID_VALUE;
    if ((uintptr_t)stream <= 1) {
        violation("a batch is put into the legacy null stream");
        return INVALID_VALUE;
    }
    result_t bad = check_stream(stream, NULL);
    allocation_t *managed;
    for (size_t i = 0; !bad && i < count; i++)
        bad = check_prefetch(starts[i], sizes[i], places[place_of_operation(i, first_of_place, place_count)], &managed);
    for (size_t i = 0; !bad && i < count; i++) {
        check_range(starts[i], sizes[i], &managed);
        move_range(managed, starts[i], sizes[i], places[place_of_operation(i, first_of_place, place_count)]);
    }
    return bad;
}

/* What all pages of the range agree on; NOWHERE where they do not. */
static int common(const allocation_t *managed, size_t first, size_t last, int8_t (*ask)(const page_t *)) {
    int answer = ask(&managed->pages[first]);
    for (size_t i = first + 1; i <= last; i++)
        if (ask(&managed->pages[i]) != answer) return NOWHERE;
    return answer;
}

static int8_t preferred_by(const page_t *page) { return page->preferred; }
static int8_t prefetched_to(const page_t *page) { return page->prefetched_to; }
static int8_t is_read_mostly(const page_t *page) { return (int8_t)page->read_mostly; }

static int location_type(int place) {
    return place >= 0 ? LOCATION_DEVICE : place == ON_HOST ? LOCATION_HOST : LOCATION_NONE;
}

result_t range_attribute(void *value, size_t value_bytes, int attribute, address_t start, size_t bytes) {
    allocation_t *managed;
    result_t bad = check_range(start, bytes, &managed);
    if (bad) return bad;
    if (!managed || value_bytes != sizeof(int)) return INVALID_VALUE;
    size_t first = page_of(managed, start), last = page_of(managed, start + bytes - 1);
    int preferred = common(managed, first, last, preferred_by), prefetched = common(managed, first, last, prefetched_to);
    int *answer = value;
    switch (attribute) {
    case 1: *answer = common(managed, first, last, is_read_mostly) == 1; return OK;
    case 2: *answer = preferred; return OK;
    case 4: *answer = prefetched; return OK;
    case 5: *answer = location_type(preferred); return OK;
    case 6: *answer = preferred < 0 ? 0 : preferred; return OK;
    case 7: *answer = location_type(prefetched); return OK;
    case 8: *answer = prefetched < 0 ? 0 : prefetched; return OK;
    default: violation("unsupported range attribute %d", attribute); return NOT_SUPPORTED;
    }
}
