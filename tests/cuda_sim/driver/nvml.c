/* A small libnvidia-ml.so.1: the devices as NVML numbers them, whatever CUDA_VISIBLE_DEVICES says. */
#include <stdio.h>
#include <string.h>

#include "settings.h"

enum { NVML_OK = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6,
       NVML_INSUFFICIENT_SIZE = 7 };
enum { FIELD_C2C_LINK_COUNT = 170, FIELD_C2C_LINK_STATUS = 171, C2C_LINKS = 10 };
enum { ADDRESSING_NONE = 0, ADDRESSING_ATS = 2 };
#define DRIVER_VERSION "580.65.06"

typedef void *device_t; /* its index plus one */

typedef struct {
    unsigned long long total, free, used;
} memory_t;
_Static_assert(sizeof(memory_t) == 24, "nvmlMemory_t");

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;
_Static_assert(sizeof(memory_v2_t) == 40, "nvmlMemory_v2_t");

typedef struct {
    unsigned version, value;
} addressing_mode_t;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    unsigned long long value;
} field_value_t;
_Static_assert(sizeof(field_value_t) == 40, "nvmlFieldValue_t");

typedef struct {
    unsigned gpu, memory;
} utilization_t;

static int initialised;

static int start(void) {
    read_settings();
    initialised = 1;
    return NVML_OK;
}
API int nvmlInit(void) { return start(); }
API int nvmlInit_v2(void) { return start(); }
API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return start();
}
API int nvmlShutdown(void) {
    initialised = 0;
    return NVML_OK;
}

API const char *nvmlErrorString(int result) {
    switch (result) {
    case NVML_OK: return "Success";
    case NVML_UNINITIALIZED: return "Uninitialized";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
    }
}

static int give_text(char *out, unsigned length, const char *text) {
    if (length <= strlen(text)) return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_OK;
}

static int find(device_t device, int *index) {
    if (!initialised) return NVML_UNINITIALIZED;
    *index = (int)(uintptr_t)device - 1;
    return *index < 0 || *index >= settings.physical_devices ? NVML_INVALID_ARGUMENT : NVML_OK;
}

API int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    return initialised ? give_text(out, length, DRIVER_VERSION) : NVML_UNINITIALIZED;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = settings.driver_version;
    return initialised ? NVML_OK : NVML_UNINITIALIZED;
}
API int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialised) return NVML_UNINITIALIZED;
    *count = (unsigned)settings.physical_devices;
    return NVML_OK;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (!initialised) return NVML_UNINITIALIZED;
    if (index >= (unsigned)settings.physical_devices) return NVML_INVALID_ARGUMENT;
    *device = (device_t)(uintptr_t)(index + 1);
    return NVML_OK;
}
API int nvmlDeviceGetHandleByUUID(const char *wanted, device_t *device) {
    if (!initialised) return NVML_UNINITIALIZED;
    for (int index = 0; index < settings.physical_devices; index++) {
        char uuid[41];
        device_uuid_text(index, uuid);
        if (strcmp(uuid, wanted)) continue;
        *device = (device_t)(uintptr_t)(index + 1);
        return NVML_OK;
    }
    return NVML_NOT_FOUND;
}
/* Bus numbers begin at 1, as the CUDA devices say. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device) {
    if (!initialised) return NVML_UNINITIALIZED;
    unsigned domain, number;
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2) return NVML_INVALID_ARGUMENT;
    if (!number || number > (unsigned)settings.physical_devices) return NVML_NOT_FOUND;
    *device = (device_t)(uintptr_t)number;
    return NVML_OK;
}
API int nvmlDeviceGetIndex(device_t device, unsigned *out) {
    int index, bad = find(device, &index);
    if (!bad) *out = (unsigned)index;
    return bad;
}
API int nvmlDeviceGetUUID(device_t device, char *out, unsigned length) {
    int index, bad = find(device, &index);
    if (bad) return bad;
    char uuid[41];
    device_uuid_text(index, uuid);
    return give_text(out, length, uuid);
}
API int nvmlDeviceGetName(device_t device, char *out, unsigned length) {
    int index, bad = find(device, &index);
    return bad ? bad : give_text(out, length, device_name(index));
}
API int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    int index, bad = find(device, &index);
    *major = 9;
    *minor = 0;
    return bad;
}

/* What other processes hold is not known here: each has a memory of its own. */
API int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
    int index, bad = find(device, &index);
    if (settings.mode == MODE_POOL) return NVML_NOT_SUPPORTED;
    if (!bad) *out = (memory_t){settings.hbm_bytes, settings.hbm_bytes, 0};
    return bad;
}
API int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out) {
    int index, bad = find(device, &index);
    if (settings.mode == MODE_POOL) return NVML_NOT_SUPPORTED;
    if (!bad) *out = (memory_v2_t){out->version, settings.hbm_bytes, 0, settings.hbm_bytes, 0};
    return bad;
}
API int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out) {
    int index, bad = find(device, &index);
    *out = (utilization_t){0, 0};
    return bad;
}

API int nvmlDeviceGetComputeRunningProcesses(device_t device, unsigned *count, void *processes) {
    (void)processes;
    int index, bad = find(device, &index);
    *count = 0;
    return bad;
}
/* NVLink and fabrics: torch looks for these when it loads NVML. */
#define NOT_PLAYED(name) \
    API int name(void) { return NVML_NOT_SUPPORTED; }
NOT_PLAYED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_PLAYED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_PLAYED(nvmlDeviceGetGpuFabricInfoV)
NOT_PLAYED(nvmlDeviceGetP2PStatus)

API int nvmlDeviceGetNumaNodeId(device_t device, int *node) {
    int index, bad = find(device, &index);
    if (bad) return bad;
    *node = numa_node_of(index);
    return *node < 0 ? NVML_NOT_SUPPORTED : NVML_OK;
}
API int nvmlDeviceGetAddressingMode(device_t device, addressing_mode_t *out) {
    int index, bad = find(device, &index);
    out->value = is_coherent() ? ADDRESSING_ATS : ADDRESSING_NONE;
    return bad;
}
/* To memory of the GPU's own. */
static int has_c2c_links(void) { return is_coherent() && settings.mode != MODE_POOL; }

API int nvmlDeviceGetC2cModeInfoV(device_t device, unsigned *enabled) {
    int index, bad = find(device, &index);
    if (bad) return bad;
    *enabled = 1;
    return has_c2c_links() ? NVML_OK : NVML_NOT_SUPPORTED;
}
API int nvmlDeviceGetFieldValues(device_t device, int count, field_value_t *values) {
    int index, bad = find(device, &index);
    for (int i = 0; !bad && i < count; i++) {
        values[i].result = has_c2c_links() ? NVML_OK : NVML_NOT_SUPPORTED;
        if (values[i].field == FIELD_C2C_LINK_COUNT) values[i].value = C2C_LINKS;
        else if (values[i].field == FIELD_C2C_LINK_STATUS) values[i].value = values[i].scope < C2C_LINKS;
        else values[i].result = NVML_NOT_SUPPORTED;
    }
    return bad;
}

/* One CPU per device, in NVML's order: enough to see which device somebody asked for. */
API int nvmlDeviceGetCpuAffinity(device_t device, unsigned words, unsigned long *set) {
    int index, bad = find(device, &index);
    if (bad) return bad;
    memset(set, 0, words * sizeof *set);
    set[0] = 1ul << index;
    return NVML_OK;
}
