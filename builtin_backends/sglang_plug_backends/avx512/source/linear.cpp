// Products with matrices that are packed once and multiplied often.
#include "functions.h"

namespace {

constexpr size_t BLOCK_BYTES = 256 << 10;  // of the matrix, kept in the second-level cache for many rows
constexpr int FEW_GROUPS = 8;              // tiles of rows up to which a panel is used at once by all
constexpr size_t DISTANCE = 2048;          // bytes between what is fetched and what is used

// Lines of the matrix to be fetched while a tile is computed.
struct Fetch {
    const char* next;
    int count;
};

struct Tile {
    const bf16* a;
    size_t depth;
    const bf16 *panel, *bias;
    bf16* out;
    size_t width;
    int pairs, columns;
    Fetch fetch;
};

template <int R, bool GATED, int LINES>
void tile(const Tile& t) {
    __m512 sums[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    multiply<R, LINES>(t.a, t.depth, t.panel, t.pairs, sums, t.fetch.next, t.fetch.count);
    const __mmask16 left = first(t.columns), right = first(t.columns - 16);
    __m512 bias_left = _mm512_setzero_ps(), bias_right = bias_left;
    if (t.bias) bias_left = load(t.bias, left), bias_right = load(t.bias + 16, right);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        const __m512 first_half = _mm512_add_ps(sums[r][0], bias_left), second_half = _mm512_add_ps(sums[r][1], bias_right);
        bf16* out = t.out + r * t.width;
        if (GATED) {
            store(out, _mm512_mul_ps(silu(first_half), second_half));
        } else {
            store(out, first_half, left);
            store(out + 16, second_half, right);
        }
    }
}

typedef void (*TileFunction)(const Tile&);
template <bool GATED, int LINES>
struct Tiles {
    template <int R>
    static constexpr TileFunction of = tile<R, GATED, LINES>;
    static constexpr TileFunction OF[ROWS + 1] = {nullptr, of<1>, of<2>, of<3>, of<4>,  of<5>,  of<6>,
                                                  of<7>,   of<8>, of<9>, of<10>, of<11>, of<12>};
};

struct Product {
    const bf16 *x, *packed, *bias;
    bf16* out;
    int rows, width, depth, panels, pairs, groups;
    size_t panel_size;  // numbers of a panel
    bool gated;         // a panel's columns are 16 of the gate and 16 of the other; out is half as wide

    Tile at(int row, int panel) const {
        const int column = panel * PANEL, out_width = gated ? width / 2 : width;
        return {x + (size_t)row * depth, (size_t)depth, packed + panel * panel_size, bias ? bias + column : nullptr,
                out + (size_t)row * out_width + (gated ? column / 2 : column), (size_t)out_width, pairs, width - column, {nullptr, 0}};
    }

    template <int LINES>
    void compute(int count, const Tile& current) const {
        (gated ? Tiles<true, LINES>::OF : Tiles<false, LINES>::OF)[count](current);
    }

    int rows_of(int row, int group) const { return (rows - row + groups - group - 1) / (groups - group); }

    // One tile of rows: reading the matrix takes the time, so it is fetched a little ahead, across panels.
    void one_group(long from, long to) const {
        for (long panel = from; panel < to; ++panel) {
            Tile current = at(0, panel);
            current.fetch = {(const char*)current.panel + DISTANCE, pairs};
            compute<2>(rows, current);
        }
    }

    // All rows over one panel after the other, while the next panel is fetched.
    void few(long from, long to) const {
        const int lines = (int)(panel_size * sizeof(bf16) / 64), share = (lines + groups - 1) / groups;
        for (long panel = from; panel < to; ++panel) {
            const char* next = (const char*)(packed + (panel + 1) * panel_size);
            for (int group = 0, row = 0; group < groups; ++group) {
                Tile current = at(row, panel);
                if (panel + 1 < panels) current.fetch = {next, share < pairs ? share : pairs};
                next += 64 * share;
                const int count = rows_of(row, group);
                compute<1>(count, current);
                row += count;
            }
        }
    }

    // A block of panels stays in the cache while all rows pass.
    void many(long from, long to) const {
        for (int group = 0, row = 0; group < groups; ++group) {
            const int count = rows_of(row, group);
            for (long panel = from; panel < to; ++panel) compute<0>(count, at(row, panel));
            row += count;
        }
    }
};

}  // namespace

// weight [width, depth] to panels; depth is even. Room for ceil(width / PANEL) * PANEL * depth numbers.
EXPORT void pack_matrix(const bf16* weight, bf16* packed, int width, int depth) {
    const int panels = (width + PANEL - 1) / PANEL, pairs = depth / 2;
#pragma omp parallel for
    for (int panel = 0; panel < panels; ++panel)
        for (int p = 0; p < pairs; ++p)
            for (int c = 0; c < PANEL; ++c) {
                const int row = panel * PANEL + c;
                uint32_t pair = 0;
                if (row < width) __builtin_memcpy(&pair, weight + (size_t)row * depth + 2 * p, sizeof pair);
                __builtin_memcpy(packed + (((size_t)panel * pairs + p) * PANEL + c) * 2, &pair, sizeof pair);
            }
}

// out [rows, width] = x [rows, depth] times the packed matrix, plus bias [width] or null. If gated, each 16 columns of the
// gate are followed by the 16 that they weigh, and out [rows, width / 2] = silu(gate) * other.
EXPORT void linear(const bf16* x, const bf16* packed, const bf16* bias, bf16* out, int rows, int width, int depth, int gated) {
    if (rows <= 0) return;
    Product product{x, packed, bias, out, rows, width, depth, (width + PANEL - 1) / PANEL, depth / 2,
                    (rows + ROWS - 1) / ROWS, (size_t)PANEL * depth, gated != 0};
    const bool few = product.groups <= FEW_GROUPS;
    long run = few ? product.panels / (8 * omp_get_max_threads()) : BLOCK_BYTES / (product.panel_size * sizeof(bf16));
    Pieces pieces{product.panels, run < 1 ? 1 : run};
#pragma omp parallel
    for (long from, to; pieces.take(from, to);) {
        if (product.groups == 1)
            product.one_group(from, to);
        else if (few)
            product.few(from, to);
        else
            product.many(from, to);
    }
}