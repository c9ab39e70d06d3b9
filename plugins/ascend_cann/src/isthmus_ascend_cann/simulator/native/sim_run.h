/* One execution of a model, taken from its datasets when it is called or queued. */
#ifndef ISTHMUS_SIM_RUN_H
#define ISTHMUS_SIM_RUN_H

#include "sim_dataset.h"

typedef struct {
    void *address;
    uint64_t size;
    size_t rank; /* range shapes only: what the caller's tensor description says */
    int64_t dims[ACL_MAX_DIM_CNT];
    bool described;
} Bound;

typedef struct {
    uint32_t model;
    size_t in_count, out_count;
    Bound *in, *out;
    aclmdlDataset *dataset; /* synchronous runs: where output addresses and shapes go */
} Run;

/* The gear input is known to the device and not to the graph, so `count` may be smaller than the model's. */
aclError sim_bind_inputs(const SimModel *model, const Run *run, WorkerTensor *tensors, size_t *count);
aclError sim_bind_outputs(const SimModel *model, const Run *run, WorkerTensor *tensors);

#endif
