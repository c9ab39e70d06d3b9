/* Device memory.
 *
 * One sparse memory file holds the memory of all devices. It is mapped twice: once readable, for the simulator itself
 * (and once more in the worker), and once without any right at the addresses that callers get, so that a host that
 * touches device memory faults as it would next to a card. In RC mode those addresses are readable.
 */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "isthmus_sim.h"

#define GUARD SIM_NORMAL_PAGE
#define POISON 0xFF /* a NaN in every float format: memory that was never written does not stay unnoticed */
#define POLICY_BITS 0xFF

typedef struct Block {
    uint64_t offset; /* in the file, of the first page */
    uint64_t length; /* whole pages */
    uint8_t *address;
    uint64_t size; /* bytes the caller may use */
    uint64_t page;
    uint64_t charged;
    int32_t device;
    struct Block *next; /* by offset */
} Block;

typedef struct {
    uint64_t used, used_huge, used_giant;
    uint64_t cursor; /* addresses move on, so that a stale pointer hits nothing for long */
} Account;

static int file = -1;
static uint8_t *alias, *window;
static Block *blocks;
static Account accounts[SIM_MAX_DEVICES];
static uint64_t allocations;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/* ---- the file and its mappings ---- */

static bool map_all(void)
{
    uint64_t length = SIM_ARENA * SIM_MAX_DEVICES;
    file = memfd_create("isthmus-ascend-simulator", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)length) != 0) {
        return false;
    }
    void *open = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    /* A little too much, so that the part that is used can start on the largest page size. */
    void *room = mmap(NULL, length + SIM_GIANT_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (open == MAP_FAILED || room == MAP_FAILED) {
        return false;
    }
    void *start = (void *)(uintptr_t)round_up((uintptr_t)room, SIM_GIANT_PAGE);
    if (mmap(start, length, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == MAP_FAILED) {
        return false;
    }
    alias = open;
    window = start;
    return true;
}

aclError sim_memory_open(void)
{
    pthread_mutex_lock(&mutex);
    bool ok = window != NULL || map_all();
    pthread_mutex_unlock(&mutex);
    if (ok) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "EL0004", "Memory_Allocation_Failure",
                    "the simulated device cannot start: no %llu GiB of address space (ulimit -v?)",
                    (unsigned long long)(SIM_ARENA * SIM_MAX_DEVICES >> 30));
}

int sim_memory_file(void) { return file; }

bool sim_is_device_address(const void *address)
{
    const uint8_t *at = address;
    return window != NULL && at >= window && at < window + SIM_ARENA * SIM_MAX_DEVICES;
}

uint64_t sim_file_offset(const void *address) { return (uint64_t)((const uint8_t *)address - window); }

/* ---- finding room ---- */

/* The first gap at or after `from` that fits, inside [start, end). Returns the link to insert at, NULL if there is none. */
static Block **find_gap(uint64_t from, uint64_t end, uint64_t length, uint64_t unit, uint64_t *offset)
{
    Block **at = &blocks;
    uint64_t candidate = round_up(from + GUARD, unit);
    for (; *at != NULL; at = &(*at)->next) {
        uint64_t block_end = (*at)->offset + (*at)->length;
        if (block_end <= from) {
            continue;
        }
        if (candidate + length + GUARD <= (*at)->offset) {
            break;
        }
        candidate = round_up((block_end > candidate ? block_end : candidate) + GUARD, unit);
    }
    *offset = candidate;
    return candidate + length + GUARD <= end ? at : NULL;
}

static Block *place(int32_t device, uint64_t length, uint64_t unit)
{
    uint64_t start = SIM_ARENA * (uint64_t)device, end = start + SIM_ARENA, offset;
    Account *account = &accounts[device];
    Block **at = find_gap(start + account->cursor, end, length, unit, &offset);
    if (at == NULL) {
        at = find_gap(start, end, length, unit, &offset);
    }
    Block *block = at == NULL ? NULL : calloc(1, sizeof *block);
    if (block != NULL) {
        *block = (Block){.offset = offset, .length = length, .device = device, .next = *at};
        *at = block;
        account->cursor = offset + length - start;
    }
    return block;
}

/* ---- page policy ---- */

typedef struct {
    uint64_t page;
    bool strict;
} PagePlan;

/* Pages by policy: huge first only above 1 MiB, huge only always. */
static bool plan_pages(aclrtMemMallocPolicy policy, uint64_t size, PagePlan *plan)
{
    switch ((int)policy & POLICY_BITS) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P:
        *plan = (PagePlan){size > (UINT64_C(1) << 20) ? SIM_HUGE_PAGE : SIM_NORMAL_PAGE, false};
        return true;
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P:
        *plan = (PagePlan){SIM_HUGE_PAGE, true};
        return true;
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P:
        *plan = (PagePlan){SIM_NORMAL_PAGE, true};
        return true;
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P:
        *plan = (PagePlan){SIM_GIANT_PAGE, true};
        return true;
    default:
        return false;
    }
}

static bool is_p2p(aclrtMemMallocPolicy policy)
{
    int plain = (int)policy & POLICY_BITS;
    return (plain >= ACL_MEM_MALLOC_HUGE_FIRST_P2P && plain <= ACL_MEM_MALLOC_NORMAL_ONLY_P2P) ||
           plain == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
}

static aclError check_chip(aclrtMemMallocPolicy policy, uint64_t page)
{
    bool small_chip = strncmp(sim_knobs.soc, "Ascend310", 9) == 0;
    if (page == SIM_GIANT_PAGE && strncmp(sim_knobs.soc, "Ascend910B", 10) != 0 &&
        strncmp(sim_knobs.soc, "Ascend910_93", 12) != 0) {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "EE1005", "Not_Supported", "%s has no 1 GiB pages", sim_knobs.soc);
    }
    if (is_p2p(policy) && small_chip && sim_knobs.soc[9] == 'B') {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "EE1005", "Not_Supported", "%s has no P2P memory", sim_knobs.soc);
    }
    return ACL_SUCCESS;
}

/* Charge the device, with the fallback of the policy. False: out of memory. */
static bool charge(Account *account, PagePlan *plan, uint64_t size, uint64_t *charged)
{
    *charged = round_up(size, plan->page);
    bool huge = plan->page == SIM_HUGE_PAGE, giant = plan->page == SIM_GIANT_PAGE;
    bool no_huge = huge && account->used_huge + *charged > sim_knobs.huge_bytes;
    bool no_giant = giant && account->used_giant + *charged > sim_knobs.giant_bytes;
    bool full = account->used + *charged > sim_knobs.capacity;
    if (huge && !plan->strict && (no_huge || full)) {
        plan->page = SIM_NORMAL_PAGE;
        return charge(account, plan, size, charged);
    }
    if (no_huge || no_giant || full) {
        return false;
    }
    account->used += *charged;
    account->used_huge += huge ? *charged : 0;
    account->used_giant += giant ? *charged : 0;
    return true;
}

static void refund(Account *account, uint64_t page, uint64_t charged)
{
    account->used -= charged;
    account->used_huge -= page == SIM_HUGE_PAGE ? charged : 0;
    account->used_giant -= page == SIM_GIANT_PAGE ? charged : 0;
}

static aclError out_of_memory(int32_t device, uint64_t size, const PagePlan *plan)
{
    const Account *account = &accounts[device];
    const char *pages = plan->page == SIM_GIANT_PAGE ? "1 GiB" : plan->page == SIM_HUGE_PAGE ? "2 MiB" : "4 KiB";
    return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004", "Memory_Allocation_Failure",
                    "device %d: no %llu bytes in %s pages; %llu of %llu bytes used, %llu of %llu in 2 MiB pages", device,
                    (unsigned long long)size, pages, (unsigned long long)account->used,
                    (unsigned long long)sim_knobs.capacity, (unsigned long long)account->used_huge,
                    (unsigned long long)sim_knobs.huge_bytes);
}

/* ---- allocate and free ---- */

/* The documented alignment is 64 bytes and no more, so small blocks do not start on a page. */
static uint64_t skew(uint64_t page) { return page == SIM_NORMAL_PAGE ? 64 : 0; }

static void open_block(Block *block)
{
    memset(alias + block->offset, POISON, block->length);
    if (sim_knobs.run_on_device) {
        mprotect(window + block->offset, block->length, PROT_READ | PROT_WRITE);
    }
}

aclError sim_allocate(int32_t device, void **out, size_t size, aclrtMemMallocPolicy policy, size_t tail)
{
    PagePlan plan;
    uint64_t charged;
    if (size > SIM_ARENA) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004", "Memory_Allocation_Failure",
                        "device %d: no %zu bytes", device, size);
    }
    uint64_t rounded = (size + 32 + tail - 1) / 32 * 32;
    if (!plan_pages(policy, rounded, &plan)) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "EH0001", "Invalid_Argument", "no memory policy has the value %d", policy);
    }
    TRY(check_chip(policy, plan.page));
    pthread_mutex_lock(&mutex);
    Block *block = NULL;
    bool charged_ok = charge(&accounts[device], &plan, rounded, &charged);
    if (charged_ok) {
        block = place(device, round_up(rounded + skew(plan.page), SIM_NORMAL_PAGE), plan.page);
    }
    if (block != NULL) {
        block->address = window + block->offset + skew(plan.page);
        block->size = rounded;
        block->page = plan.page;
        block->charged = charged;
        open_block(block);
        allocations++;
    } else if (charged_ok) {
        refund(&accounts[device], plan.page, charged);
    }
    pthread_mutex_unlock(&mutex);
    if (block == NULL) {
        return out_of_memory(device, rounded, &plan);
    }
    sim_object_add(OBJECT_DEVICE_MEMORY, block->address, rounded);
    *out = block->address;
    return ACL_SUCCESS;
}

static void close_block(Block *block)
{
    if (sim_knobs.run_on_device) {
        mprotect(window + block->offset, block->length, PROT_NONE);
    }
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset, (off_t)block->length);
    refund(&accounts[block->device], block->page, block->charged);
    sim_object_remove(OBJECT_DEVICE_MEMORY, block->address);
    free(block);
}

aclError sim_release(void *address)
{
    pthread_mutex_lock(&mutex);
    Block **at = &blocks;
    while (*at != NULL && (*at)->address != address) {
        at = &(*at)->next;
    }
    Block *block = *at;
    if (block != NULL) {
        *at = block->next;
        close_block(block);
    }
    pthread_mutex_unlock(&mutex);
    if (block != NULL) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001", "Invalid_Pointer",
                    "%p is not the start of an allocation, or was freed already", address);
}

void sim_release_device(int32_t device)
{
    pthread_mutex_lock(&mutex);
    for (Block **at = &blocks; *at != NULL;) {
        Block *block = *at;
        if (block->device != device) {
            at = &block->next;
            continue;
        }
        *at = block->next;
        close_block(block);
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- addresses ---- */

uint8_t *sim_span(const void *address, size_t size)
{
    const uint8_t *start = address;
    uint8_t *found = NULL;
    pthread_mutex_lock(&mutex);
    for (Block *block = blocks; block != NULL && found == NULL; block = block->next) {
        if (start >= block->address && start < block->address + block->size &&
            size <= block->size - (uint64_t)(start - block->address)) {
            found = alias + (start - window);
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

aclError sim_need_span(const void *address, size_t size, const char *what, uint8_t **out)
{
    *out = sim_span(address, size);
    if (*out != NULL) {
        return ACL_SUCCESS;
    }
    return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001", "Invalid_Pointer",
                    "%s: %zu bytes at %p are not inside one live device allocation", what, size, address);
}

/* ---- figures ---- */

uint64_t isthmus_sim_used(int32_t device) { return device < 0 || device >= SIM_MAX_DEVICES ? 0 : accounts[device].used; }

uint64_t isthmus_sim_used_huge(int32_t device)
{
    return device < 0 || device >= SIM_MAX_DEVICES ? 0 : accounts[device].used_huge;
}

uint64_t isthmus_sim_allocations(void) { return allocations; }

uint64_t isthmus_sim_page_size(const void *address)
{
    uint64_t page = 0;
    pthread_mutex_lock(&mutex);
    for (const Block *block = blocks; block != NULL; block = block->next) {
        page = block->address == address ? block->page : page;
    }
    pthread_mutex_unlock(&mutex);
    return page;
}
