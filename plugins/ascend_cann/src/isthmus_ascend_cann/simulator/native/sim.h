/* What the parts of the simulator share. Nothing here is visible outside of the library. */
#ifndef ISTHMUS_SIM_H
#define ISTHMUS_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "acl/acl.h"

#define SIM_API __attribute__((visibility("default")))
#define SIM_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Every exported call starts with one of these, so that any call can be counted, delayed and made to fail. */
#define ENTER()                                     \
    do {                                            \
        aclError injected_ = sim_enter(__func__);   \
        if (injected_ != ACL_SUCCESS) {             \
            return injected_;                       \
        }                                           \
    } while (0)
#define ENTER_OR(value)                             \
    do {                                            \
        if (sim_enter(__func__) != ACL_SUCCESS) {   \
            return value;                           \
        }                                           \
    } while (0)
/* Leave with the code of a check that failed; the check has reported it. */
#define TRY(expression)                             \
    do {                                            \
        aclError tried_ = (expression);             \
        if (tried_ != ACL_SUCCESS) {                \
            return tried_;                          \
        }                                           \
    } while (0)
#define NOT_NULL(pointer) TRY(sim_not_null((pointer), __func__, #pointer))

/* ---- sim_control.c: knobs ---- */
typedef struct {
    uint64_t capacity;   /* bytes of device memory */
    uint64_t huge_bytes; /* how much of it can be handed out as 2 MiB pages */
    uint64_t giant_bytes; /* ... as 1 GiB pages */
    uint32_t devices;
    bool run_on_device; /* RC mode: the host is on the card */
    uint32_t execute_delay_us;
    char soc[64];
    char python[4096];
    bool old_messages;
} SimKnobs;
extern SimKnobs sim_knobs;
void sim_read_environment(void);
aclError sim_enter(const char *function);
void sim_sleep_us(uint64_t microseconds);

/* ---- sim_error.c: what aclGetRecentErrMsg returns ---- */
/* `code` is the vendor's message code (EL0004 ...). Returns `error`, so that a check can end in `return sim_fail(...)`. */
aclError sim_fail(aclError error, const char *code, const char *title, const char *format, ...) SIM_PRINTF(4, 5);
aclError sim_not_null(const void *pointer, const char *function, const char *name);
void sim_log(const char *format, ...) SIM_PRINTF(1, 2);
/* Text that another thread (a stream) reported, to be repeated in the thread that waits for it. */
void sim_take_text(char *out, size_t size);
void sim_give_text(const char *text);

/* ---- sim_objects.c: live handles ---- */
typedef enum {
    OBJECT_CONTEXT,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_DATA_BUFFER,
    OBJECT_DATASET,
    OBJECT_TENSOR_DESC,
    OBJECT_MODEL_DESC,
    OBJECT_MODEL,
    OBJECT_CONFIG,
    OBJECT_HOST_MEMORY,
    OBJECT_DEVICE_MEMORY,
    OBJECT_EXECUTE_CONFIG,
    OBJECT_KINDS
} ObjectKind;
bool sim_object_add(ObjectKind kind, const void *handle, size_t size);
bool sim_object_live(ObjectKind kind, const void *handle);
bool sim_object_remove(ObjectKind kind, const void *handle);
aclError sim_need_object(ObjectKind kind, const void *handle, const char *function);
/* Allocate zeroed and register; NULL when the host is out of memory. */
void *sim_object_new(ObjectKind kind, size_t size);
aclError sim_object_free(ObjectKind kind, const void *handle, const char *function);
void sim_report_leaks(const char *when);

/* ---- sim_runtime.c: devices, contexts, threads ---- */
typedef struct SimStream SimStream;
typedef struct {
    int32_t device;
    bool primary;
    bool alive;
    pthread_t owner;
    SimStream *default_stream;
} SimContext;
#define SIM_MAX_DEVICES 16
extern pthread_mutex_t sim_mutex;
void sim_lock(void);
void sim_unlock(void);
bool sim_initialised(void);
aclError sim_need_init(const char *function);
/* The calling thread's context, or NULL after reporting 107002. */
SimContext *sim_context(const char *function);
void sim_adopt_context(SimContext *context);
#define NEED_CONTEXT()                              \
    do {                                            \
        if (sim_context(__func__) == NULL) {        \
            return ACL_ERROR_RT_CONTEXT_NULL;       \
        }                                           \
    } while (0)
#define CONTEXT(name)                               \
    SimContext *name = sim_context(__func__);       \
    if (name == NULL) {                             \
        return ACL_ERROR_RT_CONTEXT_NULL;           \
    }

/* ---- sim_memory.c: device memory ---- */
#define SIM_NORMAL_PAGE UINT64_C(4096)
#define SIM_HUGE_PAGE (UINT64_C(2) << 20)
#define SIM_GIANT_PAGE (UINT64_C(1) << 30)
#define SIM_TAIL 32 /* bytes that aclrtMalloc adds, so that vector instructions may read past a tensor */
#define SIM_ARENA (UINT64_C(256) << 30) /* address space per device; the largest known card has 128 GiB */
aclError sim_memory_open(void);
int sim_memory_file(void);
aclError sim_allocate(int32_t device, void **out, size_t size, aclrtMemMallocPolicy policy, size_t tail);
aclError sim_release(void *address);
void sim_release_device(int32_t device);
bool sim_is_device_address(const void *address);
/* Host alias of `size` device bytes at `address`; NULL if they are not all inside one live block. */
uint8_t *sim_span(const void *address, size_t size);
/* The same with a report in the words of the failing call. */
aclError sim_need_span(const void *address, size_t size, const char *what, uint8_t **alias);
uint64_t sim_file_offset(const void *address);
aclError sim_copy(void *dst, size_t dst_max, const void *src, size_t count, aclrtMemcpyKind kind);

/* ---- sim_om.c: the model file ---- */
typedef enum { GEARS_NONE, GEARS_BATCH, GEARS_IMAGE, GEARS_DIMS } GearKind;
typedef struct {
    char *name;
    uint64_t size;
    int32_t format;
    int32_t dtype;
    size_t rank;
    int64_t dims[ACL_MAX_DIM_CNT];
    size_t rank_v2;
    int64_t dims_v2[ACL_MAX_DIM_CNT];
    size_t ranges;
    int64_t range[ACL_MAX_DIM_CNT][2];
} OmTensor;
typedef struct {
    size_t count;
    int64_t *values;
} OmGear;
typedef struct {
    char *name;
    uint64_t size;
} OmFile;
typedef struct {
    unsigned references;
    uint32_t partitions;
    uint64_t work_size;
    uint64_t zero_copy_size; /* the part of work_size that holds inputs and outputs until they are bound */
    bool range_shape;
    char soc[64];
    /* Inside the bytes that were parsed, valid as long as those are. */
    const uint8_t *weights;
    uint64_t weight_size;
    const uint8_t *program; /* what the worker runs: our own partition, unknown to the vendor's reader */
    uint64_t program_size;
    size_t external_count;
    OmFile *external;
    size_t input_count, output_count;
    OmTensor *inputs, *outputs;
    GearKind gear_kind;
    size_t gear_count;
    OmGear *gears;
    size_t gear_output_count;
    char **gear_outputs; /* "gear,output,d0,d1,..." */
    size_t name_order_count;
    char **name_order;
} Om;
/* `*om` has one reference on success and is NULL on failure. */
aclError sim_om_parse(const void *bytes, size_t size, Om **om);
Om *sim_om_share(Om *om);
void sim_om_drop(Om *om);
/* A whole file in host memory; free it. */
aclError sim_read_file(const char *path, uint8_t **bytes, size_t *size);

/* ---- sim_model.c ---- */
typedef struct SimModel {
    uint32_t id;
    SimContext *context;
    Om *om;
    void *work, *weights;
    uint64_t work_size;
    bool owns_work, owns_weights;
    void **external; /* device addresses of the external weight files */
    bool *owns_external;
    uint64_t weight_mark; /* checksum over samples, to notice weights that were overwritten */
    size_t gear;          /* the one that the last SetDynamic* chose; the largest until then */
    unsigned running;
    struct SimModel *next;
} SimModel;
/* NULL after reporting 145003. */
SimModel *sim_model(uint32_t id, const char *function);
void sim_unload_all(int32_t device);
uint64_t sim_weight_mark(const SimModel *model);

/* ---- sim_gears.c ---- */
size_t sim_largest_gear(const Om *om);
/* Index of the input that holds the gear; input_count when there is none. */
size_t sim_gear_input(const Om *om);
/* The gear that the input's device memory names. */
size_t sim_read_gear(const Om *om, const void *address);
/* Dimensions of an output in one gear; false when the file does not say. */
bool sim_gear_output(const Om *om, size_t gear, size_t output, size_t *rank, int64_t *dims);

/* ---- sim_worker.c: the process that computes ---- */
typedef struct {
    uint64_t offset;
    uint64_t size;
    size_t rank;
    int64_t dims[ACL_MAX_DIM_CNT];
} WorkerTensor;
typedef struct {
    const char *name;
    uint64_t offset;
    uint64_t size;
} WorkerFile;
aclError sim_worker_load(uint32_t model, const void *program, size_t size, const WorkerFile *files, size_t count);
void sim_worker_unload(uint32_t model);
/* Outputs come back with their rank and dims; an output of offset SIM_NOWHERE stays in the worker until fetched. */
#define SIM_NOWHERE UINT64_MAX
aclError sim_worker_execute(uint32_t model, const WorkerTensor *in, size_t in_count, WorkerTensor *out, size_t out_count);
aclError sim_worker_fetch(uint32_t model, uint32_t output, uint64_t offset, uint64_t size);
void sim_worker_stop(void);

#endif
