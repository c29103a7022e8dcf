/* Copies and fills, counted by direction. */
#ifndef CUDA_SIM_TRANSFERS_H
#define CUDA_SIM_TRANSFERS_H
#include "memory.h"

/* `kind` is the direction the caller claims; COPY_DEFAULT claims nothing. */
result_t copy(address_t to, address_t from, size_t bytes, int kind, const void *stream);
result_t fill_bytes(address_t to, int value, size_t bytes, const void *stream);
result_t fill_words(address_t to, unsigned value, size_t count, const void *stream);

typedef struct {
    const char *direction;
    unsigned long count;
    unsigned long long bytes;
} copies_t;
const copies_t *copies_made(int *count);
#endif
