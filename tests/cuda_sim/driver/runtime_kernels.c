/* Kernels: torch registers them when it is loaded. None can run here, so a launch that arrives is an error. */
#include <stdlib.h>
#include <string.h>

#include "handles.h"
#include "memory.h"
#include "report.h"

void remember_runtime_error(result_t result);

typedef struct {
    const void *host_function;
    const char *name;
} kernel_t;

typedef struct {
    dim3_t grid, block;
    size_t shared_bytes;
    void *stream;
} configuration_t;

static kernel_t *kernels;
static size_t kernel_count, kernel_capacity;
static __thread configuration_t pushed;

API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    handle = binary;
    return &handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}
API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size,
                           int constant, int global) {
    (void)handle, (void)host, (void)address, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

API void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *name,
                                int thread_limit, void *thread, void *block, void *block_dim, void *grid_dim, int *warp) {
    (void)handle, (void)device_function, (void)thread_limit, (void)thread, (void)block, (void)block_dim, (void)grid_dim;
    (void)warp;
    lock_model();
    if (kernel_count == kernel_capacity) {
        kernel_capacity = kernel_capacity ? kernel_capacity * 2 : 65536;
        kernels = realloc(kernels, kernel_capacity * sizeof *kernels);
        if (!kernels) abort();
    }
    kernels[kernel_count++] = (kernel_t){host_function, name};
    unlock_model();
}

static const char *kernel_name(const void *host_function) {
    for (size_t i = 0; i < kernel_count; i++)
        if (kernels[i].host_function == host_function) return kernels[i].name;
    return "of an unknown name";
}

API unsigned __cudaPushCallConfiguration(dim3_t grid, dim3_t block, size_t shared_bytes, void *stream) {
    pushed = (configuration_t){grid, block, shared_bytes, stream};
    return 0;
}
API result_t __cudaPopCallConfiguration(dim3_t *grid, dim3_t *block, size_t *shared_bytes, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *(void **)stream = pushed.stream;
    return OK;
}
API result_t __cudaGetKernel(void **kernel, const void *host_function) {
    *kernel = (void *)host_function;
    return OK;
}

static result_t reject_launch(const void *host_function) {
    note_unhandled_launch();
    violation("no CPU code handles kernel %.150s", kernel_name(host_function));
    return LAUNCH_FAILED;
}

static result_t with_error(result_t result) {
    remember_runtime_error(result);
    return result;
}

#define LAUNCH(host_function) with_error(CALL(RUNTIME_API, NEEDS_CONTEXT, reject_launch(host_function), "."))

API result_t cudaLaunchKernel(const void *function, dim3_t grid, dim3_t block, void **arguments, size_t shared, void *stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return LAUNCH(function);
}
API result_t __cudaLaunchKernel(const void *function, dim3_t grid, dim3_t block, void **arguments, size_t shared,
                                void *stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return LAUNCH(function);
}
API result_t cudaLaunchCooperativeKernel(const void *function, dim3_t grid, dim3_t block, void **arguments, size_t shared,
                                         void *stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return LAUNCH(function);
}
API result_t cudaLaunchKernelExC(const void *configuration, const void *function, void **arguments) {
    (void)configuration, (void)arguments;
    return LAUNCH(function);
}

/* Asked before launches, to choose their shape. */
static result_t give_function_attributes(function_attributes_t *out) {
    memset(out, 0, sizeof *out);
    out->max_threads_per_block = 1024;
    out->ptx_version = out->binary_version = 90;
    return OK;
}
API result_t cudaFuncGetAttributes(function_attributes_t *out, const void *function) {
    (void)function;
    return CALL(RUNTIME_API, NEEDS_CONTEXT, give_function_attributes(out), ".");
}
API result_t cudaFuncSetAttribute(const void *function, int attribute, int value) {
    (void)function;
    return CALL(RUNTIME_API, NEEDS_CONTEXT, OK, "attribute=%d value=%d", attribute, value);
}
API result_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int block, size_t shared) {
    (void)function;
    return CALL(RUNTIME_API, NEEDS_CONTEXT, (*count = 8, OK), "block=%d shared=%zu", block, shared);
}
API result_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int block,
                                                                    size_t shared, unsigned flags) {
    (void)function;
    return CALL(RUNTIME_API, NEEDS_CONTEXT, (*count = 8, OK), "block=%d shared=%zu flags=%u", block, shared, flags);
}

/* For the CPU code that plays kernels: where the bytes of a range are, as a kernel on `device` would reach them. */
API void *cuda_sim_kernel_view(address_t start, size_t bytes, int device, int access) {
    static entry_t entry = {.name = "kernel", .needs = ANY_THREAD};
    result_t bad = enter_call(&entry, RUNTIME_API);
    void *view = bad ? NULL : kernel_view(start, bytes, device, access);
    leave_call(view ? OK : ILLEGAL_ADDRESS, "kernel", "pointer=%llx bytes=%zu device=%d", start, bytes, device);
    return view;
}
