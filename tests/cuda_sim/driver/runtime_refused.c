/* Runtime functions that torch's libraries link to and that are not modelled: reaching one is an error, and counted. */
#include "calls.h"

void remember_runtime_error(result_t result);

static result_t refused(result_t result) {
    remember_runtime_error(result);
    return result;
}

#define REFUSE(name) \
    API result_t name(void) { return refused(CALL(RUNTIME_API, ANY_THREAD, unsupported(#name), ".")); }

REFUSE(cudaDeviceGetDefaultMemPool)
REFUSE(cudaDeviceGetGraphMemAttribute)
REFUSE(cudaDeviceSetGraphMemAttribute)
REFUSE(cudaFreeAsync)
REFUSE(cudaGetSymbolAddress)
REFUSE(cudaGraphAddNode)
REFUSE(cudaGraphConditionalHandleCreate)
REFUSE(cudaGraphDestroy)
REFUSE(cudaGraphExecDestroy)
REFUSE(cudaGraphGetNodes)
REFUSE(cudaGraphInstantiateWithFlags)
REFUSE(cudaGraphLaunch)
REFUSE(cudaGraphNodeGetDependencies)
REFUSE(cudaGraphRetainUserObject)
REFUSE(cudaIpcCloseMemHandle)
REFUSE(cudaIpcGetEventHandle)
REFUSE(cudaIpcGetMemHandle)
REFUSE(cudaIpcOpenEventHandle)
REFUSE(cudaIpcOpenMemHandle)
REFUSE(cudaKernelSetAttributeForDevice)
REFUSE(cudaLaunchHostFunc)
REFUSE(cudaLibraryGetKernel)
REFUSE(cudaLibraryLoadData)
REFUSE(cudaLibraryUnload)
REFUSE(cudaMallocAsync)
REFUSE(cudaMemPoolGetAttribute)
REFUSE(cudaMemPoolSetAccess)
REFUSE(cudaMemPoolSetAttribute)
REFUSE(cudaMemPoolTrimTo)
REFUSE(cudaMemcpy2DAsync)
REFUSE(cudaMemcpyToSymbol)
REFUSE(cudaProfilerStart)
REFUSE(cudaProfilerStop)
REFUSE(cudaStreamAddCallback)
REFUSE(cudaStreamBeginCapture)
REFUSE(cudaStreamBeginCaptureToGraph)
REFUSE(cudaStreamEndCapture)
REFUSE(cudaStreamUpdateCaptureDependencies)
REFUSE(cudaUserObjectCreate)
REFUSE(cudaUserObjectRelease)
