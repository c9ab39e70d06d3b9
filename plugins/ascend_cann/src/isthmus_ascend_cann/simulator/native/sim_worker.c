/* The process that computes: Python with ONNX Runtime's CPU provider, fed through a socket.
 *
 * A process of its own works for every consumer, Python or not, and cannot disturb the caller's own ONNX Runtime. Tensors
 * do not travel: the worker maps the device memory file and gets offsets.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SIM_EXECUTOR
#error "SIM_EXECUTOR is the path of executor.py"
#endif

extern char **environ;

enum { LOAD = 1, UNLOAD = 2, EXECUTE = 3, FETCH = 4 };

static pid_t child = -1, owner = -1;
static int channel = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* one request at a time */

/* ---- start and stop ---- */

static int spawn(int theirs, int memory)
{
    /* Above both, so that neither duplicate overwrites the other's source. */
    int base = (theirs > memory ? theirs : memory) + 1;
    char socket_text[16], memory_text[16];
    snprintf(socket_text, sizeof socket_text, "%d", base);
    snprintf(memory_text, sizeof memory_text, "%d", base + 1);
    /* -P: the script's directory is no place to import from. */
    char *arguments[] = {sim_knobs.python, "-P", SIM_EXECUTOR, socket_text, memory_text, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs, base);
    posix_spawn_file_actions_adddup2(&actions, memory, base + 1);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1); /* stdout belongs to the caller's own output */
    int error = posix_spawnp(&child, sim_knobs.python, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static void reap(void)
{
    if (channel >= 0) {
        close(channel);
        channel = -1;
    }
    if (child > 0 && owner == getpid()) {
        waitpid(child, NULL, 0);
    }
    child = -1;
}

static aclError start(void)
{
    int ends[2];
    if (channel >= 0 && owner == getpid()) {
        return ACL_SUCCESS;
    }
    reap(); /* after a fork the parent's worker is not ours */
    owner = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return sim_fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "EE1001", "Device_Setup", "no socket: %s", strerror(errno));
    }
    int error = spawn(ends[1], sim_memory_file());
    close(ends[1]);
    if (error != 0) {
        close(ends[0]);
        child = -1;
        return sim_fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "EE1001", "Device_Setup", "the worker %s cannot be started: %s",
                        sim_knobs.python, strerror(error));
    }
    channel = ends[0];
    return ACL_SUCCESS;
}

void sim_worker_stop(void)
{
    pthread_mutex_lock(&mutex);
    reap();
    pthread_mutex_unlock(&mutex);
}

/* ---- requests ---- */

typedef struct {
    uint8_t *bytes;
    size_t size, room;
    bool failed;
} Message;

static void put(Message *message, const void *bytes, size_t size)
{
    if (!message->failed && message->size + size > message->room) {
        size_t room = (message->size + size) * 2;
        uint8_t *grown = realloc(message->bytes, room);
        message->failed = grown == NULL;
        message->bytes = grown == NULL ? message->bytes : grown;
        message->room = grown == NULL ? message->room : room;
    }
    if (!message->failed) {
        memcpy(message->bytes + message->size, bytes, size);
        message->size += size;
    }
}

static void put_u32(Message *message, uint32_t value) { put(message, &value, sizeof value); }
static void put_u64(Message *message, uint64_t value) { put(message, &value, sizeof value); }

static bool send_all(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    while (size > 0) {
        ssize_t sent = send(channel, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        at += sent < 0 ? 0 : sent;
        size -= sent < 0 ? 0 : (size_t)sent;
    }
    return true;
}

static bool receive_all(void *bytes, size_t size)
{
    uint8_t *at = bytes;
    while (size > 0) {
        ssize_t got = recv(channel, at, size, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        at += got < 0 ? 0 : got;
        size -= got < 0 ? 0 : (size_t)got;
    }
    return true;
}

/* Request: u32 operation, u32 model, u64 length, body. Reply: u32 failed, u32 length, body (or the error text). */
static bool exchange(uint32_t operation, uint32_t model, const Message *body, uint32_t *failed, Message *reply)
{
    uint32_t head[4] = {operation, model, (uint32_t)body->size, (uint32_t)((uint64_t)body->size >> 32)}, answer[2];
    if (!send_all(head, sizeof head) || !send_all(body->bytes, body->size) || !receive_all(answer, sizeof answer)) {
        return false;
    }
    *failed = answer[0];
    *reply = (Message){.bytes = calloc(1, (size_t)answer[1] + 1), .size = answer[1]};
    return reply->bytes != NULL && receive_all(reply->bytes, reply->size);
}

/* One request under the lock; `body` is freed. On success the caller frees `reply->bytes`. */
static aclError request(uint32_t operation, uint32_t model, Message *body, aclError code, Message *reply)
{
    uint32_t failed = 0;
    *reply = (Message){0};
    pthread_mutex_lock(&mutex);
    aclError error = body->failed ? ACL_ERROR_BAD_ALLOC : operation == LOAD ? start() : ACL_SUCCESS;
    if (error == ACL_SUCCESS && (channel < 0 || !exchange(operation, model, body, &failed, reply))) {
        reap();
        error = sim_fail(code, "EZ9999", "Inner_Error", "the worker that computes for the simulated device has ended");
    } else if (failed != 0) {
        error = sim_fail(code, "EZ9999", "Inner_Error", "%s", (const char *)reply->bytes);
    }
    pthread_mutex_unlock(&mutex);
    free(body->bytes);
    if (error != ACL_SUCCESS) {
        free(reply->bytes);
        *reply = (Message){0};
    }
    return error;
}

aclError sim_worker_load(uint32_t model, const void *program, size_t size, const WorkerFile *files, size_t count)
{
    Message body = {0}, reply;
    put_u32(&body, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        put_u64(&body, files[i].offset);
        put_u64(&body, files[i].size);
        put_u32(&body, (uint32_t)strlen(files[i].name));
        put(&body, files[i].name, strlen(files[i].name));
    }
    put(&body, program, size);
    aclError error = request(LOAD, model, &body, ACL_ERROR_GE_LOAD_MODEL, &reply);
    free(reply.bytes);
    return error;
}

void sim_worker_unload(uint32_t model)
{
    Message body = {0}, reply;
    request(UNLOAD, model, &body, ACL_ERROR_GE_UNLOAD_MODEL, &reply);
    free(reply.bytes);
}

static void put_tensors(Message *body, const WorkerTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        put_u64(body, tensors[i].offset);
        put_u64(body, tensors[i].size);
        put_u32(body, (uint32_t)tensors[i].rank);
        put(body, tensors[i].dims, tensors[i].rank * sizeof tensors[i].dims[0]);
    }
}

/* Per output: u64 bytes, u32 rank, i64 dims. */
static bool read_shapes(const Message *reply, WorkerTensor *out, size_t count)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t rank;
        if (reply->size - at < 12) {
            return false;
        }
        memcpy(&out[i].size, reply->bytes + at, 8);
        memcpy(&rank, reply->bytes + at + 8, 4);
        at += 12;
        if (rank > ACL_MAX_DIM_CNT || (reply->size - at) / 8 < rank) {
            return false;
        }
        out[i].rank = rank;
        memcpy(out[i].dims, reply->bytes + at, rank * 8);
        at += (size_t)rank * 8;
    }
    return true;
}

aclError sim_worker_execute(uint32_t model, const WorkerTensor *in, size_t in_count, WorkerTensor *out, size_t out_count)
{
    Message body = {0}, reply;
    put_u32(&body, (uint32_t)in_count);
    put_u32(&body, (uint32_t)out_count);
    put_tensors(&body, in, in_count);
    put_tensors(&body, out, out_count);
    TRY(request(EXECUTE, model, &body, ACL_ERROR_RT_MODEL_EXECUTE, &reply));
    bool ok = read_shapes(&reply, out, out_count);
    free(reply.bytes);
    return ok ? ACL_SUCCESS
              : sim_fail(ACL_ERROR_RT_MODEL_EXECUTE, "EZ9999", "Inner_Error", "the worker's answer is malformed");
}

aclError sim_worker_fetch(uint32_t model, uint32_t output, uint64_t offset, uint64_t size)
{
    Message body = {0}, reply;
    put_u32(&body, output);
    put_u64(&body, offset);
    put_u64(&body, size);
    aclError error = request(FETCH, model, &body, ACL_ERROR_RT_MODEL_EXECUTE, &reply);
    free(reply.bytes);
    return error;
}
