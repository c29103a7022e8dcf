/* What kind of machine is played: read from the environment when the driver is initialised. */
#ifndef CUDA_SIM_SETTINGS_H
#define CUDA_SIM_SETTINGS_H
#include "cuda_types.h"

#define MAX_DEVICES 16

/* numa: HBM is a NUMA node of the CPU. cdmm: coherent, but HBM belongs to the driver. pcie: no shared page tables.
   pool: the GPU has no memory of its own, all is the CPU's. */
typedef enum { MODE_NUMA, MODE_CDMM, MODE_PCIE, MODE_POOL } gpu_mode_t;

typedef struct {
    int physical_devices;
    int devices;                       /* those that CUDA_VISIBLE_DEVICES leaves */
    int physical_of[MAX_DEVICES];      /* CUDA's ordinal -> NVML's index */
    gpu_mode_t mode;
    int concurrent_managed_access;
    int driver_version;
    int init_error;
    int events_never_ready;
    size_t page_bytes, hbm_bytes, managed_limit_bytes;
    size_t page_cache_bytes; /* of HBM, in NUMA mode: used to CUDA, reclaimed when it is needed */
    const char *fail_name; /* one function, or "*" */
    int fail_code, fail_after, fail_times, fail_every;
    int corrupt_fill; /* the fill with this number gets one wrong byte */
    int corrupt_copies, idle_prefetch; /* broken drivers: copies with a wrong byte, prefetches that only claim to move */
    int trace_violations;
} settings_t;

extern settings_t settings;

void read_settings(void);
const char *mode_name(void);
const char *device_name(int physical);
void device_uuid(int physical, uuid_bytes_t *out);
void device_uuid_text(int physical, char out[41]); /* GPU-xxxxxxxx-xxxx-... */
int is_coherent(void);                             /* whether the GPU reads ordinary host memory */
int cpu_reads_device_pages(void);                 /* without bringing them back */
size_t machine_memory(const char *field);          /* of /proc/meminfo */
int numa_node_of(int physical);                    /* -1 where HBM is no NUMA node */
#endif
