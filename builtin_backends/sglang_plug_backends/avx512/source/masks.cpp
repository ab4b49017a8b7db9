// What grammars allow, on logits in float32.
#include <limits>
#include "common.h"

namespace {

constexpr long ALONE = 1 << 16;  // fewer numbers than this are not worth waking the other threads
constexpr int WORDS = 64;        // of a mask, done at once

}  // namespace

// -inf where the bit of a logit in `mask` [count, words] is 0, or is not there. `logits` are [.., width]; `rows` says
// which row each mask is for, or is null: all in order.
EXPORT void mask_logits(float* logits, const long* rows, const int* mask, int count, int width, int words) {
    const int blocks = (width + 32 * WORDS - 1) / (32 * WORDS);
    const __m512 never = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
#pragma omp parallel for collapse(2) if ((long)count * width >= ALONE)
    for (int row = 0; row < count; ++row)
        for (int block = 0; block < blocks; ++block) {
            float* out = logits + (size_t)(rows ? rows[row] : row) * width;
            const int* bits = mask + (size_t)row * words;
            for (int word = block * WORDS; word < (block + 1) * WORDS && 32 * word < width; ++word) {
                const unsigned barred = word < words ? ~(unsigned)bits[word] : ~0u;
                const int left = width - 32 * word;
                if (barred & 0xffff) _mm512_mask_storeu_ps(out + 32 * word, first(left) & barred, never);
                if (barred >> 16) _mm512_mask_storeu_ps(out + 32 * word + 16, first(left - 16) & (barred >> 16), never);
            }
        }
}
