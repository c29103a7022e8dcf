#define _GNU_SOURCE
#include "managed.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "traffic.h"


typedef struct {
    address_t address;
    uint64_t arrival;
} arrival_t;

typedef struct {
    arrival_t *entries; /* oldest first; those whose page has moved since are skipped */
    size_t first, count, capacity;
} arrivals_t;

static arrivals_t arrivals_on[MAX_DEVICES];
static uint64_t clock_ticks;
static size_t pages_on[MAX_DEVICES];
static unsigned long faults_of_cpu;
static struct sigaction previous_handler;

size_t managed_bytes_on(int device) { return pages_on[device] * settings.page_bytes; }
unsigned long evicted_pages(void) { return traffic.evictions; }
unsigned long cpu_faults(void) { return faults_of_cpu; }

size_t page_of(const allocation_t *managed, address_t address) {
    return (size_t)(address - managed->base) / settings.page_bytes;
}

static address_t address_of(const allocation_t *managed, size_t page) {
    return managed->base + page * settings.page_bytes;
}

/* Only where HBM is a NUMA node can the CPU map a page that lies in it. */
static void let_cpu_reach(const allocation_t *managed, size_t page, int reachable) {
    if (cpu_reads_device_pages()) return;
    void *start = (void *)(uintptr_t)address_of(managed, page);
    mprotect(start, settings.page_bytes, reachable ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void place_on_host(allocation_t *managed, size_t index) {
    page_t *page = &managed->pages[index];
    if (page->place == NOWHERE) managed->unpopulated--;
    if (page->place >= 0) {
        pages_on[page->place]--;
        let_cpu_reach(managed, index, 1);
        count_link(TO_HOST, BY_MIGRATION, settings.page_bytes);
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
    if (watching || cpu_reads_device_pages()) return;
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
    if (queue->first + queue->count == queue->capacity) {
        memmove(queue->entries, queue->entries + queue->first, queue->count * sizeof *queue->entries);
        queue->first = 0;
        if (queue->count * 2 >= queue->capacity) {
            queue->capacity = queue->capacity ? queue->capacity * 2 : 1024;
            queue->entries = realloc(queue->entries, queue->capacity * sizeof *queue->entries);
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
        traffic.evictions++;
        return 1;
    }
    return 0;
}

void evict_for(int device, size_t bytes_needed) {
    while (own_bytes_on(device) + managed_bytes_on(device) + bytes_needed > settings.hbm_bytes)
        if (!evict_oldest(device)) return;
}

void place_on_device(allocation_t *managed, size_t index, int device) {
    page_t *page = &managed->pages[index];
    if (page->place == device) return;
    evict_for(device, settings.page_bytes);
    if (own_bytes_on(device) + managed_bytes_on(device) + settings.page_bytes > settings.hbm_bytes) {
        place_on_host(managed, index);
        return;
    }
    if (page->place == NOWHERE) managed->unpopulated--;
    else count_link(TO_DEVICE, BY_MIGRATION, settings.page_bytes);
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

/* Bytes of a range that lie in one page. */
static size_t overlap(const allocation_t *managed, size_t page, address_t start, size_t bytes) {
    address_t first = address_of(managed, page), last = first + settings.page_bytes;
    address_t from = start > first ? start : first, to = start + bytes < last ? start + bytes : last;
    return to > from ? (size_t)(to - from) : 0;
}

static void count_remote(size_t bytes, int access) {
    if (access & READS) count_link(TO_DEVICE, BY_REMOTE_ACCESS, bytes);
    if (access & WRITES) count_link(TO_HOST, BY_REMOTE_ACCESS, bytes);
}

void touch_from_device(allocation_t *managed, address_t start, size_t bytes, int device, int access) {
    size_t first = page_of(managed, start), last = page_of(managed, start + (bytes ? bytes - 1 : 0));
    settle_first_touches(managed, first, last - first + 1);
    for (size_t i = first; i <= last; i++) {
        page_t *page = &managed->pages[i];
        if (!stays_where_it_is(page, device)) {
            if (page->place == NOWHERE) traffic.populated++;
            else traffic.faults++;
            place_on_device(managed, i, device);
        } else if (page->place == NOWHERE) {
            traffic.populated++;
            place_on_host(managed, i);
        }
        if (page->place == ON_HOST) count_remote(overlap(managed, i, start, bytes), access);
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

size_t bytes_within_on_host(const allocation_t *managed, address_t start, size_t bytes) {
    size_t first = page_of(managed, start), last = page_of(managed, start + bytes - 1), found = 0;
    for (size_t i = first; i <= last; i++)
        if (managed->pages[i].place < 0) found += overlap(managed, i, start, bytes);
    return found;
}
