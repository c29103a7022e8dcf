#include "handles.h"

#include <stdlib.h>
#include <time.h>

#include "contexts.h"

#define FIRST_HANDLE 0x1000
#define HANDLE_STEP 16 /* torch takes streams it did not make only with even handles */

typedef enum { STREAM, EVENT } handle_kind_t;

typedef struct {
    unsigned char kind, live, owner, recorded;
    int device;
    double recorded_at;
} handle_t;

static handle_t *handles;
static size_t handle_count, handle_capacity;

static result_t create_handle(void **out, handle_kind_t kind, api_t owner) {
    if (handle_count == handle_capacity) {
        size_t capacity = handle_capacity ? handle_capacity * 2 : 256;
        handle_t *grown = realloc(handles, capacity * sizeof *handles);
        if (!grown) return OUT_OF_MEMORY;
        handles = grown;
        handle_capacity = capacity;
    }
    handles[handle_count] = (handle_t){.kind = kind, .live = 1, .owner = owner, .device = current_device()};
    *out = (void *)(FIRST_HANDLE + handle_count++ * HANDLE_STEP);
    return OK;
}

static result_t find_handle(const void *handle, handle_kind_t kind, handle_t **out) {
    const char *what = kind == STREAM ? "stream" : "event";
    uintptr_t offset = (uintptr_t)handle - FIRST_HANDLE;
    size_t index = offset / HANDLE_STEP;
    if ((uintptr_t)handle < FIRST_HANDLE || offset % HANDLE_STEP || index >= handle_count || handles[index].kind != kind) {
        violation("the handle is no %s", what);
        return INVALID_HANDLE;
    }
    if (!handles[index].live) {
        violation("the %s has been destroyed", what);
        return INVALID_HANDLE;
    }
    *out = &handles[index];
    return OK;
}

static result_t destroy_handle(void *handle, handle_kind_t kind) {
    handle_t *found;
    result_t bad = find_handle(handle, kind, &found);
    if (!bad) found->live = 0;
    return bad;
}

result_t create_stream(void **out, api_t owner) { return create_handle(out, STREAM, owner); }
result_t destroy_stream(void *stream) { return destroy_handle(stream, STREAM); }

static int is_default_stream(const void *stream) { return (uintptr_t)stream <= 2; }

result_t check_stream(const void *stream, int *device) {
    if (is_default_stream(stream)) {
        if (!current_context()) return INVALID_CONTEXT; /* it is a stream of the current context, and there is none */
        if (device) *device = current_device();
        return OK;
    }
    handle_t *found;
    result_t bad = find_handle(stream, STREAM, &found);
    if (!bad && device) *device = found->device;
    return bad;
}

result_t check_stream_of_current_device(const void *stream) {
    int device;
    result_t bad = check_stream(stream, &device);
    if (bad || device == current_device()) return bad;
    violation("the stream belongs to another device than the current one");
    return INVALID_HANDLE;
}

result_t create_event(void **out, api_t owner) { return create_handle(out, EVENT, owner); }
result_t destroy_event(void *event) { return destroy_handle(event, EVENT); }

static double now_in_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

result_t record_event(void *event, const void *stream) {
    handle_t *found;
    int device;
    result_t bad = find_handle(event, EVENT, &found);
    if (bad || (bad = check_stream(stream, &device))) return bad;
    if (device != found->device) {
        violation("event and stream belong to different devices");
        return INVALID_HANDLE;
    }
    found->recorded = 1;
    found->recorded_at = now_in_milliseconds();
    return OK;
}

result_t query_event(const void *event) {
    handle_t *found;
    result_t bad = find_handle(event, EVENT, &found);
    if (bad) return bad;
    return settings.events_never_ready ? NOT_READY : OK;
}

result_t synchronise_event(const void *event) {
    handle_t *found;
    return find_handle(event, EVENT, &found);
}

result_t wait_for_event(const void *stream, const void *event) {
    handle_t *found;
    result_t bad = check_stream(stream, NULL);
    return bad ? bad : find_handle(event, EVENT, &found);
}

result_t elapsed_time(float *milliseconds, const void *start, const void *end) {
    handle_t *first, *second;
    result_t bad = find_handle(start, EVENT, &first);
    if (bad || (bad = find_handle(end, EVENT, &second))) return bad;
    if (!first->recorded || !second->recorded || first->device != second->device) {
        violation("time is asked between events that were not both recorded on one device");
        return INVALID_HANDLE;
    }
    *milliseconds = (float)(second->recorded_at - first->recorded_at);
    return OK;
}

static int left(handle_kind_t kind, api_t owner) {
    int count = 0;
    for (size_t i = 0; i < handle_count; i++)
        count += handles[i].live && handles[i].kind == kind && handles[i].owner == owner;
    return count;
}

int streams_left(api_t owner) { return left(STREAM, owner); }
int events_left(api_t owner) { return left(EVENT, owner); }
