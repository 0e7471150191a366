// Streams, events, copies and graphs of the emulated driver.
//
// Queued work does not run before something waits for it. Then streams take turns in an order drawn from EMULATED_SEED.
// So work that was not waited for has not happened, which reveals copies of data that changed too early and reads
// without the right order. EMULATED_FORGET_WAITS=1 makes streams ignore waits for each other, to check whether that is
// found. EMULATED_CAPTURE=0 disables graphs.
#include <chrono>

#include "driver.h"

std::vector<Stream*> streams;
std::atomic<long> launched_graphs{0}, queued_products{0};

static bool can_run(const Stream* stream) {
    if (stream->queue.empty()) return false;
    const Op& op = stream->queue.front();
    return !op.waits_for || op.waits_for->happened >= op.version;
}

// Runs one operation of a randomly drawn stream. Returns whether there was one.
static bool step() {
    std::vector<Stream*> ready;
    for (Stream* stream : streams)
        if (can_run(stream)) ready.push_back(stream);
    if (ready.empty()) return false;
    Stream* stream = ready[draw() % ready.size()];
    Op op = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (!op.work.run) return true;
    std::vector<Use> uses;
    op.work.run(uses);
    history::use(op.clock, stream->number, op.work.name, uses);
    return true;
}

template <class Done>
static int run_until(Done done) {
    while (!done())
        if (!step()) abort_with("streams that wait for each other");
    return SUCCESS;
}

int drain(Stream* stream) {
    return run_until([=] {
        for (const Stream* other : streams)
            if ((!stream || other == stream) && !other->queue.empty()) return false;
        return true;
    });
}

// A capture becomes invalid at the first call that it forbids. Only relaxed captures are emulated. They allow all calls
// but those that conflict with the capture itself.
static int refuse(Stream* stream, int error) {
    if (stream->capturing && !stream->capture_error) stream->capture_error = error;
    return error;
}

// Returns an error for a stream that no work can be queued on.
static int check_usable(Stream* stream) {
    if (!stream) {
        // Blocking streams wait for the legacy stream, which a capture cannot record.
        int error = 0;
        for (Stream* other : streams)
            if (other->capturing && !(other->flags & 1)) error = refuse(other, CAPTURE_IMPLICIT);
        if (!error) fprintf(stderr, "emulated: the legacy stream is not emulated\n");
        return error ? error : int(INVALID_VALUE);
    }
    return stream->capturing && stream->capture_error ? int(CAPTURE_INVALIDATED) : int(SUCCESS);
}

int check_idle(Stream* stream) {
    if (const int error = check_usable(stream)) return error;
    return stream->capturing ? refuse(stream, CAPTURE_UNSUPPORTED) : int(SUCCESS);
}

int synchronise_context(void* context) {
    int error = SUCCESS;
    for (Stream* stream : streams)
        if (stream->capturing && stream->context == context) error = refuse(stream, CAPTURE_UNSUPPORTED);
    if (error) return error;
    drain(nullptr);
    for (const Stream* stream : streams)
        if (stream->context == context) history::host_waits(stream->clock);
    return SUCCESS;
}

int push(Stream* stream, Work work) {
    if (fails()) return LAUNCH_FAILED;
    this_thread_queues();
    Guard guard;
    if (const int error = check_usable(stream)) return error;
    if (stream->capturing) {
        stream->capturing->works.push_back(std::move(work));
    } else {
        stream->queue.push_back(Op{std::move(work), history::queue(stream->clock, stream->number)});
    }
    return SUCCESS;
}

// A part of memory that the host and GPUs share is a use; the host's other memory is not known.
static void add_host_use(std::vector<Use>& uses, const void* at, size_t bytes, bool writes) {
    if (history::is_memory((uint64_t)at)) uses.push_back({(uint64_t)at, bytes, writes});
}

API int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
    NEEDS_CONTEXT;
    {
        // The host is taken to have written the source just before.
        Guard guard;
        std::vector<Use> source;
        add_host_use(source, from, bytes, true);
        history::use(history::host(), 0, "the host, for a copy,", source);
    }
    return push(stream, {"a copy to the GPU", [=](std::vector<Use>& uses) {
                             memcpy((void*)to, from, bytes);
                             add_host_use(uses, from, bytes, false);
                             uses.push_back({to, bytes, true});
                         }});
}
API int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
    NEEDS_CONTEXT;
    return push(stream, {"a copy to the host", [=](std::vector<Use>& uses) {
                             memcpy(to, (void*)from, bytes);
                             uses.push_back({from, bytes, false});
                             add_host_use(uses, to, bytes, true);
                         }});
}
API int cuMemsetD8Async(Address at, unsigned char value, size_t bytes, Stream* stream) {
    NEEDS_CONTEXT;
    return push(stream, {"a memset", [=](std::vector<Use>& uses) {
                             memset((void*)at, value, bytes);
                             uses.push_back({at, bytes, true});
                         }});
}

API int cuStreamCreate(Stream** stream, unsigned flags) {
    NEEDS_CONTEXT;
    Guard guard;
    *stream = new Stream;
    (*stream)->context = current_context;
    (*stream)->flags = flags;
    (*stream)->number = history::new_stream();
    streams.push_back(*stream);
    return SUCCESS;
}
API int cuStreamSynchronize(Stream* stream) {
    NEEDS_CONTEXT;
    let_others_queue();
    Guard guard;
    if (const int error = check_idle(stream)) return error;
    drain(stream);
    return history::host_waits(stream->clock), SUCCESS;
}
API int cuStreamDestroy_v2(Stream* stream) {
    NEEDS_CONTEXT;
    Guard guard;
    drain(stream);
    history::end_stream(stream->number, stream->clock);
    for (size_t i = 0; i < streams.size(); ++i)
        if (streams[i] == stream) streams.erase(streams.begin() + i--);
    delete stream;
    return SUCCESS;
}

// The real driver lets streams wait for others during capture; no program here does.
API int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    NEEDS_CONTEXT;
    if (getenv("EMULATED_FORGET_WAITS")) return SUCCESS;
    Guard guard;
    if (const int error = check_usable(stream)) return error;
    if (stream->capturing && !event->captured_by) return refuse(stream, CAPTURE_ISOLATION);
    if (event->captured_by == stream) return SUCCESS;
    if (event->captured_by) return refuse(event->captured_by, CAPTURE_UNSUPPORTED);
    history::join(stream->clock, event->clock);
    stream->queue.push_back(Op{{}, {}, event, event->recorded});
    return SUCCESS;
}

API int cuStreamBeginCapture_v2(Stream* stream, int mode) {
    NEEDS_CONTEXT;
    enum { RELAXED = 2 };
    if (fails() || number_of("EMULATED_CAPTURE", 1) == 0) return CAPTURE_UNSUPPORTED;
    Guard guard;
    if (!stream || stream->capturing || mode != RELAXED) return CAPTURE_UNSUPPORTED;
    stream->capturing = new Graph;
    stream->capture_error = 0;
    return SUCCESS;
}
API int cuStreamEndCapture(Stream* stream, Graph** graph) {
    NEEDS_CONTEXT;
    Guard guard;
    if (!stream || !stream->capturing) return INVALID_VALUE;
    *graph = stream->capturing;
    stream->capturing = nullptr;
    if (!stream->capture_error) return SUCCESS;
    delete *graph;
    return *graph = nullptr, CAPTURE_INVALIDATED;
}

API int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
    NEEDS_CONTEXT;
    if (fails()) return OUT_OF_MEMORY;
    return *made = new Graph(*graph), SUCCESS;
}
API int cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }
API int cuGraphExecDestroy(Graph* made) { return delete made, SUCCESS; }
API int cuGraphLaunch(Graph* made, Stream* stream) {
    NEEDS_CONTEXT;
    ++launched_graphs;
    for (const Work& work : made->works)
        if (const int error = push(stream, work)) return error;
    return SUCCESS;
}

API int cuEventCreate(Event** event, unsigned) {
    NEEDS_CONTEXT;
    if (fails()) return OUT_OF_MEMORY;
    *event = new Event;
    return (*event)->context = current_context, SUCCESS;
}
// Streams may still hold it, so it is kept.
API int cuEventDestroy_v2(Event*) {
    NEEDS_CONTEXT;
    return SUCCESS;
}
API int cuEventRecord(Event* event, Stream* stream) {
    NEEDS_CONTEXT;
    Guard guard;
    if (const int error = check_usable(stream)) return error;
    if (event->context != stream->context) return refuse(stream, INVALID_HANDLE);
    event->captured_by = stream->capturing ? stream : nullptr;
    if (stream->capturing) return SUCCESS;
    event->clock = history::queue(stream->clock, stream->number);
    const uint64_t version = ++event->recorded;
    stream->queue.push_back(Op{{"an event", [=](std::vector<Use>&) {
                                    const auto now = std::chrono::steady_clock::now().time_since_epoch();
                                    event->ms = std::chrono::duration<double, std::milli>(now).count() + pretended_ms;
                                    if (event->happened < version) event->happened = version;
                                }},
                               {}});
    return SUCCESS;
}
API int cuEventSynchronize(Event* event) {
    NEEDS_CONTEXT;
    let_others_queue();
    Guard guard;
    if (event->captured_by) return refuse(event->captured_by, CAPTURED_EVENT);
    run_until([=] { return event->happened >= event->recorded; });
    return history::host_waits(event->clock), SUCCESS;
}
API int cuEventQuery(Event* event) {
    NEEDS_CONTEXT;
    let_others_queue();
    Guard guard;
    if (event->captured_by) return refuse(event->captured_by, CAPTURED_EVENT);
    step();
    if (event->happened < event->recorded) return NOT_READY;
    return history::host_waits(event->clock), SUCCESS;
}
// Not cuEventElapsedTime_v2, which drivers before 12.8 do not have.
API int cuEventElapsedTime(float* ms, Event* from, Event* to) {
    NEEDS_CONTEXT;
    Guard guard;
    if (from->happened < from->recorded || to->happened < to->recorded) return NOT_READY;
    return *ms = float(to->ms - from->ms), SUCCESS;
}

// For other emulated libraries. `data` is copied, because a graph runs it more than once.
API void emulated_push_named(
    const char* name, Stream* stream, void (*run)(const void*), const void* data, size_t bytes, const Use* uses, size_t count) {
    std::vector<char> copy((const char*)data, (const char*)data + bytes);
    std::vector<Use> its(uses, uses + count);
    push(stream, {name, [=](std::vector<Use>& uses) {
                      run(copy.data());
                      uses = its;
                  }});
}
// For the emulated BLAS.
API void emulated_push(Stream* stream, void (*run)(const void*), const void* data, size_t bytes, const Use* uses, size_t count) {
    ++queued_products;
    emulated_push_named("a product of cuBLAS", stream, run, data, bytes, uses, count);
}
