#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "advice.h"
#include "contexts.h"
#include "handles.h"
#include "managed.h"
#include "memory.h"
#include "traffic.h"
#include "transfers.h"

static unsigned long launches;

void note_unhandled_launch(void) { launches++; }
unsigned long unhandled_launches(void) { return launches; }

static void put_text(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c < 32) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

static void put_command(FILE *out) {
    char line[400] = "";
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i + 1 < length; i++)
        if (!line[i]) line[i] = ' ';
    put_text(out, line);
}

static void put_calls(FILE *out) {
    fprintf(out, ", \"calls\": {");
    const char *comma = "";
    for (const entry_t *entry = called_entries(); entry; entry = entry->next) {
        fprintf(out, "%s\"%s\": %lu", comma, entry->name, entry->calls);
        comma = ", ";
    }
    fprintf(out, "}");
}

static void put_violations(FILE *out) {
    int count;
    const violation_t *seen = violations(&count);
    fprintf(out, ", \"violations\": [");
    for (int i = 0; i < count; i++) {
        fprintf(out, "%s{\"sentence\": ", i ? ", " : "");
        put_text(out, seen[i].sentence);
        fprintf(out, ", \"count\": %lu}", seen[i].count);
    }
    fprintf(out, "]");
}

static void put_copies(FILE *out) {
    int count;
    const copies_t *made = copies_made(&count);
    fprintf(out, ", \"copies\": {");
    for (int i = 0; i < count; i++)
        fprintf(out, "%s\"%s\": {\"count\": %lu, \"bytes\": %llu}", i ? ", " : "", made[i].direction, made[i].count,
                made[i].bytes);
    fprintf(out, "}");
}

static void put_left(FILE *out, const char *name, api_t owner) {
    fprintf(out, "\"%s\": {\"device_bytes\": %zu, \"pinned_bytes\": %zu, \"registered_bytes\": %zu, ", name,
            bytes_left(DEVICE_MEMORY, owner), bytes_left(PINNED_MEMORY, owner), bytes_left(REGISTERED_MEMORY, owner));
    fprintf(out, "\"managed_bytes\": %zu, \"streams\": %d, \"events\": %d, \"contexts\": %d}",
            bytes_left(MANAGED_MEMORY, owner), streams_left(owner), events_left(owner),
            owner == DRIVER_API ? contexts_left() : 0);
}

static void put_report(FILE *out) {
    fprintf(out, "{\"pid\": %d, \"command\": ", (int)getpid());
    put_command(out);
    fprintf(out, ", \"mode\": \"%s\", \"devices\": %d", mode_name(), settings.devices);
    put_calls(out);
    put_violations(out);
    fprintf(out, ", \"forked_child\": %s", is_forked_child() ? "true" : "false");
    if (is_forked_child()) {
        fprintf(out, "}\n"); /* the rest is its parent's */
        return;
    }
    put_copies(out);
    fprintf(out, ", \"synchronisations\": %lu, \"unhandled_launches\": %lu", synchronisations(), launches);
    fprintf(out, ", \"evicted_pages\": %lu, \"cpu_faults\": %lu", evicted_pages(), cpu_faults());
    fprintf(out, ", \"traffic\": ");
    put_traffic(out);
    fprintf(out, ", \"system_bytes_moved_to_hbm\": %zu, \"system_prefetches_without_effect\": %lu",
            system_bytes_moved_to_hbm(), system_prefetches_without_effect());
    fprintf(out, ", \"device_bytes_peak\": [");
    for (int device = 0; device < settings.devices; device++)
        fprintf(out, "%s%zu", device ? ", " : "", device_bytes_peak(device));
    fprintf(out, "], \"left\": {");
    put_left(out, "driver", DRIVER_API);
    fprintf(out, ", ");
    put_left(out, "runtime", RUNTIME_API);
    fprintf(out, "}}\n");
}

/* One write of one line: ranks that end together do not mix theirs. */
static void append(const char *path, const char *text, size_t length) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t written = file < 0 ? -1 : write(file, text, length);
    if (written != (ssize_t)length)
        fprintf(stderr, "simulated GPU: the report cannot be written to %s: %s\n", path, strerror(errno));
    if (file >= 0) close(file);
}

__attribute__((destructor)) void write_report(void) {
    static pid_t written_by;
    const char *path = getenv("CUDA_SIM_REPORT");
    if (!path || !*path || written_by == getpid()) return;
    lock_model();
    if (calls_were_made()) {
        written_by = getpid();
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        put_report(out);
        fclose(out);
        append(path, text, length);
        free(text);
    }
    unlock_model();
}

/* os._exit runs no destructors, but such a process has a report to give too. */
API __attribute__((noreturn)) void _exit(int status) {
    write_report();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}
