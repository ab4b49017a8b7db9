// Products with packed matrices, against sums in double.
#include <cmath>

#include "checks.h"
#include "functions.h"

EXPORT void pack_matrix(const bf16* weight, bf16* packed, int width, int depth);
EXPORT void pack_int8(const int8_t* weight, int8_t* packed, float* sums, int width, int depth);
EXPORT void pack_codes(const uint8_t* codes, uint8_t* packed, int width, int depth, int bits);
EXPORT void pack_e4m3(const uint8_t* weight, uint8_t* packed, int width, int depth);

namespace {

struct Shape {
    int rows, width, depth;
};

const Shape SHAPES[] = {{0, 3, 8},    {1, 1, 8},    {1, 64, 48},   {2, 33, 16},  {3, 31, 40},   {5, 65, 8},   {6, 32, 24},
                        {7, 96, 136}, {11, 17, 56}, {12, 100, 64}, {13, 64, 48}, {40, 160, 72}, {100, 1, 24}, {130, 70, 264}};

int panels(int width) { return (width + PANEL - 1) / PANEL; }

// Compares out [rows, width] with x [rows, depth] times weight(column, index), plus the bias, if there is one.
template <typename Weight>
void compare_all(const char* what, Shape s, Guarded<bf16>& x, Guarded<bf16>* bias, Guarded<bf16>& out, Weight weight) {
    for (int row = 0; row < s.rows; ++row)
        for (int column = 0; column < s.width; ++column) {
            double sum = bias ? wide((*bias)[column]) : 0, size = std::fabs(sum);
            for (int d = 0; d < s.depth; ++d) {
                const double product = (double)wide(x[(size_t)row * s.depth + d]) * weight(column, d);
                sum += product, size += std::fabs(product);
            }
            compare(what, wide(out[(size_t)row * s.width + column]), sum, size);
        }
}

void check_linear(Shape s, bool biased, Case& c) {
    Guarded<bf16> x((size_t)s.rows * s.depth, c.side), weight((size_t)s.width * s.depth, c.side), bias(s.width, c.side);
    Guarded<bf16> packed((size_t)panels(s.width) * PANEL * s.depth, c.side), out((size_t)s.rows * s.width, c.side);
    fill(x, c), fill(weight, c), fill(bias, c);
    pack_matrix(weight, packed, s.width, s.depth);
    linear(x, packed, biased ? (const bf16*)bias : nullptr, out, s.rows, s.width, s.depth, 0);
    compare_all("linear", s, x, biased ? &bias : nullptr, out,
                [&](int column, int d) { return wide(weight[(size_t)column * s.depth + d]); });
}

void check_gated(int rows, int half, int depth, Case& c) {
    const int width = 2 * half;
    Guarded<bf16> x((size_t)rows * depth, c.side), weight((size_t)width * depth, c.side);
    Guarded<bf16> packed((size_t)panels(width) * PANEL * depth, c.side), out((size_t)rows * half, c.side);
    fill(x, c), fill(weight, c);
    pack_matrix(weight, packed, width, depth);
    linear(x, packed, nullptr, out, rows, width, depth, 1);
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < half; ++column) {
            double gate = 0, up = 0;
            const int at = column / 16 * 32 + column % 16;
            for (int d = 0; d < depth; ++d) {
                gate += (double)wide(x[row * depth + d]) * wide(weight[at * depth + d]);
                up += (double)wide(x[row * depth + d]) * wide(weight[(at + 16) * depth + d]);
            }
            compare("gated", wide(out[row * half + column]), gate / (1 + std::exp(-gate)) * up, std::fabs(gate * up) + 1);
        }
}

void check_int8(Shape s, bool biased, Case& c) {
    const size_t columns = (size_t)panels(s.width) * PANEL, padded = (s.depth + 3) / 4 * 4;
    Guarded<bf16> x((size_t)s.rows * s.depth, c.side), bias(s.width, c.side), out((size_t)s.rows * s.width, c.side);
    Guarded<int8_t> weight((size_t)s.width * s.depth, c.side), packed(columns * padded, c.side);
    Guarded<float> sums(columns, c.side), scales(columns, c.side);
    fill(x, c), fill(bias, c), fill(scales, c);
    for (size_t i = 0; i < weight.count; ++i) weight[i] = (int8_t)c.whole(-127, 127);
    pack_int8(weight, packed, sums, s.width, s.depth);
    linear_int8(x, packed, scales, sums, biased ? (const bf16*)bias : nullptr, out, s.rows, s.width, s.depth);
    compare_all("int8", s, x, biased ? &bias : nullptr, out,
                [&](int column, int d) { return (double)weight[(size_t)column * s.depth + d] * scales[column]; });
}

void check_codes(Shape s, int bits, int group, Case& c) {
    const int groups = s.depth / group, count = panels(s.width);
    Guarded<bf16> x((size_t)s.rows * s.depth, c.side), out((size_t)s.rows * s.width, c.side);
    Guarded<uint8_t> codes((size_t)s.width * s.depth, c.side), packed((size_t)count * PANEL * s.depth * bits / 8, c.side);
    Guarded<uint8_t> zeros((size_t)count * groups * PANEL, c.side);
    Guarded<float> scales((size_t)count * groups * PANEL, c.side);
    fill(x, c), fill(scales, c, 0.01f);
    for (size_t i = 0; i < codes.count; ++i) codes[i] = (uint8_t)c.whole(0, (1 << bits) - 1);
    for (size_t i = 0; i < zeros.count; ++i) zeros[i] = (uint8_t)c.whole(0, (1 << bits) - 1);
    pack_codes(codes, packed, s.width, s.depth, bits);
    (bits == 4 ? linear_codes4 : linear_codes8)(x, packed, scales, zeros, nullptr, out, s.rows, s.width, s.depth, group);
    compare_all("codes", s, x, nullptr, out, [&](int column, int d) {
        const size_t at = ((size_t)(column / PANEL) * groups + d / group) * PANEL + column % PANEL;
        return ((double)codes[(size_t)column * s.depth + d] - zeros[at]) * scales[at];
    });
}

double e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, digits = code & 7;
    const double size = exponent ? std::ldexp(8 + digits, exponent - 10) : std::ldexp(digits, -9);
    return code & 0x80 ? -size : size;
}

void check_e4m3(Shape s, int group, Case& c) {
    const int groups = (s.depth + group - 1) / group, count = panels(s.width);
    Guarded<bf16> x((size_t)s.rows * s.depth, c.side), out((size_t)s.rows * s.width, c.side);
    Guarded<uint8_t> codes((size_t)s.width * s.depth, c.side), packed((size_t)count * PANEL * s.depth, c.side);
    Guarded<float> scales((size_t)count * groups * PANEL, c.side);
    fill(x, c), fill(scales, c);
    for (size_t i = 0; i < codes.count; ++i) codes[i] = (uint8_t)(c.whole(0, 126) | c.whole(0, 1) << 7);
    pack_e4m3(codes, packed, s.width, s.depth);
    linear_e4m3(x, packed, scales, nullptr, out, s.rows, s.width, s.depth, group);
    compare_all("e4m3", s, x, nullptr, out, [&](int column, int d) {
        const size_t at = ((size_t)(column / PANEL) * groups + d / group) * PANEL + column % PANEL;
        return e4m3(codes[(size_t)column * s.depth + d]) * scales[at];
    });
}

}  // namespace

void check_products(Case& c) {
    for (const Shape& s : SHAPES) {
        for (const bool biased : {false, true}) {
            check_linear(s, biased, c);
            check_linear({s.rows, s.width, s.depth + 2}, biased, c);
            for (const int less : {0, 1, 2, 3}) check_int8({s.rows, s.width, s.depth - less}, biased, c);
        }
        check_codes(s, 4, 8, c), check_codes(s, 4, s.depth, c);
        check_codes(s, 8, 4, c), check_codes(s, 8, s.depth % 3 ? 8 : s.depth / 3 % 4 ? 8 : s.depth / 3, c);
        check_e4m3(s, 6, c), check_e4m3(s, s.depth, c), check_e4m3({s.rows, s.width, s.depth - 2}, 4, c);
    }
    for (const int rows : {1, 12, 25, 110})
        for (const int half : {16, 48}) check_gated(rows, half, 34, c);
}
