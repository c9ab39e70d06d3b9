/* Model descriptions: inputs, outputs and gears of a loaded model or of a file. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct aclmdlDesc {
    uint32_t model; /* 0: made from a file */
    Om *om;
};

SIM_API aclmdlDesc *aclmdlCreateDesc(void)
{
    ENTER_OR(NULL);
    return sim_object_new(OBJECT_MODEL_DESC, sizeof(aclmdlDesc));
}

SIM_API aclError aclmdlDestroyDesc(aclmdlDesc *modelDesc)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    sim_om_drop(modelDesc->om);
    return sim_object_free(OBJECT_MODEL_DESC, modelDesc, __func__);
}

static void fill(aclmdlDesc *desc, uint32_t model, Om *om)
{
    sim_om_drop(desc->om);
    *desc = (aclmdlDesc){model, om};
}

SIM_API aclError aclmdlGetDesc(aclmdlDesc *modelDesc, uint32_t modelId)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    const SimModel *model = sim_model(modelId, __func__);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    fill(modelDesc, modelId, sim_om_share(model->om));
    return ACL_SUCCESS;
}

static aclError describe(aclmdlDesc *desc, const void *bytes, size_t size)
{
    Om *om;
    TRY(sim_om_parse(bytes, size, &om));
    fill(desc, 0, om);
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlGetDescFromMem(aclmdlDesc *modelDesc, const void *model, size_t modelSize)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(model);
    return describe(modelDesc, model, modelSize);
}

SIM_API aclError aclmdlGetDescFromFile(aclmdlDesc *modelDesc, const char *modelPath)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(modelPath);
    uint8_t *bytes;
    size_t size;
    TRY(sim_read_file(modelPath, &bytes, &size));
    aclError error = describe(modelDesc, bytes, size);
    free(bytes);
    return error;
}

/* ---- inputs and outputs ---- */

typedef enum { SIDE_INPUT, SIDE_OUTPUT } Side;

static const Om *om_of(const aclmdlDesc *desc, const char *function)
{
    return sim_need_object(OBJECT_MODEL_DESC, desc, function) == ACL_SUCCESS ? desc->om : NULL;
}

static size_t count_of(const Om *om, Side side)
{
    return om == NULL ? 0 : side == SIDE_INPUT ? om->input_count : om->output_count;
}

static const OmTensor *tensor_of(const aclmdlDesc *desc, Side side, size_t index, const char *function)
{
    const Om *om = om_of(desc, function);
    if (index >= count_of(om, side)) {
        sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: index %zu is not in [0, %zu)", function, index,
                 count_of(om, side));
        return NULL;
    }
    return side == SIDE_INPUT ? &om->inputs[index] : &om->outputs[index];
}

SIM_API size_t aclmdlGetNumInputs(aclmdlDesc *modelDesc)
{
    ENTER_OR(0);
    return count_of(om_of(modelDesc, __func__), SIDE_INPUT);
}

SIM_API size_t aclmdlGetNumOutputs(aclmdlDesc *modelDesc)
{
    ENTER_OR(0);
    return count_of(om_of(modelDesc, __func__), SIDE_OUTPUT);
}

SIM_API size_t aclmdlGetInputSizeByIndex(aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(0);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? 0 : tensor->size;
}

SIM_API size_t aclmdlGetOutputSizeByIndex(aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(0);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    return tensor == NULL ? 0 : tensor->size;
}

SIM_API const char *aclmdlGetInputNameByIndex(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR("");
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? "" : tensor->name;
}

SIM_API const char *aclmdlGetOutputNameByIndex(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR("");
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    return tensor == NULL ? "" : tensor->name;
}

SIM_API aclDataType aclmdlGetInputDataType(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(ACL_DT_UNDEFINED);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? ACL_DT_UNDEFINED : (aclDataType)tensor->dtype;
}

SIM_API aclDataType aclmdlGetOutputDataType(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(ACL_DT_UNDEFINED);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    return tensor == NULL ? ACL_DT_UNDEFINED : (aclDataType)tensor->dtype;
}

SIM_API aclFormat aclmdlGetInputFormat(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(ACL_FORMAT_UNDEFINED);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? ACL_FORMAT_UNDEFINED : (aclFormat)tensor->format;
}

SIM_API aclFormat aclmdlGetOutputFormat(const aclmdlDesc *modelDesc, size_t index)
{
    ENTER_OR(ACL_FORMAT_UNDEFINED);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    return tensor == NULL ? ACL_FORMAT_UNDEFINED : (aclFormat)tensor->format;
}

static aclError index_of(const aclmdlDesc *desc, Side side, const char *name, size_t *index, const char *function)
{
    TRY(sim_not_null(name, function, "name"));
    TRY(sim_not_null(index, function, "index"));
    const Om *om = om_of(desc, function);
    for (size_t i = 0; i < count_of(om, side); i++) {
        if (strcmp(side == SIDE_INPUT ? om->inputs[i].name : om->outputs[i].name, name) == 0) {
            *index = i;
            return ACL_SUCCESS;
        }
    }
    return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: no tensor is named %s", function, name);
}

SIM_API aclError aclmdlGetInputIndexByName(const aclmdlDesc *modelDesc, const char *name, size_t *index)
{
    ENTER();
    return index_of(modelDesc, SIDE_INPUT, name, index, __func__);
}

SIM_API aclError aclmdlGetOutputIndexByName(const aclmdlDesc *modelDesc, const char *name, size_t *index)
{
    ENTER();
    return index_of(modelDesc, SIDE_OUTPUT, name, index, __func__);
}

/* ---- dimensions ---- */

/* A name that does not fit is replaced by one that aclmdlGetTensorRealName translates back. */
static void write_name(const aclmdlDesc *desc, Side side, size_t index, const char *name, char *out)
{
    if (strlen(name) < ACL_MAX_TENSOR_NAME_LEN) {
        strcpy(out, name);
    } else {
        snprintf(out, ACL_MAX_TENSOR_NAME_LEN, "acl_modelId_%u_%s_%zu", desc->model,
                 side == SIDE_INPUT ? "input" : "output", index);
    }
}

static aclError write_dims(const aclmdlDesc *desc, Side side, size_t index, size_t rank, const int64_t *values,
                           const char *name, aclmdlIODims *dims)
{
    memset(dims, 0, sizeof *dims);
    write_name(desc, side, index, name, dims->name);
    dims->dimCount = rank;
    memcpy(dims->dims, values, rank * sizeof *values);
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlGetInputDims(const aclmdlDesc *modelDesc, size_t index, aclmdlIODims *dims)
{
    ENTER();
    NOT_NULL(dims);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? ACL_ERROR_INVALID_PARAM
                          : write_dims(modelDesc, SIDE_INPUT, index, tensor->rank, tensor->dims, tensor->name, dims);
}

SIM_API aclError aclmdlGetInputDimsV2(const aclmdlDesc *modelDesc, size_t index, aclmdlIODims *dims)
{
    ENTER();
    NOT_NULL(dims);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    return tensor == NULL ? ACL_ERROR_INVALID_PARAM
                          : write_dims(modelDesc, SIDE_INPUT, index, tensor->rank_v2, tensor->dims_v2, tensor->name, dims);
}

SIM_API aclError aclmdlGetOutputDims(const aclmdlDesc *modelDesc, size_t index, aclmdlIODims *dims)
{
    ENTER();
    NOT_NULL(dims);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    return tensor == NULL ? ACL_ERROR_INVALID_PARAM
                          : write_dims(modelDesc, SIDE_OUTPUT, index, tensor->rank, tensor->dims, tensor->name, dims);
}

SIM_API aclError aclmdlGetInputDimsRange(const aclmdlDesc *modelDesc, size_t index, aclmdlIODimsRange *dimsRange)
{
    ENTER();
    NOT_NULL(dimsRange);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_INPUT, index, __func__);
    if (tensor == NULL) {
        return ACL_ERROR_INVALID_PARAM;
    }
    memset(dimsRange, 0, sizeof *dimsRange);
    dimsRange->rangeCount = tensor->ranges;
    memcpy(dimsRange->range, tensor->range, tensor->ranges * sizeof tensor->range[0]);
    return ACL_SUCCESS;
}

/* Of the gear that was set last; not available for range shapes. */
SIM_API aclError aclmdlGetCurOutputDims(const aclmdlDesc *modelDesc, size_t index, aclmdlIODims *dims)
{
    ENTER();
    NOT_NULL(dims);
    const OmTensor *tensor = tensor_of(modelDesc, SIDE_OUTPUT, index, __func__);
    if (tensor == NULL) {
        return ACL_ERROR_INVALID_PARAM;
    }
    const Om *om = modelDesc->om;
    if (om->range_shape) {
        return sim_fail(ACL_ERROR_API_NOT_SUPPORT, "EH0006", "Not_Supported", "%s: the model has range shapes", __func__);
    }
    const SimModel *model = sim_model(modelDesc->model, __func__);
    if (model == NULL) {
        return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    }
    size_t rank;
    int64_t values[ACL_MAX_DIM_CNT];
    if (om->gear_kind != GEARS_NONE && sim_gear_output(om, model->gear, index, &rank, values)) {
        return write_dims(modelDesc, SIDE_OUTPUT, index, rank, values, tensor->name, dims);
    }
    return write_dims(modelDesc, SIDE_OUTPUT, index, tensor->rank, tensor->dims, tensor->name, dims);
}

SIM_API const char *aclmdlGetTensorRealName(const aclmdlDesc *modelDesc, const char *name)
{
    ENTER_OR(NULL);
    const Om *om = om_of(modelDesc, __func__);
    for (Side side = SIDE_INPUT; name != NULL && side <= SIDE_OUTPUT; side++) {
        for (size_t i = 0; i < count_of(om, side); i++) {
            const char *real = side == SIDE_INPUT ? om->inputs[i].name : om->outputs[i].name;
            char shown[ACL_MAX_TENSOR_NAME_LEN];
            write_name(modelDesc, side, i, real, shown);
            if (strcmp(shown, name) == 0 || strcmp(real, name) == 0) {
                return real;
            }
        }
    }
    return NULL;
}

/* ---- gears ---- */

SIM_API aclError aclmdlGetDynamicBatch(const aclmdlDesc *modelDesc, aclmdlBatch *batch)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(batch);
    memset(batch, 0, sizeof *batch);
    const Om *om = modelDesc->om;
    for (size_t i = 0; om != NULL && om->gear_kind == GEARS_BATCH && i < om->gear_count && i < ACL_MAX_BATCH_NUM; i++) {
        batch->batch[batch->batchCount++] = (uint64_t)om->gears[i].values[0];
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlGetDynamicHW(const aclmdlDesc *modelDesc, size_t index, aclmdlHW *hw)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(hw);
    (void)index; /* reserved; -1 */
    memset(hw, 0, sizeof *hw);
    const Om *om = modelDesc->om;
    for (size_t i = 0; om != NULL && om->gear_kind == GEARS_IMAGE && i < om->gear_count && i < ACL_MAX_HW_NUM; i++) {
        hw->hw[hw->hwCount][0] = (uint64_t)om->gears[i].values[0];
        hw->hw[hw->hwCount++][1] = (uint64_t)om->gears[i].values[om->gears[i].count - 1];
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclmdlGetInputDynamicGearCount(const aclmdlDesc *modelDesc, size_t index, size_t *gearCount)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(gearCount);
    (void)index; /* reserved; -1 */
    *gearCount = modelDesc->om != NULL && modelDesc->om->gear_kind == GEARS_DIMS ? modelDesc->om->gear_count : 0;
    return ACL_SUCCESS;
}

static const char *gear_input = "ascend_mbatch_shape_data";

/* All dimensions of all inputs one after the other, with the gear's values in place of -1. */
static bool gear_dims(const Om *om, const OmGear *gear, aclmdlIODims *dims)
{
    size_t next = 0;
    memset(dims, 0, sizeof *dims);
    for (size_t i = 0; i < om->input_count; i++) {
        const OmTensor *input = &om->inputs[i];
        for (size_t d = 0; strcmp(input->name, gear_input) != 0 && d < input->rank; d++) {
            bool open = input->dims[d] < 0;
            if (dims->dimCount == ACL_MAX_DIM_CNT || (open && next == gear->count)) {
                return false;
            }
            dims->dims[dims->dimCount++] = open ? gear->values[next++] : input->dims[d];
        }
    }
    return next == gear->count;
}

SIM_API aclError aclmdlGetInputDynamicDims(const aclmdlDesc *modelDesc, size_t index, aclmdlIODims *dims, size_t gearCount)
{
    ENTER();
    TRY(sim_need_object(OBJECT_MODEL_DESC, modelDesc, __func__));
    NOT_NULL(dims);
    (void)index; /* reserved; -1 */
    const Om *om = modelDesc->om;
    if (om == NULL || om->gear_kind != GEARS_DIMS || gearCount < om->gear_count) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: room for %zu gears", __func__, gearCount);
    }
    for (size_t i = 0; i < om->gear_count; i++) {
        if (!gear_dims(om, &om->gears[i], &dims[i])) {
            return sim_fail(ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID, "E10001", "Invalid_Argument", "gear %zu is damaged", i);
        }
    }
    return ACL_SUCCESS;
}
