/* Events, and waiting with a limit of time. */
#include "sim_stream.h"

#include <errno.h>
#include <stdlib.h>

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned references; /* the handle and every task that names it */
    uint64_t issued, completed;
    struct timespec time;
} SimEvent;

/* ---- waiting ---- */

struct timespec sim_deadline(int32_t milliseconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += milliseconds / 1000;
    at.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

void sim_new_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* False when `timeout_ms` ran out; negative waits for ever. */
bool sim_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    if (deadline == NULL) {
        pthread_cond_wait(condition, mutex);
        return true;
    }
    return pthread_cond_timedwait(condition, mutex, deadline) != ETIMEDOUT;
}

/* ---- events ---- */

static void drop_event(void *argument)
{
    SimEvent *event = argument;
    pthread_mutex_lock(&event->mutex);
    bool last = --event->references == 0;
    pthread_mutex_unlock(&event->mutex);
    if (last) {
        pthread_mutex_destroy(&event->mutex);
        pthread_cond_destroy(&event->changed);
        free(event);
    }
}

static aclError complete_event(void *argument)
{
    SimEvent *event = argument;
    pthread_mutex_lock(&event->mutex);
    event->completed++;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->mutex);
    return ACL_SUCCESS;
}

static aclError need_event(aclrtEvent handle, const char *function)
{
    TRY(sim_not_null(handle, function, "event"));
    if (sim_object_live(OBJECT_EVENT, handle)) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001", "Invalid_Handle", "%s: %p is no event", function, handle);
}

static aclError create_event(aclrtEvent *event, const char *function)
{
    TRY(sim_not_null(event, function, "event"));
    if (sim_context(function) == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    SimEvent *created = calloc(1, sizeof *created);
    if (created == NULL || !sim_object_add(OBJECT_EVENT, created, 0)) {
        free(created);
        return sim_fail(ACL_ERROR_RT_NO_EVENT_RESOURCE, "EL0006", "Event_Resource", "%s: no event left", function);
    }
    pthread_mutex_init(&created->mutex, NULL);
    sim_new_condition(&created->changed);
    created->references = 1;
    *event = created;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtCreateEvent(aclrtEvent *event)
{
    ENTER();
    return create_event(event, __func__);
}

SIM_API aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag)
{
    ENTER();
    (void)flag;
    return create_event(event, __func__);
}

SIM_API aclError aclrtDestroyEvent(aclrtEvent event)
{
    ENTER();
    TRY(need_event(event, __func__));
    sim_object_remove(OBJECT_EVENT, event);
    drop_event(event);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    ENTER();
    TRY(need_event(event, __func__));
    CONTEXT(context);
    SimStream *queue;
    TRY(sim_stream_of(stream, context, __func__, &queue));
    SimEvent *recorded = event;
    pthread_mutex_lock(&recorded->mutex);
    recorded->issued++;
    recorded->references++;
    pthread_mutex_unlock(&recorded->mutex);
    return sim_stream_push(queue, complete_event, recorded, drop_event);
}

typedef struct {
    SimEvent *event;
    uint64_t until;
} Wait;

static aclError await(SimEvent *event, uint64_t until, int32_t timeout_ms)
{
    struct timespec deadline = sim_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&event->mutex);
    while (event->completed < until && in_time) {
        in_time = sim_wait(&event->changed, &event->mutex, timeout_ms < 0 ? NULL : &deadline);
    }
    bool done = event->completed >= until;
    pthread_mutex_unlock(&event->mutex);
    return done ? ACL_SUCCESS
                : sim_fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "EE1002", "Event_Synchronize_Timeout",
                           "event %p is not complete after %d ms", (void *)event, timeout_ms);
}

static aclError run_wait(void *argument)
{
    Wait *wait = argument;
    return await(wait->event, wait->until, -1);
}

static void drop_wait(void *argument)
{
    Wait *wait = argument;
    drop_event(wait->event);
    free(wait);
}

SIM_API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    ENTER();
    TRY(need_event(event, __func__));
    CONTEXT(context);
    SimStream *queue;
    TRY(sim_stream_of(stream, context, __func__, &queue));
    Wait *wait = malloc(sizeof *wait);
    if (wait == NULL) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE1013", "Host_Memory", "%s: out of host memory", __func__);
    }
    SimEvent *awaited = event;
    pthread_mutex_lock(&awaited->mutex);
    awaited->references++;
    *wait = (Wait){awaited, awaited->issued};
    pthread_mutex_unlock(&awaited->mutex);
    return sim_stream_push(queue, run_wait, wait, drop_wait);
}

static aclError synchronize_event(aclrtEvent handle, int32_t timeout_ms, const char *function)
{
    TRY(need_event(handle, function));
    SimEvent *event = handle;
    pthread_mutex_lock(&event->mutex);
    uint64_t until = event->issued;
    pthread_mutex_unlock(&event->mutex);
    return await(event, until, timeout_ms);
}

SIM_API aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    ENTER();
    return synchronize_event(event, -1, __func__);
}

SIM_API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout)
{
    ENTER();
    return synchronize_event(event, timeout, __func__);
}

SIM_API aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    ENTER();
    NOT_NULL(ms);
    TRY(need_event(startEvent, __func__));
    TRY(need_event(endEvent, __func__));
    const SimEvent *start = startEvent, *end = endEvent;
    if (start->completed == 0 || end->completed == 0) {
        return sim_fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "EE1001", "Event_Not_Recorded",
                        "%s: an event was not recorded, or its stream not synchronised", __func__);
    }
    double seconds = (double)(end->time.tv_sec - start->time.tv_sec);
    double elapsed = seconds * 1e3 + (double)(end->time.tv_nsec - start->time.tv_nsec) / 1e6;
    if (elapsed < 0) {
        return sim_fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "EE1001", "Event_Order", "%s: end is before start", __func__);
    }
    *ms = (float)elapsed;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status)
{
    ENTER();
    TRY(need_event(event, __func__));
    NOT_NULL(status);
    SimEvent *asked = event;
    pthread_mutex_lock(&asked->mutex);
    *status = asked->completed >= asked->issued ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                                : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    pthread_mutex_unlock(&asked->mutex);
    return ACL_SUCCESS;
}
