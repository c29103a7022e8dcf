#include "attributes.h"

#include <stdio.h>
#include <string.h>

#include "contexts.h"

enum { COMPUTE_MAJOR = 9, COMPUTE_MINOR = 0, MULTIPROCESSORS = 132, L2_BYTES = 50 << 20 };

/* Numbers of CUdevice_attribute; cudaDeviceAttr has the same. */
static const struct {
    int attribute, value;
} of_every_mode[] = {
    {1, 1024},        /* threads per block */
    {2, 1024},        /* block x, y, z */
    {3, 1024},
    {4, 64},
    {5, 2147483647},  /* grid x, y, z */
    {6, 65535},
    {7, 65535},
    {8, 49152},       /* shared memory per block */
    {9, 65536},       /* constant memory */
    {10, 32},         /* warp */
    {12, 65536},      /* registers per block */
    {14, 512},        /* texture alignment */
    {15, 1},          /* copies overlap */
    {16, MULTIPROCESSORS},
    {19, 1},          /* maps host memory */
    {31, 1},          /* concurrent kernels */
    {38, L2_BYTES},
    {39, 2048},       /* threads per multiprocessor */
    {40, 3},          /* copy engines */
    {41, 1},          /* unified addressing */
    {75, COMPUTE_MAJOR},
    {76, COMPUTE_MINOR},
    {78, 1},          /* stream priorities */
    {81, 233472},     /* shared memory per multiprocessor */
    {82, 65536},      /* registers per multiprocessor */
    {83, 1},          /* managed memory */
    {97, 232448},     /* shared memory per block, on request */
    {102, 0},         /* virtual memory management: not modelled */
    {106, 32},        /* blocks per multiprocessor */
    {115, 0},         /* memory pools: not modelled */
    {116, 0},         /* GPUDirect RDMA */
    {119, 0},
    {132, 0},         /* multicast: not modelled */
    {134, 0},         /* the CPU's NUMA node beside this device */
};

result_t device_attribute(int *value, int attribute, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    switch (attribute) {
    case 33: *value = 1 + settings.physical_of[device]; return OK; /* PCI bus */
    case 34: /* PCI device and domain */
    case 50: *value = 0; return OK;
    case 18: *value = settings.mode == MODE_POOL; return OK; /* integrated */
    case 88:
    case 100: *value = is_coherent(); return OK;
    case 89: *value = settings.concurrent_managed_access; return OK;
    case 101: *value = cpu_reads_device_pages(); return OK;
    case 130: *value = settings.mode == MODE_NUMA; return OK;
    case 131: *value = numa_node_of(settings.physical_of[device]); return OK;
    }
    for (size_t i = 0; i < sizeof of_every_mode / sizeof *of_every_mode; i++) {
        if (of_every_mode[i].attribute == attribute) {
            *value = of_every_mode[i].value;
            return OK;
        }
    }
    violation("unsupported device attribute %d", attribute);
    return INVALID_VALUE;
}

result_t device_properties(device_properties_t *out, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    memset(out, 0, sizeof *out);
    int physical = settings.physical_of[device];
    snprintf(out->name, sizeof out->name, "%s", device_name(physical));
    device_uuid(physical, &out->uuid);
    out->total_global_memory = settings.hbm_bytes;
    out->shared_memory_per_block = 49152;
    out->shared_memory_per_block_optin = 232448;
    out->shared_memory_per_multiprocessor = 233472;
    out->registers_per_block = out->registers_per_multiprocessor = 65536;
    out->warp_size = 32;
    out->max_threads_per_block = 1024;
    out->max_threads_per_multiprocessor = 2048;
    out->max_blocks_per_multiprocessor = 32;
    out->max_threads_dim[0] = out->max_threads_dim[1] = 1024;
    out->max_threads_dim[2] = 64;
    out->max_grid_size[0] = 2147483647;
    out->max_grid_size[1] = out->max_grid_size[2] = 65535;
    out->major = COMPUTE_MAJOR;
    out->minor = COMPUTE_MINOR;
    out->multiprocessor_count = MULTIPROCESSORS;
    out->can_map_host_memory = out->concurrent_kernels = out->unified_addressing = out->managed_memory = 1;
    out->pci_bus_id = 1 + physical;
    out->l2_cache_size = L2_BYTES;
    out->concurrent_managed_access = settings.concurrent_managed_access;
    out->pageable_memory_access = out->pageable_memory_access_uses_host_page_tables = is_coherent();
    out->direct_managed_memory_access_from_host = cpu_reads_device_pages();
    out->integrated = settings.mode == MODE_POOL;
    return OK;
}
