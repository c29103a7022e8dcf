/* Runtime functions that torch's libraries link to and that are not modelled: reaching one is an error, and counted. */
#include "calls.h"

void remember_runtime_error(result_t result);

static result_t rejected(result_t result) {
    remember_runtime_error(result);
    return result;
}

#define REJECT(name) \
    API result_t name(void) { return rejected(CALL(RUNTIME_API, ANY_THREAD, unsupported(#name), ".")); }

REJECT(cudaDeviceGetDefaultMemPool)
REJECT(cudaDeviceGetGraphMemAttribute)
REJECT(cudaDeviceSetGraphMemAttribute)
REJECT(cudaFreeAsync)
REJECT(cudaGetSymbolAddress)
REJECT(cudaGraphAddNode)
REJECT(cudaGraphConditionalHandleCreate)
REJECT(cudaGraphDestroy)
REJECT(cudaGraphExecDestroy)
REJECT(cudaGraphGetNodes)
REJECT(cudaGraphInstantiateWithFlags)
REJECT(cudaGraphLaunch)
REJECT(cudaGraphNodeGetDependencies)
REJECT(cudaGraphRetainUserObject)
REJECT(cudaIpcCloseMemHandle)
REJECT(cudaIpcGetEventHandle)
REJECT(cudaIpcGetMemHandle)
REJECT(cudaIpcOpenEventHandle)
REJECT(cudaIpcOpenMemHandle)
REJECT(cudaKernelSetAttributeForDevice)
REJECT(cudaLaunchHostFunc)
REJECT(cudaLibraryGetKernel)
REJECT(cudaLibraryLoadData)
REJECT(cudaLibraryUnload)
REJECT(cudaMallocAsync)
REJECT(cudaMemPoolGetAttribute)
REJECT(cudaMemPoolSetAccess)
REJECT(cudaMemPoolSetAttribute)
REJECT(cudaMemPoolTrimTo)
REJECT(cudaMemcpy2DAsync)
REJECT(cudaMemcpyToSymbol)
REJECT(cudaProfilerStart)
REJECT(cudaProfilerStop)
REJECT(cudaStreamAddCallback)
REJECT(cudaStreamBeginCapture)
REJECT(cudaStreamBeginCaptureToGraph)
REJECT(cudaStreamEndCapture)
REJECT(cudaStreamUpdateCaptureDependencies)
REJECT(cudaUserObjectCreate)
REJECT(cudaUserObjectRelease)
