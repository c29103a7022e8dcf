#ifndef CUDA_SIM_DRIVER_API_H
#define CUDA_SIM_DRIVER_API_H
/* What cuGetProcAddress answers for a name, asked as of a CUDA version; NULL where that version had no such function. */
void *driver_function(const char *name, int version);
#endif
