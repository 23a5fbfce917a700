/* A libnvidia-ml.so.1 without a driver: the functions of NVML that NVIDIA's device plugin and GPU feature
 * discovery call. The node's file simulated-gpus.json lists the GPUs (devcluster/nodes). To simulate an
 * Xid error, append a line "INDEX XID" to the file simulated-xids in the same directory. */

#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLDER "/var/lib/kubelet/device-plugins"
#define GPUS 16
#define MIG_DEVICES 7 /* of the only profile, 1g.10gb of an A100 */
#define MIG_MEMORY_MIB 9728
#define MIG_PROFILE_ID 19
#define NO_INSTANCE 0xFFFFFFFFu
#define POLL_MS 100
#define MIB 1048576ull

/* A GPU, or its MIG device `instance`. A MIG device also represents its GPU instance, and the only
 * compute instance (0) of the GPU instance. */
struct nvmlDevice_st {
    unsigned int gpu, instance;
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE];
};
struct nvmlEventSet_st {
    unsigned int registered[GPUS];
    long read;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users, gpu_count, mig_count;
static unsigned long long memory_mib;
static char product[NVML_DEVICE_NAME_BUFFER_SIZE];
static struct nvmlDevice_st gpus[GPUS], migs[GPUS][MIG_DEVICES];

static FILE *node_file(const char *name)
{
    const char *folder = getenv("SIMULATED_NVML");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : FOLDER, name);
    return fopen(path, "r");
}

/* Return the text after a key of the JSON object, or an empty string. */
static const char *value_of(const char *json, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *found = strstr(json, quoted);
    return found ? found + strlen(quoted) : "";
}

static nvmlReturn_t load(void)
{
    char json[8192] = "";
    FILE *file = node_file("simulated-gpus.json");
    if (!file)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    size_t size = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    json[size] = 0;
    if (sscanf(value_of(json, "product"), " \"%63[^\"]", product) != 1)
        return NVML_ERROR_CORRUPTED_INFOROM;
    memory_mib = strtoull(value_of(json, "memory_mib"), NULL, 10);
    mig_count = strtoul(value_of(json, "mig_devices"), NULL, 10);
    if (mig_count > MIG_DEVICES)
        return NVML_ERROR_CORRUPTED_INFOROM;
    const char *at = strchr(value_of(json, "uuids"), '[');
    int length = 0;
    for (gpu_count = 0; at && gpu_count < GPUS; gpu_count++, at += length) {
        struct nvmlDevice_st *gpu = &gpus[gpu_count];
        if (sscanf(at, "%*[[, ]\"%79[^\"]\"%n", gpu->uuid, &length) != 1)
            break;
        gpu->gpu = gpu_count;
        gpu->instance = NO_INSTANCE;
        for (unsigned int i = 0; i < mig_count; i++) {
            struct nvmlDevice_st *mig = &migs[gpu_count][i];
            mig->gpu = gpu_count;
            mig->instance = i;
            snprintf(mig->uuid, sizeof mig->uuid, "MIG-%.60s-%u", gpu->uuid + strlen("GPU-"), i);
        }
    }
    return NVML_SUCCESS;
}

static int is_mig(nvmlDevice_t device)
{
    return device.handle->instance != NO_INSTANCE;
}

static nvmlReturn_t text(const char *from, char *to, unsigned int length)
{
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

static nvmlReturn_t number(unsigned int from, unsigned int *to)
{
    *to = from;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : load();
    users += result == NVML_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static __thread char message[32];
    snprintf(message, sizeof message, "NVML error %d", result);
    return message;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return text("580.95.05", version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return number(gpu_count, count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    device->handle = &gpus[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (unsigned int gpu = 0; gpu < gpu_count; gpu++) {
        device->handle = &gpus[gpu];
        if (!strcmp(uuid, gpus[gpu].uuid))
            return NVML_SUCCESS;
        for (unsigned int i = 0; i < mig_count; i++) {
            device->handle = &migs[gpu][i];
            if (!strcmp(uuid, migs[gpu][i].uuid))
                return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    (void)device;
    return text(product, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return text(device.handle->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    return number(device.handle->gpu, minor);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    memory->total = (is_mig(device) ? MIG_MEMORY_MIB : memory_mib) * MIB;
    memory->free = memory->total;
    memory->used = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = device.handle->gpu + 1;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xFF);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(
    nvmlDevice_t first, nvmlDevice_t second, nvmlGpuTopologyLevel_t *level)
{
    (void)first, (void)second;
    *level = NVML_TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(
    nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
    (void)device, (void)link, (void)state;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* MIG */

nvmlReturn_t nvmlDeviceGetMigMode(
    nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    (void)device;
    *current = *pending = mig_count ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    (void)device;
    return number(MIG_DEVICES, count);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(
    nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    if (index >= mig_count)
        return NVML_ERROR_NOT_FOUND;
    mig->handle = &migs[device.handle->gpu][index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *mig)
{
    return number(is_mig(device), mig);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    device->handle = &gpus[mig.handle->gpu];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return number(device.handle->instance, id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    (void)device;
    return number(0, id);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    if (!is_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = 14;
    attributes->sharedCopyEngineCount = 1;
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = 1;
    attributes->memorySizeMB = MIG_MEMORY_MIB;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(
    nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    if (id >= mig_count)
        return NVML_ERROR_NOT_FOUND;
    instance->handle = (struct nvmlGpuInstance_st *)&migs[device.handle->gpu][id];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct nvmlDevice_st *mig = (struct nvmlDevice_st *)instance.handle;
    memset(info, 0, sizeof *info);
    info->device.handle = &gpus[mig->gpu];
    info->id = mig->instance;
    info->profileId = MIG_PROFILE_ID;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(
    nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *compute)
{
    if (id != 0)
        return NVML_ERROR_NOT_FOUND;
    compute->handle = (struct nvmlComputeInstance_st *)instance.handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(
    nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    struct nvmlDevice_st *mig = (struct nvmlDevice_st *)compute.handle;
    memset(info, 0, sizeof *info);
    info->device.handle = &gpus[mig->gpu];
    info->gpuInstance.handle = (struct nvmlGpuInstance_st *)mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(
    nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
    (void)device;
    if (profile != NVML_GPU_INSTANCE_PROFILE_1_SLICE)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = MIG_PROFILE_ID;
    info->sliceCount = 1;
    info->instanceCount = MIG_DEVICES;
    info->memorySizeMB = MIG_MEMORY_MIB;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t instance, unsigned int profile, unsigned int engine,
    nvmlComputeInstanceProfileInfo_t *info)
{
    (void)instance;
    if (profile != NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE || engine != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->sliceCount = info->instanceCount = 1;
    return NVML_SUCCESS;
}

/* Health events */

/* Read the next line of the error file, and set `at` to its end. If the file is shorter than `at`, it
 * has been replaced and is read from the start. */
static int next_error(long *at, unsigned int *gpu, unsigned long long *xid)
{
    int found = 0;
    FILE *file = node_file("simulated-xids");
    if (!file) {
        *at = 0;
        return 0;
    }
    fseek(file, 0, SEEK_END);
    if (ftell(file) < *at)
        *at = 0;
    fseek(file, *at, SEEK_SET);
    found = fscanf(file, "%u %llu", gpu, xid) == 2 && fgetc(file) == '\n' && *gpu < gpu_count;
    if (found)
        *at = ftell(file);
    fclose(file);
    return found;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    unsigned int gpu;
    unsigned long long xid;
    set->handle = calloc(1, sizeof *set->handle);
    if (!set->handle)
        return NVML_ERROR_MEMORY;
    while (next_error(&set->handle->read, &gpu, &xid)) /* Skip earlier errors. */
        ;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set.handle);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    (void)device;
    *types = nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(
    nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    if (types & ~nvmlEventTypeXidCriticalError)
        return NVML_ERROR_NOT_SUPPORTED;
    set.handle->registered[device.handle->gpu] = types != 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(
    nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    const struct timespec pause = {0, POLL_MS * 1000000l};
    unsigned int gpu;
    unsigned long long xid;
    for (unsigned int waited = 0; waited <= timeout_ms; waited += POLL_MS) {
        while (next_error(&set.handle->read, &gpu, &xid)) {
            if (!set.handle->registered[gpu])
                continue;
            memset(data, 0, sizeof *data);
            data->device.handle = &gpus[gpu];
            data->eventType = nvmlEventTypeXidCriticalError;
            data->eventData = xid;
            data->gpuInstanceId = data->computeInstanceId = NO_INSTANCE;
            return NVML_SUCCESS;
        }
        nanosleep(&pause, NULL);
    }
    return NVML_ERROR_TIMEOUT;
}
