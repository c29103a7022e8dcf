#include "traffic.h"

#include <stdlib.h>
#include <string.h>

#include "calls.h"

traffic_t traffic;
static traffic_t *steps; /* totals at the end of each step */
static size_t step_count, step_capacity;

void count_link(int direction, int cause, uint64_t bytes) { traffic.bytes[direction][cause] += bytes; }

void mark_step(void) {
    if (step_count == step_capacity) {
        step_capacity = step_capacity ? step_capacity * 2 : 64;
        steps = realloc(steps, step_capacity * sizeof *steps);
        if (!steps) abort();
    }
    steps[step_count++] = traffic;
}

static void put_difference(FILE *out, const traffic_t *now, const traffic_t *before) {
    static const char *const causes[CAUSES] = {"copy", "remote", "migration"};
    static const char *const directions[DIRECTIONS] = {"to_device", "to_host"};
    fprintf(out, "{\"faults\": %lu, \"populated\": %lu, \"evictions\": %lu", now->faults - before->faults,
            now->populated - before->populated, now->evictions - before->evictions);
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        fprintf(out, ", \"%s\": {", directions[direction]);
        for (int cause = 0; cause < CAUSES; cause++)
            fprintf(out, "%s\"%s\": %lu", cause ? ", " : "", causes[cause],
                    now->bytes[direction][cause] - before->bytes[direction][cause]);
        fprintf(out, "}");
    }
    fprintf(out, "}");
}

void put_traffic(FILE *out) {
    static const traffic_t nothing;
    fprintf(out, "{\"total\": ");
    put_difference(out, &traffic, &nothing);
    fprintf(out, ", \"steps\": [");
    for (size_t i = 0; i < step_count; i++) {
        if (i) fprintf(out, ", ");
        put_difference(out, &steps[i], i ? &steps[i - 1] : &nothing);
    }
    fprintf(out, "]}");
}

API void cuda_sim_mark_step(void) {
    lock_model();
    mark_step();
    unlock_model();
}

/* The counters as JSON, for a program that looks at itself; the caller frees it. */
API char *cuda_sim_traffic(void) {
    char *text = NULL;
    size_t length = 0;
    lock_model();
    FILE *out = open_memstream(&text, &length);
    put_traffic(out);
    fclose(out);
    unlock_model();
    return text;
}
