/* Reads a model file of the vendor's layout (IMOD header, partitions, I/O records) and our own partition in it.
 *
 * Every length in the file is hostile: all reading goes through a cursor.
 */
#include "sim_cursor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC 0x444F4D49u /* "IMOD" */
#define HEADER 256
#define RANGE_VERSION 0x20000000u
enum { PART_MODEL = 0, PART_WEIGHTS = 1, PART_TASKS = 2, PART_IO = 8, PART_PROGRAM = 0x4D534900 };

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
        return sim_om_parse_io(part, om);
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

void sim_om_drop(Om *om)
{
    if (om == NULL || __atomic_sub_fetch(&om->references, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    sim_om_free_io(om);
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
