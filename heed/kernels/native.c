/* Which instruction set this processor has, and threads.

The threads are PyTorch's: heed.kernels.native looks up GOMP_parallel in the OpenMP runtime that
torch has loaded (GNU's, LLVM's and Intel's all have it) and passes it in. So there is never a
second runtime in the process, its workers are already awake, and nothing is linked here. */

#include "kernels/native.h"

typedef void parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);

static parallel *shared;

HEED_EXPORT void heed_threads(parallel *runtime) { shared = runtime; }

/* The best of baseline, avx2, avx512 (0, 1, 2) that was compiled and that this processor runs. */
HEED_EXPORT int heed_level(void)
{
#if HEED_LEVELS > 1 && defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 1;
#endif
    return 0;
}

struct team {
    heed_worker *worker;
    void *context;
    struct heed_turns turns;
};

static void member(void *data)
{
    struct team *team = data;
    team->worker(team->context, &team->turns);
}

void heed_share(heed_worker *worker, void *context, int64_t tasks, int threads)
{
    struct team team = {worker, context, {tasks, 0}};
    if (threads > tasks)
        threads = (int)tasks;
    if (threads > 1 && shared)
        shared(member, &team, (unsigned)threads, 0);
    else
        member(&team);
}
