/* What this simulated device needs of CUDA's interfaces, declared by hand: the machine that builds it has no CUDA headers. */
#ifndef CUDA_SIM_CUDA_TYPES_H
#define CUDA_SIM_CUDA_TYPES_H
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* The driver's CUresult and the runtime's cudaError_t share these values. */
typedef int result_t;
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    UNKNOWN_ERROR = 999,
};

typedef unsigned long long address_t; /* CUdeviceptr, and any host address it is compared with */

typedef struct {
    int type;
    int id;
} location_t; /* CUmemLocation */
enum { LOCATION_NONE = 0, LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3, LOCATION_HOST_NUMA_CURRENT = 4 };

enum {
    SET_READ_MOSTLY = 1,
    UNSET_READ_MOSTLY = 2,
    SET_PREFERRED_LOCATION = 3,
    UNSET_PREFERRED_LOCATION = 4,
    SET_ACCESSED_BY = 5,
    UNSET_ACCESSED_BY = 6,
};

enum { MEMORY_TYPE_UNREGISTERED = 0, MEMORY_TYPE_HOST = 1, MEMORY_TYPE_DEVICE = 2, MEMORY_TYPE_MANAGED = 3 };
enum { COPY_HOST_TO_HOST = 0, COPY_HOST_TO_DEVICE = 1, COPY_DEVICE_TO_HOST = 2, COPY_DEVICE_TO_DEVICE = 3, COPY_DEFAULT = 4 };

typedef struct {
    unsigned char bytes[16];
} uuid_bytes_t;

typedef struct {
    unsigned x, y, z;
} dim3_t;

/* cudaDeviceProp of CUDA 13; the tail holds fields nobody here asks for. */
typedef struct {
    char name[256];
    uuid_bytes_t uuid;
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_memory;
    size_t shared_memory_per_block;
    int registers_per_block;
    int warp_size;
    size_t memory_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    size_t total_const_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    int multiprocessor_count;
    int integrated;
    int can_map_host_memory;
    int texture_and_surface_limits[39];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus_id;
    int pci_device_id;
    int pci_domain_id;
    int tcc_driver;
    int async_engine_count;
    int unified_addressing;
    int memory_bus_width;
    int l2_cache_size;
    int persisting_l2_cache_max_size;
    int max_threads_per_multiprocessor;
    int stream_priorities_supported;
    int global_l1_cache_supported;
    int local_l1_cache_supported;
    size_t shared_memory_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory;
    int is_multi_gpu_board;
    int multi_gpu_board_group_id;
    int host_native_atomic_supported;
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption_supported;
    int can_use_host_pointer_for_registered_memory;
    int cooperative_launch;
    size_t shared_memory_per_block_optin;
    int pageable_memory_access_uses_host_page_tables;
    int direct_managed_memory_access_from_host;
    int max_blocks_per_multiprocessor;
    char tail[316];
} device_properties_t;
_Static_assert(sizeof(device_properties_t) == 1008, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(device_properties_t, multiprocessor_count) == 384, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(device_properties_t, unified_addressing) == 588, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(device_properties_t, direct_managed_memory_access_from_host) == 684, "cudaDeviceProp of CUDA 13");

typedef struct {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
    long reserved[8];
} pointer_attributes_t; /* cudaPointerAttributes */
_Static_assert(sizeof(pointer_attributes_t) == 88, "cudaPointerAttributes of CUDA 13");

typedef struct {
    size_t shared_bytes, const_bytes, local_bytes;
    int max_threads_per_block, registers, ptx_version, binary_version;
    char tail[104];
} function_attributes_t; /* cudaFuncAttributes */
_Static_assert(sizeof(function_attributes_t) == 144, "cudaFuncAttributes of CUDA 13");
#endif
