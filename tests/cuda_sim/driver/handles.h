/* Streams and events: handles that are never used twice, so that a stale one is known. */
#ifndef CUDA_SIM_HANDLES_H
#define CUDA_SIM_HANDLES_H
#include "calls.h"

result_t create_stream(void **out, api_t owner);
result_t destroy_stream(void *stream);
/* `device` may be NULL; the null stream and its two relatives are those of the current device. */
result_t check_stream(const void *stream, int *device);
/* A kernel can only be launched into a stream of the current device. */
result_t check_stream_of_current_device(const void *stream);

result_t create_event(void **out, api_t owner);
result_t destroy_event(void *event);
result_t record_event(void *event, const void *stream);
result_t query_event(const void *event);
result_t synchronise_event(const void *event);
result_t wait_for_event(const void *stream, const void *event);
result_t elapsed_time(float *milliseconds, const void *start, const void *end);

int streams_left(api_t owner);
int events_left(api_t owner);
#endif
