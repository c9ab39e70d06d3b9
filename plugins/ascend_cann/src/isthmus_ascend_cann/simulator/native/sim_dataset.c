/* Data buffers, datasets and tensor descriptions. They own nothing that they point to, as the vendor's do not. */
#include "sim_dataset.h"

#include <stdlib.h>
#include <string.h>

/* ---- data buffers ---- */

SIM_API aclDataBuffer *aclCreateDataBuffer(void *data, size_t size)
{
    ENTER_OR(NULL);
    aclDataBuffer *buffer = sim_object_new(OBJECT_DATA_BUFFER, sizeof *buffer);
    if (buffer != NULL) {
        *buffer = (aclDataBuffer){data, size};
    }
    return buffer;
}

SIM_API aclError aclDestroyDataBuffer(const aclDataBuffer *dataBuffer)
{
    ENTER();
    return sim_object_free(OBJECT_DATA_BUFFER, dataBuffer, __func__);
}

SIM_API aclError aclUpdateDataBuffer(aclDataBuffer *dataBuffer, void *data, size_t size)
{
    ENTER();
    TRY(sim_need_object(OBJECT_DATA_BUFFER, dataBuffer, __func__));
    *dataBuffer = (aclDataBuffer){data, size};
    return ACL_SUCCESS;
}

SIM_API void *aclGetDataBufferAddr(const aclDataBuffer *dataBuffer)
{
    ENTER_OR(NULL);
    return sim_need_object(OBJECT_DATA_BUFFER, dataBuffer, __func__) == ACL_SUCCESS ? dataBuffer->data : NULL;
}

SIM_API size_t aclGetDataBufferSizeV2(const aclDataBuffer *dataBuffer)
{
    ENTER_OR(0);
    return sim_need_object(OBJECT_DATA_BUFFER, dataBuffer, __func__) == ACL_SUCCESS ? dataBuffer->size : 0;
}

SIM_API uint32_t aclGetDataBufferSize(const aclDataBuffer *dataBuffer)
{
    ENTER_OR(0);
    return sim_need_object(OBJECT_DATA_BUFFER, dataBuffer, __func__) == ACL_SUCCESS ? (uint32_t)dataBuffer->size : 0;
}

/* ---- datasets ---- */

SIM_API aclmdlDataset *aclmdlCreateDataset(void)
{
    ENTER_OR(NULL);
    return sim_object_new(OBJECT_DATASET, sizeof(aclmdlDataset));
}

SIM_API aclError aclmdlDestroyDataset(const aclmdlDataset *dataset)
{
    ENTER();
    TRY(sim_need_object(OBJECT_DATASET, dataset, __func__));
    for (size_t i = 0; i < dataset->count; i++) {
        if (dataset->items[i].owned) {
            sim_free_description(dataset->items[i].description);
        }
    }
    free(dataset->items);
    return sim_object_free(OBJECT_DATASET, dataset, __func__);
}

static bool grow(aclmdlDataset *dataset)
{
    size_t room = dataset->room == 0 ? 8 : dataset->room * 2;
    DatasetItem *items = realloc(dataset->items, room * sizeof *items);
    if (items != NULL) {
        dataset->items = items;
        dataset->room = room;
    }
    return items != NULL;
}

SIM_API aclError aclmdlAddDatasetBuffer(aclmdlDataset *dataset, aclDataBuffer *dataBuffer)
{
    ENTER();
    TRY(sim_need_object(OBJECT_DATASET, dataset, __func__));
    TRY(sim_need_object(OBJECT_DATA_BUFFER, dataBuffer, __func__));
    if (dataset->count == dataset->room && !grow(dataset)) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "EH0010", "Host_Memory", "%s: out of host memory", __func__);
    }
    dataset->items[dataset->count++] = (DatasetItem){.buffer = dataBuffer};
    return ACL_SUCCESS;
}

SIM_API size_t aclmdlGetDatasetNumBuffers(const aclmdlDataset *dataset)
{
    ENTER_OR(0);
    return sim_need_object(OBJECT_DATASET, dataset, __func__) == ACL_SUCCESS ? dataset->count : 0;
}

static DatasetItem *item(const aclmdlDataset *dataset, size_t index, const char *function)
{
    if (sim_need_object(OBJECT_DATASET, dataset, function) != ACL_SUCCESS || index >= dataset->count) {
        return NULL;
    }
    return &dataset->items[index];
}

SIM_API aclDataBuffer *aclmdlGetDatasetBuffer(const aclmdlDataset *dataset, size_t index)
{
    ENTER_OR(NULL);
    DatasetItem *found = item(dataset, index, __func__);
    return found == NULL ? NULL : found->buffer;
}

SIM_API aclTensorDesc *aclmdlGetDatasetTensorDesc(const aclmdlDataset *dataset, size_t index)
{
    ENTER_OR(NULL);
    DatasetItem *found = item(dataset, index, __func__);
    return found == NULL ? NULL : found->description;
}

SIM_API aclError aclmdlSetDatasetTensorDesc(aclmdlDataset *dataset, aclTensorDesc *tensorDesc, size_t index)
{
    ENTER();
    DatasetItem *found = item(dataset, index, __func__);
    if (found == NULL) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: no item %zu", __func__, index);
    }
    if (found->owned) {
        sim_free_description(found->description);
    }
    found->description = tensorDesc;
    found->owned = false;
    return ACL_SUCCESS;
}

/* ---- tensor descriptions ---- */

size_t sim_dtype_size(int32_t dtype)
{
    switch (dtype) {
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
        return 4;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
        return 2;
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_INT4:
    case ACL_UINT1:
        return 1;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
        return 8;
    case ACL_COMPLEX128:
        return 16;
    default:
        return 0;
    }
}

SIM_API size_t aclDataTypeSize(aclDataType dataType)
{
    ENTER_OR(0);
    return sim_dtype_size(dataType);
}

aclTensorDesc *sim_new_description(aclDataType dtype, aclFormat format, size_t rank, const int64_t *dims)
{
    if (rank > ACL_MAX_DIM_CNT) {
        return NULL;
    }
    aclTensorDesc *description = sim_object_new(OBJECT_TENSOR_DESC, sizeof *description);
    if (description != NULL) {
        description->dtype = dtype;
        description->format = format;
        description->rank = rank;
        memcpy(description->dims, dims, rank * sizeof *dims);
    }
    return description;
}

void sim_free_description(aclTensorDesc *description)
{
    if (description != NULL && sim_object_live(OBJECT_TENSOR_DESC, description)) {
        free(description->name);
        sim_object_free(OBJECT_TENSOR_DESC, description, __func__);
    }
}

SIM_API aclTensorDesc *aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t *dims, aclFormat format)
{
    ENTER_OR(NULL);
    if (numDims < 0 || (numDims > 0 && dims == NULL)) {
        return NULL;
    }
    return sim_new_description(dataType, format, (size_t)numDims, dims);
}

SIM_API void aclDestroyTensorDesc(const aclTensorDesc *desc)
{
    if (sim_enter(__func__) == ACL_SUCCESS) {
        sim_free_description((aclTensorDesc *)(uintptr_t)desc);
    }
}

static bool live(const aclTensorDesc *desc) { return desc != NULL && sim_object_live(OBJECT_TENSOR_DESC, desc); }

SIM_API aclDataType aclGetTensorDescType(const aclTensorDesc *desc)
{
    ENTER_OR(ACL_DT_UNDEFINED);
    return live(desc) ? desc->dtype : ACL_DT_UNDEFINED;
}

SIM_API aclFormat aclGetTensorDescFormat(const aclTensorDesc *desc)
{
    ENTER_OR(ACL_FORMAT_UNDEFINED);
    return live(desc) ? desc->format : ACL_FORMAT_UNDEFINED;
}

SIM_API size_t aclGetTensorDescNumDims(const aclTensorDesc *desc)
{
    ENTER_OR(0);
    return live(desc) ? desc->rank : 0;
}

SIM_API size_t aclGetTensorDescElementCount(const aclTensorDesc *desc)
{
    ENTER_OR(0);
    size_t count = live(desc) ? 1 : 0;
    for (size_t i = 0; count > 0 && i < desc->rank; i++) {
        count = desc->dims[i] < 0 ? 0 : count * (size_t)desc->dims[i];
    }
    return count;
}

SIM_API size_t aclGetTensorDescSize(const aclTensorDesc *desc)
{
    ENTER_OR(0);
    return live(desc) ? aclGetTensorDescElementCount(desc) * sim_dtype_size(desc->dtype) : 0;
}

SIM_API aclError aclGetTensorDescDimV2(const aclTensorDesc *desc, size_t index, int64_t *dimSize)
{
    ENTER();
    TRY(sim_need_object(OBJECT_TENSOR_DESC, desc, __func__));
    NOT_NULL(dimSize);
    if (index >= desc->rank) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: no dimension %zu", __func__, index);
    }
    *dimSize = desc->dims[index];
    return ACL_SUCCESS;
}

SIM_API void aclSetTensorDescName(aclTensorDesc *desc, const char *name)
{
    if (sim_enter(__func__) == ACL_SUCCESS && live(desc)) {
        free(desc->name);
        desc->name = name == NULL ? NULL : strdup(name);
    }
}

SIM_API const char *aclGetTensorDescName(aclTensorDesc *desc)
{
    ENTER_OR("");
    return live(desc) && desc->name != NULL ? desc->name : "";
}

SIM_API aclError aclSetTensorConst(aclTensorDesc *desc, void *dataBuffer, size_t length)
{
    ENTER();
    TRY(sim_need_object(OBJECT_TENSOR_DESC, desc, __func__));
    NOT_NULL(dataBuffer);
    (void)length;
    return sim_fail(ACL_ERROR_API_NOT_SUPPORT, "EH0006", "Not_Supported", "%s: single operators are not simulated", __func__);
}
