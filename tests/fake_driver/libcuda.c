/* A stand-in libcuda.so.1: entry points, handles, contexts, the call log and injected faults. */
#include "entry.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HANDLES 4096
enum { STREAM = 1, EVENT = 2 };
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int initialised, calls, named_calls;
static char handles[MAX_HANDLES];
static int next_handle = 16;
static __thread uintptr_t contexts[16];
static __thread int depth;

uintptr_t current(void) { return depth ? contexts[depth - 1] : 0; }

result_t log_call(result_t result, const char *name, const char *format, ...) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (file) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(file, "%s ", name);
        vfprintf(file, format, arguments);
        fprintf(file, " -> %d\n", result);
        va_end(arguments);
        fclose(file);
    }
    pthread_mutex_unlock(&guard);
    return result;
}

/* Takes the lock, which log_call releases; returns the error every call of this name has to give, if any. */
result_t enter(const char *name, int needs_context) {
    pthread_mutex_lock(&guard);
    calls++;
    if (!initialised) return NOT_INITIALIZED;
    int chosen = settings.fail_name && (!strcmp(settings.fail_name, "*") || !strcmp(settings.fail_name, name));
    if (chosen && named_calls++ >= settings.fail_after) return settings.fail_code;
    return needs_context && !current() ? INVALID_CONTEXT : OK;
}

static int is_handle(const void *handle, int kind) {
    uintptr_t h = (uintptr_t)handle;
    return h >= 16 && h < MAX_HANDLES && handles[h] == kind;
}
int is_stream(const void *stream) { return (uintptr_t)stream <= 2 || is_handle(stream, STREAM); }
static void *make_handle(int kind) { handles[next_handle] = (char)kind; return (void *)(uintptr_t)next_handle++; }

result_t cuInit(unsigned flags) {
    pthread_mutex_lock(&guard);
    read_settings();
    result_t r = flags ? INVALID_VALUE : settings.init_error;
    initialised = !r;
    LEAVE("flags=%u", flags);
}
result_t cuDriverGetVersion(int *version) {
    pthread_mutex_lock(&guard);
    read_settings();
    *version = settings.version;
    result_t r = OK;
    LEAVE("version=%d", *version);
}
result_t cuDeviceGetCount(int *count) { ENTER(0); if (!r) *count = settings.devices; LEAVE("."); }
result_t cuDeviceGet(int *device, int ordinal) {
    ENTER(0);
    if (!r && (ordinal < 0 || ordinal >= settings.devices)) r = INVALID_DEVICE;
    if (!r) *device = ordinal;
    LEAVE("ordinal=%d", ordinal);
}
result_t cuDeviceGetName(char *name, int length, int device) {
    ENTER(0);
    if (!r) snprintf(name, (size_t)length, "Stand-in %d", device);
    LEAVE("device=%d", device);
}
result_t cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(0);
    if (!r) *bytes = settings.hbm;
    LEAVE("device=%d", device);
}
result_t cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER(0);
    if (!r && (device < 0 || device >= settings.devices)) r = INVALID_DEVICE;
    int of_ats = attribute == 88 || attribute == 100 || attribute == 101;
    if (!r) *value = attribute == 83 ? 1 : attribute == 89 ? settings.concurrent : of_ats ? settings.ats : 0;
    LEAVE("attribute=%d device=%d", attribute, device);
}
result_t cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(0);
    if (!r && device >= settings.devices) r = INVALID_DEVICE;
    if (!r) *context = (void *)(uintptr_t)(CONTEXT_BASE + device);
    LEAVE("device=%d", device);
}
result_t cuDevicePrimaryCtxRelease_v2(int device) { ENTER(0); LEAVE("device=%d", device); }
result_t cuCtxPushCurrent_v2(void *context) {
    ENTER(0);
    if (!r && ((uintptr_t)context < CONTEXT_BASE || depth == 16)) r = INVALID_CONTEXT;
    if (!r) contexts[depth++] = (uintptr_t)context;
    LEAVE(".");
}
result_t cuCtxPopCurrent_v2(void **context) { ENTER(1); if (!r) *context = (void *)contexts[--depth]; LEAVE("."); }
result_t cuCtxGetCurrent(void **context) { ENTER(0); if (!r) *context = (void *)current(); LEAVE("."); }
result_t cuCtxSynchronize(void) { ENTER(1); LEAVE("."); }
result_t cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(1);
    if (!r) *total = settings.hbm, *free_bytes = settings.hbm - device_used((int)(current() - CONTEXT_BASE));
    LEAVE(".");
}

result_t cuMemAllocManaged(devptr_t *pointer, size_t bytes, unsigned flags) {
    ENTER(1);
    if (!r && (!bytes || (flags != 1 && flags != 2))) r = INVALID_VALUE;
    if (!r) r = new_block(bytes, pointer);
    LEAVE("bytes=%zu flags=%u", bytes, flags);
}
result_t cuMemFree_v2(devptr_t pointer) { ENTER(1); if (!r) r = is_plain(pointer) ? free_plain(pointer, DEVICE_ONLY) : free_block(pointer); LEAVE("pointer=%llx", pointer); }

result_t cuMemAdvise_v2(devptr_t start, size_t bytes, int advice, location_t where) {
    ENTER(0);
    if (!r) r = advise(start, bytes, advice, where);
    LEAVE("pointer=%llx bytes=%zu advice=%d type=%d id=%d", start, bytes, advice, where.type, where.id);
}
result_t cuMemPrefetchAsync_v2(devptr_t start, size_t bytes, location_t where, unsigned flags, void *stream) {
    ENTER(1);
    if (!r && flags) r = INVALID_VALUE;
    if (!r && !is_stream(stream)) r = INVALID_HANDLE;
    if (!r) r = prefetch(start, bytes, where);
    LEAVE("pointer=%llx bytes=%zu type=%d id=%d flags=%u stream=%zu", start, bytes, where.type, where.id, flags,
          (size_t)(uintptr_t)stream);
}
/* The interface before 12.2: a bare device number, -1 for the CPU. */
result_t cuMemAdvise(devptr_t start, size_t bytes, int advice, int device) {
    return cuMemAdvise_v2(start, bytes, advice, (location_t){device < 0 ? LOC_HOST : LOC_DEVICE, device < 0 ? 0 : device});
}
result_t cuMemPrefetchAsync(devptr_t start, size_t bytes, int device, void *stream) {
    location_t where = {device < 0 ? LOC_HOST : LOC_DEVICE, device < 0 ? 0 : device};
    return cuMemPrefetchAsync_v2(start, bytes, where, 0, stream);
}

result_t cuPointerGetAttribute(void *value, int attribute, devptr_t pointer) {
    ENTER(1);
    block_t *b = r ? NULL : find_block(pointer);
    if (!r && (!b || !b->live)) r = INVALID_VALUE;
    if (!r) switch (attribute) {
        case 2: *(unsigned *)value = 2; break;
        case 8: *(unsigned *)value = 1; break;
        case 9: *(int *)value = 0; break;
        case 11: *(devptr_t *)value = b->base; break;
        case 12: *(size_t *)value = b->size; break;
        default: r = NOT_SUPPORTED;
    }
    LEAVE("attribute=%d pointer=%llx", attribute, pointer);
}
static int as_device(location_t where) {
    return where.type == 0 ? UNKNOWN_PLACE : where.type == LOC_DEVICE ? where.id : ON_HOST;
}
result_t cuMemRangeGetAttribute(void *value, size_t size, int attribute, devptr_t start, size_t bytes) {
    ENTER(1);
    block_t *b = NULL;
    if (!r && (size != 4 || (r = check_range(start, bytes, &b)) || !b)) r = INVALID_VALUE;
    if (!r) switch (attribute) {
        case 1: *(int *)value = b->read_mostly; break;
        case 2: *(int *)value = as_device(b->preferred); break;
        case 4: *(int *)value = as_device(b->last_prefetch); break;
        default: r = NOT_SUPPORTED;
    }
    LEAVE("attribute=%d", attribute);
}

result_t cuStreamCreate(void **stream, unsigned flags) {
    ENTER(1);
    if (!r && flags > 1) r = INVALID_VALUE;
    if (!r) *stream = make_handle(STREAM);
    LEAVE("flags=%u", flags);
}
result_t cuStreamDestroy_v2(void *stream) {
    ENTER(0);
    if (!r && !is_handle(stream, STREAM)) r = INVALID_HANDLE;
    if (!r) handles[(uintptr_t)stream] = 0;
    LEAVE(".");
}
result_t cuStreamSynchronize(void *stream) { ENTER(0); if (!r && !is_stream(stream)) r = INVALID_HANDLE; LEAVE("."); }
result_t cuEventCreate(void **event, unsigned flags) {
    ENTER(1);
    if (!r && flags > 7) r = INVALID_VALUE;
    if (!r) *event = make_handle(EVENT);
    LEAVE(".");
}
result_t cuEventRecord(void *event, void *stream) {
    ENTER(0);
    if (!r && (!is_handle(event, EVENT) || !is_stream(stream))) r = INVALID_HANDLE;
    LEAVE(".");
}
result_t cuEventQuery(void *event) {
    ENTER(0);
    if (!r && !is_handle(event, EVENT)) r = INVALID_HANDLE;
    if (!r && settings.events_never_ready) r = NOT_READY;
    LEAVE(".");
}
result_t cuEventDestroy_v2(void *event) {
    ENTER(0);
    if (!r && !is_handle(event, EVENT)) r = INVALID_HANDLE;
    if (!r) handles[(uintptr_t)event] = 0;
    LEAVE(".");
}

/* For the tests: how many bytes of a range are on a device (or -1, the host), and how many blocks are live. */
size_t fake_resident(devptr_t start, size_t bytes, int device) {
    block_t *b = find_block(start);
    if (!b) return 0;
    size_t first = (start - b->base) / settings.page, last = (start - b->base + bytes - 1) / settings.page, found = 0;
    for (size_t p = first; p <= last; p++) found += b->place[p] == device;
    return found * settings.page;
}

static const struct {
    const char *name;
    int since;
    void *function;
} table[] = {
    {"cuInit", 2000, cuInit},
    {"cuDriverGetVersion", 2020, cuDriverGetVersion},
    {"cuDeviceGetCount", 2000, cuDeviceGetCount},
    {"cuDeviceGet", 2000, cuDeviceGet},
    {"cuDeviceGetName", 2000, cuDeviceGetName},
    {"cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2},
    {"cuDeviceGetAttribute", 2000, cuDeviceGetAttribute},
    {"cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2},
    {"cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2},
    {"cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2},
    {"cuCtxGetCurrent", 4000, cuCtxGetCurrent},
    {"cuCtxSynchronize", 2000, cuCtxSynchronize},
    {"cuMemGetInfo", 3020, cuMemGetInfo_v2},
    {"cuMemAllocManaged", 6000, cuMemAllocManaged},
    {"cuMemFree", 3020, cuMemFree_v2},
    {"cuMemAlloc", 3020, cuMemAlloc_v2},
    {"cuMemHostAlloc", 2020, cuMemHostAlloc},
    {"cuMemFreeHost", 2000, cuMemFreeHost},
    {"cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2},
    {"cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2},
    {"cuMemsetD32Async", 3020, cuMemsetD32Async},
    {"cuMemAdvise", 12020, cuMemAdvise_v2},
    {"cuMemAdvise", 8000, cuMemAdvise},
    {"cuMemPrefetchAsync", 12020, cuMemPrefetchAsync_v2},
    {"cuMemPrefetchAsync", 8000, cuMemPrefetchAsync},
    {"cuPointerGetAttribute", 4000, cuPointerGetAttribute},
    {"cuMemRangeGetAttribute", 8000, cuMemRangeGetAttribute},
    {"cuStreamCreate", 2000, cuStreamCreate},
    {"cuStreamDestroy", 4000, cuStreamDestroy_v2},
    {"cuStreamSynchronize", 2000, cuStreamSynchronize},
    {"cuEventCreate", 2000, cuEventCreate},
    {"cuEventRecord", 2000, cuEventRecord},
    {"cuEventQuery", 2000, cuEventQuery},
    {"cuEventDestroy", 4000, cuEventDestroy_v2},
};

result_t cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    (void)flags;
    read_settings();
    *function = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table && !*function; i++)
        if (!strcmp(table[i].name, name) && table[i].since <= version && version <= settings.version)
            *function = table[i].function;
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
