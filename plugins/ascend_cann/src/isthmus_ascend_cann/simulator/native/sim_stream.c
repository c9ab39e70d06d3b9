/* Streams: threads with a queue.
 *
 * They are threads so that work really overlaps with the host and a caller who forgets to synchronise
 * reads old data here as on the device.
 */
#include "sim_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Task {
    SimTask run;
    void *argument;
    void (*release)(void *);
    struct Task *next;
} Task;

struct SimStream {
    SimContext *context;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Task *first, *last;
    bool busy, stopping;
    aclError error; /* of the first task that failed since the last synchronisation */
    char text[2048]; /* what it reported, for the thread that waits */
    struct SimStream *next;
};

static SimStream *streams;
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- the queue ---- */

static void finish(SimStream *stream, Task *task, aclError error)
{
    if (task->release != NULL) {
        task->release(task->argument);
    }
    free(task);
    pthread_mutex_lock(&stream->mutex);
    stream->busy = false;
    if (error != ACL_SUCCESS && stream->error == ACL_SUCCESS) {
        stream->error = error;
        sim_take_text(stream->text, sizeof stream->text);
    }
    pthread_cond_broadcast(&stream->changed);
}

static void *work(void *argument)
{
    SimStream *stream = argument;
    sim_adopt_context(stream->context);
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (stream->first == NULL && !stream->stopping) {
            pthread_cond_wait(&stream->changed, &stream->mutex);
        }
        if (stream->first == NULL) {
            break;
        }
        Task *task = stream->first;
        stream->first = task->next;
        stream->busy = true;
        pthread_mutex_unlock(&stream->mutex);
        finish(stream, task, task->run(task->argument));
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

aclError sim_stream_push(SimStream *stream, SimTask run, void *argument, void (*release)(void *))
{
    Task *task = malloc(sizeof *task);
    if (task == NULL) {
        if (release != NULL) {
            release(argument);
        }
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE1013", "Host_Memory", "stream: out of host memory");
    }
    *task = (Task){run, argument, release, NULL};
    pthread_mutex_lock(&stream->mutex);
    if (stream->first == NULL) {
        stream->first = task;
    } else {
        stream->last->next = task;
    }
    stream->last = task;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    return ACL_SUCCESS;
}

aclError sim_stream_drain(SimStream *stream, int32_t timeout_ms)
{
    struct timespec deadline = sim_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&stream->mutex);
    while ((stream->first != NULL || stream->busy) && in_time) {
        in_time = sim_wait(&stream->changed, &stream->mutex, timeout_ms < 0 ? NULL : &deadline);
    }
    bool idle = stream->first == NULL && !stream->busy;
    aclError error = idle ? stream->error : ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
    if (idle && error != ACL_SUCCESS) {
        sim_give_text(stream->text);
        stream->error = ACL_SUCCESS;
    }
    pthread_mutex_unlock(&stream->mutex);
    if (!idle) {
        return sim_fail(error, "EE1002", "Stream_Synchronize_Timeout", "stream %p is still busy after %d ms",
                        (void *)stream, timeout_ms);
    }
    return error;
}

/* ---- streams ---- */

static SimStream *open_stream(SimContext *context, bool registered)
{
    SimStream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    stream->context = context;
    pthread_mutex_init(&stream->mutex, NULL);
    sim_new_condition(&stream->changed);
    if ((registered && !sim_object_add(OBJECT_STREAM, stream, 0)) ||
        pthread_create(&stream->thread, NULL, work, stream) != 0) {
        sim_object_remove(OBJECT_STREAM, stream);
        free(stream);
        return NULL;
    }
    pthread_mutex_lock(&list_mutex);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&list_mutex);
    return stream;
}

static void unlink_stream(SimStream *stream)
{
    pthread_mutex_lock(&list_mutex);
    for (SimStream **at = &streams; *at != NULL; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    pthread_mutex_unlock(&list_mutex);
}

/* Lets queued work finish, as the vendor's call does. */
static void close_stream(SimStream *stream)
{
    unlink_stream(stream);
    pthread_mutex_lock(&stream->mutex);
    stream->stopping = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    if (stream->context->default_stream == stream) {
        stream->context->default_stream = NULL;
    }
    sim_object_remove(OBJECT_STREAM, stream);
    pthread_mutex_destroy(&stream->mutex);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static SimStream *any_stream(bool (*wanted)(const SimStream *, const void *), const void *argument)
{
    pthread_mutex_lock(&list_mutex);
    SimStream *stream = streams;
    while (stream != NULL && !wanted(stream, argument)) {
        stream = stream->next;
    }
    pthread_mutex_unlock(&list_mutex);
    return stream;
}

static bool on_device(const SimStream *stream, const void *device)
{
    return stream->context->device == *(const int32_t *)device;
}

static bool in_context(const SimStream *stream, const void *context) { return stream->context == context; }

void sim_streams_close(int32_t device)
{
    for (SimStream *stream; (stream = any_stream(on_device, &device)) != NULL;) {
        close_stream(stream);
    }
}

void sim_streams_close_context(SimContext *context)
{
    for (SimStream *stream; (stream = any_stream(in_context, context)) != NULL;) {
        close_stream(stream);
    }
}

static SimStream *default_stream(SimContext *context)
{
    sim_lock();
    if (context->default_stream == NULL) {
        context->default_stream = open_stream(context, false);
    }
    SimStream *stream = context->default_stream;
    sim_unlock();
    return stream;
}

aclError sim_stream_of(aclrtStream handle, SimContext *context, const char *function, SimStream **out)
{
    if (handle == NULL) {
        *out = default_stream(context);
        return *out != NULL ? ACL_SUCCESS
                            : sim_fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "EL0009", "Stream_Resource",
                                       "%s: the default stream cannot be made", function);
    }
    if (!sim_object_live(OBJECT_STREAM, handle)) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001", "Invalid_Handle", "%s: %p is no stream", function, handle);
    }
    *out = handle;
    if ((*out)->context != context) {
        return sim_fail(ACL_ERROR_RT_STREAM_CONTEXT, "EE1010", "Wrong_Context",
                        "%s: stream %p belongs to another context than this thread's", function, handle);
    }
    return ACL_SUCCESS;
}

static aclError create_stream(aclrtStream *stream, const char *function)
{
    TRY(sim_not_null(stream, function, "stream"));
    SimContext *context = sim_context(function);
    if (context == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    *stream = open_stream(context, true);
    if (*stream == NULL) {
        return sim_fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "EL0009", "Stream_Resource", "%s: no stream left", function);
    }
    return ACL_SUCCESS;
}

static aclError destroy_stream(aclrtStream stream, const char *function)
{
    TRY(sim_not_null(stream, function, "stream"));
    if (!sim_object_live(OBJECT_STREAM, stream)) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001", "Invalid_Handle", "%s: %p is no stream", function, stream);
    }
    close_stream(stream);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtCreateStream(aclrtStream *stream)
{
    ENTER();
    return create_stream(stream, __func__);
}

SIM_API aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    ENTER();
    (void)flag;
    if (priority > 7) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003", "Invalid_Argument", "%s: priority %u is not in [0, 7]",
                        __func__, priority);
    }
    return create_stream(stream, __func__);
}

SIM_API aclError aclrtDestroyStream(aclrtStream stream)
{
    ENTER();
    return destroy_stream(stream, __func__);
}

SIM_API aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    ENTER();
    return destroy_stream(stream, __func__);
}

static aclError synchronize(aclrtStream handle, int32_t timeout_ms, const char *function)
{
    SimContext *context = sim_context(function);
    if (context == NULL) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    if (handle == NULL && context->default_stream == NULL) {
        return ACL_SUCCESS;
    }
    SimStream *stream;
    TRY(sim_stream_of(handle, context, function, &stream));
    return sim_stream_drain(stream, timeout_ms);
}

SIM_API aclError aclrtSynchronizeStream(aclrtStream stream)
{
    ENTER();
    return synchronize(stream, -1, __func__);
}

SIM_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    ENTER();
    if (timeout < -1 || timeout == 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003", "Invalid_Argument", "%s: timeout %d ms", __func__, timeout);
    }
    return synchronize(stream, timeout, __func__);
}

SIM_API aclError aclrtSynchronizeDevice(void)
{
    ENTER();
    CONTEXT(context);
    aclError first = ACL_SUCCESS;
    pthread_mutex_lock(&list_mutex);
    for (SimStream *stream = streams; stream != NULL; stream = stream->next) {
        if (stream->context->device == context->device) {
            aclError error = sim_stream_drain(stream, -1);
            first = first == ACL_SUCCESS ? error : first;
        }
    }
    pthread_mutex_unlock(&list_mutex);
    return first;
}
