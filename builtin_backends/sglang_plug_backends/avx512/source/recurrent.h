// What recurrent layers are told, by the caller. The same fields in the same order stand in calls.py.
#pragma once
#include "common.h"

struct Convolution {
    const int64_t *rows, *starts;  // [sequences] rows of the states; [sequences + 1] first token of each
    int64_t sequences, channels, width, x_stride;
    const bf16 *x, *weight, *bias;  // [tokens, channels], [channels, width], [channels] or null
    bf16 *states, *out;             // [rows, width - 1, channels], [tokens, channels]
};

struct SelectiveScan {
    const int64_t *rows, *starts;
    int64_t sequences, channels, size;       // size: numbers of a channel's state, at most 16
    const void *x, *b, *c;                   // [tokens, channels], [tokens, size] twice
    int64_t x_stride, b_stride, c_stride;    // numbers from one token to the next
    int64_t wide_x, wide_b, wide_c;          // in float32, not in bfloat16; what comes out is as x
    const float *step, *rates;               // [tokens, channels], [channels, size]
    float* states;                           // [rows, channels, size]
    void* out;                               // [tokens, channels]
};

struct Recurrence {
    const int64_t *rows, *starts;
    int64_t sequences, key_heads, heads, dim, value_dim;
    const void *q, *k, *v;                 // [tokens, key_heads, dim] twice, [tokens, heads, value_dim]
    int64_t q_stride, k_stride, v_stride;  // numbers from one token to the next; the heads of a token are dense
    int64_t wide_keys, wide_values;        // q and k, and v and out, are in float32, not in bfloat16
    const float *decay, *rate;             // [tokens, heads]; rate null: linear attention, else the gated delta rule
    float* states;                         // [rows, heads, dim, value_dim]
    void* out;                             // [tokens, heads, value_dim]
};
