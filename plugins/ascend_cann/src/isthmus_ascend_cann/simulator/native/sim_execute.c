/* Running models: datasets, synchronous and queued execution. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_run.h"
#include "sim_stream.h"

#define SCRIBBLES 256 /* places of the workspace that a run overwrites, as kernels do */
#define SCRIBBLE 64

/* ---- one run ---- */

static void scribble(const SimModel *model)
{
    uint8_t *work = model->work == NULL ? NULL : sim_span(model->work, model->work_size);
    uint64_t step = model->work_size / SCRIBBLES < SCRIBBLE ? SCRIBBLE : model->work_size / SCRIBBLES;
    for (uint64_t at = 0; work != NULL && at + SCRIBBLE <= model->work_size; at += step) {
        memset(work + at, 0xFF, SCRIBBLE);
    }
}

static bool overlap(const SimModel *a, const SimModel *b)
{
    const uint8_t *left = a->work, *right = b->work;
    return left != NULL && right != NULL && left < right + b->work_size && right < left + a->work_size;
}

static SimModel *running_beside[64]; /* models that run now; a device has fewer streams than this at once */

/* Claim the model and its workspace. */
static aclError begin(SimModel *model)
{
    const SimModel *clash = NULL;
    SimModel **slot = NULL;
    sim_lock();
    for (size_t i = 0; i < sizeof running_beside / sizeof running_beside[0]; i++) {
        SimModel *other = running_beside[i];
        if (other == NULL) {
            slot = slot == NULL ? &running_beside[i] : slot;
        } else if (other == model || overlap(other, model)) {
            clash = other;
        }
    }
    if (clash == NULL && slot != NULL) {
        *slot = model;
        model->running++;
    }
    sim_unlock();
    if (clash == model) {
        return sim_fail(ACL_ERROR_RT_MODEL_EXECUTE, "EE1009", "Model_Running",
                        "model %u is in flight already; one model must not run on two streams at once", model->id);
    }
    if (clash != NULL || slot == NULL) {
        return sim_fail(ACL_ERROR_RT_MODEL_EXECUTE, "EZ9999", "Inner_Error",
                        "model %u shares its workspace with model %u, which is running", model->id,
                        clash == NULL ? 0 : clash->id);
    }
    return ACL_SUCCESS;
}

static void end(SimModel *model)
{
    sim_lock();
    for (size_t i = 0; i < sizeof running_beside / sizeof running_beside[0]; i++) {
        if (running_beside[i] == model) {
            running_beside[i] = NULL;
        }
    }
    model->running--;
    sim_unlock();
}

static aclError check_weights(const SimModel *model)
{
    if (sim_weight_mark(model) == model->weight_mark) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_AICORE_EXCEPTION, "EZ9999", "Inner_Error",
                    "the weights of model %u were freed or overwritten while it is loaded (a real device computes nonsense)",
                    model->id);
}

/* Outputs without memory get some, which is the caller's to free; shapes become known to range-shape callers. */
static aclError place_output(const SimModel *model, const Run *run, size_t index, const WorkerTensor *tensor)
{
    const OmTensor *output = &model->om->outputs[index];
    DatasetItem *item = run->dataset == NULL ? NULL : &run->dataset->items[index];
    if (run->out[index].address == NULL) {
        void *memory;
        uint64_t size = tensor->size > output->size ? tensor->size : output->size;
        if (sim_allocate(model->context->device, &memory, size, ACL_MEM_MALLOC_HUGE_FIRST, SIM_TAIL) != ACL_SUCCESS) {
            return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Inner_Error", "no device memory for output %zu", index);
        }
        aclError error = sim_worker_fetch(model->id, (uint32_t)index, sim_file_offset(memory), tensor->size);
        if (error != ACL_SUCCESS) {
            sim_release(memory);
            return error;
        }
        *item->buffer = (aclDataBuffer){memory, size};
    }
    if (item != NULL && model->om->range_shape) {
        if (item->owned) {
            sim_free_description(item->description);
        }
        item->description =
            sim_new_description((aclDataType)output->dtype, (aclFormat)output->format, tensor->rank, tensor->dims);
        item->owned = true;
    }
    return ACL_SUCCESS;
}

static aclError compute(SimModel *model, const Run *run)
{
    WorkerTensor *in = calloc(run->in_count + run->out_count + 1, sizeof *in), *out = in + run->in_count;
    size_t in_count = 0;
    if (in == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    aclError error = sim_bind_inputs(model, run, in, &in_count);
    if (error == ACL_SUCCESS) {
        error = sim_bind_outputs(model, run, out);
    }
    if (error == ACL_SUCCESS) {
        error = check_weights(model);
    }
    if (error == ACL_SUCCESS) {
        sim_sleep_us(sim_knobs.execute_delay_us);
        error = sim_worker_execute(model->id, in, in_count, out, run->out_count);
    }
    for (size_t i = 0; error == ACL_SUCCESS && i < run->out_count; i++) {
        error = place_output(model, run, i, &out[i]);
    }
    free(in);
    return error;
}

static aclError run_model(void *argument)
{
    const Run *run = argument;
    SimModel *model = sim_model(run->model, "model run");
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    TRY(begin(model));
    aclError error = compute(model, run);
    scribble(model);
    end(model);
    return error;
}

/* ---- from datasets to a run ---- */

static void free_run(void *argument)
{
    Run *run = argument;
    free(run->in);
    free(run->out);
    free(run);
}

static aclError too_few(const char *what, size_t got, size_t need)
{
    return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E19999", "Inner_Error", "the dataset has %zu %s, the model has %zu", got,
                    what, need);
}

static aclError take_buffers(const aclmdlDataset *dataset, const OmTensor *tensors, size_t count, bool output, bool may_place,
                             Bound *bound)
{
    for (size_t i = 0; i < count; i++) {
        const aclDataBuffer *buffer = dataset->items[i].buffer;
        TRY(sim_need_object(OBJECT_DATA_BUFFER, buffer, "model run"));
        bound[i] = (Bound){.address = buffer->data, .size = buffer->size};
        const aclTensorDesc *description = dataset->items[i].description;
        if (!output && description != NULL && sim_object_live(OBJECT_TENSOR_DESC, description)) {
            bound[i].described = true;
            bound[i].rank = description->rank;
            memcpy(bound[i].dims, description->dims, sizeof bound[i].dims);
        }
        if (output && may_place && buffer->data == NULL) {
            continue;
        }
        if (buffer->data == NULL || buffer->size < tensors[i].size) {
            return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E19999", "Inner_Error",
                            "%s %s takes %llu bytes, its buffer %p has %llu", output ? "output" : "input", tensors[i].name,
                            (unsigned long long)tensors[i].size, buffer->data, (unsigned long long)buffer->size);
        }
    }
    return ACL_SUCCESS;
}

static aclError fill_run(Run *run, const Om *om, const aclmdlDataset *in, aclmdlDataset *out, bool synchronous)
{
    run->in_count = om->input_count;
    run->out_count = om->output_count;
    run->in = calloc(run->in_count + 1, sizeof *run->in);
    run->out = calloc(run->out_count + 1, sizeof *run->out);
    run->dataset = synchronous ? out : NULL;
    if (run->in == NULL || run->out == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    if (in->count < run->in_count) {
        return too_few("inputs", in->count, run->in_count);
    }
    if (out->count < run->out_count) {
        return too_few("outputs", out->count, run->out_count);
    }
    TRY(take_buffers(in, om->inputs, run->in_count, false, false, run->in));
    return take_buffers(out, om->outputs, run->out_count, true, synchronous, run->out);
}

static aclError prepare(uint32_t id, const aclmdlDataset *in, aclmdlDataset *out, bool synchronous, const char *function,
                        Run **prepared)
{
    TRY(sim_need_object(OBJECT_DATASET, in, function));
    TRY(sim_need_object(OBJECT_DATASET, out, function));
    SimContext *context = sim_context(function);
    if (context == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    const SimModel *model = sim_model(id, function);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    if (model->context != context) {
        return sim_fail(ACL_ERROR_RT_MODEL_CONTEXT, "EE1010", "Wrong_Context",
                        "%s: model %u was loaded in another context than this thread's", function, id);
    }
    Run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    run->model = id;
    aclError error = fill_run(run, model->om, in, out, synchronous);
    if (error != ACL_SUCCESS) {
        free_run(run);
        return error;
    }
    *prepared = run;
    return ACL_SUCCESS;
}

static aclError execute(uint32_t id, const aclmdlDataset *in, aclmdlDataset *out, const char *function)
{
    Run *run;
    TRY(prepare(id, in, out, true, function, &run));
    aclError error = run_model(run);
    free_run(run);
    return error;
}

SIM_API aclError aclmdlExecute(uint32_t modelId, const aclmdlDataset *input, aclmdlDataset *output)
{
    ENTER();
    return execute(modelId, input, output, __func__);
}

SIM_API aclError aclmdlExecuteAsync(uint32_t modelId, const aclmdlDataset *input, aclmdlDataset *output, aclrtStream stream)
{
    ENTER();
    Run *run;
    CONTEXT(context);
    SimStream *queue;
    TRY(sim_stream_of(stream, context, __func__, &queue));
    TRY(prepare(modelId, input, output, false, __func__, &run));
    return sim_stream_push(queue, run_model, run, free_run);
}

/* ---- with a limit of time ---- */

struct aclmdlExecConfigHandle {
    int32_t stream_timeout_ms;
    int32_t event_timeout_ms;
};

SIM_API aclmdlExecConfigHandle *aclmdlCreateExecConfigHandle(void)
{
    ENTER_OR(NULL);
    aclmdlExecConfigHandle *handle = sim_object_new(OBJECT_EXECUTE_CONFIG, sizeof *handle);
    if (handle != NULL) {
        *handle = (aclmdlExecConfigHandle){-1, -1};
    }
    return handle;
}

SIM_API aclError aclmdlDestroyExecConfigHandle(const aclmdlExecConfigHandle *handle)
{
    ENTER();
    return sim_object_free(OBJECT_EXECUTE_CONFIG, handle, __func__);
}

SIM_API aclError aclmdlSetExecConfigOpt(aclmdlExecConfigHandle *handle, aclmdlExecConfigAttr attr, const void *attrValue,
                                        size_t valueSize)
{
    ENTER();
    TRY(sim_need_object(OBJECT_EXECUTE_CONFIG, handle, __func__));
    NOT_NULL(attrValue);
    if ((attr != ACL_MDL_STREAM_SYNC_TIMEOUT && attr != ACL_MDL_EVENT_SYNC_TIMEOUT) || valueSize != sizeof(int32_t)) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: attribute %d of %zu bytes", __func__,
                        (int)attr, valueSize);
    }
    memcpy(attr == ACL_MDL_STREAM_SYNC_TIMEOUT ? &handle->stream_timeout_ms : &handle->event_timeout_ms, attrValue,
           sizeof(int32_t));
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlExecuteV2(uint32_t modelId, const aclmdlDataset *input, aclmdlDataset *output, aclrtStream stream,
                                 const aclmdlExecConfigHandle *handle)
{
    ENTER();
    TRY(sim_need_object(OBJECT_EXECUTE_CONFIG, handle, __func__));
    CONTEXT(context);
    SimStream *queue;
    Run *run;
    TRY(sim_stream_of(stream, context, __func__, &queue));
    TRY(prepare(modelId, input, output, false, __func__, &run));
    TRY(sim_stream_push(queue, run_model, run, free_run));
    return sim_stream_drain(queue, handle->stream_timeout_ms);
}
