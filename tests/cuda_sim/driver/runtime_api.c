/* The CUDA runtime, preloaded in front of torch's libcudart: the same model, with a device and a context per thread. */
#include <dlfcn.h>
#include <stdio.h>

#include "attributes.h"
#include "contexts.h"
#include "driver_api.h"
#include "errors.h"
#include "handles.h"
#include "managed.h"
#include "memory.h"
#include "transfers.h"

#define ADDRESS(pointer) ((address_t)(uintptr_t)(pointer))
#define NUMBER(handle) ((size_t)(uintptr_t)(handle))
#define GIVE(pointer, value) (*(pointer) = (value), OK)
#define RUNTIME_CALL(needs, expression, ...) with_last_error(CALL(RUNTIME_API, needs, expression, __VA_ARGS__))

static __thread result_t last_error;

static result_t with_last_error(result_t result) {
    if (result && result != NOT_READY) last_error = result;
    return result;
}

API result_t cudaGetLastError(void) {
    result_t result = last_error;
    last_error = OK;
    return result;
}
API result_t cudaPeekAtLastError(void) { return last_error; }
void remember_runtime_error(result_t result) { last_error = result; }

API const char *cudaGetErrorName(result_t result) {
    const char *name = error_constant(result, 1);
    return name ? name : "unrecognized error code";
}
API const char *cudaGetErrorString(result_t result) {
    const char *sentence = error_sentence(result);
    return sentence ? sentence : "unrecognized error code";
}

/* Devices */

static result_t give_count(int *count) {
    *count = settings.devices;
    return settings.devices ? OK : NO_DEVICE;
}
API result_t cudaGetDeviceCount(int *count) { return RUNTIME_CALL(ANY_THREAD, give_count(count), "."); }
API result_t cudaGetDevice(int *device) { return RUNTIME_CALL(ANY_THREAD, GIVE(device, current_device()), "."); }
API result_t cudaSetDevice(int device) { return RUNTIME_CALL(ANY_THREAD, set_runtime_device(device), "device=%d", device); }

static result_t give_version(int *version) {
    if (!settings.driver_version) read_settings();
    return GIVE(version, settings.driver_version);
}
API result_t cudaDriverGetVersion(int *version) { return RUNTIME_CALL(NO_INITIALISATION, give_version(version), "."); }
API result_t cudaRuntimeGetVersion(int *version) { return RUNTIME_CALL(NO_INITIALISATION, GIVE(version, 13000), "."); }

API result_t cudaGetDeviceProperties(device_properties_t *out, int device) {
    return RUNTIME_CALL(ANY_THREAD, device_properties(out, device), "device=%d", device);
}
API result_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return RUNTIME_CALL(ANY_THREAD, device_attribute(value, attribute, device), "attribute=%d device=%d", attribute, device);
}
static result_t give_bus_id(char *text, int length, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "0000:%02x:00.0", 1 + settings.physical_of[device]);
    return OK;
}
API result_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    return RUNTIME_CALL(ANY_THREAD, give_bus_id(text, length, device), "device=%d", device);
}
static result_t give_priorities(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return OK;
}
API result_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return RUNTIME_CALL(NEEDS_CONTEXT, give_priorities(least, greatest), ".");
}
static result_t can_access_peer(int *answer, int device, int peer) {
    if (check_device(device) || check_device(peer)) return INVALID_DEVICE;
    return GIVE(answer, device != peer);
}
API result_t cudaDeviceCanAccessPeer(int *answer, int device, int peer) {
    return RUNTIME_CALL(ANY_THREAD, can_access_peer(answer, device, peer), "device=%d peer=%d", device, peer);
}
API result_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, enable_peer_access(peer), "peer=%d flags=%u", peer, flags);
}
API result_t cudaDeviceSynchronize(void) { return RUNTIME_CALL(NEEDS_CONTEXT | SYNCHRONISES, OK, "."); }

/* Memory */

static result_t allocate_for_runtime(void **pointer, size_t bytes, memory_kind_t kind) {
    *pointer = NULL;
    if (!bytes) return OK;
    address_t made = 0;
    result_t bad = allocate(kind, bytes, RUNTIME_API, &made);
    return bad ? bad : GIVE(pointer, (void *)(uintptr_t)made);
}
API result_t cudaMalloc(void **pointer, size_t bytes) {
    return RUNTIME_CALL(NEEDS_CONTEXT, allocate_for_runtime(pointer, bytes, DEVICE_MEMORY), "bytes=%zu", bytes);
}
API result_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, allocate_for_runtime(pointer, bytes, MANAGED_MEMORY), "bytes=%zu flags=%u", bytes,
                        flags);
}
API result_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, allocate_for_runtime(pointer, bytes, PINNED_MEMORY), "bytes=%zu flags=%u", bytes, flags);
}
API result_t cudaFree(void *pointer) {
    return RUNTIME_CALL(NEEDS_CONTEXT, pointer ? release_device_memory(ADDRESS(pointer)) : OK, ".");
}
API result_t cudaFreeHost(void *pointer) {
    return RUNTIME_CALL(NEEDS_CONTEXT, pointer ? release(ADDRESS(pointer), PINNED_MEMORY) : OK, ".");
}
API result_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, register_host_memory(pointer, bytes, RUNTIME_API), "bytes=%zu flags=%u", bytes, flags);
}
API result_t cudaHostUnregister(void *pointer) { return RUNTIME_CALL(NEEDS_CONTEXT, unregister_host_memory(pointer), "."); }

static result_t give_memory_info(size_t *free_bytes, size_t *total) {
    memory_info(current_device(), free_bytes, total);
    return OK;
}
API result_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    return RUNTIME_CALL(NEEDS_CONTEXT, give_memory_info(free_bytes, total), ".");
}
API result_t cudaPointerGetAttributes(pointer_attributes_t *out, const void *pointer) {
    return RUNTIME_CALL(ANY_THREAD, runtime_pointer_attributes(out, pointer), ".");
}

/* Copies and fills */

API result_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, copy(ADDRESS(to), ADDRESS(from), bytes, kind, stream),
                        "bytes=%zu kind=%d stream=%zu", bytes, kind, NUMBER(stream));
}
API result_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return RUNTIME_CALL(NEEDS_CONTEXT | SYNCHRONISES, copy(ADDRESS(to), ADDRESS(from), bytes, kind, NULL),
                        "bytes=%zu kind=%d", bytes, kind);
}
API result_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, copy(ADDRESS(to), ADDRESS(from), bytes, COPY_DEVICE_TO_DEVICE, stream),
                        "bytes=%zu from=%d to=%d stream=%zu", bytes, from_device, to_device, NUMBER(stream));
}
API result_t cudaMemset(void *to, int value, size_t bytes) {
    return RUNTIME_CALL(NEEDS_CONTEXT, fill_bytes(ADDRESS(to), value, bytes, NULL), "bytes=%zu", bytes);
}
API result_t cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, fill_bytes(ADDRESS(to), value, bytes, stream), "bytes=%zu stream=%zu", bytes,
                        NUMBER(stream));
}

/* Streams and events */

API result_t cudaStreamCreate(void **stream) { return RUNTIME_CALL(NEEDS_CONTEXT, create_stream(stream, RUNTIME_API), "."); }
API result_t cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, create_stream(stream, RUNTIME_API), "flags=%u", flags);
}
API result_t cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    return RUNTIME_CALL(NEEDS_CONTEXT, create_stream(stream, RUNTIME_API), "flags=%u priority=%d", flags, priority);
}
API result_t cudaStreamDestroy(void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, destroy_stream(stream), "stream=%zu", NUMBER(stream));
}
API result_t cudaStreamQuery(void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, check_stream(stream, NULL), "stream=%zu", NUMBER(stream));
}
API result_t cudaStreamSynchronize(void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT | SYNCHRONISES, check_stream(stream, NULL), "stream=%zu", NUMBER(stream));
}
API result_t cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, wait_for_event(stream, event), "stream=%zu event=%zu flags=%u", NUMBER(stream),
                        NUMBER(event), flags);
}
static result_t give_priority(void *stream, int *priority) {
    result_t bad = check_stream(stream, NULL);
    return bad ? bad : GIVE(priority, 0);
}
API result_t cudaStreamGetPriority(void *stream, int *priority) {
    return RUNTIME_CALL(NEEDS_CONTEXT, give_priority(stream, priority), "stream=%zu", NUMBER(stream));
}

/* Graphs are not modelled, so no stream is ever being captured. */
static result_t not_capturing(void *stream, int *status) {
    result_t bad = check_stream(stream, NULL);
    return bad ? bad : GIVE(status, 0);
}
API result_t cudaStreamIsCapturing(void *stream, int *status) {
    return RUNTIME_CALL(NEEDS_CONTEXT, not_capturing(stream, status), "stream=%zu", NUMBER(stream));
}
API result_t cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies,
                                      void **edges, size_t *count) {
    (void)id, (void)graph, (void)dependencies, (void)edges, (void)count; /* meant for a stream that is being captured */
    return RUNTIME_CALL(NEEDS_CONTEXT, not_capturing(stream, status), "stream=%zu", NUMBER(stream));
}
API result_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int mode_of_thread;
    int before = mode_of_thread;
    mode_of_thread = *mode;
    return RUNTIME_CALL(ANY_THREAD, GIVE(mode, before), ".");
}

API result_t cudaEventCreate(void **event) { return RUNTIME_CALL(NEEDS_CONTEXT, create_event(event, RUNTIME_API), "."); }
API result_t cudaEventCreateWithFlags(void **event, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, create_event(event, RUNTIME_API), "flags=%u", flags);
}
API result_t cudaEventDestroy(void *event) {
    return RUNTIME_CALL(NEEDS_CONTEXT, destroy_event(event), "event=%zu", NUMBER(event));
}
API result_t cudaEventQuery(void *event) { return RUNTIME_CALL(NEEDS_CONTEXT, query_event(event), "event=%zu", NUMBER(event)); }
API result_t cudaEventRecord(void *event, void *stream) {
    return RUNTIME_CALL(NEEDS_CONTEXT, record_event(event, stream), "event=%zu stream=%zu", NUMBER(event), NUMBER(stream));
}
API result_t cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    return RUNTIME_CALL(NEEDS_CONTEXT, record_event(event, stream), "event=%zu stream=%zu flags=%u", NUMBER(event),
                        NUMBER(stream), flags);
}
API result_t cudaEventSynchronize(void *event) {
    return RUNTIME_CALL(NEEDS_CONTEXT | SYNCHRONISES, synchronise_event(event), "event=%zu", NUMBER(event));
}
API result_t cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    return RUNTIME_CALL(NEEDS_CONTEXT, elapsed_time(milliseconds, start, end), ".");
}

/* Driver functions by way of the runtime */

static result_t give_entry_point(const char *name, void **function, int version, int *status) {
    *function = driver_function(name, version);
    if (status) *status = *function ? 0 : 1;
    return OK;
}
API result_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                              int *status) {
    return RUNTIME_CALL(ANY_THREAD, give_entry_point(name, function, (int)version, status), "name=%s version=%u flags=%llu",
                        name, version, flags);
}
API result_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return RUNTIME_CALL(ANY_THREAD, give_entry_point(name, function, settings.driver_version, status), "name=%s flags=%llu",
                        name, flags);
}
