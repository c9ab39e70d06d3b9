/* The acl calls on memory: allocation, copies, memory information, virtual memory management. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "isthmus_sim.h"
#include "sim_stream.h"

/* ---- device memory ---- */

static aclError allocate(void **out, size_t size, aclrtMemMallocPolicy policy, size_t tail, const char *function)
{
    TRY(sim_not_null(out, function, "devPtr"));
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: size is 0", function);
    }
    SimContext *context = sim_context(function);
    if (context == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    int plain = (int)policy & 0xFF;
    bool giant = plain == ACL_MEM_MALLOC_HUGE1G_ONLY || plain == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
    return sim_allocate(context->device, out, size, policy, giant ? 0 : tail);
}

SIM_API aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    ENTER();
    return allocate(devPtr, size, policy, SIM_TAIL, __func__);
}

SIM_API aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    ENTER();
    return allocate(devPtr, size, policy, 0, __func__);
}

SIM_API aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    ENTER();
    return allocate(devPtr, size, policy, SIM_TAIL, __func__);
}

SIM_API aclError aclrtMallocWithCfg(void **devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *cfg)
{
    ENTER();
    if (cfg != NULL && cfg->numAttrs != 0 && cfg->attrs == NULL) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: %zu attributes but no array", __func__,
                        cfg->numAttrs);
    }
    return allocate(devPtr, size, policy, SIM_TAIL, __func__);
}

SIM_API aclError aclrtFree(void *devPtr)
{
    ENTER();
    NOT_NULL(devPtr);
    return sim_release(devPtr);
}

/* ---- pinned host memory ---- */

typedef struct Pinned {
    uint8_t *address;
    size_t size;
    struct Pinned *next;
} Pinned;

static Pinned *pinned;
static pthread_mutex_t pinned_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool is_pinned(const void *address)
{
    const uint8_t *at = address;
    pthread_mutex_lock(&pinned_mutex);
    const Pinned *block = pinned;
    while (block != NULL && !(at >= block->address && at < block->address + block->size)) {
        block = block->next;
    }
    pthread_mutex_unlock(&pinned_mutex);
    return block != NULL;
}

static bool pin(void *address, size_t size)
{
    Pinned *block = malloc(sizeof *block);
    if (block == NULL || !sim_object_add(OBJECT_HOST_MEMORY, address, size)) {
        free(block);
        return false;
    }
    pthread_mutex_lock(&pinned_mutex);
    *block = (Pinned){address, size, pinned};
    pinned = block;
    pthread_mutex_unlock(&pinned_mutex);
    return true;
}

static Pinned *unpin(void *address)
{
    pthread_mutex_lock(&pinned_mutex);
    Pinned **at = &pinned;
    while (*at != NULL && (*at)->address != address) {
        at = &(*at)->next;
    }
    Pinned *block = *at;
    if (block != NULL) {
        *at = block->next;
    }
    pthread_mutex_unlock(&pinned_mutex);
    sim_object_remove(OBJECT_HOST_MEMORY, address);
    return block;
}

SIM_API aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    ENTER();
    NOT_NULL(hostPtr);
    NEED_CONTEXT();
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "%s: size is 0", __func__);
    }
    void *memory = NULL;
    if (posix_memalign(&memory, 64, size) != 0 || !pin(memory, size)) {
        free(memory);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EH0010", "Host_Memory", "%s: no %zu bytes", __func__, size);
    }
    memset(memory, 0xFF, size);
    *hostPtr = memory;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtFreeHost(void *hostPtr)
{
    ENTER();
    NOT_NULL(hostPtr);
    Pinned *block = unpin(hostPtr);
    if (block == NULL) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EH0010", "Host_Memory", "%s: %p was not pinned here, or is freed",
                        __func__, hostPtr);
    }
    memset(hostPtr, 0xFF, block->size);
    free(hostPtr);
    free(block);
    return ACL_SUCCESS;
}

/* ---- copies ---- */

static aclError check_side(const void *address, bool device, const char *what)
{
    if (sim_is_device_address(address) == device) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003", "Invalid_Argument",
                    "memory copy: %s %p is %s memory, against the copy kind", what, address, device ? "host" : "device");
}

static aclError check_kind(const void *dst, const void *src, aclrtMemcpyKind kind)
{
    switch ((int)kind) {
    case ACL_MEMCPY_DEFAULT:
        return ACL_SUCCESS;
    case ACL_MEMCPY_HOST_TO_HOST:
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_DEVICE_TO_HOST:
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
        break;
    default:
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0006", "Not_Supported", "memory copy: kind %d", (int)kind);
    }
    if (sim_knobs.run_on_device) {
        return ACL_SUCCESS;
    }
    bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    bool to_device = kind != ACL_MEMCPY_HOST_TO_HOST && kind != ACL_MEMCPY_DEVICE_TO_HOST;
    TRY(check_side(dst, to_device, "destination"));
    return check_side(src, from_device, "source");
}

static aclError readable(const void *address, size_t size, const char *what, uint8_t **out)
{
    if (sim_is_device_address(address)) {
        return sim_need_span(address, size, what, out);
    }
    *out = (uint8_t *)(uintptr_t)address;
    return ACL_SUCCESS;
}

aclError sim_copy(void *dst, size_t dst_max, const void *src, size_t count, aclrtMemcpyKind kind)
{
    if (count > dst_max) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003", "Invalid_Argument",
                        "memory copy: %zu bytes into a destination of %zu", count, dst_max);
    }
    TRY(check_kind(dst, src, kind));
    uint8_t *to, *from;
    TRY(readable(dst, count, "copy destination", &to));
    TRY(readable(src, count, "copy source", &from));
    memmove(to, from, count);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    ENTER();
    if (count == 0) {
        return ACL_SUCCESS;
    }
    NOT_NULL(dst);
    NOT_NULL(src);
    NEED_CONTEXT();
    return sim_copy(dst, destMax, src, count, kind);
}

typedef struct {
    void *dst;
    size_t dst_max;
    const void *src;
    size_t count;
    aclrtMemcpyKind kind;
    int32_t value;
} Transfer;

static aclError run_copy(void *argument)
{
    const Transfer *transfer = argument;
    return sim_copy(transfer->dst, transfer->dst_max, transfer->src, transfer->count, transfer->kind);
}

static aclError run_fill(void *argument)
{
    const Transfer *transfer = argument;
    uint8_t *to;
    TRY(sim_need_span(transfer->dst, transfer->count, "memory set", &to));
    memset(to, transfer->value, transfer->count);
    return ACL_SUCCESS;
}

static aclError push(aclrtStream handle, SimContext *context, SimTask task, const Transfer *transfer, const char *function,
                     SimStream **stream)
{
    TRY(sim_stream_of(handle, context, function, stream));
    Transfer *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE1013", "Host_Memory", "%s: out of host memory", function);
    }
    *copy = *transfer;
    return sim_stream_push(*stream, task, copy, free);
}

static bool pageable(const void *address) { return !sim_is_device_address(address) && !is_pinned(address); }

/* Pageable host memory makes the copy wait, as on the device: only pinned memory is copied behind the caller's back. */
SIM_API aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                                  aclrtStream stream)
{
    ENTER();
    if (count == 0) {
        return ACL_SUCCESS;
    }
    NOT_NULL(dst);
    NOT_NULL(src);
    CONTEXT(context);
    if (count > destMax) {
        return sim_copy(dst, destMax, src, count, kind);
    }
    TRY(check_kind(dst, src, kind));
    SimStream *queue;
    Transfer transfer = {.dst = dst, .dst_max = destMax, .src = src, .count = count, .kind = kind};
    TRY(push(stream, context, run_copy, &transfer, __func__, &queue));
    return pageable(dst) || pageable(src) ? sim_stream_drain(queue, -1) : ACL_SUCCESS;
}

static aclError check_fill(void *dst, size_t max, size_t count, const char *function)
{
    TRY(sim_not_null(dst, function, "devPtr"));
    if (count > max) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003", "Invalid_Argument", "%s: %zu bytes into %zu", function, count,
                        max);
    }
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    ENTER();
    TRY(check_fill(devPtr, maxCount, count, __func__));
    NEED_CONTEXT();
    Transfer transfer = {.dst = devPtr, .count = count, .value = value};
    return run_fill(&transfer);
}

SIM_API aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream)
{
    ENTER();
    TRY(check_fill(devPtr, maxCount, count, __func__));
    CONTEXT(context);
    SimStream *queue;
    Transfer transfer = {.dst = devPtr, .count = count, .value = value};
    return push(stream, context, run_fill, &transfer, __func__, &queue);
}

/* ---- figures ---- */

/* Which kind of memory an attribute names: 0 all or normal pages, 1 huge, 2 giant, -1 unknown. */
static int page_kind(aclrtMemAttr attr)
{
    switch ((int)attr) {
    case 0:  /* DDR */
    case 1:  /* HBM; asked of a DDR chip, the driver answers for DDR */
    case 3:  /* DDR normal */
    case 5:  /* HBM normal */
    case 7:  /* DDR P2P normal */
    case 9:  /* HBM P2P normal */
    case 12: /* normal, newer */
    case 15: /* P2P normal, newer */
        return 0;
    case 2:
    case 4:
    case 6:
    case 8:
    case 13:
    case 16:
        return 1;
    case 10:
    case 11:
    case 14:
    case 17:
        return 2;
    default:
        return -1;
    }
}

static uint64_t smaller(uint64_t left, uint64_t right) { return left < right ? left : right; }

static uint64_t left_of(uint64_t total, uint64_t used) { return total > used ? total - used : 0; }

SIM_API aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total)
{
    ENTER();
    NOT_NULL(free);
    NOT_NULL(total);
    CONTEXT(context);
    uint64_t used = isthmus_sim_used(context->device), huge = isthmus_sim_used_huge(context->device);
    uint64_t all = left_of(sim_knobs.capacity, used);
    *free = *total = 0;
    switch (page_kind(attr)) {
    case 0:
        *total = sim_knobs.capacity;
        *free = all;
        break;
    case 1:
        *total = smaller(sim_knobs.huge_bytes, sim_knobs.capacity);
        *free = smaller(all, left_of(*total, huge));
        break;
    case 2:
        *total = smaller(sim_knobs.giant_bytes, sim_knobs.capacity);
        *free = smaller(all, *total);
        break;
    default: /* the vendor's library answers success with zeros */
        break;
    }
    return ACL_SUCCESS;
}
