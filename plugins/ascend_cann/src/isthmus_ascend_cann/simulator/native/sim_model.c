/* Loaded models: the registry, unloading, sizes. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "sim_load.h"

#define SAMPLE 64 /* bytes per sample of the weights */
#define SAMPLES 1024

static SimModel *models;
static uint32_t last_id;

/* ---- registry ---- */

SimModel *sim_model(uint32_t id, const char *function)
{
    sim_lock();
    SimModel *model = models;
    while (model != NULL && model->id != id) {
        model = model->next;
    }
    sim_unlock();
    if (model == NULL) {
        sim_fail(ACL_ERROR_GE_EXEC_MODEL_ID_INVALID, "E19999", "Inner_Error", "%s: model id %u is not loaded", function, id);
    }
    return model;
}

void sim_enlist(SimModel *model)
{
    sim_lock();
    model->id = ++last_id;
    model->next = models;
    models = model;
    sim_unlock();
}

void sim_delist(SimModel *model)
{
    sim_lock();
    for (SimModel **at = &models; *at != NULL; at = &(*at)->next) {
        if (*at == model) {
            *at = model->next;
            break;
        }
    }
    sim_unlock();
}

/* ---- sizes ---- */

static aclError query(const void *bytes, size_t size, size_t *work, size_t *weight)
{
    Om *om;
    TRY(sim_om_parse(bytes, size, &om));
    *work = om->range_shape ? 0 : om->work_size;
    *weight = om->weight_size;
    sim_om_drop(om);
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlQuerySizeFromMem(const void *model, size_t modelSize, size_t *workSize, size_t *weightSize)
{
    ENTER();
    NOT_NULL(model);
    NOT_NULL(workSize);
    NOT_NULL(weightSize);
    TRY(sim_need_init(__func__));
    return query(model, modelSize, workSize, weightSize);
}

SIM_API aclError aclmdlQuerySize(const char *fileName, size_t *workSize, size_t *weightSize)
{
    ENTER();
    NOT_NULL(fileName);
    NOT_NULL(workSize);
    NOT_NULL(weightSize);
    TRY(sim_need_init(__func__));
    uint8_t *bytes;
    size_t size;
    TRY(sim_read_file(fileName, &bytes, &size));
    aclError error = query(bytes, size, workSize, weightSize);
    free(bytes);
    return error;
}

/* ---- unload ---- */

static void unload(SimModel *model)
{
    sim_delist(model);
    sim_worker_unload(model->id);
    sim_free_model(model);
}

SIM_API aclError aclmdlUnload(uint32_t modelId)
{
    ENTER();
    CONTEXT(context);
    SimModel *model = sim_model(modelId, __func__);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    if (model->context != context) {
        return sim_fail(ACL_ERROR_RT_MODEL_CONTEXT, "EE1010", "Wrong_Context",
                        "%s: model %u was loaded in another context than this thread's", __func__, modelId);
    }
    sim_lock();
    bool busy = model->running > 0;
    sim_unlock();
    if (busy) {
        return sim_fail(ACL_ERROR_RT_MODEL_RUNNING, "EE1009", "Model_Running", "%s: model %u is running", __func__, modelId);
    }
    unload(model);
    return ACL_SUCCESS;
}

void sim_unload_all(int32_t device)
{
    for (;;) {
        sim_lock();
        SimModel *model = models;
        while (model != NULL && model->context->device != device) {
            model = model->next;
        }
        sim_unlock();
        if (model == NULL) {
            return;
        }
        unload(model);
    }
}

/* ---- weights stay what they are ---- */

/* FNV-1a over evenly spread samples: notices an overwritten buffer without reading gigabytes at every run. */
uint64_t sim_weight_mark(const SimModel *model)
{
    uint64_t size = model->om->weight_size, mark = UINT64_C(14695981039346656037);
    const uint8_t *bytes = size == 0 ? NULL : sim_span(model->weights, size);
    if (bytes == NULL) {
        return 0;
    }
    uint64_t step = size / SAMPLES < SAMPLE ? SAMPLE : size / SAMPLES;
    for (uint64_t at = 0; at < size; at += step) {
        uint64_t end = at + SAMPLE < size ? at + SAMPLE : size;
        for (uint64_t i = at; i < end; i++) {
            mark = (mark ^ bytes[i]) * UINT64_C(1099511628211);
        }
    }
    return mark;
}
