// Recurrent layers, token by token in double.
#include <cmath>

#include "checks.h"
#include "functions.h"
#include "recurrent.h"

namespace {

const std::vector<std::vector<int64_t>> LENGTHS = {{1}, {5, 1, 70}, {1, 1, 1, 1}, {0, 3}};
constexpr int64_t RESERVED = 2;  // rows before those of the sequences

// Which rows of the states the sequences have, in reverse, and where their tokens begin.
struct Runs {
    Guarded<int64_t> rows, starts;
    int64_t sequences, tokens, states;

    Runs(const std::vector<int64_t>& lengths, Side side)
        : rows(lengths.size(), side), starts(lengths.size() + 1, side), sequences((int64_t)lengths.size()), tokens(0),
          states(sequences + RESERVED) {
        for (int64_t i = 0; i < sequences; ++i) rows[i] = states - 1 - i, starts[i] = tokens, tokens += lengths[i];
        starts[sequences] = tokens;
    }
};

void check_convolution(const std::vector<int64_t>& lengths, int64_t channels, int64_t width, bool biased, Case& c) {
    Runs runs(lengths, c.side);
    const int64_t before = width - 1;
    Guarded<bf16> x(runs.tokens * channels, c.side), weight(channels * width, c.side), bias(channels, c.side);
    Guarded<bf16> states(runs.states * before * channels, c.side), out(runs.tokens * channels, c.side);
    fill(x, c), fill(weight, c), fill(bias, c), fill(states, c);
    const std::vector<bf16> old((bf16*)states, (bf16*)states + states.count);
    const Convolution call{runs.rows, runs.starts, runs.sequences, channels, width, channels, x, weight, biased ? (bf16*)bias : nullptr, states, out};
    causal_conv(&call);
    for (int64_t s = 0; s < runs.sequences; ++s)
        for (int64_t token = runs.starts[s]; token < runs.starts[s + 1]; ++token)
            for (int64_t channel = 0; channel < channels; ++channel) {
                double sum = biased ? wide(bias[channel]) : 0;
                for (int64_t tap = 0; tap < width; ++tap) {
                    const int64_t at = token - runs.starts[s] + tap - before;
                    const bf16 input = at < 0 ? old[(runs.rows[s] * before + before + at) * channels + channel] : x[(runs.starts[s] + at) * channels + channel];
                    sum += (double)wide(input) * wide(weight[channel * width + tap]);
                }
                compare("convolution", wide(out[token * channels + channel]), sum, width + 1);
            }
}

template <typename Key, typename Value>
void check_recurrence(const std::vector<int64_t>& lengths, int64_t dim, int64_t value_dim, bool delta, Case& c) {
    const int64_t key_heads = 1, heads = 2;
    Runs runs(lengths, c.side);
    Guarded<Key> q(runs.tokens * key_heads * dim, c.side), k(runs.tokens * key_heads * dim, c.side);
    Guarded<Value> v(runs.tokens * heads * value_dim, c.side), out(runs.tokens * heads * value_dim, c.side);
    Guarded<float> decay(runs.tokens * heads, c.side), rate(runs.tokens * heads, c.side);
    Guarded<float> states(runs.states * heads * dim * value_dim, c.side);
    fill(q, c, 0.3f), fill(k, c, 0.3f), fill(v, c), fill(states, c);
    for (size_t i = 0; i < decay.count; ++i) decay[i] = -0.5f - 0.4f * c.real(), rate[i] = 0.5f + 0.4f * c.real();
    std::vector<double> state((float*)states, (float*)states + states.count);
    const Recurrence call{runs.rows, runs.starts, runs.sequences, key_heads, heads, dim, value_dim, (Key*)q, (Key*)k, (Value*)v,
                          key_heads * dim, key_heads * dim, heads * value_dim, sizeof(Key) == 4, sizeof(Value) == 4, decay,
                          delta ? (float*)rate : nullptr, states, (Value*)out};
    recurrence(&call);
    for (int64_t s = 0; s < runs.sequences; ++s)
        for (int64_t token = runs.starts[s]; token < runs.starts[s + 1]; ++token)
            for (int64_t head = 0; head < heads; ++head) {
                double q_size = 1e-6, k_size = 1e-6;
                for (int64_t d = 0; d < dim; ++d) q_size += std::pow(wide(q[token * dim + d]), 2), k_size += std::pow(wide(k[token * dim + d]), 2);
                const double q_factor = delta ? 1 / std::sqrt(q_size * dim) : 1, k_factor = delta ? 1 / std::sqrt(k_size) : 1;
                double* own = state.data() + (runs.rows[s] * heads + head) * dim * value_dim;
                const double kept = std::exp(decay[token * heads + head]);
                for (int64_t e = 0; e < value_dim; ++e) {
                    double known = 0, result = 0;
                    for (int64_t d = 0; d < dim; ++d) own[d * value_dim + e] *= kept, known += own[d * value_dim + e] * wide(k[token * dim + d]) * k_factor;
                    const double value = wide(v[(token * heads + head) * value_dim + e]);
                    const double change = delta ? (value - known) * rate[token * heads + head] : value;
                    for (int64_t d = 0; d < dim; ++d) {
                        own[d * value_dim + e] += change * wide(k[token * dim + d]) * k_factor;
                        result += own[d * value_dim + e] * wide(q[token * dim + d]) * q_factor;
                    }
                    compare("recurrence", wide(out[(token * heads + head) * value_dim + e]), result, std::fabs(result) + 1);
                }
            }
    for (size_t i = 0; i < states.count; ++i) compare("recurrence's state", states[i], state[i], std::fabs(state[i]) + 1);
}

template <typename X, typename Write, typename Read>
void check_scan(const std::vector<int64_t>& lengths, int64_t channels, int64_t size, Case& c) {
    Runs runs(lengths, c.side);
    Guarded<X> x(runs.tokens * channels, c.side), out(runs.tokens * channels, c.side);
    Guarded<Write> b(runs.tokens * size, c.side);
    Guarded<Read> read(runs.tokens * size, c.side);
    Guarded<float> step(runs.tokens * channels, c.side), rates(channels * size, c.side), states(runs.states * channels * size, c.side);
    fill(x, c), fill(b, c), fill(read, c), fill(states, c);
    for (size_t i = 0; i < step.count; ++i) step[i] = 0.5f + 0.4f * c.real();
    for (size_t i = 0; i < rates.count; ++i) rates[i] = -0.5f - 0.4f * c.real();
    std::vector<double> state((float*)states, (float*)states + states.count);
    const SelectiveScan call{runs.rows, runs.starts, runs.sequences, channels, size, (X*)x, (Write*)b, (Read*)read, channels, size, size,
                             sizeof(X) == 4, sizeof(Write) == 4, sizeof(Read) == 4, step, rates, states, (X*)out};
    selective_scan(&call);
    for (int64_t s = 0; s < runs.sequences; ++s)
        for (int64_t token = runs.starts[s]; token < runs.starts[s + 1]; ++token)
            for (int64_t channel = 0; channel < channels; ++channel) {
                double result = 0;
                for (int64_t i = 0; i < size; ++i) {
                    double& cell = state[(runs.rows[s] * channels + channel) * size + i];
                    const double taken = step[token * channels + channel];
                    cell = cell * std::exp(taken * rates[channel * size + i]) + taken * wide(x[token * channels + channel]) * wide(b[token * size + i]);
                    result += cell * wide(read[token * size + i]);
                }
                compare("scan", wide(out[token * channels + channel]), result, std::fabs(result) + size);
            }
    for (size_t i = 0; i < states.count; ++i) compare("scan's state", states[i], state[i], std::fabs(state[i]) + 1);
}

}  // namespace

void check_recurrent(Case& c) {
    for (const auto& lengths : LENGTHS) {
        for (const int64_t channels : {1, 17, 200})
            for (const int64_t width : {2, 4, 8}) check_convolution(lengths, channels, width, channels != 17, c);
        for (const bool delta : {false, true}) {
            check_recurrence<bf16, bf16>(lengths, 16, 7, delta, c), check_recurrence<float, float>(lengths, 17, 48, delta, c);
            check_recurrence<bf16, float>(lengths, 33, 100, delta, c), check_recurrence<float, bf16>(lengths, 64, 64, delta, c);
        }
        for (const int64_t channels : {1, 9, 300}) {
            check_scan<float, float, float>(lengths, channels, 16, c), check_scan<bf16, bf16, bf16>(lengths, channels, 5, c);
            check_scan<bf16, float, bf16>(lengths, channels, 8, c), check_scan<float, bf16, float>(lengths, channels, 1, c);
        }
    }
}
