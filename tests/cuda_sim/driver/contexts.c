#include "contexts.h"

#define MAX_DEPTH 32

typedef struct {
    int driver_retains;
    int used_by_runtime;
    uintptr_t generation; /* a context made again after its last release is another one */
} primary_t;

static primary_t primaries[MAX_DEVICES];
static unsigned char peers[MAX_DEVICES][MAX_DEVICES];

static __thread void *stack[MAX_DEPTH];
static __thread int depth;
static __thread int runtime_device;

static int is_alive(int device) { return primaries[device].driver_retains > 0 || primaries[device].used_by_runtime; }

static void *handle_of(int device) {
    return (void *)(0x100000 + (primaries[device].generation * MAX_DEVICES + (uintptr_t)device) * 16);
}

static int device_of(const void *context) { return (int)(((uintptr_t)context - 0x100000) / 16 % MAX_DEVICES); }

static context_state_t state_of(const void *context) {
    if (!context) return NO_CONTEXT;
    for (int device = 0; device < settings.devices; device++)
        if (context == handle_of(device) && is_alive(device)) return CONTEXT_ALIVE;
    return CONTEXT_DEAD;
}

result_t check_device(int device) { return device < 0 || device >= settings.devices ? INVALID_DEVICE : OK; }

result_t retain_primary_context(void **out, int device) {
    if (check_device(device)) return INVALID_DEVICE;
    primaries[device].driver_retains++;
    *out = handle_of(device);
    return OK;
}

result_t release_primary_context(int device) {
    if (check_device(device)) return INVALID_DEVICE;
    if (!primaries[device].driver_retains) {
        violation("a primary context is released more often than it was retained");
        return INVALID_CONTEXT;
    }
    primaries[device].driver_retains--;
    if (!is_alive(device)) primaries[device].generation++;
    return OK;
}

void primary_context_state(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = is_alive(device);
}

static result_t check_context(const void *context) {
    if (state_of(context) == CONTEXT_ALIVE) return OK;
    violation("the context is not alive: released, or never retained");
    return INVALID_CONTEXT;
}

result_t push_context(void *context) {
    result_t bad = check_context(context);
    if (bad) return bad;
    if (depth == MAX_DEPTH) {
        violation("%d contexts are pushed on one thread", MAX_DEPTH);
        return INVALID_VALUE;
    }
    stack[depth++] = context;
    return OK;
}

result_t pop_context(void **out) {
    if (!depth) return INVALID_CONTEXT;
    void *popped = stack[--depth];
    if (out) *out = popped;
    return OK;
}

result_t set_context(void *context) {
    if (!context) return depth ? pop_context(NULL) : OK;
    result_t bad = check_context(context);
    if (bad) return bad;
    if (depth) stack[depth - 1] = context;
    else stack[depth++] = context;
    return OK;
}

void *current_context(void) { return depth ? stack[depth - 1] : NULL; }

context_state_t current_context_state(void) { return state_of(current_context()); }

int current_device(void) { return depth ? device_of(stack[depth - 1]) : runtime_device; }

result_t bind_runtime_context(void) {
    if (!settings.devices) return NO_DEVICE;
    if (depth) {
        if (current_context_state() == CONTEXT_ALIVE) return OK;
        violation("the calling thread's current context has been released");
        return CONTEXT_IS_DESTROYED;
    }
    primaries[runtime_device].used_by_runtime = 1;
    return set_context(handle_of(runtime_device));
}

result_t set_runtime_device(int device) {
    if (check_device(device)) return INVALID_DEVICE;
    runtime_device = device;
    primaries[device].used_by_runtime = 1;
    return set_context(handle_of(device));
}

result_t enable_peer_access(int peer) {
    int device = current_device();
    if (check_device(peer) || peer == device) return INVALID_DEVICE;
    if (peers[device][peer]) return PEER_ACCESS_ALREADY_ENABLED;
    peers[device][peer] = 1;
    return OK;
}

int peer_access_enabled(int device, int peer) { return device == peer || peers[device][peer]; }

int contexts_left(void) {
    int left = 0;
    for (int device = 0; device < MAX_DEVICES; device++) left += primaries[device].driver_retains;
    return left;
}
