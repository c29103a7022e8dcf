/* What a pointer is: to a kernel that reads it, and to a program that asks. */
#include <string.h>

#include "contexts.h"
#include "managed.h"
#include "memory.h"

char *kernel_view(address_t start, size_t bytes, int device, int access) {
    allocation_t *found = find_allocation(start);
    if (!found) {
        if (is_coherent() && is_mapped(start, bytes)) return (char *)(uintptr_t)start;
        violation("a kernel reads system memory that %s", is_coherent() ? "is not mapped" : "the GPU cannot reach");
        return NULL;
    }
    if (!found->live) {
        violation("a kernel reads freed %s memory", kind_name(found->kind));
        return NULL;
    }
    if (start + bytes > found->base + found->size) {
        violation("a kernel reads past the end of %s memory", kind_name(found->kind));
        return NULL;
    }
    if (found->kind == DEVICE_MEMORY && !peer_access_enabled(device, found->device)) {
        violation("a kernel reads another device's memory without peer access");
        return NULL;
    }
    if (found->kind == MANAGED_MEMORY) touch_from_device(found, start, bytes, device, access);
    return found->view + (start - found->base);
}

result_t pointer_attribute(void *value, int attribute, address_t pointer) {
    allocation_t *found = find_allocation(pointer);
    if (!found || !found->live) return INVALID_VALUE;
    int on_device = found->kind == DEVICE_MEMORY || found->kind == MANAGED_MEMORY;
    switch (attribute) {
    case 2: *(unsigned *)value = on_device ? MEMORY_TYPE_DEVICE : MEMORY_TYPE_HOST; return OK;
    case 3: *(address_t *)value = pointer; return OK;
    case 4:
        if (found->kind == DEVICE_MEMORY) return INVALID_VALUE;
        *(address_t *)value = pointer;
        return OK;
    case 8: *(unsigned *)value = found->kind == MANAGED_MEMORY; return OK;
    case 9: *(int *)value = found->device; return OK;
    case 11: *(address_t *)value = found->base; return OK;
    case 12: *(size_t *)value = found->size; return OK;
    case 13: *(unsigned *)value = 1; return OK;
    default: violation("unsupported pointer attribute %d", attribute); return NOT_SUPPORTED;
    }
}

result_t runtime_pointer_attributes(pointer_attributes_t *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    allocation_t *found = find_allocation((address_t)(uintptr_t)pointer);
    if (!found || !found->live) {
        out->device = -2; /* cudaInvalidDeviceId */
        out->host_pointer = (void *)pointer;
        if (is_coherent()) out->device_pointer = (void *)pointer;
        return OK;
    }
    static const int types[] = {MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST, MEMORY_TYPE_HOST, MEMORY_TYPE_MANAGED};
    out->type = types[found->kind];
    out->device = found->device;
    out->device_pointer = (void *)pointer;
    out->host_pointer = found->kind == DEVICE_MEMORY ? NULL : (void *)pointer;
    return OK;
}
