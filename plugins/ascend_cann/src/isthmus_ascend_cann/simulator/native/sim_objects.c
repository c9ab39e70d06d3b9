/* Registry of live handles. A stale or foreign handle is answered with an error instead of a crash, and what is still
 * live when a device is reset is listed.
 */
#include "sim.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isthmus_sim.h"

typedef struct {
    const void *handle;
    ObjectKind kind;
    size_t size;
} Object;

static const char *const names[OBJECT_KINDS] = {
    "context", "stream", "event", "data buffer", "dataset", "tensor description", "model description", "model",
    "model configuration", "pinned host memory", "device memory", "execution configuration",
};

static void *tree; /* tsearch tree of Object, by handle and kind */
static size_t live;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int compare(const void *left, const void *right)
{
    const Object *a = left, *b = right;
    if (a->handle != b->handle) {
        return (uintptr_t)a->handle < (uintptr_t)b->handle ? -1 : 1;
    }
    return (int)a->kind - (int)b->kind;
}

static Object *find(ObjectKind kind, const void *handle)
{
    Object key = {.handle = handle, .kind = kind};
    void *node = tfind(&key, &tree, compare);
    return node == NULL ? NULL : *(Object **)node;
}

bool sim_object_add(ObjectKind kind, const void *handle, size_t size)
{
    Object *object = malloc(sizeof *object);
    if (object == NULL) {
        return false;
    }
    *object = (Object){handle, kind, size};
    pthread_mutex_lock(&mutex);
    bool added = tsearch(object, &tree, compare) != NULL;
    live += added;
    pthread_mutex_unlock(&mutex);
    if (!added) {
        free(object);
    }
    return added;
}

bool sim_object_live(ObjectKind kind, const void *handle)
{
    pthread_mutex_lock(&mutex);
    bool found = find(kind, handle) != NULL;
    pthread_mutex_unlock(&mutex);
    return found;
}

bool sim_object_remove(ObjectKind kind, const void *handle)
{
    pthread_mutex_lock(&mutex);
    Object *object = find(kind, handle);
    if (object != NULL) {
        tdelete(object, &tree, compare);
        live--;
    }
    pthread_mutex_unlock(&mutex);
    free(object);
    return object != NULL;
}

aclError sim_need_object(ObjectKind kind, const void *handle, const char *function)
{
    TRY(sim_not_null(handle, function, names[kind]));
    if (sim_object_live(kind, handle)) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_INVALID_RESOURCE_HANDLE, "EE1001", "Invalid_Handle",
                    "%s: %p is no %s: destroyed already, or never created", function, handle, names[kind]);
}

void *sim_object_new(ObjectKind kind, size_t size)
{
    void *handle = calloc(1, size);
    if (handle != NULL && !sim_object_add(kind, handle, size)) {
        free(handle);
        return NULL;
    }
    return handle;
}

aclError sim_object_free(ObjectKind kind, const void *handle, const char *function)
{
    TRY(sim_need_object(kind, handle, function));
    sim_object_remove(kind, handle);
    free((void *)(uintptr_t)handle);
    return ACL_SUCCESS;
}

/* twalk_r is newer than the C libraries that must be supported, so the listing goes through this. */
static struct {
    char *out;
    size_t size, length;
} listing;

static void list_node(const void *node, VISIT visit, int depth)
{
    (void)depth;
    if (visit != postorder && visit != leaf) {
        return;
    }
    const Object *object = *(Object *const *)node;
    size_t room = listing.size > listing.length ? listing.size - listing.length : 0;
    listing.length += (size_t)snprintf(room == 0 ? NULL : listing.out + listing.length, room, "%s %p %zu\n",
                                       names[object->kind], object->handle, object->size);
}

size_t isthmus_sim_live(void)
{
    pthread_mutex_lock(&mutex);
    size_t count = live;
    pthread_mutex_unlock(&mutex);
    return count;
}

size_t isthmus_sim_list(char *out, size_t size)
{
    pthread_mutex_lock(&mutex);
    listing.out = out;
    listing.size = size;
    listing.length = 0;
    twalk(tree, list_node);
    size_t length = listing.length;
    pthread_mutex_unlock(&mutex);
    return length;
}

void sim_report_leaks(const char *when)
{
    size_t size = isthmus_sim_list(NULL, 0) + 1;
    char *text = size > 1 ? malloc(size) : NULL;
    if (text == NULL) {
        return;
    }
    isthmus_sim_list(text, size);
    size_t lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (lines++ < 20) {
            sim_log("still live at %s: %s", when, line);
        }
    }
    if (lines > 20) {
        sim_log("still live at %s: %zu more", when, lines - 20);
    }
    free(text);
}
