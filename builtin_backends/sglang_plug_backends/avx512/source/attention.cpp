// Stores a step's keys and values and shares its attention out among the threads.
#include <cmath>
#include "attention.h"
#include "functions.h"

namespace {

constexpr int64_t MANY = 8;        // from so many new tokens on packing the context pays
constexpr int64_t MIN_PART = 192;  // new tokens for which the context may be packed once more

struct Work {
    bool many;
    int64_t sequence, from, to;  // new tokens
    int64_t first_head, last_head;
};

void store_row(const bf16* from, bf16* to, int64_t count) { __builtin_memcpy(to, from, count * sizeof(bf16)); }

void store_new(const Attention& a) {
#pragma omp parallel for if (a.tokens >= 64)
    for (int64_t token = 0; token < a.tokens; ++token) {
        const size_t slot = a.slots[token];
        store_row(a.k + token * a.k_stride, a.pool_k + slot * a.pool_k_stride, a.kv_heads * a.dim);
        if (!a.values_in_keys)
            store_row(a.v + token * a.v_stride, a.pool_v + slot * a.pool_v_stride, a.kv_heads * a.value_dim);
    }
}

// Long sequences are cut so that every thread has something to do, and the longest pieces come first.
struct Plan {
    Work* work;
    int64_t count = 0;

    explicit Plan(const Attention& a, Work* memory) : work(memory) {
        for (int64_t s = 0; s < a.sequences; ++s)
            if (a.queries[s] >= MANY) add_long(a, s);
        // the heads of a token lie side by side: they are read together unless threads would have nothing to do
        const int64_t heads = a.sequences < 4 * omp_get_max_threads() ? 1 : a.kv_heads;
        for (int64_t s = 0; s < a.sequences; ++s)
            if (a.queries[s] < MANY)
                for (int64_t q = 0; q < a.queries[s]; ++q)
                    for (int64_t h = 0; h < a.kv_heads; h += heads) work[count++] = {false, s, q, q + 1, h, h + heads};
    }

    static int64_t parts(const Attention& a, int64_t sequence) {
        const int64_t balanced = a.sequences * a.kv_heads % omp_get_max_threads() ? 4 : 1;
        const int64_t limit = a.queries[sequence] / MIN_PART;
        return balanced < limit ? balanced : limit < 1 ? 1 : limit;
    }

    static int64_t room(const Attention& a) {
        int64_t total = 0;
        for (int64_t s = 0; s < a.sequences; ++s) total += (a.queries[s] < MANY ? a.queries[s] : parts(a, s)) * a.kv_heads;
        return total;
    }

 private:
    void add_long(const Attention& a, int64_t s) {
        const int64_t cut = parts(a, s), size = (a.queries[s] + cut - 1) / cut;
        for (int64_t part = cut - 1; part >= 0; --part) {
            const int64_t from = part * size, to = from + size < a.queries[s] ? from + size : a.queries[s];
            for (int64_t h = 0; h < a.kv_heads && from < to; ++h) work[count++] = {true, s, from, to, h, h + 1};
        }
    }
};

}  // namespace

EXPORT void attend(const Attention* layer) {
    const Attention& a = *layer;
    if (a.slots) store_new(a);
    Work* memory = (Work*)malloc((Plan::room(a) + 1) * sizeof(Work));
    if (!memory) abort();
    const Plan plan(a, memory);
    Pieces pieces{plan.count, 1};
#pragma omp parallel if (plan.count > 1)
    {
        Scratch scratch;
        for (long from, to; pieces.take(from, to);) {
            const Work& piece = plan.work[from];
            if (piece.many)
                attend_many(a, piece.sequence, piece.from, piece.to, piece.first_head, scratch);
            else
                attend_few(a, piece.sequence, piece.from, piece.first_head, piece.last_head, scratch);
        }
    }
    free(memory);
}
