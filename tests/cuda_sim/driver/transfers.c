#include "transfers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contexts.h"
#include "handles.h"
#include "managed.h"
#include "traffic.h"

enum { HOST_SIDE, DEVICE_SIDE, MANAGED_SIDE, SIDES };

typedef struct {
    char *bytes;
    int side;
    int device;
    allocation_t *allocation;
} end_t;

static copies_t counted[SIDES * SIDES + 1] = {
    {.direction = "host_to_host"},      {.direction = "host_to_device"},      {.direction = "host_to_managed"},
    {.direction = "device_to_host"},    {.direction = "device_to_device"},    {.direction = "device_to_managed"},
    {.direction = "managed_to_host"},   {.direction = "managed_to_device"},   {.direction = "managed_to_managed"},
    {.direction = "device_to_other_device"},
};

const copies_t *copies_made(int *count) {
    *count = SIDES * SIDES + 1;
    return counted;
}

static result_t find_end(address_t start, size_t bytes, const char *what, end_t *out) {
    allocation_t *found = find_allocation(start);
    *out = (end_t){.allocation = found};
    if (!found) {
        if (is_mapped(start, bytes)) {
            out->bytes = (char *)(uintptr_t)start;
            return OK;
        }
        violation("the %s is not mapped to its end", what);
        return INVALID_VALUE;
    }
    if (!found->live) {
        violation("the %s has been freed", what);
        return ILLEGAL_ADDRESS;
    }
    if (start + bytes > found->base + found->size && found->kind != REGISTERED_MEMORY) {
        violation("the %s runs past the end of its allocation", what);
        return INVALID_VALUE;
    }
    out->bytes = found->view + (start - found->base);
    out->side = found->kind == DEVICE_MEMORY ? DEVICE_SIDE : found->kind == MANAGED_MEMORY ? MANAGED_SIDE : HOST_SIDE;
    out->device = found->device;
    return OK;
}

static int may_be_device(const end_t *end) { return end->side != HOST_SIDE; }
static int may_be_host(const end_t *end) { return end->side != DEVICE_SIDE; }

static result_t check_kind(int kind, const end_t *to, const end_t *from) {
    int right = kind == COPY_DEFAULT ||
                (kind == COPY_HOST_TO_HOST && may_be_host(to) && may_be_host(from)) ||
                (kind == COPY_HOST_TO_DEVICE && may_be_device(to) && may_be_host(from)) ||
                (kind == COPY_DEVICE_TO_HOST && may_be_host(to) && may_be_device(from)) ||
                (kind == COPY_DEVICE_TO_DEVICE && may_be_device(to) && may_be_device(from));
    if (right) return OK;
    violation("the direction that is claimed is not that of the two pointers");
    return INVALID_VALUE;
}

static void count_copy(const end_t *to, const end_t *from, size_t bytes) {
    int across = to->side == DEVICE_SIDE && from->side == DEVICE_SIDE && to->device != from->device;
    copies_t *of = &counted[across ? SIDES * SIDES : from->side * SIDES + to->side];
    of->count++;
    of->bytes += bytes;
}

/* Of a range, what is not in HBM. */
static size_t bytes_with_the_cpu(const end_t *end, address_t start, size_t bytes) {
    if (end->side == DEVICE_SIDE) return 0;
    return end->side == HOST_SIDE ? bytes : bytes_within_on_host(end->allocation, start, bytes);
}

/* Two ends that both lie partly with the CPU: a copy inside one memory does not cross the link. */
static void count_crossing(const end_t *to, address_t to_start, const end_t *from, address_t from_start, size_t bytes) {
    size_t source = bytes_with_the_cpu(from, from_start, bytes), target = bytes_with_the_cpu(to, to_start, bytes);
    if (source > target) count_link(TO_DEVICE, BY_COPY, source - target);
    else count_link(TO_HOST, BY_COPY, target - source);
}

result_t copy(address_t to, address_t from, size_t bytes, int kind, const void *stream) {
    result_t bad = check_stream(stream, NULL);
    if (bad || !bytes) return bad;
    end_t target, source;
    if ((bad = find_end(to, bytes, "target", &target)) || (bad = find_end(from, bytes, "source", &source))) return bad;
    if ((bad = check_kind(kind, &target, &source))) return bad;
    memmove(target.bytes, source.bytes, bytes);
    if (settings.corrupt_copies) target.bytes[bytes / 2] ^= 1;
    count_copy(&target, &source, bytes);
    count_crossing(&target, to, &source, from, bytes);
    return OK;
}

/* The GPU writes, so managed pages come to it. */
static result_t find_filled(address_t to, size_t bytes, const void *stream, char **out) {
    result_t bad = check_stream(stream, NULL);
    if (bad) return bad;
    *out = kernel_view(to, bytes, current_device(), WRITES);
    return *out ? OK : INVALID_VALUE;
}

result_t fill_bytes(address_t to, int value, size_t bytes, const void *stream) {
    if (!bytes) return OK;
    char *target;
    result_t bad = find_filled(to, bytes, stream, &target);
    if (!bad) memset(target, value, bytes);
    return bad;
}

result_t fill_words(address_t to, unsigned value, size_t count, const void *stream) {
    static int fills;
    if (to % sizeof value || !count) return INVALID_VALUE;
    char *target;
    result_t bad = find_filled(to, count * sizeof value, stream, &target);
    if (bad) return bad;
    for (size_t i = 0; i < count; i++) ((unsigned *)(void *)target)[i] = value;
    if (++fills == settings.corrupt_fill) target[count * sizeof value - 1] ^= 1;
    return OK;
}
