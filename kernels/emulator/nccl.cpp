// An emulated NCCL: sums of f32 over all GPUs of a group. Each GPU copies its term to the host, and waits on its stream
// for the terms of the others; then it adds them, the last one first. Calls wait for those of the other GPUs, as
// those of the real library may.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "use.h"

#define API extern "C" __attribute__((visibility("default")))

API void emulated_push_named(
    const char* name, void* stream, void (*run)(const void*), const void* data, size_t bytes, const Use* uses, size_t count);
API int cuEventCreate(void** event, unsigned flags);
API int cuEventRecord(void* event, void* stream);
API int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
API int cuCtxGetCurrent(void** context);

enum Result { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6 };
enum { FLOAT32 = 7, SUM = 0 };

// One sum: the terms of all GPUs, and an event of each.
struct Round {
    std::vector<std::vector<float>> terms;
    std::vector<void*> events;
    size_t there = 0;
};

struct Group {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Round>> rounds;  // kept, because streams run late
    std::vector<bool> aborted;                   // by place
};

struct Comm {
    std::shared_ptr<Group> group;
    size_t place, count, device, done = 0;
};

struct Copy {
    const float* from;
    float* to;
    size_t count;
};
struct Add {
    const Round* round;
    float* to;
    size_t count;
};

static void copy(const void* data) {
    const Copy* c = (const Copy*)data;
    memcpy(c->to, c->from, c->count * sizeof(float));
}

static void add(const void* data) {
    const Add* a = (const Add*)data;
    // The last GPU's term first: not the order in which the host would add.
    for (size_t i = 0; i < a->count; ++i) {
        float sum = 0;
        for (size_t j = a->round->terms.size(); j-- > 0;) sum += a->round->terms[j][i];
        a->to[i] = sum;
    }
}

API int ncclGetVersion(int* version) { return *version = 22809, SUCCESS; }
API const char* ncclGetErrorString(int result) {
    switch (result) {
        case SUCCESS: return "no error";
        case INVALID_ARGUMENT: return "invalid argument";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        default: return "unhandled cuda error";
    }
}
API int ncclCommInitAll(Comm** comms, int count, const int* devices) {
    auto group = std::make_shared<Group>();
    group->aborted.resize(count);
    for (int i = 0; i < count; ++i) {
        for (int j = 0; j < i; ++j)
            if (devices[j] == devices[i]) return INVALID_ARGUMENT;
        comms[i] = new Comm{group, size_t(i), size_t(count), size_t(devices[i])};
    }
    return SUCCESS;
}
// EMULATED_NCCL=0 makes every sum fail.
API int ncclAllReduce(const float* from, float* to, size_t count, int type, int op, Comm* comm, void* stream) {
    void* context = nullptr;
    cuCtxGetCurrent(&context);
    if (type != FLOAT32 || op != SUM || (size_t)context != comm->device + 1) return INVALID_ARGUMENT;
    const char* works = getenv("EMULATED_NCCL");
    if (works && strcmp(works, "0") == 0) return UNHANDLED_CUDA_ERROR;
    Group& group = *comm->group;
    std::unique_lock<std::mutex> locked(group.lock);
    if (group.rounds.size() == comm->done) {
        group.rounds.push_back(std::make_unique<Round>());
        group.rounds.back()->terms.assign(comm->count, std::vector<float>(count));
        group.rounds.back()->events.assign(comm->count, nullptr);
    }
    Round& round = *group.rounds[comm->done++];
    std::vector<float>& term = round.terms[comm->place];
    if (term.size() != count) return INVALID_ARGUMENT;
    const Copy copied = {from, term.data(), count};
    const Use read = {(uint64_t)from, count * sizeof(float), false}, written = {(uint64_t)to, count * sizeof(float), true};
    emulated_push_named("a term of NCCL", stream, copy, &copied, sizeof copied, &read, 1);
    if (cuEventCreate(&round.events[comm->place], 0) || cuEventRecord(round.events[comm->place], stream)) return UNHANDLED_CUDA_ERROR;
    ++round.there;
    group.changed.notify_all();
    group.changed.wait(locked, [&] { return round.there == comm->count || group.aborted[comm->place]; });
    if (group.aborted[comm->place]) return REMOTE_ERROR;
    for (void* event : round.events)
        if (cuStreamWaitEvent(stream, event, 0)) return UNHANDLED_CUDA_ERROR;
    const Add added = {&round, to, count};
    emulated_push_named("a sum of NCCL", stream, add, &added, sizeof added, &written, 1);
    return SUCCESS;
}
API int ncclCommDestroy(Comm* comm) { return delete comm, SUCCESS; }
API int ncclCommAbort(Comm* comm) {
    {
        std::lock_guard<std::mutex> locked(comm->group->lock);
        comm->group->aborted[comm->place] = true;
    }
    comm->group->changed.notify_all();
    return delete comm, SUCCESS;
}
