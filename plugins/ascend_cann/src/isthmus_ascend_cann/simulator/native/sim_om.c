/* Reads a model file of the vendor's layout (IMOD header, partitions, I/O records) and our own partition in it.
 *
 * Every length in the file is hostile: all reading goes through a cursor that cannot leave its range.
 */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC 0x444F4D49u /* "IMOD" */
#define HEADER 256
#define RANGE_VERSION 0x20000000u
#define MAX_TENSORS 4096
#define MAX_GEARS 4096
enum { PART_MODEL = 0, PART_WEIGHTS = 1, PART_TASKS = 2, PART_IO = 8, PART_PROGRAM = 0x4D534900 };
enum { IO_INPUTS, IO_OUTPUTS, IO_BATCH, IO_IMAGE, IO_DIMS, IO_GEAR_OUTPUTS, IO_NAME_ORDER };

/* ---- a cursor over hostile bytes ---- */

typedef struct {
    const uint8_t *at, *end;
    bool bad;
} Cursor;

static size_t left(const Cursor *cursor) { return (size_t)(cursor->end - cursor->at); }

static const uint8_t *take(Cursor *cursor, uint64_t size)
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

static Cursor sub(Cursor *cursor, uint64_t size)
{
    const uint8_t *at = take(cursor, size);
    return cursor->bad ? (Cursor){at, at, true} : (Cursor){at, at + size, false};
}

static uint32_t take_u32(Cursor *cursor)
{
    uint32_t value;
    memcpy(&value, take(cursor, sizeof value), sizeof value);
    return value;
}

static uint64_t take_u64(Cursor *cursor)
{
    uint64_t value;
    memcpy(&value, take(cursor, sizeof value), sizeof value);
    return value;
}

static uint64_t take_varint(Cursor *cursor)
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

static char *take_text(Cursor *cursor, uint64_t size)
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

/* ---- protobuf, just enough ---- */

/* Read one field; for a length-delimited one `body` is its content, for a varint `value`. False at the end. */
static bool next_field(Cursor *cursor, uint64_t *number, uint64_t *value, Cursor *body)
{
    if (cursor->bad || left(cursor) == 0) {
        return false;
    }
    uint64_t key = take_varint(cursor);
    *number = key >> 3;
    *value = 0;
    *body = (Cursor){cursor->at, cursor->at, false};
    switch (key & 7) {
    case 0:
        *value = take_varint(cursor);
        break;
    case 1:
        take(cursor, 8);
        break;
    case 2:
        *body = sub(cursor, take_varint(cursor));
        break;
    case 5:
        take(cursor, 4);
        break;
    default:
        cursor->bad = true;
    }
    return !cursor->bad;
}

static void parse_tasks(Cursor part, Om *om)
{
    uint64_t number, value;
    Cursor body;
    while (next_field(&part, &number, &value, &body)) {
        if (number == 11) {
            om->work_size = value;
        }
    }
}

static bool is_text(const Cursor *cursor, const char *text)
{
    return left(cursor) == strlen(text) && memcmp(cursor->at, text, strlen(text)) == 0;
}

/* One entry of ModelDef.attr: key 1 is the name, value 2 an AttrDef whose field 2 is a string and 3 an integer. */
static void parse_attribute(Cursor entry, Om *om)
{
    uint64_t number, value;
    Cursor body, name = {0}, attribute = {0};
    while (next_field(&entry, &number, &value, &body)) {
        if (number == 1) {
            name = body;
        } else if (number == 2) {
            attribute = body;
        }
    }
    while (name.at != NULL && attribute.at != NULL && next_field(&attribute, &number, &value, &body)) {
        if (number == 2 && is_text(&name, "soc_version") && left(&body) < sizeof om->soc) {
            memcpy(om->soc, body.at, left(&body));
        } else if (number == 3 && is_text(&name, "zero_copy_memory_size")) {
            om->zero_copy_size = value;
        }
    }
}

static void parse_model(Cursor part, Om *om)
{
    uint64_t number, value;
    Cursor body;
    while (next_field(&part, &number, &value, &body)) {
        if (number == 11) {
            parse_attribute(body, om);
        }
    }
}

/* ---- inputs, outputs, gears ---- */

static bool parse_dims(Cursor *cursor, uint32_t bytes, size_t *rank, int64_t *dims)
{
    if (bytes % 8 != 0 || bytes / 8 > ACL_MAX_DIM_CNT) {
        return false;
    }
    *rank = bytes / 8;
    memcpy(dims, take(cursor, bytes), cursor->bad ? 0 : bytes);
    return !cursor->bad;
}

static bool parse_tensor(Cursor *cursor, OmTensor *tensor)
{
    tensor->size = take_u64(cursor);
    tensor->format = (int32_t)take_u32(cursor);
    tensor->dtype = (int32_t)take_u32(cursor);
    uint32_t name = take_u32(cursor), dims = take_u32(cursor), dims_v2 = take_u32(cursor), range = take_u32(cursor);
    tensor->name = take_text(cursor, name);
    if (tensor->name == NULL || !parse_dims(cursor, dims, &tensor->rank, tensor->dims) ||
        !parse_dims(cursor, dims_v2, &tensor->rank_v2, tensor->dims_v2) || range % 16 != 0 ||
        range / 16 > ACL_MAX_DIM_CNT) {
        return false;
    }
    tensor->ranges = range / 16;
    memcpy(tensor->range, take(cursor, range), cursor->bad ? 0 : range);
    return !cursor->bad;
}

static bool parse_tensors(Cursor record, size_t *count, OmTensor **tensors)
{
    uint32_t announced = take_u32(&record);
    if (*tensors != NULL || announced > MAX_TENSORS || announced > left(&record) / 32) {
        return false;
    }
    *tensors = calloc(announced + 1, sizeof **tensors);
    while (*tensors != NULL && *count < announced) {
        if (!parse_tensor(&record, &(*tensors)[(*count)++])) {
            return false;
        }
    }
    return *tensors != NULL;
}

static bool add_gear(Om *om, Cursor *cursor, uint32_t values)
{
    OmGear *gear = &om->gears[om->gear_count];
    const uint8_t *at = take(cursor, (uint64_t)values * 8);
    if (cursor->bad || values == 0 || values > ACL_MAX_DIM_CNT || (gear->values = malloc(values * 8)) == NULL) {
        return false;
    }
    memcpy(gear->values, at, values * 8);
    gear->count = values;
    om->gear_count++;
    return true;
}

/* Batch gears are one value each; image and dims gears have their lengths first. */
static bool parse_gears(Cursor record, GearKind kind, Om *om)
{
    uint32_t count = take_u32(&record);
    if (om->gears != NULL || count == 0 || count > MAX_GEARS) {
        return false;
    }
    om->gears = calloc(count, sizeof *om->gears);
    om->gear_kind = kind;
    Cursor lengths = kind == GEARS_BATCH ? (Cursor){0} : sub(&record, (uint64_t)count * 4);
    for (uint32_t i = 0; i < count && om->gears != NULL; i++) {
        if (!add_gear(om, &record, kind == GEARS_BATCH ? 1 : take_u32(&lengths))) {
            return false;
        }
    }
    return om->gears != NULL;
}

static bool parse_texts(Cursor record, size_t *count, char ***texts)
{
    uint32_t announced = take_u32(&record);
    Cursor lengths = sub(&record, (uint64_t)announced * 4);
    if (*texts != NULL || lengths.bad) {
        return false;
    }
    *texts = calloc(announced + 1, sizeof **texts);
    while (*texts != NULL && *count < announced) {
        char *text = take_text(&record, take_u32(&lengths));
        if (text == NULL) {
            return false;
        }
        (*texts)[(*count)++] = text;
    }
    return *texts != NULL;
}

static bool parse_io(Cursor part, Om *om)
{
    while (left(&part) > 0) {
        uint32_t type = take_u32(&part);
        Cursor record = sub(&part, take_u32(&part));
        bool ok = !record.bad;
        switch (type) {
        case IO_INPUTS:
            ok = ok && parse_tensors(record, &om->input_count, &om->inputs);
            break;
        case IO_OUTPUTS:
            ok = ok && parse_tensors(record, &om->output_count, &om->outputs);
            break;
        case IO_BATCH:
        case IO_IMAGE:
        case IO_DIMS:
            ok = ok && parse_gears(record, (GearKind)(type - IO_BATCH + GEARS_BATCH), om);
            break;
        case IO_GEAR_OUTPUTS:
            ok = ok && parse_texts(record, &om->gear_output_count, &om->gear_outputs);
            break;
        case IO_NAME_ORDER:
            ok = ok && parse_texts(record, &om->name_order_count, &om->name_order);
            break;
        default:
            break;
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* ---- our own partition: u32 version, u32 external files, per file u32 name length, u64 size, name; then ONNX bytes ---- */

static bool parse_program(Cursor part, Om *om)
{
    uint32_t version = take_u32(&part), count = take_u32(&part);
    if (version != 1 || count > left(&part) / 12) {
        return false;
    }
    om->external = calloc(count + 1, sizeof *om->external);
    while (om->external != NULL && om->external_count < count) {
        uint32_t length = take_u32(&part);
        uint64_t size = take_u64(&part);
        char *name = take_text(&part, length);
        if (name == NULL) {
            return false;
        }
        om->external[om->external_count++] = (OmFile){.name = name, .size = size};
    }
    om->program = part.at;
    om->program_size = left(&part);
    return om->external != NULL;
}

/* ---- the file ---- */

static bool parse_partition(uint32_t type, Cursor part, Om *om)
{
    switch (type) {
    case PART_MODEL:
        parse_model(part, om);
        return true;
    case PART_WEIGHTS:
        om->weights = part.at;
        om->weight_size = left(&part);
        return true;
    case PART_TASKS:
        parse_tasks(part, om);
        return true;
    case PART_IO:
        return parse_io(part, om);
    case PART_PROGRAM:
        return om->program == NULL && parse_program(part, om);
    default: /* kernels and the like, which a simulator does not need */
        return true;
    }
}

/* Entries are {u32 type, u32 pad, u64 offset, u64 size} in files with a 64-bit length, else {u32, u32, u32}. */
static bool parse_partitions(Cursor body, bool wide, Om *om)
{
    uint32_t count = take_u32(&body);
    om->partitions = count;
    if (wide) {
        take_u32(&body);
    }
    Cursor table = sub(&body, (uint64_t)count * (wide ? 24 : 12));
    for (uint32_t i = 0; i < count && !table.bad; i++) {
        uint32_t type = take_u32(&table);
        uint64_t size;
        if (wide) {
            take(&table, 12);
            size = take_u64(&table);
        } else {
            take_u32(&table);
            size = take_u32(&table);
        }
        Cursor part = sub(&body, size);
        if (part.bad || !parse_partition(type, part, om)) {
            return false;
        }
    }
    return !table.bad;
}

static aclError not_an_om(const char *why)
{
    return sim_fail(ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID, "E10001", "Invalid_Argument", "Invalid om file: %s.", why);
}

static aclError parse(const void *bytes, size_t size, Om *om)
{
    Cursor all = {bytes, (const uint8_t *)bytes + size, false};
    Cursor header = sub(&all, HEADER);
    if (header.bad) {
        return not_an_om("shorter than its header");
    }
    uint32_t version, length, parts;
    uint64_t model_length;
    memcpy(&version, header.at + 8, 4);
    memcpy(&length, header.at + 76, 4);
    memcpy(&parts, header.at + 156, 4);
    memcpy(&model_length, header.at + 184, 8);
    if (take_u32(&header) != MAGIC) {
        return not_an_om("the first bytes are not IMOD");
    }
    if ((model_length != 0 ? model_length : length) != left(&all)) {
        return not_an_om("its length is not what its header says");
    }
    om->range_shape = version >= RANGE_VERSION && (parts > 1 || *(const uint8_t *)((const uint8_t *)bytes + 193) == 1);
    return parse_partitions(all, model_length != 0, om) ? ACL_SUCCESS : not_an_om("a partition is damaged");
}

aclError sim_om_parse(const void *bytes, size_t size, Om **om)
{
    *om = calloc(1, sizeof **om);
    if (*om == NULL) {
        return sim_fail(ACL_ERROR_GE_MEMORY_ALLOCATION, "E19999", "Host_Memory", "out of host memory");
    }
    (*om)->references = 1;
    aclError error = parse(bytes, size, *om);
    if (error != ACL_SUCCESS) {
        sim_om_drop(*om);
        *om = NULL;
    }
    return error;
}

Om *sim_om_share(Om *om)
{
    __atomic_add_fetch(&om->references, 1, __ATOMIC_RELAXED);
    return om;
}

static void free_texts(char **texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(texts[i]);
    }
    free(texts);
}

static void free_tensors(OmTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(tensors[i].name);
    }
    free(tensors);
}

void sim_om_drop(Om *om)
{
    if (om == NULL || __atomic_sub_fetch(&om->references, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    free_tensors(om->inputs, om->input_count);
    free_tensors(om->outputs, om->output_count);
    free_texts(om->gear_outputs, om->gear_output_count);
    free_texts(om->name_order, om->name_order_count);
    for (size_t i = 0; i < om->gear_count; i++) {
        free(om->gears[i].values);
    }
    free(om->gears);
    for (size_t i = 0; i < om->external_count; i++) {
        free(om->external[i].name);
    }
    free(om->external);
    free(om);
}

/* ---- reading files ---- */

static aclError bad_path(const char *path, const char *why)
{
    return sim_fail(ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID, "E13001", "Open_File", "file [%s] cannot be read: %s", path, why);
}

static bool read_whole(FILE *file, uint8_t *bytes, size_t size) { return fread(bytes, 1, size, file) == size; }

aclError sim_read_file(const char *path, uint8_t **bytes, size_t *size)
{
    struct stat status;
    *bytes = NULL;
    FILE *file = fopen(path, "rbe");
    if (file == NULL || fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) {
        const char *why = file == NULL ? strerror(errno) : "not a regular file";
        if (file != NULL) {
            fclose(file);
        }
        return bad_path(path, why);
    }
    *size = (size_t)status.st_size;
    *bytes = malloc(*size + 1);
    bool whole = *bytes != NULL && read_whole(file, *bytes, *size);
    fclose(file);
    if (!whole) {
        free(*bytes);
        *bytes = NULL;
        return bad_path(path, "too short, or out of host memory");
    }
    return ACL_SUCCESS;
}
