// Finds races between the threads of a kernel, and reads of shared memory that nobody wrote, in every order of threads.
//
// Kernels are compiled with -fsanitize=thread, but this file is linked in place of its library: the compiler calls one
// of the functions below before each access. For each word of memory, a cell holds its last write and the reads since.
// Two accesses by different threads to the same byte, of which one is a write, must be ordered. Within a block, barriers
// order all threads and __syncwarp orders lanes; shuffles and votes do not, as in CUDA. Nothing orders blocks of the
// same launch. Atomic accesses do not race with each other. A volatile access counts as atomic, as in PTX.
//
// For the driver, a launch also returns the addresses that it read and wrote.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "block.h"
#include "use.h"

// The variables of a library, which are those in shared memory.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

using namespace simt;

namespace {

// Intervals are numbered over all launches; a barrier begins a new one. 0 is before the first.
uint32_t now, first_of_launch, first_of_block;
// The first interval of each block of this launch, and the block's index.
std::vector<std::pair<uint32_t, uint3>> blocks;

// For each thread, the clocks of the lanes of its warp: how often each had met others when it last met this one. A lane
// counts its own.
std::vector<std::array<uint32_t, WARP>> clocks;

struct Access {
    uint32_t interval, clock, thread;
};

// Accesses that do not race with each other: reads, or atomic ones. An earlier one is dropped if it is ordered before a
// later one.
struct Peers {
    enum : uint16_t { ONE, WARP_WIDE, BLOCK_WIDE };
    uint32_t first;     // interval of the first in this launch
    uint32_t interval;  // of the last
    uint32_t clock;     // of the last one, or the place in `wide` of the clocks of a warp
    uint16_t thread, threads;
};
std::vector<std::array<uint32_t, WARP>> wide;

struct Cell {
    Access write;
    Peers reads;
};

// A word, whose bytes have a cell each if some were accessed alone.
struct Word {
    Cell whole;
    std::unique_ptr<Cell[]> bytes;
};

constexpr uint64_t WORDS = 1024;
struct Page {
    uint32_t used = 0;  // the launch that used it last
    Word words[WORDS];
};
// Cells only matter within a launch, so a launch that finds more pages begins without any.
constexpr size_t MOST_PAGES = 256;
std::map<uint64_t, Page> pages;
struct {
    uint64_t number;
    Page* page;
} recent[256];

std::unordered_map<uint64_t, Peers> atomics;  // of this launch, by byte
std::vector<Use> uses;                         // of the last launch
const void* caller;                            // where the access is

enum Kind { READ, WRITE, ATOMIC };

Word& word_at(uint64_t number) {
    auto& entry = recent[number / WORDS % 256];
    if (!entry.page || entry.number != number / WORDS) entry = {number / WORDS, &pages[number / WORDS]};
    entry.page->used = first_of_launch;
    return entry.page->words[number % WORDS];
}

// Returns the place in the kernels' text, or "" if there is no tool that tells.
std::string place_of(const void* code) {
    Dl_info info;
    if (!dladdr(code, &info)) return "";
    std::string file = info.dli_fname;
    // The driver loads a library from an open file of this process.
    if (file.rfind("/proc/self/", 0) == 0) file.replace(6, 4, std::to_string(getpid()));
    char command[512], line[512] = "";
    snprintf(command, sizeof command, "addr2line -s -e '%s' %#zx 2>/dev/null", file.c_str(),
             size_t((const char*)code - 1 - (const char*)info.dli_fbase));
    if (FILE* output = popen(command, "r")) {
        if (!fgets(line, sizeof line, output) || *line == '?') *line = 0;
        pclose(output);
    }
    std::string place = line;
    return place.substr(0, place.find_first_of(" \n"));
}

[[noreturn]] void race(const char* mine, const char* other, uint32_t thread, uint32_t interval) {
    const auto after = std::upper_bound(blocks.begin(), blocks.end(), interval,
                                        [](uint32_t interval, const auto& block) { return interval < block.first; });
    const uint3 index = std::prev(after)->second;
    char what[256], by[32] = "another thread";
    if (thread != ~0u) snprintf(by, sizeof by, "thread %u", thread);
    snprintf(what, sizeof what, "a race: %s what %s of block (%u, %u) %s,", mine, by, index.x, index.y, other);
    fail(what, place_of(caller).c_str());
}

bool is_earlier(uint32_t thread, uint32_t clock) {
    return thread / WARP == simt::thread() / WARP && clocks[simt::thread()][thread % WARP] >= clock;
}

void check(const Access& write, bool in_shared, const char* mine) {
    if (write.interval < first_of_launch) return;
    const bool is_other = write.thread != thread() && !is_earlier(write.thread, write.clock);
    if (write.interval < first_of_block ? !in_shared : write.interval == now && is_other)
        race(mine, "writes", write.thread, write.interval);
}

void check(const Peers& others, bool in_shared, const char* mine, const char* their) {
    if (others.interval < first_of_launch) return;
    if (others.first < first_of_block && !in_shared) race(mine, their, ~0u, others.first);
    if (others.interval != now) return;
    const uint32_t me = thread();
    if (others.threads == Peers::ONE) {
        if (others.thread != me && !is_earlier(others.thread, others.clock)) race(mine, their, others.thread, now);
    } else if (others.threads == Peers::BLOCK_WIDE || others.thread / WARP != me / WARP) {
        race(mine, their, ~0u, now);
    } else {
        for (uint32_t q = 0; q < WARP; ++q) {
            const uint32_t thread = me / WARP * WARP + q, clock = wide[others.clock][q];
            if (clock && thread != me && !is_earlier(thread, clock)) race(mine, their, thread, now);
        }
    }
}

void add(Peers& others) {
    const uint32_t me = thread(), clock = clocks[me][me % WARP];
    if (others.interval < first_of_launch) others.first = now;
    const bool is_one = others.threads == Peers::ONE;
    if (others.interval != now || (is_one && (others.thread == me || is_earlier(others.thread, others.clock)))) {
        others.interval = now, others.clock = clock, others.thread = uint16_t(me), others.threads = Peers::ONE;
    } else if (others.thread / WARP != me / WARP) {
        others.threads = Peers::BLOCK_WIDE;
    } else if (others.threads != Peers::BLOCK_WIDE) {
        if (is_one) {
            wide.push_back({});
            wide.back()[others.thread % WARP] = others.clock;
            others.clock = uint32_t(wide.size() - 1), others.threads = Peers::WARP_WIDE;
        }
        wide[others.clock][me % WARP] = clock;
    }
}

template <Kind kind>
void access(Cell& cell, uint64_t at, uint64_t bytes, bool in_shared) {
    const char* mine = kind == READ ? "this thread reads" : kind == WRITE ? "this thread writes" : "this thread changes";
    check(cell.write, in_shared, mine);
    if (kind != READ) check(cell.reads, in_shared, mine, "reads");
    if (kind != ATOMIC && !atomics.empty()) {
        for (uint64_t byte = at; byte < at + bytes; ++byte) {
            const auto found = atomics.find(byte);
            if (found != atomics.end()) check(found->second, in_shared, mine, "changes");
        }
    }
    if (kind == READ) {
        if (in_shared && cell.write.interval < first_of_block)
            fail("a read of shared memory that no thread of the block wrote", place_of(caller).c_str());
        add(cell.reads);
    } else if (kind == WRITE) {
        cell.write = {now, clocks[thread()][thread() % WARP], thread()};
    } else {
        for (uint64_t byte = at; byte < at + bytes; ++byte) add(atomics[byte]);
    }
}

bool is_shared(uint64_t at) { return at - (uint64_t)__bss_start < uint64_t(_end - __bss_start); }

template <Kind kind>
void access(const void* from, uint64_t bytes, const void* code) {
    const uint64_t at = (uint64_t)from, end = at + bytes;
    // A thread's own variables, and the arguments.
    if (at - (uint64_t)block.stacks < block.stacks_bytes || at - (uint64_t)block.args < block.kernel->args_bytes) return;
    const bool in_shared = is_shared(at);
    caller = code;
    for (uint64_t word = at / 4; word * 4 < end; ++word) {
        Word& its = word_at(word);
        const uint64_t first = std::max(at, word * 4), last = std::min(end, word * 4 + 4);
        if (last - first == 4 && !its.bytes) {
            access<kind>(its.whole, first, 4, in_shared);
            continue;
        }
        if (!its.bytes) {
            its.bytes.reset(new Cell[4]);
            std::fill_n(its.bytes.get(), 4, its.whole);
        }
        for (uint64_t byte = first; byte < last; ++byte) access<kind>(its.bytes[byte % 4], byte, 1, in_shared);
    }
}

// Adds the use of a cell in this launch; `uses` are in the order of addresses, reads and writes apart.
void add_uses(std::vector<Use>& uses, const Cell& cell, uint64_t at, uint64_t bytes, bool writes) {
    if ((writes ? cell.write.interval : cell.reads.interval) < first_of_launch) return;
    if (!uses.empty() && uses.back().writes == writes && uses.back().at + uses.back().bytes == at) {
        uses.back().bytes += bytes;
    } else {
        uses.push_back({at, bytes, writes});
    }
}

struct Races : Watcher {
    Races() { watcher = this; }
    void launch_starts() override {
        first_of_launch = ++now;
        blocks.clear(), atomics.clear();
        if (pages.size() > MOST_PAGES) pages.clear(), memset(recent, 0, sizeof recent);
        clocks.assign(block.fibers.size(), {});
        for (size_t i = 0; i < clocks.size(); ++i) clocks[i][i % WARP] = 1;
    }
    void block_starts() override {
        block_met();
        first_of_block = now;
        blocks.push_back({now, block.index});
    }
    void block_met() override {
        ++now;
        wide.clear();
    }
    void lanes_met(size_t first, unsigned mask) override {
        std::array<uint32_t, WARP> all{};
        for (unsigned q = 0; q < WARP; ++q)
            if (mask >> q & 1)
                for (unsigned i = 0; i < WARP; ++i) all[i] = std::max(all[i], clocks[first + q][i]);
        for (unsigned q = 0; q < WARP; ++q)
            if (mask >> q & 1) clocks[first + q] = all, ++clocks[first + q][q];
    }
} races;

}  // namespace

void simt::atomic_access(void* at, size_t bytes) { access<ATOMIC>(at, bytes, __builtin_return_address(0)); }

// Returns what the last launch read and wrote.
extern "C" __attribute__((visibility("default"))) const Use* simt_uses(size_t* count) {
    uses.clear();
    for (const bool writes : {false, true}) {
        for (const auto& [number, page] : pages) {
            for (uint64_t i = 0; page.used == first_of_launch && i < WORDS; ++i) {
                const Word& word = page.words[i];
                const uint64_t at = (number * WORDS + i) * 4;
                if (is_shared(at)) continue;
                if (!word.bytes) add_uses(uses, word.whole, at, 4, writes);
                for (uint64_t byte = 0; word.bytes && byte < 4; ++byte) add_uses(uses, word.bytes[byte], at + byte, 1, writes);
            }
        }
    }
    for (const auto& [at, peers] : atomics) {
        if (!is_shared(at)) uses.push_back({at, 1, true});
    }
    return *count = uses.size(), uses.data();
}

// What the compiler calls.
#define HOOK extern "C" __attribute__((visibility("hidden"))) void
#define HOOKS(BYTES)                                                                                               \
    HOOK __tsan_read##BYTES(void* at) { access<READ>(at, BYTES, __builtin_return_address(0)); }                    \
    HOOK __tsan_write##BYTES(void* at) { access<WRITE>(at, BYTES, __builtin_return_address(0)); }                  \
    HOOK __tsan_unaligned_read##BYTES(void* at) { access<READ>(at, BYTES, __builtin_return_address(0)); }          \
    HOOK __tsan_unaligned_write##BYTES(void* at) { access<WRITE>(at, BYTES, __builtin_return_address(0)); }        \
    HOOK __tsan_volatile_read##BYTES(void* at) { access<ATOMIC>(at, BYTES, __builtin_return_address(0)); }         \
    HOOK __tsan_volatile_write##BYTES(void* at) { access<ATOMIC>(at, BYTES, __builtin_return_address(0)); }        \
    HOOK __tsan_unaligned_volatile_read##BYTES(void* at) { access<ATOMIC>(at, BYTES, __builtin_return_address(0)); } \
    HOOK __tsan_unaligned_volatile_write##BYTES(void* at) { access<ATOMIC>(at, BYTES, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
HOOK __tsan_read_range(void* at, size_t bytes) { access<READ>(at, bytes, __builtin_return_address(0)); }
HOOK __tsan_write_range(void* at, size_t bytes) { access<WRITE>(at, bytes, __builtin_return_address(0)); }
HOOK __tsan_vptr_update(void*, void*) {}
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}
