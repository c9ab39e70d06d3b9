/* What the load calls and LoadWithConfig have in common. */
#ifndef ISTHMUS_SIM_LOAD_H
#define ISTHMUS_SIM_LOAD_H

#include "sim.h"

typedef struct ExternalWeight {
    char name[256];
    void *address;
    size_t size;
    struct ExternalWeight *next;
} ExternalWeight;

/* `path` or `bytes`; memory that is NULL is the model's own. */
typedef struct {
    const char *path;
    const void *bytes;
    size_t size;
    void *work;
    size_t work_size;
    void *weights;
    size_t weight_size;
    bool without_io; /* the model's own workspace leaves out what callers bind */
    const char *weight_dir;
    const ExternalWeight *external;
} LoadRequest;

aclError sim_load(const LoadRequest *request, uint32_t *id, const char *function);

void sim_enlist(SimModel *model);
void sim_delist(SimModel *model);
void sim_free_model(SimModel *model);

#endif
