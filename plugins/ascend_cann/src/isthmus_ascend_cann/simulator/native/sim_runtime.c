/* Initialisation, devices, contexts and the thread's current context. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_stream.h"

typedef struct {
    uint64_t references; /* aclrtSetDevice minus aclrtResetDevice */
    SimContext *primary;
} Device;

pthread_mutex_t sim_mutex = PTHREAD_MUTEX_INITIALIZER;
static Device devices[SIM_MAX_DEVICES];
static uint64_t init_references;
static bool announced;
static char config_path[4096];
static __thread SimContext *current;

void sim_lock(void) { pthread_mutex_lock(&sim_mutex); }
void sim_unlock(void) { pthread_mutex_unlock(&sim_mutex); }

bool sim_initialised(void)
{
    sim_lock();
    bool is = init_references > 0;
    sim_unlock();
    return is;
}

aclError sim_need_init(const char *function)
{
    if (sim_initialised()) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_UNINITIALIZE, "EH0003", "Not_Initialized", "%s: aclInit has not been called", function);
}

/* ---- init and finalise ---- */

static void first_init(const char *path)
{
    sim_read_environment();
    snprintf(config_path, sizeof config_path, "%s", path);
    if (!announced) {
        announced = true;
        sim_log("this process uses a simulated %s of Isthmus; results are the CPU's, times mean nothing", sim_knobs.soc);
    }
}

SIM_API aclError aclInit(const char *configPath)
{
    ENTER();
    const char *path = configPath == NULL ? "" : configPath;
    if (*path != '\0' && access(path, R_OK) != 0) {
        return sim_fail(ACL_ERROR_INVALID_FILE, "EH0004", "Invalid_File", "aclInit: %s cannot be read", path);
    }
    sim_lock();
    bool again = init_references > 0;
    bool differs = again && *path != '\0' && strcmp(path, config_path) != 0;
    if (!again) {
        init_references = 1;
    } else if (!differs) {
        init_references++;
    }
    sim_unlock();
    if (differs) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument",
                        "aclInit: configuration \"%s\" differs from the first call's \"%s\"", path, config_path);
    }
    if (again) {
        return ACL_ERROR_REPEAT_INITIALIZE;
    }
    first_init(path);
    return ACL_SUCCESS;
}

static void shut_down(void)
{
    for (int32_t device = 0; device < SIM_MAX_DEVICES; device++) {
        aclrtResetDeviceForce(device);
    }
    sim_report_leaks("aclFinalize");
    sim_worker_stop();
}

SIM_API aclError aclFinalize(void)
{
    ENTER();
    sim_lock();
    bool running = init_references > 0;
    init_references = 0;
    sim_unlock();
    if (!running) {
        return sim_fail(ACL_ERROR_REPEAT_FINALIZE, "EH0003", "Repeat_Finalize", "aclFinalize: not initialised");
    }
    shut_down();
    return ACL_SUCCESS;
}

SIM_API aclError aclFinalizeReference(uint64_t *refCount)
{
    ENTER();
    sim_lock();
    bool running = init_references > 0;
    uint64_t left = running ? --init_references : 0;
    sim_unlock();
    if (!running) {
        return sim_fail(ACL_ERROR_REPEAT_FINALIZE, "EH0003", "Repeat_Finalize", "aclFinalizeReference: not initialised");
    }
    if (refCount != NULL) {
        *refCount = left;
    }
    if (left == 0) {
        shut_down();
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)
{
    ENTER();
    NOT_NULL(majorVersion);
    NOT_NULL(minorVersion);
    NOT_NULL(patchVersion);
    *majorVersion = 1;
    *minorVersion = 17;
    *patchVersion = 0;
    return ACL_SUCCESS;
}

SIM_API const char *aclrtGetSocName(void)
{
    ENTER_OR(NULL);
    return sim_knobs.soc;
}

SIM_API aclError aclrtGetRunMode(aclrtRunMode *runMode)
{
    ENTER();
    NOT_NULL(runMode);
    *runMode = sim_knobs.run_on_device ? ACL_DEVICE : ACL_HOST;
    return ACL_SUCCESS;
}

/* ---- devices ---- */

/* ASCEND_RT_VISIBLE_DEVICES is an ascending list of physical ids; a blank or anything out of order ends it. */
static uint32_t visible_devices(void)
{
    const char *text = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (text == NULL) {
        return sim_knobs.devices;
    }
    uint32_t count = 0;
    long last = -1;
    while (*text >= '0' && *text <= '9') {
        char *end;
        long id = strtol(text, &end, 10);
        if (id <= last || id >= (long)sim_knobs.devices) {
            break;
        }
        last = id;
        count++;
        if (*end != ',') {
            break;
        }
        text = end + 1;
    }
    return count;
}

static aclError need_device(int32_t device, const char *function)
{
    uint32_t count = visible_devices();
    if (device >= 0 && (uint32_t)device < count) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_INVALID_DEVICEID, "EE1003", "Invalid_Argument",
                    "%s: device %d is not in [0, %u) of the visible devices", function, device, count);
}

SIM_API aclError aclrtGetDeviceCount(uint32_t *count)
{
    ENTER();
    NOT_NULL(count);
    *count = visible_devices();
    return ACL_SUCCESS;
}

/* Contexts are never freed, only marked dead: another thread may still have one as its current context. */
static SimContext *new_context(int32_t device, bool primary)
{
    SimContext *context = calloc(1, sizeof *context);
    if (context != NULL) {
        *context = (SimContext){.device = device, .primary = primary, .alive = true};
    }
    return context;
}

SIM_API aclError aclrtSetDevice(int32_t deviceId)
{
    ENTER();
    TRY(sim_need_init(__func__));
    TRY(need_device(deviceId, __func__));
    TRY(sim_memory_open());
    sim_lock();
    Device *device = &devices[deviceId];
    if (device->primary == NULL) {
        device->primary = new_context(deviceId, true);
    }
    SimContext *primary = device->primary;
    device->references += primary != NULL;
    sim_unlock();
    if (primary == NULL) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE1013", "Host_Memory", "aclrtSetDevice: out of host memory");
    }
    current = primary;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtGetDevice(int32_t *deviceId)
{
    ENTER();
    NOT_NULL(deviceId);
    CONTEXT(context);
    *deviceId = context->device;
    return ACL_SUCCESS;
}

static void close_device(int32_t id)
{
    sim_unload_all(id);
    sim_streams_close(id);
    sim_release_device(id);
    sim_lock();
    if (devices[id].primary != NULL) {
        devices[id].primary->alive = false;
    }
    devices[id] = (Device){0};
    sim_unlock();
}

SIM_API aclError aclrtResetDevice(int32_t deviceId)
{
    ENTER();
    TRY(need_device(deviceId, __func__));
    sim_lock();
    bool last = devices[deviceId].references == 1;
    devices[deviceId].references -= devices[deviceId].references > 0;
    sim_unlock();
    if (last) {
        sim_report_leaks("aclrtResetDevice");
        close_device(deviceId);
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclrtResetDeviceForce(int32_t deviceId)
{
    ENTER();
    if (deviceId < 0 || deviceId >= SIM_MAX_DEVICES) {
        return need_device(deviceId, __func__);
    }
    sim_lock();
    bool open = devices[deviceId].references > 0;
    sim_unlock();
    if (open) {
        close_device(deviceId);
    }
    return ACL_SUCCESS;
}

/* ---- contexts ---- */

SimContext *sim_context(const char *function)
{
    if (current != NULL && current->alive) {
        return current;
    }
    sim_fail(ACL_ERROR_RT_CONTEXT_NULL, "EE1001", "Context_Null",
             "%s: this thread has no current context; call aclrtSetDevice or aclrtSetCurrentContext on it", function);
    return NULL;
}

void sim_adopt_context(SimContext *context) { current = context; }

SIM_API aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    ENTER();
    NOT_NULL(context);
    TRY(sim_need_init(__func__));
    TRY(need_device(deviceId, __func__));
    TRY(sim_memory_open());
    SimContext *created = new_context(deviceId, false);
    if (created == NULL || !sim_object_add(OBJECT_CONTEXT, created, 0)) {
        free(created);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE1013", "Host_Memory", "%s: out of host memory", __func__);
    }
    current = created;
    *context = created;
    return ACL_SUCCESS;
}

/* The default context of a device is not the caller's to destroy. */
SIM_API aclError aclrtDestroyContext(aclrtContext context)
{
    ENTER();
    NOT_NULL(context);
    if (!sim_object_live(OBJECT_CONTEXT, context)) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001", "Invalid_Handle",
                        "aclrtDestroyContext: %p was not made by aclrtCreateContext, or is destroyed", context);
    }
    SimContext *destroyed = context;
    sim_streams_close_context(destroyed);
    sim_object_remove(OBJECT_CONTEXT, context);
    destroyed->alive = false;
    return ACL_SUCCESS;
}

static bool is_primary(const SimContext *context)
{
    for (int32_t id = 0; id < SIM_MAX_DEVICES; id++) {
        if (devices[id].primary == context) {
            return true;
        }
    }
    return false;
}

SIM_API aclError aclrtSetCurrentContext(aclrtContext context)
{
    ENTER();
    NOT_NULL(context);
    sim_lock();
    bool primary = is_primary(context);
    sim_unlock();
    if (!primary && !sim_object_live(OBJECT_CONTEXT, context)) {
        return sim_fail(ACL_ERROR_RT_CONTEXT_NULL, "EE1001", "Invalid_Handle", "%s: %p is no context", __func__, context);
    }
    current = context;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtGetCurrentContext(aclrtContext *context)
{
    ENTER();
    NOT_NULL(context);
    CONTEXT(found);
    *context = found;
    return ACL_SUCCESS;
}
