/* Loading: checks, memory, weights, and the program of the worker. */
#include "sim_load.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

/* ---- checks before anything is allocated ---- */

/* Chips of one architecture run each other's models. */
static const char *architecture(const char *soc)
{
    static const char *const prefixes[] = {"Ascend310P", "Ascend310B", "Ascend310", "Ascend910_93", "Ascend910_95",
                                           "Ascend910B", "Ascend910"};
    if (strcmp(soc, "Ascend910B") == 0) { /* without a digit it is the first generation */
        return "Ascend910";
    }
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(soc, prefixes[i], strlen(prefixes[i])) == 0) {
            return strcmp(prefixes[i], "Ascend910_93") == 0 ? "Ascend910B" : prefixes[i];
        }
    }
    return soc;
}

static aclError check_model(const Om *om)
{
    if (!om->range_shape && om->partitions < 2) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E10055", "Not_Supported", "a static om with one partition");
    }
    if (om->soc[0] != '\0' && strcmp(architecture(om->soc), architecture(sim_knobs.soc)) != 0) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E10001", "Invalid_Argument",
                        "the om was compiled for %s, the device is %s", om->soc, sim_knobs.soc);
    }
    if (om->program == NULL) {
        return sim_fail(ACL_ERROR_GE_EXEC_LOAD_TASK_PARTITION_FAILED, "E19999", "Inner_Error",
                        "this om was not written by the simulated atc: it holds kernels for a real device only");
    }
    return ACL_SUCCESS;
}

static aclError check_memory(const void *address, size_t size, const char *what)
{
    uint8_t *alias;
    if ((uintptr_t)address % ALIGNMENT != 0) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E19999", "Inner_Error", "%s at %p is not aligned to %d bytes", what,
                        address, ALIGNMENT);
    }
    return sim_need_span(address, size, what, &alias);
}

/* Inputs and outputs are in the workspace until they are bound, and they are always bound. */
static uint64_t least_work(const Om *om)
{
    return om->work_size > om->zero_copy_size ? om->work_size - om->zero_copy_size : 0;
}

static aclError check_caller_memory(const Om *om, const LoadRequest *request)
{
    uint64_t least = least_work(om);
    if (request->weights != NULL && request->weight_size < om->weight_size) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E13025", "Invalid_Memory_Size",
                        "the weights of the model take %llu bytes, the caller's buffer has %zu",
                        (unsigned long long)om->weight_size, request->weight_size);
    }
    if (request->work != NULL && !om->range_shape && request->work_size < least) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E19999", "Inner_Error",
                        "the caller's workspace of %zu bytes is smaller than the %llu the model needs", request->work_size,
                        (unsigned long long)least);
    }
    if (request->weights != NULL && om->weight_size > 0) {
        TRY(check_memory(request->weights, request->weight_size, "the caller's weights buffer"));
    }
    if (request->work != NULL && !om->range_shape && request->work_size > 0) {
        TRY(check_memory(request->work, request->work_size, "the caller's workspace"));
    }
    return ACL_SUCCESS;
}

/* ---- filling the device ---- */

static aclError own_memory(SimModel *model, void **address, uint64_t size, bool *owns)
{
    if (size == 0) {
        return ACL_SUCCESS;
    }
    if (sim_allocate(model->context->device, address, size, ACL_MEM_MALLOC_HUGE_FIRST, 0) != ACL_SUCCESS) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Inner_Error", "no device memory for the model");
    }
    *owns = true;
    return ACL_SUCCESS;
}

static aclError place_model(SimModel *model, const LoadRequest *request)
{
    const Om *om = model->om;
    model->work = om->range_shape ? NULL : request->work;
    uint64_t own_work = request->without_io ? least_work(om) : om->work_size;
    model->work_size = model->work == NULL ? own_work : request->work_size;
    model->weights = request->weights;
    if (model->work == NULL && !om->range_shape) {
        TRY(own_memory(model, &model->work, own_work, &model->owns_work));
    }
    if (model->weights == NULL) {
        TRY(own_memory(model, &model->weights, om->weight_size, &model->owns_weights));
    }
    if (om->weight_size > 0) {
        uint8_t *to;
        TRY(sim_need_span(model->weights, om->weight_size, "weights", &to));
        memcpy(to, om->weights, om->weight_size);
    }
    return ACL_SUCCESS;
}

static aclError read_external(const LoadRequest *request, const OmFile *file, uint8_t **bytes)
{
    char path[8192];
    size_t size;
    if (request->weight_dir != NULL) {
        snprintf(path, sizeof path, "%s/%s", request->weight_dir, file->name);
    } else if (request->path != NULL) {
        char om_path[4096];
        snprintf(om_path, sizeof om_path, "%s", request->path);
        snprintf(path, sizeof path, "%s/weight/%s", dirname(om_path), file->name);
    } else {
        return sim_fail(ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID, "E13000", "Invalid_Path",
                        "external weight %s: a model loaded from memory needs its weight path or address", file->name);
    }
    TRY(sim_read_file(path, bytes, &size));
    if (size != file->size) {
        free(*bytes);
        return sim_fail(ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID, "E13004", "File_Size", "%s has %zu bytes instead of %llu",
                        path, size, (unsigned long long)file->size);
    }
    return ACL_SUCCESS;
}

static const ExternalWeight *given_address(const LoadRequest *request, const char *name)
{
    const ExternalWeight *given = request->external;
    while (given != NULL && strcmp(given->name, name) != 0) {
        given = given->next;
    }
    return given;
}

/* An address that the caller gave is filled already; else the file is read into memory of the model. */
static aclError place_external(SimModel *model, const LoadRequest *request, size_t index)
{
    const OmFile *file = &model->om->external[index];
    const ExternalWeight *given = given_address(request, file->name);
    uint8_t *bytes, *to;
    if (given != NULL) {
        model->external[index] = given->address;
        return given->size >= file->size
                   ? sim_need_span(given->address, file->size, "external weight", &to)
                   : sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E13025", "Invalid_Memory_Size",
                              "external weight %s takes %llu bytes, the caller's buffer has %zu", file->name,
                              (unsigned long long)file->size, given->size);
    }
    TRY(read_external(request, file, &bytes));
    aclError error = own_memory(model, &model->external[index], file->size, &model->owns_external[index]);
    if (error == ACL_SUCCESS && file->size > 0) {
        error = sim_need_span(model->external[index], file->size, "external weight", &to);
        memcpy(to, bytes, error == ACL_SUCCESS ? file->size : 0);
    }
    free(bytes);
    return error;
}

static aclError start_program(SimModel *model)
{
    const Om *om = model->om;
    WorkerFile *files = calloc(om->external_count + 1, sizeof *files);
    if (files == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    size_t count = 0;
    if (om->weight_size > 0) {
        files[count++] = (WorkerFile){"weights", sim_file_offset(model->weights), om->weight_size};
    }
    for (size_t i = 0; i < om->external_count; i++) {
        files[count++] = (WorkerFile){om->external[i].name, sim_file_offset(model->external[i]), om->external[i].size};
    }
    aclError error = sim_worker_load(model->id, om->program, om->program_size, files, count);
    free(files);
    return error;
}

void sim_free_model(SimModel *model)
{
    if (model->owns_work) {
        sim_release(model->work);
    }
    if (model->owns_weights) {
        sim_release(model->weights);
    }
    for (size_t i = 0; model->owns_external != NULL && i < model->om->external_count; i++) {
        if (model->owns_external[i]) {
            sim_release(model->external[i]);
        }
    }
    sim_om_drop(model->om);
    free(model->external);
    free(model->owns_external);
    sim_object_remove(OBJECT_MODEL, model);
    free(model);
}

static aclError fill_model(SimModel *model, const LoadRequest *request)
{
    Om *om = model->om;
    model->external = calloc(om->external_count + 1, sizeof *model->external);
    model->owns_external = calloc(om->external_count + 1, sizeof *model->owns_external);
    if (model->external == NULL || model->owns_external == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    TRY(place_model(model, request));
    for (size_t i = 0; i < om->external_count; i++) {
        TRY(place_external(model, request, i));
    }
    TRY(start_program(model));
    om->weights = om->program = NULL; /* the file's bytes go away now */
    model->weight_mark = sim_weight_mark(model);
    model->gear = sim_largest_gear(om);
    return ACL_SUCCESS;
}

static aclError load_om(Om *om, SimContext *context, const LoadRequest *request, uint32_t *id)
{
    TRY(check_model(om));
    TRY(check_caller_memory(om, request));
    SimModel *model = sim_object_new(OBJECT_MODEL, sizeof *model);
    if (model == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    model->context = context;
    model->om = sim_om_share(om);
    sim_enlist(model);
    aclError error = fill_model(model, request);
    if (error != ACL_SUCCESS) {
        sim_delist(model);
        sim_free_model(model);
        return error;
    }
    *id = model->id;
    return ACL_SUCCESS;
}

static aclError load_bytes(const void *bytes, size_t size, SimContext *context, const LoadRequest *request, uint32_t *id)
{
    Om *om;
    TRY(sim_om_parse(bytes, size, &om));
    aclError error = load_om(om, context, request, id);
    sim_om_drop(om);
    return error;
}

aclError sim_load(const LoadRequest *request, uint32_t *id, const char *function)
{
    TRY(sim_need_init(function));
    TRY(sim_not_null(id, function, "modelId"));
    SimContext *context = sim_context(function);
    if (context == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    if (request->path == NULL) {
        TRY(sim_not_null(request->bytes, function, "model"));
        return load_bytes(request->bytes, request->size, context, request, id);
    }
    uint8_t *bytes;
    size_t size;
    TRY(sim_read_file(request->path, &bytes, &size));
    aclError error = load_bytes(bytes, size, context, request, id);
    free(bytes);
    return error;
}

/* ---- the load calls ---- */

SIM_API aclError aclmdlLoadFromFile(const char *modelPath, uint32_t *modelId)
{
    ENTER();
    NOT_NULL(modelPath);
    return sim_load(&(LoadRequest){.path = modelPath}, modelId, __func__);
}

SIM_API aclError aclmdlLoadFromFileWithMem(const char *modelPath, uint32_t *modelId, void *workPtr, size_t workSize,
                                           void *weightPtr, size_t weightSize)
{
    ENTER();
    NOT_NULL(modelPath);
    LoadRequest request = {.path = modelPath, .work = workPtr, .work_size = workSize, .weights = weightPtr,
                           .weight_size = weightSize};
    return sim_load(&request, modelId, __func__);
}

SIM_API aclError aclmdlLoadFromMem(const void *model, size_t modelSize, uint32_t *modelId)
{
    ENTER();
    return sim_load(&(LoadRequest){.bytes = model, .size = modelSize}, modelId, __func__);
}

SIM_API aclError aclmdlLoadFromMemWithMem(const void *model, size_t modelSize, uint32_t *modelId, void *workPtr,
                                          size_t workSize, void *weightPtr, size_t weightSize)
{
    ENTER();
    LoadRequest request = {.bytes = model, .size = modelSize, .work = workPtr, .work_size = workSize,
                           .weights = weightPtr, .weight_size = weightSize};
    return sim_load(&request, modelId, __func__);
}
