/* Streams are threads that work off a queue. */
#ifndef ISTHMUS_SIM_STREAM_H
#define ISTHMUS_SIM_STREAM_H

#include <time.h>

#include "sim.h"

typedef aclError (*SimTask)(void *argument);

/* Resolve a handle given by the caller; NULL means the context's default stream. */
aclError sim_stream_of(aclrtStream handle, SimContext *context, const char *function, SimStream **out);
/* Queue `run(argument)`; the queue frees `argument` with `release` when it was run or dropped. */
aclError sim_stream_push(SimStream *stream, SimTask run, void *argument, void (*release)(void *));
/* Wait until the queue is empty, at most `timeout_ms` (-1: for ever). Returns what the first failed task returned. */
aclError sim_stream_drain(SimStream *stream, int32_t timeout_ms);
void sim_streams_close(int32_t device);
void sim_streams_close_context(SimContext *context);

/* Conditions on the monotonic clock. */
void sim_new_condition(pthread_cond_t *condition);
struct timespec sim_deadline(int32_t milliseconds);
/* False when the deadline has passed; without one it waits for ever. */
bool sim_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline);

#endif
