#define _GNU_SOURCE
#include "managed.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contexts.h"
#include "handles.h"

typedef struct {
    address_t address;
    uint64_t arrival;
} arrival_t;

typedef struct {
    arrival_t *entries; /* oldest first; those whose page has moved since are skipped */
    size_t first, count, room;
} arrivals_t;

static arrivals_t arrivals_on[MAX_DEVICES];
static uint64_t clock_ticks;
static size_t pages_on[MAX_DEVICES];
static unsigned long evictions, faults_of_cpu, prefetches_without_effect;
static size_t system_bytes_moved;
static struct sigaction previous_handler;

size_t managed_bytes_on(int device) { return pages_on[device] * settings.page_bytes; }
unsigned long evicted_pages(void) { return evictions; }
unsigned long cpu_faults(void) { return faults_of_cpu; }
size_t system_bytes_moved_to_hbm(void) { return system_bytes_moved; }
unsigned long system_prefetches_without_effect(void) { return prefetches_without_effect; }

static size_t page_of(const allocation_t *managed, address_t address) {
    return (size_t)(address - managed->base) / settings.page_bytes;
}

static address_t address_of(const allocation_t *managed, size_t page) {
    return managed->base + page * settings.page_bytes;
}

/* Only where HBM is a NUMA node can the CPU map a page that lies in it. */
static void let_cpu_reach(const allocation_t *managed, size_t page, int reachable) {
    if (settings.mode == MODE_NUMA) return;
    void *start = (void *)(uintptr_t)address_of(managed, page);
    mprotect(start, settings.page_bytes, reachable ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void place_on_host(allocation_t *managed, size_t index) {
    page_t *page = &managed->pages[index];
    if (page->place == NOWHERE) managed->unpopulated--;
    if (page->place >= 0) {
        pages_on[page->place]--;
        let_cpu_reach(managed, index, 1);
    }
    page->place = ON_HOST;
}

/* A CPU that touches a page in HBM it cannot map: the page comes back, as by the real fault. Nothing here allocates. */
static void on_segmentation_fault(int number, siginfo_t *information, void *machine_state) {
    address_t address = (address_t)(uintptr_t)information->si_addr;
    lock_model();
    allocation_t *found = find_allocation(address);
    /* A forked child has no such memory, whatever its copy of the table says: it dies of the fault. */
    int ours = !is_forked_child() && found && found->live && found->kind == MANAGED_MEMORY;
    if (ours && found->pages[page_of(found, address)].place >= 0) { /* else another thread's fault brought it back */
        place_on_host(found, page_of(found, address));
        faults_of_cpu++;
    }
    unlock_model();
    if (ours) return;
    if (previous_handler.sa_flags & SA_SIGINFO) previous_handler.sa_sigaction(number, information, machine_state);
    else sigaction(SIGSEGV, &previous_handler, NULL); /* the instruction faults again, now for the handler of before */
}

static void watch_cpu_faults(void) {
    static int watching;
    if (watching || settings.mode == MODE_NUMA) return;
    watching = 1;
    struct sigaction ours = {.sa_sigaction = on_segmentation_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &ours, &previous_handler);
}

result_t make_pages(allocation_t *managed) {
    watch_cpu_faults();
    managed->page_count = (managed->size + settings.page_bytes - 1) / settings.page_bytes;
    managed->unpopulated = managed->page_count;
    managed->pages = malloc(managed->page_count * sizeof *managed->pages);
    if (!managed->pages) return OUT_OF_MEMORY;
    for (size_t i = 0; i < managed->page_count; i++)
        managed->pages[i] = (page_t){.place = NOWHERE, .preferred = NOWHERE, .prefetched_to = NOWHERE};
    return OK;
}

void drop_pages(allocation_t *managed) {
    for (size_t i = 0; i < managed->page_count; i++)
        if (managed->pages[i].place >= 0) pages_on[managed->pages[i].place]--;
    free(managed->pages);
    managed->pages = NULL;
    managed->page_count = 0;
}

static void note_arrival(address_t address, uint64_t arrival, int device) {
    arrivals_t *queue = &arrivals_on[device];
    if (queue->first + queue->count == queue->room) {
        memmove(queue->entries, queue->entries + queue->first, queue->count * sizeof *queue->entries);
        queue->first = 0;
        if (queue->count * 2 >= queue->room) {
            queue->room = queue->room ? queue->room * 2 : 1024;
            queue->entries = realloc(queue->entries, queue->room * sizeof *queue->entries);
            if (!queue->entries) abort();
        }
    }
    queue->entries[queue->first + queue->count++] = (arrival_t){address, arrival};
}

static int evict_oldest(int device) {
    arrivals_t *queue = &arrivals_on[device];
    while (queue->count) {
        arrival_t oldest = queue->entries[queue->first++];
        queue->count--;
        allocation_t *owner = find_allocation(oldest.address);
        if (!owner || !owner->live || owner->kind != MANAGED_MEMORY) continue;
        size_t index = page_of(owner, oldest.address);
        if (owner->pages[index].place != device || owner->pages[index].arrival != oldest.arrival) continue;
        place_on_host(owner, index);
        evictions++;
        return 1;
    }
    return 0;
}

void evict_for(int device, size_t bytes_needed) {
    while (own_bytes_on(device) + managed_bytes_on(device) + bytes_needed > settings.hbm_bytes)
        if (!evict_oldest(device)) return;
}

/* Where even eviction makes no room, the page stays on the host. */
static void place_on_device(allocation_t *managed, size_t index, int device) {
    page_t *page = &managed->pages[index];
    if (page->place == device) return;
    evict_for(device, settings.page_bytes);
    if (own_bytes_on(device) + managed_bytes_on(device) + settings.page_bytes > settings.hbm_bytes) {
        place_on_host(managed, index);
        return;
    }
    if (page->place == NOWHERE) managed->unpopulated--;
    if (page->place >= 0) pages_on[page->place]--;
    page->place = (int8_t)device;
    page->arrival = ++clock_ticks;
    pages_on[device]++;
    note_arrival(address_of(managed, index), page->arrival, device);
    let_cpu_reach(managed, index, 0);
}

/* Linux knows which pages exist behind the mapping: those somebody has touched. */
static int any_exists(const unsigned char *resident, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (resident[i] & 1) return 1;
    return 0;
}

void settle_first_touches(allocation_t *managed, size_t first, size_t count) {
    if (!managed->unpopulated || !count) return;
    size_t per_page = settings.page_bytes / (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *resident = malloc(count * per_page);
    if (!resident || mincore(managed->view + first * settings.page_bytes, count * settings.page_bytes, resident)) abort();
    for (size_t i = 0; i < count; i++) {
        page_t *page = &managed->pages[first + i];
        if (page->place != NOWHERE || !any_exists(resident + i * per_page, per_page)) continue;
        if (settings.mode == MODE_NUMA && page->preferred >= 0) place_on_device(managed, first + i, page->preferred);
        else place_on_host(managed, first + i);
    }
    free(resident);
}

void settle_all_first_touches(void) {
    size_t position = 0;
    for (allocation_t *managed; (managed = next_managed(&position));)
        settle_first_touches(managed, 0, managed->page_count);
}

static int stays_where_it_is(const page_t *page, int device) {
    if (page->place == device) return 1;
    if (page->place == NOWHERE) return page->preferred == ON_HOST && is_coherent();
    return page->preferred == page->place || (page->accessed_by_devices >> device & 1);
}

void touch_from_device(allocation_t *managed, address_t start, size_t bytes, int device) {
    size_t first = page_of(managed, start), last = page_of(managed, start + (bytes ? bytes - 1 : 0));
    settle_first_touches(managed, first, last - first + 1);
    for (size_t i = first; i <= last; i++) {
        page_t *page = &managed->pages[i];
        if (!stays_where_it_is(page, device)) place_on_device(managed, i, device);
        else if (page->place == NOWHERE) place_on_host(managed, i);
    }
}

/* *out is NULL for system memory that the GPU can reach. */
static result_t check_range(address_t start, size_t bytes, allocation_t **out) {
    *out = NULL;
    if (!start || !bytes || start % settings.page_bytes) return INVALID_VALUE;
    allocation_t *found = find_allocation(start);
    if (!found) {
        if (!is_coherent() || bytes % settings.page_bytes) return INVALID_VALUE;
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

size_t bytes_on(const allocation_t *managed, address_t start, size_t bytes, int place) {
    size_t first = page_of(managed, start), last = page_of(managed, start + bytes - 1), found = 0;
    for (size_t i = first; i <= last; i++) {
        int is_there = managed->pages[i].place == place;
        found += is_there || (place == ON_HOST && managed->pages[i].place == NOWHERE);
    }
    return found * settings.page_bytes;
}
