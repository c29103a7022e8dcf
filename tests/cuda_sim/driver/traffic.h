/* What crosses the link between CPU and GPU, by direction and cause, and how often the GPU had to wait for a page. */
#ifndef CUDA_SIM_TRAFFIC_H
#define CUDA_SIM_TRAFFIC_H
#include <stdint.h>
#include <stdio.h>

/* copy: an explicit copy; remote: a kernel reads or writes memory that stays with the CPU; migration: pages move. */
enum { BY_COPY, BY_REMOTE_ACCESS, BY_MIGRATION, CAUSES };
enum { TO_DEVICE, TO_HOST, DIRECTIONS };
enum { READS = 1, WRITES = 2 };

typedef struct {
    uint64_t faults;    /* of the GPU, on pages that lie elsewhere and have to move */
    uint64_t populated; /* pages that the GPU touched first */
    uint64_t evictions;
    uint64_t bytes[DIRECTIONS][CAUSES];
} traffic_t;

extern traffic_t traffic;

void count_link(int direction, int cause, uint64_t bytes);
/* The end of an optimizer step; reports list what each step added. */
void mark_step(void);
void put_traffic(FILE *out);
#endif
