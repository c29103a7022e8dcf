/* What the devices say about themselves, to the driver's and the runtime's questions alike. */
#ifndef STAND_IN_ATTRIBUTES_H
#define STAND_IN_ATTRIBUTES_H
#include "calls.h"

result_t device_attribute(int *value, int attribute, int device);
result_t device_properties(device_properties_t *out, int device);
#endif
