// A part of memory that an operation reads or writes.
#pragma once
#include <cstddef>
#include <cstdint>

struct Use {
    uint64_t at, bytes;
    bool writes;
};
