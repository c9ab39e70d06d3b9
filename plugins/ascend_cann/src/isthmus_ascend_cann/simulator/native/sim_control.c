/* Knobs of the simulated device: environment variables read at aclInit, and isthmus_sim_* calls for tests. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "isthmus_sim.h"

#ifndef SIM_PYTHON
#error "SIM_PYTHON names the interpreter that runs the worker"
#endif
#define PREFIX "ISTHMUS_ASCEND_SIM_"
#define MAX_FUNCTIONS 512
#define ALWAYS UINT64_MAX

SimKnobs sim_knobs = {
    .capacity = UINT64_C(32) << 30,
    .huge_bytes = UINT64_C(32) << 30,
    .giant_bytes = UINT64_C(4) << 30,
    .devices = 1,
    .soc = "Ascend910B4",
    .python = SIM_PYTHON,
};

/* One entry per exported function that was called or named in a rule. */
typedef struct {
    char name[64];
    uint64_t calls;
    uint64_t fail_at; /* 0: no rule; ALWAYS: every call */
    aclError error;
    uint32_t delay_us;
} Function;

static Function functions[MAX_FUNCTIONS];
static size_t function_count;
static pthread_mutex_t function_mutex = PTHREAD_MUTEX_INITIALIZER;

static Function *find_function(const char *name)
{
    for (size_t i = 0; i < function_count; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    if (function_count == MAX_FUNCTIONS || strlen(name) >= sizeof functions[0].name) {
        return NULL;
    }
    Function *added = &functions[function_count++];
    memset(added, 0, sizeof *added);
    strcpy(added->name, name);
    return added;
}

aclError sim_enter(const char *name)
{
    aclError error = ACL_SUCCESS;
    uint32_t delay = 0;
    uint64_t call = 0;
    pthread_mutex_lock(&function_mutex);
    Function *function = find_function(name);
    if (function != NULL) {
        call = ++function->calls;
        delay = function->delay_us;
        if (function->fail_at == ALWAYS || function->fail_at == call) {
            error = function->error;
        }
    }
    pthread_mutex_unlock(&function_mutex);
    if (delay > 0) {
        sim_sleep_us(delay);
    }
    if (error != ACL_SUCCESS) {
        sim_fail(error, "E19999", "Injected_Failure", "%s was told to fail: call %llu", name, (unsigned long long)call);
    }
    return error;
}

void sim_sleep_us(uint64_t microseconds)
{
    struct timespec left = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* "24G", "512M", "4096"; leaves `out` alone and complains when it is none of them. */
static void read_size(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return;
    }
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (errno != 0 || end == text || end[shift > 0] != '\0' || number > (UINT64_MAX >> shift)) {
        sim_log("%s=%s is not a number with an optional K, M or G; ignored", name, text);
        return;
    }
    *out = (uint64_t)number << shift;
}

static void read_text(const char *name, char *out, size_t size)
{
    const char *text = getenv(name);
    if (text != NULL && *text != '\0' && strlen(text) < size) {
        strcpy(out, text);
    }
}

/* FUNCTION:CALL:CODE, CALL 0 meaning every call; several rules are separated by commas. */
static void read_failures(void)
{
    const char *text = getenv(PREFIX "FAIL");
    while (text != NULL && *text != '\0') {
        char name[64];
        unsigned long long call;
        int error, used = 0;
        if (sscanf(text, "%63[A-Za-z0-9_]:%llu:%d%n", name, &call, &error, &used) < 3) {
            sim_log("%sFAIL: \"%s\" is not FUNCTION:CALL:CODE; ignored", PREFIX, text);
            return;
        }
        isthmus_sim_fail(name, call, error);
        text += used;
        text += *text == ',';
    }
}

void sim_read_environment(void)
{
    uint64_t devices = sim_knobs.devices, rc = sim_knobs.run_on_device, delay = sim_knobs.execute_delay_us;
    uint64_t huge = UINT64_MAX;
    char messages[8] = "";
    read_size(PREFIX "CAPACITY", &sim_knobs.capacity);
    read_size(PREFIX "HUGE_BYTES", &huge);
    read_size(PREFIX "HUGE1G_BYTES", &sim_knobs.giant_bytes);
    read_size(PREFIX "DEVICES", &devices);
    read_size(PREFIX "RC", &rc);
    read_size(PREFIX "EXECUTE_DELAY_US", &delay);
    read_text(PREFIX "SOC", sim_knobs.soc, sizeof sim_knobs.soc);
    read_text(PREFIX "PYTHON", sim_knobs.python, sizeof sim_knobs.python);
    read_text(PREFIX "MESSAGES", messages, sizeof messages);
    sim_knobs.old_messages = strcmp(messages, "old") == 0;
    isthmus_sim_set_devices(devices > UINT32_MAX ? UINT32_MAX : (uint32_t)devices);
    sim_knobs.run_on_device = rc != 0;
    sim_knobs.execute_delay_us = delay > UINT32_MAX ? UINT32_MAX : (uint32_t)delay;
    if (getenv(PREFIX "CAPACITY") != NULL && sim_knobs.huge_bytes > sim_knobs.capacity) {
        sim_knobs.huge_bytes = sim_knobs.capacity;
    }
    if (huge != UINT64_MAX) {
        sim_knobs.huge_bytes = huge;
    }
    read_failures();
}

const char *isthmus_sim_version(void) { return "1"; }

void isthmus_sim_set_memory(uint64_t capacity, uint64_t huge_bytes, uint64_t giant_bytes)
{
    sim_lock();
    sim_knobs.capacity = capacity < SIM_ARENA ? capacity : SIM_ARENA;
    sim_knobs.huge_bytes = huge_bytes;
    sim_knobs.giant_bytes = giant_bytes;
    sim_unlock();
}

void isthmus_sim_set_devices(uint32_t count)
{
    if (count > SIM_MAX_DEVICES) {
        sim_log("%u devices asked for; %d are simulated", count, SIM_MAX_DEVICES);
        count = SIM_MAX_DEVICES;
    }
    sim_knobs.devices = count;
}

void isthmus_sim_set_soc(const char *name) { snprintf(sim_knobs.soc, sizeof sim_knobs.soc, "%s", name); }

void isthmus_sim_set_run_mode(int run_on_device) { sim_knobs.run_on_device = run_on_device != 0; }

void isthmus_sim_set_execute_delay(uint32_t microseconds) { sim_knobs.execute_delay_us = microseconds; }

static Function *rule(const char *name)
{
    Function *function = find_function(name);
    if (function == NULL) {
        sim_log("no room for a rule on \"%s\"", name);
    }
    return function;
}

int isthmus_sim_fail(const char *function, uint64_t call, int error)
{
    pthread_mutex_lock(&function_mutex);
    Function *found = rule(function);
    if (found != NULL) {
        found->fail_at = call == 0 ? ALWAYS : found->calls + call;
        found->error = error;
    }
    pthread_mutex_unlock(&function_mutex);
    return found != NULL;
}

int isthmus_sim_delay(const char *function, uint32_t microseconds)
{
    pthread_mutex_lock(&function_mutex);
    Function *found = rule(function);
    if (found != NULL) {
        found->delay_us = microseconds;
    }
    pthread_mutex_unlock(&function_mutex);
    return found != NULL;
}

uint64_t isthmus_sim_calls(const char *function)
{
    pthread_mutex_lock(&function_mutex);
    Function *found = find_function(function);
    uint64_t calls = found == NULL ? 0 : found->calls;
    pthread_mutex_unlock(&function_mutex);
    return calls;
}

void isthmus_sim_reset_rules(void)
{
    pthread_mutex_lock(&function_mutex);
    function_count = 0;
    pthread_mutex_unlock(&function_mutex);
    sim_knobs.execute_delay_us = 0;
}
