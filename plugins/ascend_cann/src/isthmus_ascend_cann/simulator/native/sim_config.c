/* aclmdlLoadWithConfig and its configuration handle. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_load.h"

struct aclmdlConfigHandle {
    int32_t priority;
    size_t load_type;
    char path[4096];
    char weight_dir[4096];
    int32_t without_graph;
    size_t memory_optimize;
    LoadRequest request;
    ExternalWeight *external;
};

SIM_API aclmdlConfigHandle *aclmdlCreateConfigHandle(void)
{
    ENTER_OR(NULL);
    return sim_object_new(OBJECT_CONFIG, sizeof(aclmdlConfigHandle));
}

SIM_API aclError aclmdlDestroyConfigHandle(aclmdlConfigHandle *handle)
{
    ENTER();
    TRY(sim_need_object(OBJECT_CONFIG, handle, __func__));
    for (ExternalWeight *weight = handle->external; weight != NULL;) {
        ExternalWeight *next = weight->next;
        free(weight);
        weight = next;
    }
    return sim_object_free(OBJECT_CONFIG, handle, __func__);
}

static aclError bad_value(aclmdlConfigAttr attr, const char *why)
{
    return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "aclmdlSetConfigOpt: attribute %d: %s", (int)attr,
                    why);
}

static aclError copy_value(aclmdlConfigAttr attr, void *to, size_t size, const void *value, size_t value_size)
{
    if (value_size != size) {
        return bad_value(attr, "wrong value size");
    }
    memcpy(to, value, size);
    return ACL_SUCCESS;
}

/* Texts are given as the address of a char pointer, and copied. */
static aclError copy_text(aclmdlConfigAttr attr, char *to, size_t room, const void *value, size_t value_size)
{
    const char *text = NULL;
    TRY(copy_value(attr, (void *)&text, sizeof text, value, value_size));
    if (text == NULL || strlen(text) >= room) {
        return bad_value(attr, "no text, or a text too long");
    }
    strcpy(to, text);
    return ACL_SUCCESS;
}

static aclError set_priority(aclmdlConfigHandle *handle, const void *value, size_t size)
{
    TRY(copy_value(ACL_MDL_PRIORITY_INT32, &handle->priority, sizeof handle->priority, value, size));
    return handle->priority >= 0 && handle->priority <= 7 ? ACL_SUCCESS
                                                           : bad_value(ACL_MDL_PRIORITY_INT32, "not in [0, 7]");
}

SIM_API aclError aclmdlSetConfigOpt(aclmdlConfigHandle *handle, aclmdlConfigAttr attr, const void *attrValue,
                                    size_t valueSize)
{
    ENTER();
    TRY(sim_need_object(OBJECT_CONFIG, handle, __func__));
    NOT_NULL(attrValue);
    LoadRequest *request = &handle->request;
    switch ((int)attr) {
    case ACL_MDL_PRIORITY_INT32:
        return set_priority(handle, attrValue, valueSize);
    case ACL_MDL_LOAD_TYPE_SIZET:
        return copy_value(attr, &handle->load_type, sizeof handle->load_type, attrValue, valueSize);
    case ACL_MDL_PATH_PTR:
        return copy_text(attr, handle->path, sizeof handle->path, attrValue, valueSize);
    case ACL_MDL_MEM_ADDR_PTR:
        return copy_value(attr, (void *)&request->bytes, sizeof request->bytes, attrValue, valueSize);
    case ACL_MDL_MEM_SIZET:
        return copy_value(attr, &request->size, sizeof request->size, attrValue, valueSize);
    case ACL_MDL_WEIGHT_ADDR_PTR:
        return copy_value(attr, &request->weights, sizeof request->weights, attrValue, valueSize);
    case ACL_MDL_WEIGHT_SIZET:
        return copy_value(attr, &request->weight_size, sizeof request->weight_size, attrValue, valueSize);
    case ACL_MDL_WORKSPACE_ADDR_PTR:
        return copy_value(attr, &request->work, sizeof request->work, attrValue, valueSize);
    case ACL_MDL_WORKSPACE_SIZET:
        return copy_value(attr, &request->work_size, sizeof request->work_size, attrValue, valueSize);
    case ACL_MDL_WORKSPACE_MEM_OPTIMIZE:
        TRY(copy_value(attr, &handle->memory_optimize, sizeof handle->memory_optimize, attrValue, valueSize));
        return handle->memory_optimize <= 1 ? ACL_SUCCESS : bad_value(attr, "neither 0 nor 1");
    case ACL_MDL_WEIGHT_PATH_PTR:
        return copy_text(attr, handle->weight_dir, sizeof handle->weight_dir, attrValue, valueSize);
    case ACL_MDL_WITHOUT_GRAPH_INT32:
        return copy_value(attr, &handle->without_graph, sizeof handle->without_graph, attrValue, valueSize);
    default:
        return bad_value(attr, "not available on this product");
    }
}

SIM_API aclError aclmdlSetExternalWeightAddress(aclmdlConfigHandle *handle, const char *weightFileName, void *devPtr,
                                                size_t size)
{
    ENTER();
    TRY(sim_need_object(OBJECT_CONFIG, handle, __func__));
    NOT_NULL(weightFileName);
    NOT_NULL(devPtr);
    if (size == 0 || size % 32 != 0 || strchr(weightFileName, '/') != NULL || strlen(weightFileName) > 255) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument",
                        "%s: needs a bare file name and a size that is a multiple of 32; got %s, %zu", __func__,
                        weightFileName, size);
    }
    ExternalWeight *weight = calloc(1, sizeof *weight);
    if (weight == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "EH0010", "Host_Memory", "%s: out of host memory", __func__);
    }
    *weight = (ExternalWeight){.address = devPtr, .size = size, .next = handle->external};
    strcpy(weight->name, weightFileName);
    handle->external = weight;
    return ACL_SUCCESS;
}

static aclError check_config(const aclmdlConfigHandle *handle, bool from_file, bool with_memory)
{
    if (from_file && (handle->path[0] == '\0' || handle->weight_dir[0] != '\0')) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument",
                        "aclmdlLoadWithConfig: loading from a file needs a path and takes no weight path");
    }
    if (!from_file && (handle->request.bytes == NULL || handle->request.size == 0)) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument",
                        "aclmdlLoadWithConfig: loading from memory needs its address and size");
    }
    if (with_memory && handle->request.work == NULL && handle->request.weights == NULL && handle->request.weight_size > 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "aclmdlLoadWithConfig: a size but no address");
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlLoadWithConfig(const aclmdlConfigHandle *handle, uint32_t *modelId)
{
    ENTER();
    TRY(sim_need_object(OBJECT_CONFIG, handle, __func__));
    size_t type = handle->load_type;
    bool from_file = type == ACL_MDL_LOAD_FROM_FILE || type == ACL_MDL_LOAD_FROM_FILE_WITH_MEM;
    bool with_memory = type == ACL_MDL_LOAD_FROM_FILE_WITH_MEM || type == ACL_MDL_LOAD_FROM_MEM_WITH_MEM;
    if (!from_file && type != ACL_MDL_LOAD_FROM_MEM && type != ACL_MDL_LOAD_FROM_MEM_WITH_MEM) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: load type %zu", __func__, type);
    }
    TRY(check_config(handle, from_file, with_memory));
    LoadRequest request = handle->request;
    request.path = from_file ? handle->path : NULL;
    request.weight_dir = handle->weight_dir[0] == '\0' ? NULL : handle->weight_dir;
    request.external = handle->external;
    request.without_io = handle->memory_optimize == 1;
    if (!with_memory) {
        request.work = request.weights = NULL;
    }
    return sim_load(&request, modelId, __func__);
}
