/* Inputs, outputs and gears of a model file: records {u32 type, u32 length}. */
#include "sim_cursor.h"

#define MAX_TENSORS 4096
#define MAX_GEARS 4096
enum { IO_INPUTS, IO_OUTPUTS, IO_BATCH, IO_IMAGE, IO_DIMS, IO_GEAR_OUTPUTS, IO_NAME_ORDER };

static bool parse_dims(Cursor *cursor, uint32_t bytes, size_t *rank, int64_t *dims)
{
    if (bytes % 8 != 0 || bytes / 8 > ACL_MAX_DIM_CNT) {
        return false;
    }
    *rank = bytes / 8;
    return copy(cursor, dims, bytes);
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
    return copy(cursor, tensor->range, range);
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

bool sim_om_parse_io(Cursor part, Om *om)
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

void sim_om_free_io(Om *om)
{
    free_tensors(om->inputs, om->input_count);
    free_tensors(om->outputs, om->output_count);
    free_texts(om->gear_outputs, om->gear_output_count);
    free_texts(om->name_order, om->name_order_count);
    for (size_t i = 0; i < om->gear_count; i++) {
        free(om->gears[i].values);
    }
    free(om->gears);
}
