// Recurrent layers: each sequence's state is read, changed by its tokens one after the other, and left where it was.
#include <cmath>
#include "functions.h"
#include "recurrent.h"

namespace {

constexpr long ALONE = 1 << 13;  // fewer numbers than this are not worth waking the other threads
constexpr int64_t LONGEST_TAPS = 8, LONGEST_KEY = 512;  // what callers may ask for
constexpr float SMALLEST = 1e-6f;

inline __m512 load(const float* at, __mmask16 lanes = 0xffff) { return _mm512_maskz_loadu_ps(lanes, at); }
inline void store(float* at, __m512 x, __mmask16 lanes = 0xffff) { _mm512_mask_storeu_ps(at, lanes, x); }
using ::load;
using ::store;

// Sixteen channels of one sequence.
void convolve(const Convolution& c, int64_t sequence, int64_t channel) {
    const __mmask16 lanes = first(c.channels - channel);
    const int64_t before = c.width - 1;
    __m512 taps[LONGEST_TAPS], held[LONGEST_TAPS];
    for (int64_t tap = 0; tap < c.width; ++tap) {
        alignas(64) float numbers[16] = {};
        for (int64_t i = 0; i < 16 && channel + i < c.channels; ++i) {
            const uint32_t bits = (uint32_t)c.weight[(channel + i) * c.width + tap] << 16;
            __builtin_memcpy(numbers + i, &bits, sizeof bits);
        }
        taps[tap] = _mm512_load_ps(numbers);
    }
    bf16* state = c.states + c.rows[sequence] * before * c.channels + channel;
    for (int64_t tap = 0; tap < before; ++tap) held[tap] = load(state + tap * c.channels, lanes);
    const __m512 bias = c.bias ? load(c.bias + channel, lanes) : _mm512_setzero_ps();
    for (int64_t token = c.starts[sequence]; token < c.starts[sequence + 1]; ++token) {
        held[before] = load(c.x + token * c.x_stride + channel, lanes);
        __m512 sum = bias;
        for (int64_t tap = 0; tap < c.width; ++tap) sum = _mm512_fmadd_ps(held[tap], taps[tap], sum);
        store(c.out + token * c.channels + channel, sum, lanes);
        for (int64_t tap = 0; tap < before; ++tap) held[tap] = held[tap + 1];
    }
    for (int64_t tap = 0; tap < before; ++tap) store(state + tap * c.channels, held[tap], lanes);
}

template <typename Number>
void widen_all(const Number* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) store(to + i, load(from + i, first(count - i)), first(count - i));
}

float product(const float* a, const float* b, int64_t count) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i += 16)
        sum = _mm512_fmadd_ps(load(a + i, first(count - i)), load(b + i, first(count - i)), sum);
    return _mm512_reduce_add_ps(sum);
}

void scale(float* x, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i += 16)
        store(x + i, _mm512_mul_ps(load(x + i, first(count - i)), _mm512_set1_ps(factor)), first(count - i));
}

// N times sixteen columns of one head's state, from `column` on. What the state says to the query is found together with
// what it says to the key, before it changes: q (S + k d) = q S + (q k) d.
template <int N, bool DELTA, typename Key, typename Value>
void recur(const Recurrence& r, int64_t sequence, int64_t head, int64_t column) {
    alignas(64) float q[LONGEST_KEY], k[LONGEST_KEY];
    __mmask16 lanes[N];
    for (int n = 0; n < N; ++n) lanes[n] = first(r.value_dim - column - 16 * n);
    float* state = r.states + ((r.rows[sequence] * r.heads + head) * r.dim) * r.value_dim + column;
    const int64_t key_head = head / (r.heads / r.key_heads);
    for (int64_t token = r.starts[sequence]; token < r.starts[sequence + 1]; ++token) {
        widen_all((const Key*)r.q + token * r.q_stride + key_head * r.dim, q, r.dim);
        widen_all((const Key*)r.k + token * r.k_stride + key_head * r.dim, k, r.dim);
        if (DELTA) {
            scale(q, r.dim, 1.0f / std::sqrt((product(q, q, r.dim) + SMALLEST) * r.dim));
            scale(k, r.dim, 1.0f / std::sqrt(product(k, k, r.dim) + SMALLEST));
        }
        const __m512 kept = exponential(_mm512_set1_ps(r.decay[token * r.heads + head]));
        __m512 answers[N], known[N];
        for (int n = 0; n < N; ++n) answers[n] = known[n] = _mm512_setzero_ps();
        const float* row = state;
        for (int64_t d = 0; d < r.dim; ++d, row += r.value_dim) {
            const __m512 query = _mm512_set1_ps(q[d]), key = _mm512_set1_ps(k[d]);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const __m512 here = load(row + 16 * n, lanes[n]);
                answers[n] = _mm512_fmadd_ps(query, here, answers[n]);
                if (DELTA) known[n] = _mm512_fmadd_ps(key, here, known[n]);
            }
        }
        const __m512 both = _mm512_set1_ps(product(q, k, r.dim));
        const __m512 rate = _mm512_set1_ps(DELTA ? r.rate[token * r.heads + head] : 1.0f);
        __m512 change[N];
        for (int n = 0; n < N; ++n) {
            change[n] = load((const Value*)r.v + token * r.v_stride + head * r.value_dim + column + 16 * n, lanes[n]);
            if (DELTA) change[n] = _mm512_mul_ps(_mm512_fnmadd_ps(kept, known[n], change[n]), rate);
            const __m512 out = _mm512_fmadd_ps(both, change[n], _mm512_mul_ps(kept, answers[n]));
            store((Value*)r.out + (token * r.heads + head) * r.value_dim + column + 16 * n, out, lanes[n]);
        }
        float* changed = state;
        for (int64_t d = 0; d < r.dim; ++d, changed += r.value_dim) {
            const __m512 key = _mm512_set1_ps(k[d]);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const __m512 here = _mm512_mul_ps(kept, load(changed + 16 * n, lanes[n]));
                store(changed + 16 * n, _mm512_fmadd_ps(key, change[n], here), lanes[n]);
            }
        }
    }
}

inline float number(const bf16* at) {
    const uint32_t bits = (uint32_t)*at << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
inline float number(const float* at) { return *at; }

constexpr int64_t TOGETHER = 8;  // channels whose states are in registers

// Some channels of one sequence; the numbers of a channel's state lie side by side.
template <typename Input, typename Write, typename Read>
void scan(const SelectiveScan& s, int64_t sequence, int64_t channel) {
    const __mmask16 lanes = first(s.size);
    const int64_t count = s.channels - channel < TOGETHER ? s.channels - channel : TOGETHER;
    float* held = s.states + (s.rows[sequence] * s.channels + channel) * s.size;
    __m512 state[TOGETHER], rates[TOGETHER];
    for (int64_t i = 0; i < count; ++i) {
        state[i] = load(held + i * s.size, lanes);
        rates[i] = load(s.rates + (channel + i) * s.size, lanes);
    }
    for (int64_t token = s.starts[sequence]; token < s.starts[sequence + 1]; ++token) {
        const __m512 write = load((const Write*)s.b + token * s.b_stride, lanes);
        const __m512 read = load((const Read*)s.c + token * s.c_stride, lanes);
        const float* step = s.step + token * s.channels + channel;
        const Input* x = (const Input*)s.x + token * s.x_stride + channel;
        alignas(64) float sums[16] = {};
        for (int64_t i = 0; i < count; ++i) {
            const __m512 kept = exponential(_mm512_mul_ps(_mm512_set1_ps(step[i]), rates[i]));
            const __m512 added = _mm512_mul_ps(_mm512_set1_ps(step[i] * number(x + i)), write);
            state[i] = _mm512_fmadd_ps(kept, state[i], added);
            sums[i] = _mm512_reduce_add_ps(_mm512_mul_ps(state[i], read));
        }
        store((Input*)s.out + token * s.channels + channel, _mm512_load_ps(sums), first(count));
    }
    for (int64_t i = 0; i < count; ++i) store(held + i * s.size, state[i], lanes);
}

template <typename Input>
void scan_as_stored(const SelectiveScan& s, int64_t sequence, int64_t channel) {
    if (s.wide_b)
        s.wide_c ? scan<Input, float, float>(s, sequence, channel) : scan<Input, float, bf16>(s, sequence, channel);
    else
        s.wide_c ? scan<Input, bf16, float>(s, sequence, channel) : scan<Input, bf16, bf16>(s, sequence, channel);
}

constexpr int WIDE = 4;  // times sixteen columns at once: answers, known and change in registers

template <bool DELTA, typename Key, typename Value>
void recur_columns(const Recurrence& r, int64_t sequence, int64_t head, int64_t column) {
    switch ((r.value_dim - column + 15) / 16) {
        case 1: return recur<1, DELTA, Key, Value>(r, sequence, head, column);
        case 2: return recur<2, DELTA, Key, Value>(r, sequence, head, column);
        case 3: return recur<3, DELTA, Key, Value>(r, sequence, head, column);
        default: return recur<WIDE, DELTA, Key, Value>(r, sequence, head, column);
    }
}

template <typename Key, typename Value>
void recur_by_rule(const Recurrence& r, int64_t sequence, int64_t head, int64_t column) {
    if (r.rate) recur_columns<true, Key, Value>(r, sequence, head, column);
    else recur_columns<false, Key, Value>(r, sequence, head, column);
}

}  // namespace

EXPORT void causal_conv(const Convolution* call) {
    const Convolution& c = *call;
    const int64_t blocks = (c.channels + 15) / 16, tokens = c.starts[c.sequences];
#pragma omp parallel for schedule(static) if (tokens * c.channels >= ALONE)
    for (int64_t piece = 0; piece < c.sequences * blocks; ++piece) convolve(c, piece / blocks, piece % blocks * 16);
}

EXPORT void recurrence(const Recurrence* call) {
    const Recurrence& r = *call;
    const int64_t blocks = (r.value_dim + 16 * WIDE - 1) / (16 * WIDE), pieces = r.sequences * r.heads * blocks;
#pragma omp parallel for schedule(dynamic) if (pieces * r.dim * 16 >= ALONE)
    for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t column = piece % blocks * 16 * WIDE, head = piece / blocks % r.heads;
        const int64_t sequence = piece / blocks / r.heads;
        if (r.wide_keys)
            r.wide_values ? recur_by_rule<float, float>(r, sequence, head, column)
                          : recur_by_rule<float, bf16>(r, sequence, head, column);
        else
            r.wide_values ? recur_by_rule<bf16, float>(r, sequence, head, column)
                          : recur_by_rule<bf16, bf16>(r, sequence, head, column);
    }
}

EXPORT void selective_scan(const SelectiveScan* call) {
    const SelectiveScan& s = *call;
    const int64_t blocks = (s.channels + TOGETHER - 1) / TOGETHER, pieces = s.sequences * blocks;
#pragma omp parallel for schedule(dynamic) if (s.starts[s.sequences] * s.channels * 16 >= ALONE)
    for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t sequence = piece / blocks, channel = piece % blocks * TOGETHER;
        s.wide_x ? scan_as_stored<float>(s, sequence, channel) : scan_as_stored<bf16>(s, sequence, channel);
    }
}
