/* Error text as aclGetRecentErrMsg keeps it: per thread and never cleared.
 *
 * New text of a call is put before what the last read returned, so that a reader who gets a non-null answer cannot know
 * that it belongs to the call that just failed. A binding has to cope with that; this is why it is simulated.
 */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEXT_SIZE 8192

static __thread char pending[TEXT_SIZE]; /* reported since the last read */
static __thread char recent[TEXT_SIZE];  /* what the last read returned */

/* What does not fit falls off the end, oldest first. */
static void put_before(char *text, const char *added)
{
    size_t length = strnlen(added, TEXT_SIZE - 1);
    memmove(text + length, text, TEXT_SIZE - length);
    text[TEXT_SIZE - 1] = '\0';
    memcpy(text, added, length);
}

static void format_report(char *out, size_t size, const char *code, const char *title, const char *text)
{
    struct timespec now;
    struct tm calendar;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &calendar);
    strftime(date, sizeof date, "%Y-%m-%d-%H:%M:%S", &calendar);
    long milliseconds = now.tv_nsec / 1000000, microseconds = now.tv_nsec / 1000 % 1000;
    if (sim_knobs.old_messages) {
        snprintf(out, size, "%s: [PID: %d] %s.%03ld.%03ld %s\n", code, getpid(), date, milliseconds, microseconds, text);
    } else {
        snprintf(out, size, "[PID: %d] %s.%03ld.%03ld %s(%s): %s\n        TraceBack (most recent call last):\n        "
                 "simulated device, thread %ld\n", getpid(), date, milliseconds, microseconds, title, code, text,
                 (long)syscall(SYS_gettid));
    }
}

aclError sim_fail(aclError error, const char *code, const char *title, const char *format, ...)
{
    char text[1024], report[TEXT_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    format_report(report, sizeof report, code, title, text);
    put_before(pending, report);
    return error;
}

aclError sim_not_null(const void *pointer, const char *function, const char *name)
{
    if (pointer != NULL) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0002", "Invalid_Argument_Null_Pointer", "%s: %s is NULL", function, name);
}

void sim_log(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[simulated AscendCL] %s\n", text);
}

void sim_take_text(char *out, size_t size)
{
    snprintf(out, size, "%s", pending);
    pending[0] = '\0';
}

void sim_give_text(const char *text) { put_before(pending, text); }

SIM_API const char *aclGetRecentErrMsg(void)
{
    if (pending[0] != '\0') {
        put_before(recent, pending);
        pending[0] = '\0';
    }
    return recent[0] == '\0' ? NULL : recent;
}
