// Calls of the other functions that were written down with their arguments, made again one after the other.
#include <cmath>
#include "attention.h"
#include "functions.h"

enum Function : int64_t {  // in the order of RECORDED in library.py
    LINEAR, LINEAR_INT8, LINEAR_CODES4, LINEAR_CODES8, LINEAR_E4M3, RMS_NORM, SILU_MUL, ROPE, ATTEND,
    CAUSAL_CONV, RECURRENCE, SELECTIVE_SCAN
};

struct Call {  // the same fields in the same order stand in calls.py
    int64_t function;
    int64_t words[10];  // pointers and whole numbers, in the function's order
    double real;        // its one other number, if it has one
    int64_t rows_word, rows_per_token;  // words[rows_word] is the number of tokens times rows_per_token; -1: no word is

    template <typename T>
    T* at(int i) const { return (T*)words[i]; }

    void make() const {
        const int64_t* w = words;
        switch (function) {
            case LINEAR:
                return linear(at<bf16>(0), at<bf16>(1), at<bf16>(2), at<bf16>(3), w[4], w[5], w[6], w[7]);
            case LINEAR_INT8:
                return linear_int8(at<bf16>(0), at<int8_t>(1), at<float>(2), at<float>(3), at<bf16>(4), at<bf16>(5), w[6], w[7], w[8]);
            case LINEAR_CODES4:
                return linear_codes4(at<bf16>(0), at<uint8_t>(1), at<float>(2), at<uint8_t>(3), at<bf16>(4), at<bf16>(5), w[6],
                                     w[7], w[8], w[9]);
            case LINEAR_CODES8:
                return linear_codes8(at<bf16>(0), at<uint8_t>(1), at<float>(2), at<uint8_t>(3), at<bf16>(4), at<bf16>(5), w[6],
                                     w[7], w[8], w[9]);
            case LINEAR_E4M3:
                return linear_e4m3(at<bf16>(0), at<uint8_t>(1), at<float>(2), at<bf16>(3), at<bf16>(4), w[5], w[6], w[7], w[8]);
            case RMS_NORM:
                return rms_norm(at<bf16>(0), at<bf16>(1), at<void>(2), at<bf16>(3), w[4], w[5], w[6], (float)real);
            case SILU_MUL:
                return silu_mul(at<bf16>(0), at<bf16>(1), w[2], w[3]);
            case ROPE:
                return rope(at<bf16>(0), at<bf16>(1), at<bf16>(2), at<bf16>(3), w[4], w[5], w[6], w[7], w[8], w[9]);
            case ATTEND:
                return attend(at<Attention>(0));
            case CAUSAL_CONV:
                return causal_conv(at<Convolution>(0));
            case RECURRENCE:
                return recurrence(at<Recurrence>(0));
            case SELECTIVE_SCAN:
                return selective_scan(at<SelectiveScan>(0));
        }
        abort();
    }
};

EXPORT void replay(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; ++i) calls[i].make();
}

// The calls for another number of tokens than they were written down with. The attention of all layers is that of `step`,
// which has the fields that differ per step.
EXPORT void replay_tokens(const Call* calls, int64_t count, int64_t tokens, const Attention* step) {
    for (int64_t i = 0; i < count; ++i) {
        Call call = calls[i];
        if (call.function == ATTEND) {
            Attention layer = *call.at<Attention>(0);
            layer.slots = step->slots, layer.tables = step->tables, layer.starts = step->starts;
            layer.queries = step->queries, layer.lengths = step->lengths;
            layer.tokens = step->tokens, layer.sequences = step->sequences, layer.table_width = step->table_width;
            attend(&layer);
        } else {
            call.words[call.rows_word] = tokens * call.rows_per_token;
            call.make();
        }
    }
}
