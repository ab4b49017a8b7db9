// What each file of checks offers: every kernel over one set of shapes, in the given case.
#pragma once
#include "guarded.h"

void check_products(Case& c);    // linear, int8, codes of four and eight bits, e4m3, and their packing
void check_rows(Case& c);        // norms, activation, rotary positions
void check_logits(Case& c);      // masks and sampling
void check_attention(Case& c);   // with and without a pool, few and many new tokens
void check_recurrent(Case& c);   // convolution, linear attention, delta rule, selective scan
void check_replay(Case& c);      // a call that was written down
