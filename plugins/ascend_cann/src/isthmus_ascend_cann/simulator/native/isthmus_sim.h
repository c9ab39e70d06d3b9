/* The simulator's own exports: for tests, and for a binding to know that this is not the vendor's library. */
#ifndef ISTHMUS_SIM_API_H
#define ISTHMUS_SIM_API_H

#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* Present in no vendor library. */
SIM_EXPORT const char *isthmus_sim_version(void);

/* Bytes per device; what is allocated already stays. */
SIM_EXPORT void isthmus_sim_set_memory(uint64_t capacity, uint64_t huge_bytes, uint64_t giant_bytes);
SIM_EXPORT void isthmus_sim_set_devices(uint32_t count);
SIM_EXPORT void isthmus_sim_set_soc(const char *name);
/* 1: the host is the card (RC): aclrtGetRunMode says ACL_DEVICE and device memory is host-readable. */
SIM_EXPORT void isthmus_sim_set_run_mode(int run_on_device);
/* Every model run lasts at least this long. */
SIM_EXPORT void isthmus_sim_set_execute_delay(uint32_t microseconds);

/* Make the `call`-th call from now on of an exported function return `error`; 0 means every call. 0 when not possible. */
SIM_EXPORT int isthmus_sim_fail(const char *function, uint64_t call, int error);
/* Let every call of a function sleep first. */
SIM_EXPORT int isthmus_sim_delay(const char *function, uint32_t microseconds);
SIM_EXPORT uint64_t isthmus_sim_calls(const char *function);
/* Forget the rules, the delays and the counts. */
SIM_EXPORT void isthmus_sim_reset_rules(void);

/* Bytes of device memory in use now, rounded to pages: in all, and in huge pages. */
SIM_EXPORT uint64_t isthmus_sim_used(int32_t device);
SIM_EXPORT uint64_t isthmus_sim_used_huge(int32_t device);
/* Page size that one allocation got; 0 when `address` is not the start of one. */
SIM_EXPORT uint64_t isthmus_sim_page_size(const void *address);
/* Number of device allocations made since the library was loaded. */
SIM_EXPORT uint64_t isthmus_sim_allocations(void);
/* Live handles of all kinds, and a listing "kind address bytes" of them, one a line; returns the length it needs. */
SIM_EXPORT size_t isthmus_sim_live(void);
SIM_EXPORT size_t isthmus_sim_list(char *out, size_t size);

#endif
