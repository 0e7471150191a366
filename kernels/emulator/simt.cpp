// Runs kernels on the CPU. Results from here are called "emulated", never "run on a GPU".
//
// One block runs at a time. Each of its threads is a fiber with its own stack, which runs until it waits at a barrier,
// a shuffle or a vote. The order of threads and blocks is drawn from a seed. A thread sees the writes of others only
// after a barrier, so these faults are detected: a missing barrier, a barrier that not all threads reach, a shuffle
// from a lane that does not take part, and an address that is not a multiple of its type's alignment.
// Not emulated: warps in lockstep, concurrent blocks, inline PTX. What kernels do by PTX has a macro (simt.h).
#include "block.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

// Only there if the program runs with AddressSanitizer.
extern "C" __attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, size_t);

namespace simt {

constexpr size_t STACK = 32 << 10;
// The value at the far end of every stack, which must still be there at the end.
constexpr uint64_t FAR_END = 0x5ca1ab1e0ddba11ull;

Block block;
Watcher* watcher = nullptr;

static const Kernel* kernels = nullptr;
Kernel::Kernel(const char* name, size_t bytes, void (*run)(const void*)) : name(name), args_bytes(bytes), run(run), next(kernels) {
    kernels = this;
}

uint3 thread_index() { return block.current->thread; }
uint3 block_index() { return block.index; }
uint3 block_size() { return block.size; }
uint3 grid_size() { return block.grid; }

// A generator of orders (SplitMix64); seed 0 keeps the natural order.
static uint64_t draw() {
    uint64_t z = block.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

template <class T>
static void permute(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw() % i]);
}

// Saves the registers that a call must preserve, and continues where `to` stopped.
extern "C" __attribute__((visibility("hidden"))) void simt_switch(void** from, void* to);
asm(R"(
.text
.hidden simt_switch
.globl simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

void fail(const char* what, const char* where) {
    const uint3 t = block.current->thread, b = block.index;
    fprintf(stderr, "emulated: %s in %s%s%s, block (%u, %u), thread %u\n", what, block.kernel->name, *where ? " at " : "", where,
            b.x, b.y, t.x);
    fflush(stderr);
    abort();
}

static void wait_in(State state) {
    Fiber* self = block.current;
    self->state = state;
    simt_switch(&self->stack_pointer, block.scheduler);
}

static void fiber_main() {
    block.kernel->run(block.args);
    if (!block.current->copies.empty()) fail("a copy to shared memory that nothing waits for");
    block.current->state = State::Ended;
    void* nowhere;
    simt_switch(&nowhere, block.scheduler);
    __builtin_unreachable();
}

static unsigned lane() { return thread() % WARP; }
static Fiber* warp() { return block.current - lane(); }
static bool exists(unsigned lane) { return warp() + lane < block.fibers.data() + block.fibers.size(); }

enum Operation { SYNC = 1, SHUFFLE, SHUFFLE_XOR, VOTE, MMA };

// Waits until every living lane of `mask` is in the same operation with the same mask.
static void meet(unsigned mask, int operation) {
    if (!(mask >> lane() & 1)) fail("a lane is not in its own mask");
    block.current->mask = mask;
    block.current->operation = operation;
    wait_in(State::AtWarp);
}

static bool has_met(const Fiber* warp, const Fiber& fiber, size_t lanes) {
    for (unsigned q = 0; q < WARP && q < lanes; ++q) {
        if (!(fiber.mask >> q & 1) || warp[q].state == State::Ended) continue;
        if (warp[q].state != State::AtWarp || warp[q].mask != fiber.mask || warp[q].operation != fiber.operation) return false;
    }
    return true;
}

// Resumes warps whose lanes have met. Returns the number of lanes.
static size_t release_warps() {
    size_t released = 0;
    std::vector<Fiber>& fibers = block.fibers;
    for (size_t first = 0; first < fibers.size(); first += WARP) {
        const size_t lanes = fibers.size() - first < WARP ? fibers.size() - first : WARP;
        for (unsigned i = 0; i < lanes; ++i) {
            const Fiber& fiber = fibers[first + i];
            if (fiber.state != State::AtWarp || !has_met(&fibers[first], fiber, lanes)) continue;
            unsigned met = 0;
            for (unsigned q = 0; q < lanes; ++q)
                if ((fiber.mask >> q & 1) && fibers[first + q].state == State::AtWarp)
                    fibers[first + q].state = State::Ready, met |= 1u << q, ++released;
            if (watcher && fiber.operation == SYNC) watcher->lanes_met(first, met);
        }
    }
    return released;
}

static void start_fiber(size_t i) {
    Fiber& fiber = block.fibers[i];
    fiber = Fiber{};
    const unsigned n = unsigned(i);
    fiber.thread = {n % block.size.x, n / block.size.x % block.size.y, n / (block.size.x * block.size.y)};
    *(uint64_t*)(block.stacks + i * STACK) = FAR_END;
    void** top = (void**)(block.stacks + (i + 1) * STACK);
    *--top = nullptr;
    *--top = (void*)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof(void*));
    fiber.stack_pointer = top;
}

static void run_block(bool permuted) {
    std::vector<Fiber>& fibers = block.fibers;
    // A stack is reused by a fiber of the next block, whose frames are at other places.
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(block.stacks, block.stacks_bytes);
    if (watcher) watcher->block_starts();
    block.barriers = 0, block.any[0] = block.any[1] = 0;
    for (size_t i = 0; i < fibers.size(); ++i) start_fiber(i);
    if (permuted) permute(block.order);
    for (size_t alive = fibers.size(); alive > 0;) {
        size_t ran = 0, at_block = 0;
        for (unsigned i : block.order) {
            if (fibers[i].state != State::Ready) continue;
            block.current = &fibers[i];
            simt_switch(&block.scheduler, fibers[i].stack_pointer);
            ++ran;
            alive -= fibers[i].state == State::Ended;
        }
        for (const Fiber& fiber : fibers) at_block += fiber.state == State::AtBlock;
        if (at_block > 0 && at_block == fibers.size()) {
            for (Fiber& fiber : fibers) fiber.state = State::Ready;
            block.any[++block.barriers % 2] = 0;
            if (watcher) watcher->block_met();
        } else if (alive > 0 && release_warps() == 0 && ran == 0) {
            fail(at_block > 0 ? "a barrier that not all threads reach" : "lanes that wait for each other");
        }
        if (permuted) permute(block.order);
    }
    for (size_t i = 0; i < fibers.size(); ++i)
        if (*(const uint64_t*)(block.stacks + i * STACK) != FAR_END) fail("a thread whose stack was too small");
}

// Runs one kernel to its end.
static void launch(const Kernel* kernel, uint3 grid, uint3 size, const void* args, uint64_t seed) {
    const size_t threads = size_t(size.x) * size.y * size.z;
    block.fibers.resize(threads);
    block.order.resize(threads);
    for (size_t i = 0; i < threads; ++i) block.order[i] = unsigned(i);
    block.stacks_bytes = threads * STACK;
    block.stacks = (char*)aligned_alloc(64, block.stacks_bytes);
    block.grid = grid, block.size = size, block.kernel = kernel, block.args = args, block.random = seed;
    if (watcher) watcher->launch_starts();
    std::vector<uint64_t> blocks(uint64_t(grid.x) * grid.y * grid.z);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    if (seed != 0) permute(blocks);
    for (uint64_t i : blocks) {
        block.index = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
        run_block(seed != 0);
    }
    free(block.stacks);
}

int block_barrier(int mine) {
    // The next barrier uses the other place, because threads may get there before others have read this one.
    const unsigned place = block.barriers % 2;
    if (mine) block.any[place] = 1;
    wait_in(State::AtBlock);
    return block.any[place];
}

void warp_barrier(unsigned mask) { meet(mask, SYNC); }

static uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int operation) {
    block.current->value = value;
    meet(mask, operation);
    if (source >= WARP || !(mask >> source & 1) || !exists(source) || warp()[source].state == State::Ended)
        fail("a shuffle from a lane that does not take part");
    value = warp()[source].value;
    meet(mask, -operation);
    return value;
}
uint64_t shuffle(unsigned mask, uint64_t value, unsigned source) { return exchange(mask, value, source % WARP, SHUFFLE); }
uint64_t shuffle_xor(unsigned mask, uint64_t value, unsigned other) { return exchange(mask, value, lane() ^ other, SHUFFLE_XOR); }

int vote(unsigned mask, int mine) {
    block.current->value = mine != 0;
    meet(mask, VOTE);
    int any = 0;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if ((mask >> lane & 1) && exists(lane) && warp()[lane].state != State::Ended) any |= warp()[lane].value != 0;
    meet(mask, -VOTE);
    return any;
}

// A tensor core ignores the last 13 bits of a number.
static float tf32(unsigned bits) { return __uint_as_float(bits & ~0x1fffu); }

struct Operands {
    const unsigned *a, *b;
};
static const Operands& operands_of(unsigned lane) { return *(const Operands*)warp()[lane].value; }

void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const Operands own = {a, b};
    block.current->value = (uint64_t)&own;
    meet(~0u, MMA);
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 8; ++k) {
            const float left = tf32(operands_of(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2]);
            sum[e] += left * tf32(operands_of(column * 4 + k % 4).b[k / 4]);
        }
    }
    meet(~0u, -MMA);
}

void begin(Copy copy) { block.current->copies.push_back(copy); }

Copy next_begun() {
    std::vector<Copy>& copies = block.current->copies;
    if (copies.empty()) return {nullptr, nullptr};
    const Copy copy = copies.back();
    copies.pop_back();
    return copy;
}

}  // namespace simt

// The interface to the emulated driver.
extern "C" __attribute__((visibility("default"))) const simt::Kernel* simt_find(const char* name) {
    for (const simt::Kernel* kernel = simt::kernels; kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0) return kernel;
    return nullptr;
}
extern "C" __attribute__((visibility("default"))) size_t simt_args_bytes(const simt::Kernel* kernel) {
    return kernel->args_bytes;
}
extern "C" __attribute__((visibility("default"))) void simt_launch(
    const simt::Kernel* kernel, const unsigned* grid, const unsigned* size, const void* args, uint64_t seed) {
    simt::launch(kernel, {grid[0], grid[1], grid[2]}, {size[0], size[1], size[2]}, args, seed);
}

// What kernels compiled with -fsanitize=alignment call before an access through a misaligned address.
struct Mismatch {
    const char* file;
    uint32_t line, column;
    const struct {
        uint16_t kind, info;
        char name[1];
    }* type;
};
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(const Mismatch* mismatch, uintptr_t) {
    const std::string what = std::string("a misaligned ") + mismatch->type->name;
    const std::string file = mismatch->file, where = file.substr(file.rfind('/') + 1) + ":" + std::to_string(mismatch->line);
    simt::fail(what.c_str(), where.c_str());
}
