// What both kinds of dense products share.
#pragma once

struct Product {
    const Stored* a;
    const Stored* b;
    void* out;  // f32 with `wide`
    u64 m;
    u64 n;
    u64 k;
    u64 a_row;
    u64 a_column;
    u64 b_row;
    u64 b_column;
    u64 k_of_part;
    u64 wide;
    u64 adds;  // whether each sum begins with what `out` holds
};
