// Finds operations of streams that use the same memory and are in no order: missing waits.
#pragma once
#include <string>
#include <vector>

#include "use.h"

// For each stream, the number of its operations that come before. Number 0 is the host, with all of its threads.
typedef std::vector<uint32_t> Clock;

namespace history {

// Whether operations are checked: with EMULATED_RACES=1.
bool is_kept();

void join(Clock& clock, const Clock& other);
// The host has waited for what this clock includes.
void host_waits(const Clock& clock);
// Returns the number of a new stream. It may have been that of a stream that was destroyed.
uint32_t new_stream();
void end_stream(uint32_t number, const Clock& clock);
// Returns the clock of a stream's next operation, which the host queues now.
Clock queue(Clock& stream, uint32_t number);

// An operation runs. Ends the program if it is in no order with an earlier use of the same memory.
void use(const Clock& clock, uint32_t stream, const std::string& name, const std::vector<Use>& uses);
// Returns whether this is an address of memory that began: on a GPU, or pinned.
bool is_memory(uint64_t at);

// Memory that operations can use. `stream` allocates or frees it; with 0, the host does.
void begin_memory(const Clock& clock, uint32_t stream, uint64_t at, uint64_t bytes);
void end_memory(const Clock& clock, uint32_t stream, uint64_t at, uint64_t bytes);
// Frees memory that `end_memory` ended. It is kept for some time, because late operations may still use it.
void release(void* memory, uint64_t bytes);

// Returns a clock that includes all that the host knows.
Clock host();

}  // namespace history
