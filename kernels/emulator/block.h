// The running block of threads: simt.cpp runs it, races.cpp watches it.
#pragma once
#include <vector>

#include "simt.h"

namespace simt {

constexpr unsigned WARP = 32;

// What a fiber waits for.
enum class State : uint8_t { Ready, AtWarp, AtBlock, Ended };

struct Fiber {
    void* stack_pointer;
    uint3 thread;
    State state;
    unsigned mask;   // lanes that it waits for
    int operation;   // the operation it waits in; all lanes of a mask must be in the same one
    uint64_t value;  // value that it shows to the others
    std::vector<Copy> copies;  // begun and not waited for
};

struct Block {
    void* scheduler;
    Fiber* current;
    std::vector<Fiber> fibers;
    std::vector<unsigned> order;
    char* stacks;
    size_t stacks_bytes;
    uint3 index, grid, size;
    const Kernel* kernel;
    const void* args;
    uint64_t random;
    int any[2];  // results of the last two barriers
    unsigned barriers;
};
__attribute__((visibility("hidden"))) extern Block block;

inline unsigned thread() { return unsigned(block.current - block.fibers.data()); }

// Learns what orders the accesses of threads. There is one with EMULATED_RACES=1.
struct Watcher {
    virtual void launch_starts() = 0;
    virtual void block_starts() = 0;
    // All threads of the block have met.
    virtual void block_met() = 0;
    // The lanes of `mask`, in the warp whose first thread is `first`, have met at a __syncwarp.
    virtual void lanes_met(size_t first, unsigned mask) = 0;
};
__attribute__((visibility("hidden"))) extern Watcher* watcher;

// Ends the program. `where` is a place in the kernels' text, or "".
__attribute__((visibility("hidden"))) [[noreturn]] void fail(const char* what, const char* where = "");

}  // namespace simt
