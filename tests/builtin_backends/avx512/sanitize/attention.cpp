// Paged attention against a softmax in double, and a call on a tape.
#include <cmath>

#include "attention.h"
#include "checks.h"
#include "functions.h"

namespace {

struct Shape {
    int64_t heads, kv_heads, dim, value_dim;
};

struct Sequences {
    std::vector<int64_t> queries, lengths;
};

struct Rules {
    bool pool, causal, values_in_keys;
    int64_t window;
    float softcap;
};

struct Step {
    Shape s;
    Rules rules;
    int64_t tokens = 0, longest = 0, slots = 1;
    std::vector<int64_t> starts, queries, lengths, rows;  // rows: slots of every context, one after the other
    std::vector<size_t> first_row;

    Step(const Shape& s, const Rules& rules, const Sequences& batch, Case& c) : s(s), rules(rules), queries(batch.queries) {
        lengths = rules.pool ? batch.lengths : batch.queries;
        for (size_t i = 0; i < queries.size(); ++i) {
            starts.push_back(tokens), first_row.push_back(rows.size());
            tokens += queries[i];
            longest = lengths[i] > longest ? lengths[i] : longest;
            for (int64_t j = 0; j < lengths[i]; ++j) rows.push_back(slots++);
        }
        for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[c.random() % i]);
    }
};

void compare_token(const Step& step, size_t sequence, int64_t query, int64_t head, Guarded<bf16>& q, Guarded<bf16>& keys,
                   Guarded<bf16>& values, Guarded<bf16>& out, float scale) {
    const Shape& s = step.s;
    const int64_t group = s.heads / s.kv_heads, kv_head = head / group, token = step.starts[sequence] + query;
    const int64_t position = step.lengths[sequence] - step.queries[sequence] + query;
    const int64_t to = step.rules.causal ? position + 1 : step.lengths[sequence];
    const int64_t from = step.rules.window && position + 1 > step.rules.window ? position + 1 - step.rules.window : 0;
    const auto row = [&](int64_t i) { return step.rules.pool ? step.rows[step.first_row[sequence] + i] : step.starts[sequence] + i; };
    std::vector<double> weights;
    double top = -INFINITY, total = 0;
    for (int64_t i = from; i < to; ++i) {
        double score = 0;
        for (int64_t d = 0; d < s.dim; ++d)
            score += (double)wide(q[(token * s.heads + head) * s.dim + d]) * wide(keys[(row(i) * s.kv_heads + kv_head) * s.dim + d]);
        score *= scale;
        if (step.rules.softcap) score = step.rules.softcap * std::tanh(score / step.rules.softcap);
        weights.push_back(score);
        top = score > top ? score : top;
    }
    for (double& weight : weights) total += weight = std::exp(weight - top);
    const int64_t width = step.rules.values_in_keys ? s.dim : s.value_dim;
    for (int64_t d = 0; d < s.value_dim; ++d) {
        double sum = 0;
        for (int64_t i = from; i < to; ++i) sum += weights[i - from] * wide(values[(row(i) * s.kv_heads + kv_head) * width + d]);
        compare("attention", wide(out[(token * s.heads + head) * s.value_dim + d]), total ? sum / total : 0, 1, 1.0 / 32);
    }
}

void check(const Shape& s, const Rules& rules, const Sequences& batch, Case& c) {
    const Step step(s, rules, batch, c);
    const int64_t key_size = s.kv_heads * s.dim, value_size = rules.values_in_keys ? key_size : s.kv_heads * s.value_dim;
    const int64_t count = (int64_t)step.queries.size();
    Guarded<bf16> q(step.tokens * s.heads * s.dim, c.side), k(step.tokens * key_size, c.side), v(step.tokens * value_size, c.side);
    Guarded<bf16> pool_k(step.slots * key_size, c.side), pool_v(step.slots * value_size, c.side);
    Guarded<bf16> out(step.tokens * s.heads * s.value_dim, c.side);
    Guarded<int64_t> slots(step.tokens, c.side), tables(count * step.longest, c.side), starts(count, c.side);
    Guarded<int64_t> queries(count, c.side), lengths(count, c.side);
    fill(q, c), fill(k, c), fill(v, c), fill(pool_k, c), fill(pool_v, c);
    for (int64_t i = 0; i < count; ++i) {
        starts[i] = step.starts[i], queries[i] = step.queries[i], lengths[i] = step.lengths[i];
        for (int64_t j = 0; j < step.longest; ++j) tables[i * step.longest + j] = j < lengths[i] ? step.rows[step.first_row[i] + j] : 0;
        for (int64_t j = 0; j < queries[i]; ++j) slots[starts[i] + j] = step.rows[step.first_row[i] + lengths[i] - queries[i] + j];
    }
    Attention a{};
    a.slots = rules.pool ? (int64_t*)slots : nullptr;
    a.tables = tables, a.starts = starts, a.queries = queries, a.lengths = lengths;
    a.tokens = step.tokens, a.sequences = count, a.table_width = step.longest;
    a.heads = s.heads, a.kv_heads = s.kv_heads, a.dim = s.dim, a.value_dim = s.value_dim, a.values_in_keys = rules.values_in_keys;
    a.q = q, a.k = k, a.v = rules.values_in_keys ? k : v;
    a.q_stride = s.heads * s.dim, a.k_stride = key_size, a.v_stride = value_size;
    a.pool_k = pool_k, a.pool_v = rules.values_in_keys ? pool_k : pool_v;
    a.pool_k_stride = key_size, a.pool_v_stride = value_size, a.pool_v_head = rules.values_in_keys ? s.dim : s.value_dim;
    a.out = out, a.causal = rules.causal, a.window = rules.window, a.scale = 0.3f, a.softcap = rules.softcap;
    attend(&a);
    Guarded<bf16>&keys = rules.pool ? pool_k : k, &values = rules.values_in_keys ? keys : rules.pool ? pool_v : v;
    for (int64_t i = 0; i < count; ++i)
        for (int64_t query = 0; query < step.queries[i]; ++query)
            for (int64_t head = 0; head < s.heads; ++head) compare_token(step, i, query, head, q, keys, values, out, a.scale);
}

}  // namespace

void check_attention(Case& c) {
    const Sequences sequences[] = {
        {{1}, {1}}, {{1, 1, 1}, {17, 1, 300}}, {{3, 9, 1}, {3, 40, 33}}, {{13}, {13}}, {{7, 8}, {30, 8}}, {{40, 1}, {290, 2}}, {{200}, {210}}};
    const Shape shapes[] = {{2, 1, 8, 8}, {4, 2, 34, 34}, {6, 2, 64, 48}, {5, 1, 40, 18}};
    for (const Sequences& batch : sequences)
        for (const Shape& s : shapes) {
            check(s, {true, true, false, 0, 0.0f}, batch, c);
            check(s, {true, true, false, 20, 5.0f}, batch, c);
            check(s, {false, false, false, 0, 0.0f}, batch, c);
            if (s.kv_heads == 1) check(s, {true, true, true, 0, 0.0f}, batch, c);
        }
}

void check_replay(Case& c) {
    struct Call {
        int64_t function, words[10];
        double real;
        int64_t rows_word, rows_per_token;
    };
    Guarded<bf16> x(3 * 21, c.side), weight(21, c.side), expected(3 * 21, c.side), out(3 * 21, c.side);
    Guarded<Call> calls(2, c.side);
    fill(x, c), fill(weight, c);
    rms_norm(x, nullptr, (bf16*)weight, expected, 3, 21, 0, 1e-6f);
    calls[0] = {5, {(int64_t)(bf16*)x, 0, (int64_t)(bf16*)weight, (int64_t)(bf16*)out, 3, 21, 0}, 1e-6, -1, 0};
    calls[1] = calls[0];
    extern void replay_calls(const void*, int64_t);
    replay_calls((Call*)calls, 2);
    for (size_t i = 0; i < out.count; ++i) compare("replay", wide(out[i]), wide(expected[i]), 0);

    // written down with one row; a token has two
    extern void replay_calls_of(const void*, int64_t, int64_t);
    Guarded<bf16> more(6 * 21, c.side), results(6 * 21, c.side), rows(6 * 21, c.side);
    fill(more, c);
    rms_norm(more, nullptr, (bf16*)weight, rows, 6, 21, 0, 1e-6f);
    calls[0] = {5, {(int64_t)(bf16*)more, 0, (int64_t)(bf16*)weight, (int64_t)(bf16*)results, 1, 21, 0}, 1e-6, 4, 2};
    replay_calls_of((Call*)calls, 1, 3);
    for (size_t i = 0; i < results.count; ++i) compare("replay_tokens", wide(results[i]), wide(rows[i]), 0);
}
