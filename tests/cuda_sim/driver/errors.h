#ifndef CUDA_SIM_ERRORS_H
#define CUDA_SIM_ERRORS_H
#include "cuda_types.h"

/* NULL for a number the simulated device never returns. */
const char *error_constant(result_t result, int of_runtime);
const char *error_sentence(result_t result);
#endif
