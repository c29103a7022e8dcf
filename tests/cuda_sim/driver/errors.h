#ifndef STAND_IN_ERRORS_H
#define STAND_IN_ERRORS_H
#include "cuda_types.h"

/* NULL for a number the stand-in never returns. */
const char *error_constant(result_t result, int of_runtime);
const char *error_sentence(result_t result);
#endif
