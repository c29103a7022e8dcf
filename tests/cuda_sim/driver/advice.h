/* Advice, prefetches and the questions about them. */
#ifndef CUDA_SIM_ADVICE_H
#define CUDA_SIM_ADVICE_H
#include "calls.h"

result_t advise(address_t start, size_t bytes, int advice, location_t where);
result_t prefetch(address_t start, size_t bytes, location_t where, const void *stream);
result_t prefetch_batch(const address_t *starts, const size_t *sizes, size_t count, const location_t *places,
                        const size_t *first_of_place, size_t place_count, unsigned long long flags, const void *stream);
result_t range_attribute(void *value, size_t value_bytes, int attribute, address_t start, size_t bytes);

size_t system_bytes_moved_to_hbm(void);
unsigned long system_prefetches_without_effect(void); /* in cdmm mode they stay on the CPU */
#endif
