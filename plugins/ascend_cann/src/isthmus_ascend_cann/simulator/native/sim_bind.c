/* From a run's buffers to what the worker gets: shapes, and places in the memory file. */
#include "sim_run.h"

#include <string.h>

#define ALIGNMENT 64

static size_t apply_gear(const Om *om, const OmGear *gear, const OmTensor *input, size_t next, WorkerTensor *tensor)
{
    for (size_t d = 0; d < input->rank; d++) {
        size_t which = om->gear_kind == GEARS_DIMS ? next : next % gear->count;
        if (input->dims[d] < 0 && which < gear->count) {
            tensor->dims[d] = gear->values[which];
            next++;
        }
    }
    return next;
}

/* The vendor's rule for memory that a caller divides: pieces start on 64 bytes and are followed by 32 bytes. */
static aclError bind_address(const void *address, uint64_t size, const char *name, WorkerTensor *tensor)
{
    uint8_t *alias;
    TRY(sim_need_span(address, size, name, &alias));
    if ((uintptr_t)address % ALIGNMENT != 0 || sim_span(address, (size + 31) / 32 * 32 + SIM_TAIL) == NULL) {
        return sim_fail(ACL_ERROR_RT_AICORE_EXCEPTION, "EZ9999", "Inner_Error",
                        "%s at %p: not on %d bytes, or not followed by %d bytes of the same allocation", name, address,
                        ALIGNMENT, SIM_TAIL);
    }
    tensor->offset = sim_file_offset(address);
    tensor->size = size;
    return ACL_SUCCESS;
}

static aclError bind_input(const Bound *bound, const OmTensor *input, WorkerTensor *tensor)
{
    uint64_t bytes = sim_dtype_size(input->dtype);
    for (size_t d = 0; d < tensor->rank; d++) {
        if (tensor->dims[d] < 0 || (tensor->dims[d] > 0 && bytes > UINT64_MAX / (uint64_t)tensor->dims[d])) {
            return sim_fail(ACL_ERROR_GE_SHAPE_INVALID, "E19999", "Inner_Error", "input %s has no shape", input->name);
        }
        bytes *= (uint64_t)tensor->dims[d];
    }
    if (bytes > bound->size) {
        return sim_fail(ACL_ERROR_GE_PARAM_INVALID, "E19999", "Inner_Error", "input %s takes %llu bytes, its buffer has %llu",
                        input->name, (unsigned long long)bytes, (unsigned long long)bound->size);
    }
    return bind_address(bound->address, bytes, input->name, tensor);
}

aclError sim_bind_inputs(const SimModel *model, const Run *run, WorkerTensor *tensors, size_t *count)
{
    const Om *om = model->om;
    size_t shape_input = sim_gear_input(om), next = 0;
    const OmGear *gear = om->gear_kind == GEARS_NONE ? NULL : &om->gears[sim_read_gear(om, run->in[shape_input].address)];
    for (size_t i = 0; i < om->input_count; i++) {
        if (i == shape_input) {
            continue; /* known to the device, not to the graph */
        }
        const OmTensor *input = &om->inputs[i];
        WorkerTensor *tensor = &tensors[(*count)++];
        const Bound *bound = &run->in[i];
        bool described = om->range_shape && bound->described;
        tensor->rank = described ? bound->rank : input->rank;
        memcpy(tensor->dims, described ? bound->dims : input->dims, tensor->rank * sizeof tensor->dims[0]);
        if (gear != NULL) {
            next = apply_gear(om, gear, input, next, tensor);
        }
        TRY(bind_input(bound, input, tensor));
    }
    return ACL_SUCCESS;
}

aclError sim_bind_outputs(const SimModel *model, const Run *run, WorkerTensor *tensors)
{
    for (size_t i = 0; i < run->out_count; i++) {
        const Bound *bound = &run->out[i];
        const OmTensor *output = &model->om->outputs[i];
        tensors[i].offset = SIM_NOWHERE;
        if (bound->address != NULL) {
            TRY(bind_address(bound->address, output->size > 0 ? output->size : bound->size, output->name, &tensors[i]));
            tensors[i].size = bound->size;
        }
    }
    return ACL_SUCCESS;
}
