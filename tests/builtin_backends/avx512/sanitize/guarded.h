// Arrays that lie against pages nobody may touch: reading or writing beyond an end is a fault at once, also by the masked
// instructions of AVX-512, which AddressSanitizer does not see.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

enum class Side { END, START };  // where the guard page that the array touches lies

template <typename T>
class Guarded {
 public:
    Guarded(size_t count, Side side) : count(count) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = count * sizeof(T);
        const size_t inner = (bytes + page - 1) / page * page;
        size = inner + 2 * page;
        memory = (char*)mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) abort();
        if (inner && mprotect(memory + page, inner, PROT_READ | PROT_WRITE)) abort();
        if (inner) memset(memory + page, 0xff, inner);  // not a number, so that reading what was never written shows
        at = (T*)(memory + page + (side == Side::END ? inner - bytes : 0));
    }
    Guarded(const Guarded&) = delete;
    ~Guarded() { munmap(memory, size); }

    operator T*() { return at; }
    operator const T*() const { return at; }
    template <typename Index>
    T& operator[](Index i) {
        return at[i];
    }
    const size_t count;

 private:
    char* memory;
    size_t size;
    T* at;
};

// One case: where its arrays lie, and numbers that are the same in each run.
struct Case {
    Side side;
    std::mt19937 random;

    float real() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(random); }
    int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
};

inline uint16_t narrow(float x) {  // to bfloat16, rounded to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float wide(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline float wide(float x) { return x; }

inline void set(uint16_t& to, float x) { to = narrow(x); }
inline void set(float& to, float x) { to = x; }

template <typename T>
void fill(Guarded<T>& array, Case& c, float factor = 1.0f) {
    for (size_t i = 0; i < array.count; ++i) set(array[i], factor * c.real());
}

// Ends the program if `actual` is not about `expected`, given how large the numbers are that were added up.
inline void compare(const char* what, float actual, double expected, double size, double share = 1.0 / 64) {
    const double off = actual - expected;
    if (!((off < 0 ? -off : off) <= share * size + 1e-3)) {
        fprintf(stderr, "%s: %g instead of %g (numbers of size %g)\n", what, actual, expected, size);
        exit(1);
    }
}
