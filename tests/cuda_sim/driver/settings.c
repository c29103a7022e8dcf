#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

settings_t settings;

static long number(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : fallback;
}

static gpu_mode_t mode_setting(void) {
    const char *text = getenv("CUDA_SIM_MODE");
    if (text && !strcmp(text, "numa")) return MODE_NUMA;
    if (text && !strcmp(text, "cdmm")) return MODE_CDMM;
    if (text && !strcmp(text, "pool")) return MODE_POOL;
    return MODE_PCIE;
}

const char *mode_name(void) {
    static const char *const names[] = {"numa", "cdmm", "pcie", "pool"};
    return names[settings.mode];
}

int is_coherent(void) { return settings.mode != MODE_PCIE; }

int cpu_reads_device_pages(void) { return settings.mode == MODE_NUMA || settings.mode == MODE_POOL; }

size_t machine_memory(const char *field) {
    char line[128];
    size_t kibibytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field)) && line[strlen(field)] == ':') sscanf(line + strlen(field) + 1, "%zu", &kibibytes);
    if (file) fclose(file);
    return kibibytes << 10;
}

int numa_node_of(int physical) { return settings.mode == MODE_NUMA ? 1 + physical : -1; }

const char *device_name(int physical) {
    static char names[MAX_DEVICES][32];
    snprintf(names[physical], sizeof names[physical], "Simulated %d", physical);
    return names[physical];
}

void device_uuid(int physical, uuid_bytes_t *out) {
    static const unsigned char base[16] = {0x57, 0xa4, 0xd1, 0x90, 0x2c, 0x1e, 0x4b, 0x77,
                                           0x8f, 0x30, 0x6e, 0x5d, 0x91, 0x02, 0xc4, 0x00};
    memcpy(out->bytes, base, sizeof base);
    out->bytes[0] ^= (unsigned char)(physical * 37); /* they differ in a short prefix, as CUDA_VISIBLE_DEVICES allows */
    out->bytes[15] = (unsigned char)physical;
}

void device_uuid_text(int physical, char out[41]) {
    uuid_bytes_t uuid;
    device_uuid(physical, &uuid);
    int length = sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++) {
        int dash = i == 4 || i == 6 || i == 8 || i == 10;
        length += sprintf(out + length, "%s%02x", dash ? "-" : "", uuid.bytes[i]);
    }
}

/* The physical device an entry of CUDA_VISIBLE_DEVICES names; -1 for none, which ends CUDA's list. */
static int physical_named(const char *entry) {
    if (!strncmp(entry, "GPU-", 4)) {
        for (int physical = 0; physical < settings.physical_devices; physical++) {
            char uuid[41];
            device_uuid_text(physical, uuid);
            if (!strncmp(uuid, entry, strlen(entry))) return physical;
        }
        return -1;
    }
    char *end;
    long index = strtol(entry, &end, 10);
    return end != entry && !*end && index >= 0 && index < settings.physical_devices ? (int)index : -1;
}

static void read_visible_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    settings.devices = 0;
    if (!text) {
        for (int i = 0; i < settings.physical_devices; i++) settings.physical_of[settings.devices++] = i;
        return;
    }
    char list[1024];
    snprintf(list, sizeof list, "%s", text);
    char *rest = list;
    for (char *entry; (entry = strsep(&rest, ","));) {
        while (*entry == ' ') entry++;
        int physical = *entry ? physical_named(entry) : -1;
        if (physical < 0 || settings.devices == MAX_DEVICES) return;
        settings.physical_of[settings.devices++] = physical;
    }
}

void read_settings(void) {
    long wanted = number("CUDA_SIM_DEVICES", 1);
    settings.physical_devices = (int)(wanted < 0 ? 0 : wanted > MAX_DEVICES ? MAX_DEVICES : wanted);
    read_visible_devices();
    settings.mode = mode_setting();
    settings.concurrent_managed_access = (int)number("CUDA_SIM_CONCURRENT", 1);
    settings.driver_version = (int)number("CUDA_SIM_VERSION", 13000);
    settings.init_error = (int)number("CUDA_SIM_INIT_ERROR", 0);
    settings.events_never_ready = (int)number("CUDA_SIM_EVENTS_NEVER_READY", 0);
    settings.page_bytes = (size_t)number("CUDA_SIM_PAGE", 65536);
    settings.hbm_bytes = settings.mode == MODE_POOL ? machine_memory("MemTotal") : (size_t)number("CUDA_SIM_HBM", 64L << 20);
    settings.page_cache_bytes = (size_t)number("CUDA_SIM_PAGE_CACHE", 0);
    settings.managed_limit_bytes = (size_t)number("CUDA_SIM_MANAGED", 1L << 30);
    settings.fail_name = getenv("CUDA_SIM_FAIL");
    settings.fail_code = (int)number("CUDA_SIM_FAIL_CODE", UNKNOWN_ERROR);
    settings.fail_after = (int)number("CUDA_SIM_FAIL_AFTER", 0);
    settings.fail_times = (int)number("CUDA_SIM_FAIL_TIMES", 0);
    settings.fail_every = (int)number("CUDA_SIM_FAIL_EVERY", 0);
    settings.corrupt_copies = (int)number("CUDA_SIM_CORRUPT_COPIES", 0);
    settings.idle_prefetch = (int)number("CUDA_SIM_IDLE_PREFETCH", 0);
    settings.corrupt_fill = (int)number("CUDA_SIM_CORRUPT", 0);
    settings.trace_violations = (int)number("CUDA_SIM_TRACE_VIOLATIONS", 0);
}
