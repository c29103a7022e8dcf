/* The parts of the CUDA driver interface this stand-in speaks, and the memory model behind it. */
#ifndef FAKE_MODEL_H
#define FAKE_MODEL_H
#include <stddef.h>
#include <stdint.h>

typedef int result_t;
typedef unsigned long long devptr_t;
typedef struct { int type; int id; } location_t;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { LOC_DEVICE = 1, LOC_HOST = 2, LOC_HOST_NUMA = 3, LOC_HOST_NUMA_CURRENT = 4 };
enum { SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY, SET_PREFERRED, UNSET_PREFERRED, SET_ACCESSED_BY, UNSET_ACCESSED_BY };
enum { ON_HOST = -1, UNKNOWN_PLACE = -2 };

typedef struct {
    devptr_t base;
    size_t size, pages;
    int live, read_mostly;
    location_t preferred, last_prefetch;
    unsigned accessed_by_devices;
    int accessed_by_host;
    int8_t *place;      /* one per page: ON_HOST, or the device it is on */
    uint32_t *arrival;  /* order of arrival on its device, for eviction */
} block_t;

typedef struct {
    int devices, ats, concurrent, version, init_error, events_never_ready;
    size_t page, hbm, managed_limit;
    const char *fail_name;
    int fail_code, fail_after;
} settings_t;

extern settings_t settings;
void read_settings(void);

block_t *find_block(devptr_t pointer);              /* the live or freed block around a pointer */
result_t new_block(size_t size, devptr_t *out);
result_t free_block(devptr_t base);
/* *out is NULL for system memory that the GPU can reach */
result_t check_range(devptr_t start, size_t bytes, block_t **out);
result_t advise(devptr_t start, size_t bytes, int advice, location_t where);
result_t prefetch(devptr_t start, size_t bytes, location_t where);
/* a write by the GPU moves the pages to it, without any prefetch being remembered */
result_t touch(devptr_t start, size_t bytes, int device);
size_t device_used(int device);
#endif
