/* The entry points of libcuda: each says what it asks of its thread and hands over to the model. */
#include "driver_api.h"

#include <stdio.h>
#include <string.h>

#include "advice.h"
#include "attributes.h"
#include "contexts.h"
#include "errors.h"
#include "handles.h"
#include "managed.h"
#include "memory.h"
#include "transfers.h"

#define ADDRESS(pointer) ((address_t)(uintptr_t)(pointer))
#define NUMBER(handle) ((size_t)(uintptr_t)(handle))
#define GIVE(pointer, value) (*(pointer) = (value), OK)

API result_t cuInit(unsigned flags) {
    return DRIVER_CALL(NO_INITIALISATION, flags ? INVALID_VALUE : initialise(), "flags=%u", flags);
}

static result_t driver_version(int *version) {
    if (!settings.driver_version) read_settings();
    return GIVE(version, settings.driver_version);
}
API result_t cuDriverGetVersion(int *version) {
    return DRIVER_CALL(NO_INITIALISATION, driver_version(version), "version=%d", *version);
}

static result_t error_text(const char *text, const char **out) { return (*out = text) ? OK : INVALID_VALUE; }
API result_t cuGetErrorName(result_t result, const char **text) {
    return DRIVER_CALL(NO_INITIALISATION, error_text(error_constant(result, 0), text), "error=%d", result);
}
API result_t cuGetErrorString(result_t result, const char **text) {
    return DRIVER_CALL(NO_INITIALISATION, error_text(error_sentence(result), text), "error=%d", result);
}

/* Devices */

API result_t cuDeviceGetCount(int *count) { return DRIVER_CALL(ANY_THREAD, GIVE(count, settings.devices), "."); }

static result_t give_device(int *device, int ordinal) {
    return check_device(ordinal) ? INVALID_DEVICE : GIVE(device, ordinal);
}
API result_t cuDeviceGet(int *device, int ordinal) {
    return DRIVER_CALL(ANY_THREAD, give_device(device, ordinal), "ordinal=%d", ordinal);
}

static result_t give_name(char *name, int length, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", device_name(settings.physical_of[device]));
    return OK;
}
API result_t cuDeviceGetName(char *name, int length, int device) {
    return DRIVER_CALL(ANY_THREAD, give_name(name, length, device), "device=%d", device);
}

static result_t give_uuid(uuid_bytes_t *uuid, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    device_uuid(settings.physical_of[device], uuid);
    return OK;
}
API result_t cuDeviceGetUuid_v2(uuid_bytes_t *uuid, int device) {
    return DRIVER_CALL(ANY_THREAD, give_uuid(uuid, device), "device=%d", device);
}
API result_t cuDeviceGetUuid(uuid_bytes_t *uuid, int device) {
    return DRIVER_CALL(ANY_THREAD, give_uuid(uuid, device), "device=%d", device);
}

static result_t give_total_memory(size_t *bytes, int device) {
    return check_device(device) ? INVALID_DEVICE : GIVE(bytes, settings.hbm_bytes);
}
API result_t cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return DRIVER_CALL(ANY_THREAD, give_total_memory(bytes, device), "device=%d", device);
}
API result_t cuDeviceGetAttribute(int *value, int attribute, int device) {
    return DRIVER_CALL(ANY_THREAD, device_attribute(value, attribute, device), "attribute=%d device=%d", attribute, device);
}

/* Contexts */

API result_t cuDevicePrimaryCtxRetain(void **context, int device) {
    return DRIVER_CALL(ANY_THREAD, retain_primary_context(context, device), "device=%d", device);
}
API result_t cuDevicePrimaryCtxRelease_v2(int device) {
    return DRIVER_CALL(ANY_THREAD, release_primary_context(device), "device=%d", device);
}
static result_t give_primary_state(int device, unsigned *flags, int *active) {
    if (check_device(device)) return INVALID_DEVICE;
    primary_context_state(device, flags, active);
    return OK;
}
API result_t cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return DRIVER_CALL(ANY_THREAD, give_primary_state(device, flags, active), "device=%d", device);
}
API result_t cuCtxPushCurrent_v2(void *context) { return DRIVER_CALL(ANY_THREAD, push_context(context), "."); }
API result_t cuCtxPopCurrent_v2(void **context) { return DRIVER_CALL(NEEDS_CONTEXT, pop_context(context), "."); }
API result_t cuCtxSetCurrent(void *context) { return DRIVER_CALL(ANY_THREAD, set_context(context), "."); }
API result_t cuCtxGetCurrent(void **context) { return DRIVER_CALL(ANY_THREAD, GIVE(context, current_context()), "."); }
API result_t cuCtxGetDevice(int *device) { return DRIVER_CALL(NEEDS_CONTEXT, GIVE(device, current_device()), "."); }
API result_t cuCtxSynchronize(void) { return DRIVER_CALL(NEEDS_CONTEXT | SYNCHRONISES, OK, "."); }

/* Memory */

static result_t give_memory_info(size_t *free_bytes, size_t *total) {
    memory_info(current_device(), free_bytes, total);
    return OK;
}
API result_t cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    return DRIVER_CALL(NEEDS_CONTEXT, give_memory_info(free_bytes, total), ".");
}
API result_t cuMemAlloc_v2(address_t *pointer, size_t bytes) {
    return DRIVER_CALL(NEEDS_CONTEXT, allocate(DEVICE_MEMORY, bytes, DRIVER_API, pointer), "bytes=%zu", bytes);
}
API result_t cuMemFree_v2(address_t pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, release_device_memory(pointer), "pointer=%llx", pointer);
}

static result_t allocate_pinned(void **pointer, size_t bytes, unsigned flags) {
    address_t made = 0;
    result_t bad = flags > 7 ? INVALID_VALUE : allocate(PINNED_MEMORY, bytes, DRIVER_API, &made);
    return bad ? bad : GIVE(pointer, (void *)(uintptr_t)made);
}
API result_t cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return DRIVER_CALL(NEEDS_CONTEXT, allocate_pinned(pointer, bytes, flags), "bytes=%zu flags=%u", bytes, flags);
}
API result_t cuMemFreeHost(void *pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, release(ADDRESS(pointer), PINNED_MEMORY), ".");
}
API result_t cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    return DRIVER_CALL(NEEDS_CONTEXT, register_host_memory(pointer, bytes, DRIVER_API), "bytes=%zu flags=%u", bytes, flags);
}
API result_t cuMemHostUnregister(void *pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, unregister_host_memory(pointer), ".");
}

static result_t allocate_managed(address_t *pointer, size_t bytes, unsigned flags) {
    return flags != 1 && flags != 2 ? INVALID_VALUE : allocate(MANAGED_MEMORY, bytes, DRIVER_API, pointer);
}
API result_t cuMemAllocManaged(address_t *pointer, size_t bytes, unsigned flags) {
    return DRIVER_CALL(NEEDS_CONTEXT, allocate_managed(pointer, bytes, flags), "bytes=%zu flags=%u", bytes, flags);
}
API result_t cuMemAdvise_v2(address_t start, size_t bytes, int advice, location_t where) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT, advise(start, bytes, advice, where),
                       "pointer=%llx bytes=%zu advice=%d type=%d id=%d", start, bytes, advice, where.type, where.id);
}
API result_t cuMemPrefetchAsync_v2(address_t start, size_t bytes, location_t where, unsigned flags, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, flags ? INVALID_VALUE : prefetch(start, bytes, where, stream),
                       "pointer=%llx bytes=%zu type=%d id=%d flags=%u stream=%zu", start, bytes, where.type, where.id,
                       flags, NUMBER(stream));
}
API result_t cuMemPrefetchBatchAsync(address_t *starts, size_t *sizes, size_t count, location_t *places,
                                     size_t *first_of_place, size_t place_count, unsigned long long flags, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, prefetch_batch(starts, sizes, count, places, first_of_place, place_count, flags, stream),
                       "count=%zu places=%zu flags=%llu stream=%zu", count, place_count, flags, NUMBER(stream));
}

/* The interface before 12.2: a bare device number, -1 for the CPU. */
static location_t location_of(int device) {
    return (location_t){device < 0 ? LOCATION_HOST : LOCATION_DEVICE, device < 0 ? 0 : device};
}
API result_t cuMemAdvise(address_t start, size_t bytes, int advice, int device) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT, advise(start, bytes, advice, location_of(device)),
                       "pointer=%llx bytes=%zu advice=%d device=%d", start, bytes, advice, device);
}
API result_t cuMemPrefetchAsync(address_t start, size_t bytes, int device, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, prefetch(start, bytes, location_of(device), stream),
                       "pointer=%llx bytes=%zu device=%d stream=%zu", start, bytes, device, NUMBER(stream));
}

API result_t cuPointerGetAttribute(void *value, int attribute, address_t pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, pointer_attribute(value, attribute, pointer), "attribute=%d pointer=%llx", attribute,
                       pointer);
}

static size_t size_of_pointer_attribute(int attribute) {
    return attribute == 2 || attribute == 8 || attribute == 9 || attribute == 13 ? sizeof(int) : sizeof(address_t);
}

/* Unlike the single question, the list never fails for a pointer: what does not apply is zero. */
static result_t pointer_attributes(unsigned count, const int *attributes, void **values, address_t pointer) {
    const allocation_t *found = find_allocation(pointer);
    for (unsigned i = 0; i < count; i++) {
        memset(values[i], 0, size_of_pointer_attribute(attributes[i]));
        if (!found || !found->live) continue;
        if (pointer_attribute(values[i], attributes[i], pointer) == NOT_SUPPORTED) return NOT_SUPPORTED;
    }
    return OK;
}
API result_t cuPointerGetAttributes(unsigned count, int *attributes, void **values, address_t pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, pointer_attributes(count, attributes, values, pointer), "count=%u pointer=%llx", count,
                       pointer);
}
API result_t cuMemRangeGetAttribute(void *value, size_t size, int attribute, address_t start, size_t bytes) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT, range_attribute(value, size, attribute, start, bytes), "attribute=%d", attribute);
}
static result_t address_range(address_t *base, size_t *size, address_t pointer) {
    const allocation_t *found = find_allocation(pointer);
    if (!found || !found->live) return NOT_FOUND;
    if (base) *base = found->base;
    if (size) *size = found->size;
    return OK;
}
API result_t cuMemGetAddressRange_v2(address_t *base, size_t *size, address_t pointer) {
    return DRIVER_CALL(NEEDS_CONTEXT, address_range(base, size, pointer), "pointer=%llx", pointer);
}

/* Copies and fills */

API result_t cuMemcpyHtoDAsync_v2(address_t to, const void *from, size_t bytes, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, copy(to, ADDRESS(from), bytes, COPY_HOST_TO_DEVICE, stream), "bytes=%zu stream=%zu",
                       bytes, NUMBER(stream));
}
API result_t cuMemcpyDtoHAsync_v2(void *to, address_t from, size_t bytes, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, copy(ADDRESS(to), from, bytes, COPY_DEVICE_TO_HOST, stream), "bytes=%zu stream=%zu",
                       bytes, NUMBER(stream));
}
API result_t cuMemcpyAsync(address_t to, address_t from, size_t bytes, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, copy(to, from, bytes, COPY_DEFAULT, stream), "bytes=%zu stream=%zu", bytes,
                       NUMBER(stream));
}
API result_t cuMemsetD32Async(address_t to, unsigned value, size_t count, void *stream) {
    return DRIVER_CALL(NEEDS_CONTEXT, fill_words(to, value, count, stream), "pointer=%llx value=%u bytes=%zu stream=%zu", to,
                       value, count * sizeof value, NUMBER(stream));
}

/* Streams and events */

API result_t cuStreamCreate(void **stream, unsigned flags) {
    return DRIVER_CALL(NEEDS_CONTEXT, flags > 1 ? INVALID_VALUE : create_stream(stream, DRIVER_API), "flags=%u", flags);
}
API result_t cuStreamDestroy_v2(void *stream) { return DRIVER_CALL(SHOULD_HAVE_CONTEXT, destroy_stream(stream), "stream=%zu", NUMBER(stream)); }
API result_t cuStreamQuery(void *stream) { return DRIVER_CALL(SHOULD_HAVE_CONTEXT, check_stream(stream, NULL), "stream=%zu", NUMBER(stream)); }
API result_t cuStreamSynchronize(void *stream) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT | SYNCHRONISES, check_stream(stream, NULL), "stream=%zu", NUMBER(stream));
}
API result_t cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT, wait_for_event(stream, event), "stream=%zu event=%zu flags=%u", NUMBER(stream),
                       NUMBER(event), flags);
}
API result_t cuEventCreate(void **event, unsigned flags) {
    return DRIVER_CALL(NEEDS_CONTEXT, flags > 7 ? INVALID_VALUE : create_event(event, DRIVER_API), "flags=%u", flags);
}
API result_t cuEventRecord(void *event, void *stream) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT, record_event(event, stream), "event=%zu stream=%zu", NUMBER(event), NUMBER(stream));
}
API result_t cuEventQuery(void *event) { return DRIVER_CALL(SHOULD_HAVE_CONTEXT, query_event(event), "event=%zu", NUMBER(event)); }
API result_t cuEventSynchronize(void *event) {
    return DRIVER_CALL(SHOULD_HAVE_CONTEXT | SYNCHRONISES, synchronise_event(event), "event=%zu", NUMBER(event));
}
API result_t cuEventDestroy_v2(void *event) { return DRIVER_CALL(SHOULD_HAVE_CONTEXT, destroy_event(event), "event=%zu", NUMBER(event)); }

/* This driver writes no log, so a callback for its lines is taken and never called. */
API result_t cuLogsRegisterCallback(void *callback, void *user_data, void **out) {
    (void)user_data;
    return DRIVER_CALL(NO_INITIALISATION, out ? GIVE(out, callback) : OK, ".");
}
API result_t cuLogsUnregisterCallback(void *callback) {
    (void)callback;
    return DRIVER_CALL(NO_INITIALISATION, OK, ".");
}

/* For the tests: how many bytes of a managed range are on a device, or with -1 on the host. */
API size_t cuda_sim_resident(address_t start, size_t bytes, int place) {
    lock_model();
    allocation_t *found = find_allocation(start);
    size_t answer = 0;
    if (found && found->live && found->kind == MANAGED_MEMORY) {
        settle_first_touches(found, 0, found->page_count);
        answer = bytes_on(found, start, bytes, place);
    }
    unlock_model();
    return answer;
}
