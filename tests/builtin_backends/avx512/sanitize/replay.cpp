// `replay` takes a struct that only tape.cpp declares.
#include <cstdint>

extern "C" void replay(const void* calls, int64_t count);

void replay_calls(const void* calls, int64_t count) { replay(calls, count); }
