/* Which function cuGetProcAddress gives for a name, and the functions that exist but are not modelled. */
#include "calls.h"
#include "driver_api.h"

#include <string.h>

#define MODELLED(M)                                                                                                     \
    M(cuInit, 2000, cuInit)                                                                                             \
    M(cuDriverGetVersion, 2020, cuDriverGetVersion)                                                                     \
    M(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                                                     \
    M(cuGetErrorName, 6000, cuGetErrorName)                                                                             \
    M(cuGetErrorString, 6000, cuGetErrorString)                                                                         \
    M(cuDeviceGetCount, 2000, cuDeviceGetCount)                                                                         \
    M(cuDeviceGet, 2000, cuDeviceGet)                                                                                   \
    M(cuDeviceGetName, 2000, cuDeviceGetName)                                                                           \
    M(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                                                       \
    M(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                                                      \
    M(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                                                 \
    M(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                                                         \
    M(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                                                   \
    M(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                                                     \
    M(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                                                      \
    M(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                                                        \
    M(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                                           \
    M(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                                           \
    M(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                                             \
    M(cuCtxSynchronize, 2000, cuCtxSynchronize)                                                                         \
    M(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                                              \
    M(cuMemAlloc, 3020, cuMemAlloc_v2)                                                                                  \
    M(cuMemFree, 3020, cuMemFree_v2)                                                                                    \
    M(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                                             \
    M(cuMemFreeHost, 2000, cuMemFreeHost)                                                                               \
    M(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                                                    \
    M(cuMemHostUnregister, 4000, cuMemHostUnregister)                                                                   \
    M(cuMemAllocManaged, 6000, cuMemAllocManaged)                                                                       \
    M(cuMemAdvise, 12020, cuMemAdvise_v2)                                                                               \
    M(cuMemAdvise, 8000, cuMemAdvise)                                                                                   \
    M(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2)                                                                 \
    M(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync)                                                                     \
    M(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync)                                                          \
    M(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                                               \
    M(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                                                             \
    M(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute)                                                             \
    M(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                                              \
    M(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                                                    \
    M(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                                                    \
    M(cuMemcpyAsync, 4000, cuMemcpyAsync)                                                                               \
    M(cuMemsetD32Async, 3020, cuMemsetD32Async)                                                                         \
    M(cuStreamCreate, 2000, cuStreamCreate)                                                                             \
    M(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                                        \
    M(cuStreamQuery, 2000, cuStreamQuery)                                                                               \
    M(cuStreamSynchronize, 2000, cuStreamSynchronize)                                                                   \
    M(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                                                       \
    M(cuEventCreate, 2000, cuEventCreate)                                                                               \
    M(cuEventRecord, 2000, cuEventRecord)                                                                               \
    M(cuEventQuery, 2000, cuEventQuery)                                                                                 \
    M(cuEventSynchronize, 2000, cuEventSynchronize)                                                                     \
    M(cuEventDestroy, 4000, cuEventDestroy_v2)                                                                         \
    M(cuLogsRegisterCallback, 12080, cuLogsRegisterCallback)                                                            \
    M(cuLogsUnregisterCallback, 12080, cuLogsUnregisterCallback)

/* torch looks these up when it starts, and calls none of them unless a feature asks for it. */
#define NOT_MODELLED(N)                                                                                                 \
    N(cuCtxFromGreenCtx) N(cuDevResourceGenerateDesc) N(cuDevSmResourceSplitByCount) N(cuDeviceGetDevResource)          \
    N(cuFuncGetAttribute) N(cuFuncSetAttribute) N(cuFuncSetCacheConfig) N(cuGreenCtxCreate) N(cuGreenCtxDestroy)        \
    N(cuGreenCtxStreamCreate) N(cuLaunchCooperativeKernel) N(cuLaunchKernel) N(cuLinkAddData_v2) N(cuLinkComplete)      \
    N(cuLinkCreate_v2) N(cuMemAddressFree) N(cuMemAddressReserve) \
    N(cuMemCreate) N(cuMemExportToShareableHandle) N(cuMemGetAllocationGranularity)                                     \
    N(cuMemGetAllocationPropertiesFromHandle) N(cuMemImportFromShareableHandle) N(cuMemMap) N(cuMemRelease)             \
    N(cuMemRetainAllocationHandle) N(cuMemSetAccess) N(cuMemUnmap) N(cuModuleGetFunction) N(cuModuleLoad)               \
    N(cuModuleLoadData) N(cuModuleLoadDataEx) N(cuModuleUnload) N(cuMulticastAddDevice) N(cuMulticastBindMem)           \
    N(cuMulticastCreate) N(cuMulticastUnbind) N(cuOccupancyMaxActiveBlocksPerMultiprocessor) N(cuStreamWriteValue32)    \
    N(cuTensorMapEncodeTiled)

#define DECLARE(name, since, function) extern char function##_[] __asm__(#function);
MODELLED(DECLARE)

#define REJECT(name) \
    API result_t name(void) { return DRIVER_CALL(ANY_THREAD, unsupported(#name), "."); }
NOT_MODELLED(REJECT)

typedef struct {
    const char *name;
    int since;
    void *function;
} row_t;

#define ROW(name, since, function) {#name, since, function##_},
#define REJECTED_ROW(name) {#name, 2000, (void *)name},
static const row_t table[] = {MODELLED(ROW) NOT_MODELLED(REJECTED_ROW)};

void *driver_function(const char *name, int version) {
    if (!settings.driver_version) read_settings();
    if (version > settings.driver_version) return NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name) && table[i].since <= version) return table[i].function;
    return NULL;
}

API result_t cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    (void)flags;
    *function = driver_function(name, version);
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
