// Norms, activation, rotary positions, masks and sampling.
#include <cmath>
#include <limits>

#include "checks.h"
#include "functions.h"

EXPORT void mask_logits(float* logits, const long* rows, const int* mask, int count, int width, int words);
EXPORT void draw(const float* logits, const float* temperature, const double* uniform, float* tops, double* sums,
                 int64_t* out, int rows, int width);

namespace {

template <typename Weight>
void check_norm(int rows, int width, bool residual, Case& c) {
    Guarded<bf16> x((size_t)rows * width, c.side), kept((size_t)rows * width, c.side), out((size_t)rows * width, c.side);
    Guarded<Weight> weight(width, c.side);
    fill(x, c), fill(kept, c), fill(weight, c);
    std::vector<double> expected(x.count);
    for (int row = 0; row < rows; ++row) {
        double squares = 0;
        for (int i = row * width; i < (row + 1) * width; ++i) {
            expected[i] = residual ? wide(narrow(wide(x[i]) + wide(kept[i]))) : wide(x[i]);
            squares += expected[i] * expected[i];
        }
        for (int i = row * width; i < (row + 1) * width; ++i)
            expected[i] *= wide(weight[i % width]) / std::sqrt(squares / width + 1e-6);
    }
    rms_norm(x, residual ? (bf16*)kept : nullptr, (Weight*)weight, out, rows, width, sizeof(Weight) == 4, 1e-6f);
    for (size_t i = 0; i < out.count; ++i) compare("norm", wide(out[i]), expected[i], std::fabs(expected[i]) + 1);
}

void check_silu(int rows, int width, Case& c) {
    Guarded<bf16> both((size_t)rows * 2 * width, c.side), out((size_t)rows * width, c.side);
    fill(both, c, 4.0f);
    silu_mul(both, out, rows, width);
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < width; ++i) {
            const double gate = wide(both[row * 2 * width + i]), up = wide(both[row * 2 * width + width + i]);
            compare("silu", wide(out[row * width + i]), gate / (1 + std::exp(-gate)) * up, std::fabs(gate * up) + 1);
        }
}

// The rows of x may be further apart than they are long; of the last one no more than its numbers may be touched.
void check_rope(int tokens, int heads, int dim, int width, int apart, Case& c) {
    const long head_stride = dim + apart, token_stride = heads * head_stride + apart;
    Guarded<bf16> x(tokens ? (tokens - 1) * token_stride + (heads - 1) * head_stride + dim : 0, c.side);
    Guarded<bf16> cos((size_t)tokens * width, c.side), sin((size_t)tokens * width, c.side);
    Guarded<bf16> out((size_t)tokens * heads * dim, c.side);
    fill(x, c), fill(cos, c), fill(sin, c);
    rope(x, cos, sin, out, tokens, heads, dim, width, token_stride, head_stride);
    for (int token = 0; token < tokens; ++token)
        for (int head = 0; head < heads; ++head)
            for (int i = 0; i < dim; ++i) {
                const bf16* from = (bf16*)x + token * token_stride + head * head_stride;
                double expected = wide(from[i]);
                if (i < width) {
                    const double other = i < width / 2 ? -wide(from[i + width / 2]) : wide(from[i - width / 2]);
                    expected = expected * wide(cos[token * width + i]) + other * wide(sin[token * width + i]);
                }
                compare("rope", wide(out[(token * heads + head) * dim + i]), expected, 2);
            }
}

void check_mask(int count, int width, int words, bool indexed, Case& c) {
    const int rows = count + 2;
    Guarded<float> logits((size_t)rows * width, c.side);
    Guarded<int> mask((size_t)count * words, c.side);
    Guarded<long> indices(count, c.side);
    fill(logits, c);
    for (size_t i = 0; i < mask.count; ++i) mask[i] = (int)c.random();
    for (int i = 0; i < count; ++i) indices[i] = rows - 1 - i;
    const std::vector<float> before((float*)logits, (float*)logits + logits.count);
    mask_logits(logits, indexed ? (long*)indices : nullptr, mask, count, width, words);
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < width; ++j) {
            const size_t at = (size_t)(indexed ? indices[i] : i) * width + j;
            const bool allowed = j / 32 < words && (mask[i * words + j / 32] >> j % 32 & 1);
            if (allowed ? logits[at] != before[at] : logits[at] != -std::numeric_limits<float>::infinity()) {
                fprintf(stderr, "mask: %g at %d of row %d\n", logits[at], j, i);
                exit(1);
            }
        }
}

void check_draw(int rows, int width, Case& c) {
    const int blocks = (width + 2047) / 2048;
    Guarded<float> logits((size_t)rows * width, c.side), temperature(rows, c.side), tops((size_t)rows * blocks, c.side);
    Guarded<double> uniform(rows, c.side), sums((size_t)rows * blocks, c.side);
    Guarded<int64_t> out(rows, c.side);
    fill(logits, c, 5.0f);
    for (int i = 0; i < rows; ++i) temperature[i] = 0.5f + 0.1f * (i % 10), uniform[i] = i ? (c.real() + 1) / 2.001 : 0.0;
    draw(logits, temperature, uniform, tops, sums, out, rows, width);
    for (int row = 0; row < rows; ++row) {
        double total = 0, before = 0;
        const auto weight = [&](int i) { return std::exp((double)logits[(size_t)row * width + i] / temperature[row]); };
        for (int i = 0; i < width; ++i) total += weight(i);
        for (int i = 0; i < out[row]; ++i) before += weight(i);
        if (out[row] < 0 || out[row] >= width) compare("draw", (float)out[row], 0, 0);
        const double after = before + weight((int)out[row]), target = uniform[row] * total;
        if (target < before - 1e-4 * total || target > after + 1e-4 * total) compare("draw", (float)before, target, 0);
    }
}

}  // namespace

void check_rows(Case& c) {
    for (const int rows : {0, 1, 3, 70})
        for (const int width : {1, 15, 16, 33, 896}) {
            for (const bool residual : {false, true}) check_norm<bf16>(rows, width, residual, c), check_norm<float>(rows, width, residual, c);
            check_silu(rows, width, c);
        }
    for (const int tokens : {0, 1, 5, 90})
        for (const int apart : {0, 3}) check_rope(tokens, 3, 34, 34, apart, c), check_rope(tokens, 2, 80, 18, apart, c);
}

void check_logits(Case& c) {
    for (const int width : {1, 31, 33, 2047, 2048, 2065, 40000})
        for (const bool indexed : {false, true})
            for (const int words : {1, (width + 31) / 32, (width + 31) / 32 + 1}) check_mask(3, width, words, indexed, c);
    for (const int width : {1, 17, 2048, 2049, 9000}) check_draw(1, width, c), check_draw(5, width, c);
}
