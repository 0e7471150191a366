// The history of memory: for each part, the last write and the reads since, as stamps of a stream's clock. The clocks
// only depend on the order in which the host queues and waits, so a missing wait is found in every order of execution.
//
// All threads of the host have one clock, because locks and channels between them are not seen.
#include "history.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>

#include "driver.h"

namespace {

struct Stamp {
    uint32_t stream = 0, tick = 0;  // tick 0: none
    const std::string* name = nullptr;
};

struct Part {
    uint64_t end;
    Stamp write;
    std::vector<Stamp> reads;
};

struct Memory {
    uint64_t bytes;
    Stamp freed;
};

Clock host_clock(1, 0);
std::vector<uint32_t> unused_numbers;
std::map<std::string, int> names;
std::map<uint64_t, Part> parts;
std::map<uint64_t, Memory> memories;

struct Released {
    void* memory;
    uint64_t bytes;
};
std::deque<Released> released;
uint64_t released_bytes;
constexpr uint64_t MOST_RELEASED = 64ull << 20;

uint32_t& tick_of(Clock& clock, uint32_t stream) {
    if (clock.size() <= stream) clock.resize(stream + 1);
    return clock[stream];
}

bool includes(const Clock& clock, const Stamp& stamp) {
    return stamp.tick == 0 || (stamp.stream < clock.size() && clock[stamp.stream] >= stamp.tick);
}

std::string told(const Stamp& stamp) {
    return stamp.stream == 0 ? *stamp.name : *stamp.name + " on stream " + std::to_string(stamp.stream);
}

[[noreturn]] void missing_wait(const Stamp& now, const char* uses, const Stamp& earlier, const char* used) {
    abort_with("a missing wait: " + told(now) + " " + uses + " memory that " + told(earlier) + " " + used +
               ", and neither waits for the other");
}

// Makes a part begin at this address, if one has it.
void split(uint64_t at) {
    auto after = parts.upper_bound(at);
    if (after == parts.begin()) return;
    auto& [begin, part] = *std::prev(after);
    if (begin == at || part.end <= at) return;
    parts[at] = part;
    part.end = at;
}

void check_lives(const Stamp& now, const Use& use) {
    const auto outside = [&] { abort_with(told(now) + (use.writes ? " writes" : " reads") + " outside of all allocations"); };
    if (!history::is_memory(use.at)) outside();
    const auto& [begin, memory] = *std::prev(memories.upper_bound(use.at));
    if (use.at + use.bytes > begin + memory.bytes) outside();
    if (memory.freed.tick) missing_wait(now, use.writes ? "writes" : "reads", memory.freed, "freed");
}

void note(const Clock& clock, const Stamp& now, const Use& use) {
    const uint64_t end = use.at + use.bytes;
    split(use.at), split(end);
    const char* mine = use.writes ? "writes" : "reads";
    uint64_t at = use.at;
    for (auto part = parts.lower_bound(use.at); at < end;) {
        if (part == parts.end() || part->first > at) {
            const uint64_t gap_end = part == parts.end() ? end : std::min(end, part->first);
            part = parts.emplace_hint(part, at, Part{gap_end, {}, {}});
        }
        Part& its = part->second;
        if (!includes(clock, its.write)) missing_wait(now, mine, its.write, "writes");
        if (use.writes) {
            for (const Stamp& read : its.reads)
                if (!includes(clock, read)) missing_wait(now, mine, read, "reads");
        } else {
            auto& reads = its.reads;
            reads.erase(std::remove_if(reads.begin(), reads.end(), [&](const Stamp& read) { return includes(clock, read); }),
                        reads.end());
            reads.push_back(now);
        }
        at = its.end;
        part = use.writes ? parts.erase(part) : std::next(part);
    }
    if (use.writes) parts[use.at] = Part{end, now, {}};
}

Stamp stamp_of(const Clock& clock, uint32_t stream, const std::string& name) {
    return {stream, clock[stream], &names.try_emplace(name).first->first};
}

}  // namespace

namespace history {

bool is_kept() {
    static const bool kept = getenv("EMULATED_RACES") != nullptr;
    return kept;
}

void join(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void host_waits(const Clock& clock) { join(host_clock, clock); }

uint32_t new_stream() {
    static uint32_t streams = 0;
    if (unused_numbers.empty()) return ++streams;
    const uint32_t number = unused_numbers.back();
    unused_numbers.pop_back();
    return number;
}

void end_stream(uint32_t number, const Clock& clock) {
    host_waits(clock);
    unused_numbers.push_back(number);
}

Clock queue(Clock& stream, uint32_t number) {
    if (!is_kept()) return {};
    join(stream, host_clock);
    ++tick_of(stream, number);
    return stream;
}

void use(const Clock& clock, uint32_t stream, const std::string& name, const std::vector<Use>& uses) {
    if (!is_kept() || uses.empty()) return;
    const Stamp now = stamp_of(clock, stream, name);
    for (const Use& use : uses) {
        if (use.bytes == 0) continue;
        check_lives(now, use);
        // What an operation writes after it has read it is a write.
        note(clock, now, use);
    }
}

Clock host() {
    ++host_clock[0];
    return host_clock;
}

bool is_memory(uint64_t at) {
    auto found = memories.upper_bound(at);
    return found != memories.begin() && at < std::prev(found)->first + std::prev(found)->second.bytes;
}

void begin_memory(const Clock& clock, uint32_t stream, uint64_t at, uint64_t bytes) {
    if (!is_kept()) return;
    memories[at] = {bytes, {}};
    use(clock, stream, "an allocation", {{at, bytes, true}});
}

void end_memory(const Clock& clock, uint32_t stream, uint64_t at, uint64_t bytes) {
    if (!is_kept()) return;
    use(clock, stream, stream ? "a call that frees" : "the host, which frees", {{at, bytes, true}});
    memories[at].freed = stamp_of(clock, stream, stream ? "a call that frees" : "the host, which frees");
}

void release(void* memory, uint64_t bytes) {
    if (!is_kept()) return free(memory);
    released.push_back({memory, bytes});
    for (released_bytes += bytes; released_bytes > MOST_RELEASED; released.pop_front()) {
        const auto [oldest, its_bytes] = released.front();
        const uint64_t at = (uint64_t)oldest;
        split(at), split(at + its_bytes);
        parts.erase(parts.lower_bound(at), parts.lower_bound(at + its_bytes));
        memories.erase(at);
        released_bytes -= its_bytes;
        free(oldest);
    }
}

}  // namespace history
