/* Data buffers, datasets and tensor descriptions: opaque to callers. */
#ifndef ISTHMUS_SIM_DATASET_H
#define ISTHMUS_SIM_DATASET_H

#include "sim.h"

struct aclDataBuffer {
    void *data;
    uint64_t size;
};
struct aclTensorDesc {
    aclDataType dtype;
    aclFormat format;
    size_t rank;
    int64_t dims[ACL_MAX_DIM_CNT];
    char *name;
};
typedef struct {
    aclDataBuffer *buffer;
    aclTensorDesc *description; /* given for an input, or left by a run for an output */
    bool owned;
} DatasetItem;
struct aclmdlDataset {
    size_t count, room;
    DatasetItem *items;
};

size_t sim_dtype_size(int32_t dtype);
aclTensorDesc *sim_new_description(aclDataType dtype, aclFormat format, size_t rank, const int64_t *dims);
void sim_free_description(aclTensorDesc *description);

#endif
