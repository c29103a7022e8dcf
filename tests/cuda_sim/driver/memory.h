/* Every allocation: the GPU's own memory, pinned, registered and managed memory, live and lately freed. */
#ifndef CUDA_SIM_MEMORY_H
#define CUDA_SIM_MEMORY_H
#include "calls.h"

typedef enum { DEVICE_MEMORY, PINNED_MEMORY, REGISTERED_MEMORY, MANAGED_MEMORY } memory_kind_t;

struct page;

/* The program's address and the place of the bytes differ: the CPU cannot read the GPU's own memory through its address,
   and reads managed pages only where the mode allows it. Kernels and copies use `view`. */
typedef struct {
    address_t base;
    size_t size;
    size_t reserved; /* bytes of address space */
    char *view;
    memory_kind_t kind;
    api_t owner;
    int device;
    int live;
    struct page *pages; /* of managed memory only */
    size_t page_count, unpopulated;
} allocation_t;

result_t allocate(memory_kind_t kind, size_t bytes, api_t owner, address_t *out);
result_t release(address_t base, memory_kind_t kind);
result_t release_device_memory(address_t base); /* cuMemFree: the GPU's own or managed */
result_t register_host_memory(void *start, size_t bytes, api_t owner);
result_t unregister_host_memory(void *start);

const char *kind_name(memory_kind_t kind);
allocation_t *find_allocation(address_t address);          /* live or lately freed; NULL for memory CUDA never saw */
allocation_t *next_managed(size_t *position);              /* all live managed allocations, from position 0 */
int is_mapped(address_t start, size_t bytes);              /* whether every page of system memory exists */
size_t own_bytes_on(int device);                             /* of the GPU's own memory, in use */
void memory_info(int device, size_t *free_bytes, size_t *total);
result_t pointer_attribute(void *value, int attribute, address_t pointer);
result_t runtime_pointer_attributes(pointer_attributes_t *out, const void *pointer);

/* Where a kernel on `device` finds a range; NULL, after a violation, where a real one would fault. */
char *kernel_view(address_t start, size_t bytes, int device, int access);

size_t bytes_left(memory_kind_t kind, api_t owner);
size_t device_bytes_peak(int device);
#endif
