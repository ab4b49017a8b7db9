// One layer's attention in one step, as the caller describes it. The same fields in the same order stand in calls.py.
#pragma once
#include "common.h"

struct Attention {
    // this step
    const int64_t* slots;   // [tokens] where keys and values go; null: there is no pool
    const int64_t* tables;  // [sequences, table_width] slots of each context
    const int64_t* starts;  // [sequences] first token of each
    const int64_t* queries;  // [sequences] new tokens of each
    const int64_t* lengths;  // [sequences] tokens of each context, the new ones included
    int64_t tokens, sequences, table_width;
    // the model
    int64_t heads, kv_heads, dim, value_dim, values_in_keys;
    // this layer
    const bf16 *q, *k, *v;  // [tokens, heads, dim], [tokens, kv_heads, dim], [tokens, kv_heads, value_dim]
    int64_t q_stride, k_stride, v_stride;  // numbers from one token to the next; the heads of a token are dense
    bf16 *pool_k, *pool_v;
    int64_t pool_k_stride, pool_v_stride, pool_v_head;  // from slot to slot, and from head to head of the values
    bf16* out;  // [tokens, heads, value_dim]
    int64_t causal, window;  // window 0: none
    float scale, softcap;    // softcap 0: none
};

// Where the keys and values of one sequence and one key head lie.
struct Context {
    const bf16 *k, *v;
    const int64_t* table;  // null: the rows follow one another
    size_t k_stride, v_stride;

    Context(const Attention& a, int64_t sequence, int64_t head) {
        if (a.slots) {
            k = a.pool_k + head * a.dim, v = a.pool_v + head * a.pool_v_head;
            k_stride = a.pool_k_stride, v_stride = a.pool_v_stride;
            table = a.tables + sequence * a.table_width;
        } else {
            k = a.k + a.starts[sequence] * a.k_stride + head * a.dim;
            v = a.v + a.starts[sequence] * a.v_stride + head * a.value_dim;
            k_stride = a.k_stride, v_stride = a.v_stride;
            table = nullptr;
        }
    }
    size_t row(int64_t i) const { return table ? (size_t)table[i] : (size_t)i; }
    const bf16* key(int64_t i) const { return k + row(i) * k_stride; }
    const bf16* value(int64_t i) const { return v + row(i) * v_stride; }
};

// The part of a context that new token `query` of a sequence sees: [from, to).
struct Seen {
    int64_t from, to;
    Seen(const Attention& a, int64_t sequence, int64_t query) {
        const int64_t length = a.lengths[sequence], position = length - a.queries[sequence] + query;
        to = a.causal ? position + 1 : length;
        from = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    }
};

// Running softmax of one row (Milakov and Gimelshein, 2018): the largest score so far and the sum of the weights.
struct Softmax {
    float largest = -INFINITY, sum = 0.0f;

    // Turns the products [from, to) into weights and the others of [0, padded), a multiple of 16, into 0. Returns the
    // factor for what was added up before.
    float weigh(float* scores, int64_t from, int64_t to, int64_t padded, float scale, float softcap) {
        __m512 greatest = _mm512_set1_ps(-INFINITY);
        for (int64_t i = 0; i < padded; i += 16) {
            const __mmask16 lanes = first(to - i) & ~first(from - i);
            __m512 x = _mm512_mul_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(scale));
            if (softcap != 0.0f) x = capped(x, softcap);
            x = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), lanes, x);
            _mm512_storeu_ps(scores + i, x);
            greatest = _mm512_max_ps(greatest, x);
        }
        const float before = largest, here = _mm512_reduce_max_ps(greatest);
        if (here > largest) largest = here;
        const __m512 top = _mm512_set1_ps(largest == -INFINITY ? 0.0f : largest);
        __m512 total = _mm512_setzero_ps();
        for (int64_t i = 0; i < padded; i += 16) {
            const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), top));
            _mm512_storeu_ps(scores + i, weight);
            total = _mm512_add_ps(total, weight);
        }
        const float factor = before == -INFINITY ? 0.0f : _mm512_cvtss_f32(exponential(_mm512_set1_ps(before - largest)));
        sum = sum * factor + _mm512_reduce_add_ps(total);
        return factor;
    }

    static __m512 capped(__m512 x, float softcap) {  // softcap * tanh(x / softcap)
        const __m512 unit = _mm512_set1_ps(1.0f), twice = _mm512_mul_ps(x, _mm512_set1_ps(2.0f / softcap));
        const __m512 below = _mm512_add_ps(unit, exponential(twice));
        return _mm512_mul_ps(_mm512_set1_ps(softcap), _mm512_sub_ps(unit, _mm512_div_ps(_mm512_set1_ps(2.0f), below)));
    }
};

// Memory for a thread's work: grows, and is given back at the end.
struct Scratch {
    char* memory = nullptr;
    size_t size = 0;
    ~Scratch() { free(memory); }
    char* get(size_t bytes) {
        if (bytes > size) {
            free(memory);
            size = (bytes + 63) / 64 * 64;
            memory = (char*)aligned_alloc(64, size);
            if (!memory) abort();
        }
        return memory;
    }
};

void attend_few(const Attention& a, int64_t sequence, int64_t query, int64_t first_head, int64_t last_head, Scratch& scratch);
void attend_many(const Attention& a, int64_t sequence, int64_t from, int64_t to, int64_t kv_head, Scratch& scratch);
