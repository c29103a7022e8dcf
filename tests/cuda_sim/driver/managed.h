/* Pages of managed memory: where they are, what was advised, who has to leave when HBM is full. */
#ifndef CUDA_SIM_MANAGED_H
#define CUDA_SIM_MANAGED_H
#include "memory.h"

enum { ON_HOST = -1, NOWHERE = -2 }; /* beside device ordinals; also the driver's own values for "CPU" and "none" */

typedef struct page {
    int8_t place; /* NOWHERE until the first touch */
    int8_t preferred;
    int8_t prefetched_to;
    uint8_t read_mostly;
    uint32_t accessed_by_devices;
    uint64_t arrival; /* on its device, for eviction */
} page_t;

result_t make_pages(allocation_t *managed);
void drop_pages(allocation_t *managed);

size_t page_of(const allocation_t *managed, address_t address);
void place_on_host(allocation_t *managed, size_t page);
/* Evicts others for it; where even that frees too little, the page stays on the host. */
void place_on_device(allocation_t *managed, size_t page, int device);

/* The GPU reads or writes: its pages come to it, unless advice says that it reaches them where they are. */
void touch_from_device(allocation_t *managed, address_t start, size_t bytes, int device, int access);
/* Pages the CPU has touched since get the place they would have got then. */
void settle_first_touches(allocation_t *managed, size_t first, size_t count);
void settle_all_first_touches(void);

size_t managed_bytes_on(int device);
size_t bytes_on(const allocation_t *managed, address_t start, size_t bytes, int place);
/* As bytes_on, but only what of the first and last page is inside the range. */
size_t bytes_within_on_host(const allocation_t *managed, address_t start, size_t bytes);
/* Frees HBM for memory that cannot move; whatever is left over does not fit. */
void evict_for(int device, size_t bytes_needed);

unsigned long evicted_pages(void);
unsigned long cpu_faults(void);
#endif
