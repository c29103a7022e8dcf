/* What the devices say about themselves, to the driver's and the runtime's questions alike. */
#ifndef CUDA_SIM_ATTRIBUTES_H
#define CUDA_SIM_ATTRIBUTES_H
#include "calls.h"

result_t device_attribute(int *value, int attribute, int device);
result_t device_properties(device_properties_t *out, int device);
#endif
