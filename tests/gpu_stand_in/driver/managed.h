/* Pages of managed memory: where they are, what was advised, who has to leave when HBM is full. */
#ifndef STAND_IN_MANAGED_H
#define STAND_IN_MANAGED_H
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

result_t advise(address_t start, size_t bytes, int advice, location_t where);
result_t prefetch(address_t start, size_t bytes, location_t where, const void *stream);
result_t prefetch_batch(const address_t *starts, const size_t *sizes, size_t count, const location_t *places,
                        const size_t *first_of_place, size_t place_count, unsigned long long flags, const void *stream);
result_t range_attribute(void *value, size_t value_bytes, int attribute, address_t start, size_t bytes);

/* The GPU reads or writes: its pages come to it, unless advice says that it reaches them where they are. */
void touch_from_device(allocation_t *managed, address_t start, size_t bytes, int device);
/* Pages the CPU has touched since get the place they would have got then. */
void settle_first_touches(allocation_t *managed, size_t first, size_t count);
void settle_all_first_touches(void);

size_t managed_bytes_on(int device);
size_t bytes_on(const allocation_t *managed, address_t start, size_t bytes, int place);
/* Makes room for memory that cannot move; whatever is left over does not fit. */
void evict_for(int device, size_t bytes_needed);

unsigned long evicted_pages(void);
unsigned long cpu_faults(void);
size_t system_bytes_moved_to_hbm(void);
unsigned long system_prefetches_without_effect(void);
#endif
