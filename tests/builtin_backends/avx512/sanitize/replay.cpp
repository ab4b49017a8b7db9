// `replay` and `replay_tokens` take a struct that only tape.cpp declares.
#include <cstdint>

extern "C" void replay(const void* calls, int64_t count);

void replay_calls(const void* calls, int64_t count) { replay(calls, count); }

extern "C" void replay_tokens(const void* calls, int64_t count, int64_t tokens, const void* step);

void replay_calls_of(const void* calls, int64_t count, int64_t tokens) { replay_tokens(calls, count, tokens, nullptr); }
