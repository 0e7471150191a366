// What the files of the emulated driver share.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "history.h"

#define API extern "C" __attribute__((visibility("default")))

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
};

typedef unsigned long long Address;

struct Event {
    void* context = nullptr;
    uint64_t recorded = 0, happened = 0;
    Clock clock;  // of the last record
    double ms = 0;
    struct Stream* captured_by = nullptr;  // the stream, if it was last recorded during a capture
};

// An operation that streams run. It adds what it read and wrote, if that is known.
struct Work {
    std::string name;
    std::function<void(std::vector<Use>&)> run;
};

struct Op {
    Work work;
    Clock clock;
    Event* waits_for = nullptr;
    uint64_t version = 0;
};

struct Graph {
    std::vector<Work> works;
};

struct Stream {
    void* context = nullptr;
    unsigned flags = 0;
    uint32_t number = 0;  // in clocks
    Clock clock;
    std::deque<Op> queue;
    Graph* capturing = nullptr;  // where queued work goes during capture
    int capture_error = 0;       // why the capture is invalid
};

extern std::vector<Stream*> streams;
extern thread_local void* current_context;

// Locks the driver.
struct Guard {
    static std::mutex lock;
    static std::atomic<int> waiting;  // threads that wait for the lock
    Guard() { ++waiting, lock.lock(), --waiting; }
    ~Guard() { lock.unlock(); }
    Guard(const Guard&) = delete;
};

long number_of(const char* name, long otherwise);
uint64_t draw();

// Returns whether this call is the one that fails. After a failure, everything queued on the GPU fails.
bool fails();

// Ends the program.
[[noreturn]] void abort_with(const std::string& what);

// Returns from a call on a thread without a current context, as the real driver does.
int without_context(const char* call);
#define NEEDS_CONTEXT \
    if (!current_context) return without_context(__func__)

// Queues work. The stream may be captured.
int push(Stream* stream, Work work);
// Returns an error if the stream is captured, which becomes invalid, or does not exist.
int check_idle(Stream* stream);
// Runs what is queued on the stream, or on all of them.
int drain(Stream* stream);
// This thread queues work; see quiet.cpp.
void this_thread_queues();
// Gives other threads time to queue their work. Called before the host learns that work is done.
void let_others_queue();
// Waits for all streams of a context.
int synchronise_context(void* context);

extern std::atomic<long> launched_graphs, queued_products;
// Extra time that kernels seem to have taken.
extern double pretended_ms;

// Returns whether all addresses in a kernel's arguments are within its GPU's reach.
bool reaches(void* context, const std::vector<char>& args);
