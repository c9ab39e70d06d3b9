// Only reached by kernels that run single operators, which the simulator refuses.
#include <cstdio>

extern "C" int aclopCompileAndExecute()
{
    std::fputs("aclopCompileAndExecute: single operators are not simulated\n", stderr);
    return 200001;
}
