/* Devices, their primary contexts, and the stack of contexts each thread has. */
#ifndef CUDA_SIM_CONTEXTS_H
#define CUDA_SIM_CONTEXTS_H
#include "calls.h"

typedef enum { NO_CONTEXT, CONTEXT_ALIVE, CONTEXT_DEAD } context_state_t;

result_t check_device(int device);
result_t retain_primary_context(void **out, int device);
result_t release_primary_context(int device);
void primary_context_state(int device, unsigned *flags, int *active);
result_t push_context(void *context);
result_t pop_context(void **out);
result_t set_context(void *context); /* NULL takes the current one away */
void *current_context(void);
context_state_t current_context_state(void);
int current_device(void); /* the device of the current context; without one, the runtime's choice for this thread */

/* The runtime makes the primary context of its device current where a thread has none. */
result_t bind_runtime_context(void);
result_t set_runtime_device(int device);

result_t enable_peer_access(int peer);
int peer_access_enabled(int device, int peer);
int contexts_left(void); /* retained by driver calls and not released */
#endif
