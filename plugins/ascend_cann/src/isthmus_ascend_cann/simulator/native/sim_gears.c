/* Gears: the shapes that a model was compiled for. Which one runs is data in the buffer of an input of its own. */
#include "sim_dataset.h"

#include <stdlib.h>
#include <string.h>

#define GEAR_INPUT "ascend_mbatch_shape_data"

size_t sim_gear_input(const Om *om)
{
    for (size_t i = 0; i < om->input_count; i++) {
        if (strcmp(om->inputs[i].name, GEAR_INPUT) == 0) {
            return i;
        }
    }
    return om->input_count;
}

static bool same_gear(const OmGear *gear, const int64_t *values, size_t count)
{
    return gear->count == count && memcmp(gear->values, values, count * sizeof *values) == 0;
}

static double gear_volume(const OmGear *gear)
{
    double volume = 1;
    for (size_t i = 0; i < gear->count; i++) {
        volume *= (double)gear->values[i];
    }
    return volume;
}

size_t sim_largest_gear(const Om *om)
{
    size_t largest = 0;
    for (size_t i = 1; i < om->gear_count; i++) {
        if (gear_volume(&om->gears[i]) > gear_volume(&om->gears[largest])) {
            largest = i;
        }
    }
    return largest;
}

bool sim_gear_output(const Om *om, size_t gear, size_t output, size_t *rank, int64_t *dims)
{
    for (size_t i = 0; i < om->gear_output_count; i++) {
        char *at = om->gear_outputs[i], *end;
        long long which = strtoll(at, &end, 10);
        if (*end != ',' || which != (long long)gear) {
            continue;
        }
        which = strtoll(end + 1, &end, 10);
        if (which != (long long)output) {
            continue;
        }
        for (*rank = 0; *end == ',' && *rank < ACL_MAX_DIM_CNT; (*rank)++) {
            dims[*rank] = strtoll(end + 1, &end, 10);
        }
        return *end == '\0';
    }
    return false;
}

/* The gear is data on the device; what is there may be anything, and then the largest gear runs. */
size_t sim_read_gear(const Om *om, const void *address)
{
    int64_t values[ACL_MAX_DIM_CNT];
    for (size_t i = 0; i < om->gear_count; i++) {
        size_t count = om->gears[i].count;
        const uint8_t *bytes = sim_span(address, count * 8);
        if (bytes == NULL) {
            break;
        }
        memcpy(values, bytes, count * 8);
        if (same_gear(&om->gears[i], values, count)) {
            return i;
        }
    }
    return sim_largest_gear(om);
}

static aclError write_gear(uint32_t id, aclmdlDataset *dataset, size_t index, GearKind kind, const int64_t *values,
                           size_t count, const char *function)
{
    TRY(sim_need_object(OBJECT_DATASET, dataset, function));
    SimModel *model = sim_model(id, function);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    if (index >= dataset->count) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: no buffer %zu", function, index);
    }
    const Om *om = model->om;
    size_t gear = 0;
    while (om->gear_kind == kind && gear < om->gear_count && !same_gear(&om->gears[gear], values, count)) {
        gear++;
    }
    if (om->gear_kind != kind || gear == om->gear_count) {
        return sim_fail(ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID, "E19999", "Inner_Error",
                        "%s: model %u was not compiled for this gear", function, id);
    }
    const aclDataBuffer *buffer = dataset->items[index].buffer;
    if (buffer->data == NULL || index != sim_gear_input(om)) {
        return sim_fail(ACL_ERROR_GE_DYNAMIC_INPUT_ADDR_INVALID, "E19999", "Inner_Error",
                        "%s: buffer %zu is not the one of input " GEAR_INPUT ", or has no memory", function, index);
    }
    if (buffer->size < count * 8) {
        return sim_fail(ACL_ERROR_GE_DYNAMIC_INPUT_LENGTH_INVALID, "E19999", "Inner_Error",
                        "%s: the gear takes %zu bytes, its buffer has %llu", function, count * 8,
                        (unsigned long long)buffer->size);
    }
    uint8_t *to;
    TRY(sim_need_span(buffer->data, count * 8, "gear buffer", &to));
    memcpy(to, values, count * 8);
    model->gear = gear;
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlSetDynamicBatchSize(uint32_t modelId, aclmdlDataset *dataset, size_t index, uint64_t batchSize)
{
    ENTER();
    if (batchSize == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: batch 0", __func__);
    }
    int64_t value = (int64_t)batchSize;
    return write_gear(modelId, dataset, index, GEARS_BATCH, &value, 1, __func__);
}

SIM_API aclError aclmdlSetDynamicHWSize(uint32_t modelId, aclmdlDataset *dataset, size_t index, uint64_t height,
                                        uint64_t width)
{
    ENTER();
    if (height == 0 || width == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: height or width 0", __func__);
    }
    int64_t values[2] = {(int64_t)height, (int64_t)width};
    return write_gear(modelId, dataset, index, GEARS_IMAGE, values, 2, __func__);
}

/* The caller passes all dimensions of all inputs; those that the model left open are the gear. */
static size_t open_dims(const Om *om, const aclmdlIODims *dims, int64_t *values)
{
    size_t at = 0, count = 0;
    for (size_t i = 0; i < om->input_count; i++) {
        for (size_t d = 0; i != sim_gear_input(om) && d < om->inputs[i].rank; d++, at++) {
            if (at >= dims->dimCount || (om->inputs[i].dims[d] >= 0 && om->inputs[i].dims[d] != dims->dims[at])) {
                return 0;
            }
            if (om->inputs[i].dims[d] < 0) {
                values[count++] = dims->dims[at];
            }
        }
    }
    return at == dims->dimCount ? count : 0;
}

SIM_API aclError aclmdlSetInputDynamicDims(uint32_t modelId, aclmdlDataset *dataset, size_t index, const aclmdlIODims *dims)
{
    ENTER();
    NOT_NULL(dims);
    const SimModel *model = sim_model(modelId, __func__);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    int64_t values[ACL_MAX_DIM_CNT];
    size_t count = dims->dimCount > ACL_MAX_DIM_CNT ? 0 : open_dims(model->om, dims, values);
    return write_gear(modelId, dataset, index, GEARS_DIMS, values, count, __func__);
}
