/* What every native.c shares: vectors as wide as the processor's, exp, sums, and sharing work.

A source is compiled once for each instruction set (setup.py), with HEED_LEVEL as its name;
HEED(name) is a function's name at that level, and HEED_EXPORT marks what Python calls. Vectors are
those of GCC and Clang, which run on any processor: only their width depends on it. */

#ifndef HEED_NATIVE_H
#define HEED_NATIVE_H

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEED_JOINED(name, level) name##_##level
#define HEED_JOIN(name, level) HEED_JOINED(name, level)
#define HEED(name) HEED_JOIN(name, HEED_LEVEL)
#define HEED_EXPORT __attribute__((visibility("default")))
#define HEED_INLINE static inline __attribute__((always_inline))

#ifndef HEED_LANES
#if defined(__AVX512F__)
#define HEED_LANES 16
#elif defined(__AVX2__)
#define HEED_LANES 8
#else
#define HEED_LANES 4
#endif
#endif

enum { LANES = HEED_LANES };

typedef float vec __attribute__((vector_size(4 * HEED_LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * HEED_LANES)));
/* The same in memory, at any address of a float. */
typedef float vec_loose __attribute__((vector_size(4 * HEED_LANES), aligned(4), may_alias));

HEED_INLINE vec load(const float *p) { return *(const vec_loose *)p; }
HEED_INLINE void store(float *p, vec x) { *(vec_loose *)p = x; }
HEED_INLINE vec fill(float x) { return x - (vec){0}; }

/* The first `count` lanes from memory, `other` in the rest; no memory beyond is read. */
HEED_INLINE vec load_some(const float *p, int count, float other)
{
    vec x = fill(other);
    memcpy(&x, p, sizeof(float) * (size_t)count);
    return x;
}

HEED_INLINE void store_some(float *p, vec x, int count)
{
    memcpy(p, &x, sizeof(float) * (size_t)count);
}

/* Lane by lane yes or no: a comparison sets all bits of a lane, or none. */
HEED_INLINE vec pick(ivec which, vec yes, vec no)
{
    return (vec)((which & (ivec)yes) | (~which & (ivec)no));
}

/* NaN in x stays NaN. */
HEED_INLINE vec larger(vec x, vec y) { return pick(x < y, y, x); }
HEED_INLINE vec smaller(vec x, vec y) { return pick(x > y, y, x); }
HEED_INLINE vec magnitude(vec x) { return (vec)((ivec)x & 0x7fffffff); }

/* Halves are added, so that the order does not depend on the compiler. */
HEED_INLINE float sum_of(vec x)
{
    float lane[LANES];
    memcpy(lane, &x, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

HEED_INLINE float max_of(vec x)
{
    float lane[LANES];
    memcpy(lane, &x, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

/* e^x for |x| <= 87, to about one unit in the last place: x = n log 2 + r with |r| <= log 2 / 2,
and a polynomial for e^r - 1. */
HEED_INLINE vec exp_within(vec x)
{
    const vec turn = fill(0x1.8p23f); /* adding it rounds to the nearest whole number */
    vec n = x * 0x1.715476p+0f + turn;
    ivec power = (ivec)n << 23;
    n -= turn;
    vec r = x - n * 0x1.62e400p-1f; /* log 2 in two parts: the first times n is exact */
    r -= n * 0x1.7f7d1cp-20f;
    vec p = fill(0x1.6850e4p-10f) * r + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = r * r * p + r;
    return (vec)((ivec)(p + 1.0f) + power); /* times 2^n */
}

/* e^x for any x: below -87.3 it is zero (no denormal numbers), above 88.7 infinity, NaN stays. */
HEED_INLINE vec exp_of(vec x)
{
    vec e = pick(x > 88.722839f, fill(INFINITY), exp_within(x));
    e = pick(x < -87.336540f, fill(0), e);
    return pick(x == x, e, x);
}

/* tanh(x) to about two units in the last place, for small x too. It is y / (y + 2) with y = e^{2x}
- 1, computed as 2^n (e^r - 1) + (2^n - 1) so that no digits cancel. */
HEED_INLINE vec tanh_of(vec x)
{
    const vec turn = fill(0x1.8p23f);
    x = smaller(larger(x, fill(-9.5f)), fill(9.5f)); /* beyond, tanh is 1 in float32 */
    x += x;
    vec n = x * 0x1.715476p+0f + turn;
    vec power = (vec)(((ivec)n << 23) + 0x3f800000);
    n -= turn;
    vec r = x - n * 0x1.62e400p-1f;
    r -= n * 0x1.7f7d1cp-20f;
    vec p = fill(0x1.6850e4p-10f) * r + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = r * r * p + r;
    p = p * power + (power - 1.0f);
    return p / (p + 2.0f);
}

/* Tasks are handed out one by one: each worker takes the next until none is left. The result of a
task must not depend on the worker, so that results do not depend on the number of threads. */
struct heed_turns {
    int64_t tasks;
    _Atomic int64_t next;
};

HEED_INLINE int heed_turn(struct heed_turns *turns, int64_t *task)
{
    *task = atomic_fetch_add_explicit(&turns->next, 1, memory_order_relaxed);
    return *task < turns->tasks;
}

/* Memory for so many bytes, or for none: null says that memory ran out, and nothing else. */
HEED_INLINE void *heed_room(size_t bytes) { return malloc(bytes ? bytes : 1); }

typedef void heed_worker(void *context, struct heed_turns *turns);

/* Run the tasks on up to `threads` workers; returns when all are done. */
void heed_share(heed_worker *worker, void *context, int64_t tasks, int threads);

#endif
