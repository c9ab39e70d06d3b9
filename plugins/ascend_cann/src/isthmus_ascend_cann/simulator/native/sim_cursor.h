/* A cursor over hostile bytes: it cannot leave its range, and remembers that something tried to. */
#ifndef ISTHMUS_SIM_CURSOR_H
#define ISTHMUS_SIM_CURSOR_H

#include <stdlib.h>
#include <string.h>

#include "sim.h"

typedef struct {
    const uint8_t *at, *end;
    bool bad;
} Cursor;

static inline size_t left(const Cursor *cursor) { return (size_t)(cursor->end - cursor->at); }

static inline const uint8_t *take(Cursor *cursor, uint64_t size)
{
    static const uint8_t nothing[8];
    if (cursor->bad || size > left(cursor)) {
        cursor->bad = true;
        return nothing;
    }
    const uint8_t *at = cursor->at;
    cursor->at += size;
    return at;
}

static inline bool copy(Cursor *cursor, void *to, uint64_t size)
{
    const uint8_t *from = take(cursor, size);
    if (!cursor->bad) {
        memcpy(to, from, size);
    }
    return !cursor->bad;
}

static inline Cursor sub(Cursor *cursor, uint64_t size)
{
    const uint8_t *at = take(cursor, size);
    return cursor->bad ? (Cursor){at, at, true} : (Cursor){at, at + size, false};
}

static inline uint32_t take_u32(Cursor *cursor)
{
    uint32_t value;
    memcpy(&value, take(cursor, sizeof value), sizeof value);
    return value;
}

static inline uint64_t take_u64(Cursor *cursor)
{
    uint64_t value;
    memcpy(&value, take(cursor, sizeof value), sizeof value);
    return value;
}

static inline uint64_t take_varint(Cursor *cursor)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = *take(cursor, 1);
        value |= (uint64_t)(byte & 127) << shift;
        if ((byte & 128) == 0) {
            return value;
        }
    }
    cursor->bad = true;
    return 0;
}

static inline char *take_text(Cursor *cursor, uint64_t size)
{
    const uint8_t *at = take(cursor, size);
    if (cursor->bad) {
        return NULL;
    }
    char *text = calloc(1, size + 1);
    if (text != NULL) {
        memcpy(text, at, size);
    }
    return text;
}

/* Inputs, outputs and gears: the MODEL_INOUT_INFO partition (sim_om_io.c). */
bool sim_om_parse_io(Cursor part, Om *om);
void sim_om_free_io(Om *om);

#endif
