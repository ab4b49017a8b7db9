// Every compiled kernel over ragged shapes, between guard pages, with one to eight threads. Built with sanitizers by
// __main__.py; the first wrong access or result ends it.
#include <omp.h>

#include <thread>

#include "checks.h"

namespace {

void check_all(Side side, int seed) {
    Case c{side, std::mt19937(seed)};
    check_products(c);
    check_rows(c);
    check_logits(c);
    check_attention(c);
    check_recurrent(c);
    check_replay(c);
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 3, 8}) {
        omp_set_num_threads(threads);
        for (const Side side : {Side::END, Side::START}) check_all(side, threads);
        printf("with %d threads: all kernels are right and stay within their arrays\n", threads);
        fflush(stdout);
    }
    // engines in threads of one process compute at the same time
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([caller] {
            omp_set_num_threads(2);
            check_all(caller % 2 ? Side::START : Side::END, 100 + caller);
        });
    for (std::thread& caller : callers) caller.join();
    printf("with three callers of two threads each: the same\n");
    return 0;
}
