// The functions that a decode step calls, which a tape calls again.
#pragma once
#include "common.h"

struct Attention;
struct Convolution;
struct Recurrence;
struct SelectiveScan;

EXPORT void linear(const bf16* x, const bf16* packed, const bf16* bias, bf16* out, int rows, int width, int depth, int gated);
EXPORT void linear_int8(const bf16* x, const int8_t* packed, const float* scales, const float* sums, const bf16* bias, bf16* out,
                        int rows, int width, int depth);
EXPORT void linear_codes4(const bf16* x, const uint8_t* packed, const float* scales, const uint8_t* zeros, const bf16* bias,
                          bf16* out, int rows, int width, int depth, int group);
EXPORT void linear_codes8(const bf16* x, const uint8_t* packed, const float* scales, const uint8_t* zeros, const bf16* bias,
                          bf16* out, int rows, int width, int depth, int group);
EXPORT void linear_e4m3(const bf16* x, const uint8_t* packed, const float* scales, const bf16* bias, bf16* out, int rows,
                        int width, int depth, int group);
EXPORT void rms_norm(const bf16* x, bf16* residual, const void* weight, bf16* out, int rows, int width, int wide, float eps);
EXPORT void silu_mul(const bf16* gate_up, bf16* out, int rows, int width);
EXPORT void rope(const bf16* x, const bf16* cos, const bf16* sin, bf16* out, int tokens, int heads, int dim, int width,
                 long token_stride, long head_stride);
EXPORT void attend(const Attention* layer);
EXPORT void causal_conv(const Convolution* call);
EXPORT void recurrence(const Recurrence* call);
EXPORT void selective_scan(const SelectiveScan* call);
