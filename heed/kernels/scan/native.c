/* Alignments that move along the keys, and mixtures of windows; README.md derives them.

The file includes itself twice, for float and for double. A task is one head of one batch row over
all of T, or one row of a mixture. Hidden keys are selected away, never multiplied by zero, so that
a NaN in them cannot spread. Sums use sixteen lanes on every processor, so that results do not
depend on it. */

#ifndef REAL

#include "kernels/native.h"
#include <float.h>

enum { MONOTONIC, HARD, FORWARD, FORCED };

/* The least share left to a fully used key: heed.attention.moving_aligns.forced_step. */
#define TRACE 1e-6

/* A prior below it gets no gradient: heed.attention.align.weighed. */
#define FAINT 1e-30

/* Pointers, sizes and strides. Energies and visibility have strides by batch row, head, query (and
key); all else is contiguous. Pointers that a kind does not need are zero. */
struct walk {
    int64_t wide, kind, B, H, T, S;
    int64_t energy, energy_by[3], ok, ok_by[4];
    int64_t before, covered, move;
    int64_t weight, last, covered_last, stand;
    int64_t grad, d_energy, d_last, d_covered, d_move;
};

/* Rows are B H T; height, sharpness and centre have K numbers each. */
struct mixture {
    int64_t wide, B, H, T, S, K, ok, ok_by[4];
    int64_t height, sharpness, centre, weight;
    int64_t grad, d_height, d_sharpness, d_centre;
};

struct job {
    const void *asked;
    _Atomic int failed;
};

/* e^x to one or two ulp, without a branch, down to the smallest subnormal number: a very unlikely
key must not become impossible. The power of two is read from the bits of a rounded float: NaN, which
stays NaN, has no integer. */
HEED_INLINE float exp_float(float x)
{
    x = x < -104.0f ? -104.0f : x;
    x = x > 88.7f ? 88.7f : x;
    union { float value; int32_t bits; } turn = {0x1.8p23f}, turned = {x * 0x1.715476p+0f + 0x1.8p23f};
    float n = turned.value - turn.value;
    float r = (x - n * 0x1.62e400p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6850e4p-10f * r + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = r * r * p + r + 1.0f;
    int32_t power = turned.bits - turn.bits, half = power >> 1;
    union { int32_t bits; float value; } one = {(half + 127) << 23}, two = {(power - half + 127) << 23};
    return p * one.value * two.value;
}

HEED_INLINE double exp_double(double x) { return exp(x); }

/* log x in two parts: returns that of the exponent; log(rest), of the fraction, is the other. */
HEED_INLINE float log_float(float x, float *rest)
{
    union { float value; int32_t bits; } number = {x};
    float whole = (float)((number.bits >> 23) - 127) * 0x1.62e430p-1f;
    number.bits = (number.bits & 0x7fffff) | 0x3f800000;
    *rest = number.value;
    return whole;
}

HEED_INLINE double log_double(double x, double *rest)
{
    *rest = 1;
    return log(x);
}

HEED_INLINE float root_float(float x) { return sqrtf(x); }
HEED_INLINE double root_double(double x) { return sqrt(x); }

/* A row of visibility, contiguous; it is copied into `room` if its stride is not 1. */
HEED_INLINE const uint8_t *seen_row(
    const uint8_t *ok, const int64_t by[4], int64_t b, int64_t h, int64_t t, int64_t S, uint8_t *room)
{
    if (!ok)
        return ok;
    ok += b * by[0] + h * by[1] + t * by[2];
    if (by[3] == 1)
        return ok;
    for (int64_t s = 0; s < S; s++)
        room[s] = ok[s * by[3]];
    return room;
}

#define LANED 16
#define REAL float
#define TINY FLT_MIN
#define LEAST (-FLT_MAX)
#define VANISHES 104
#include "kernels/scan/native.c"
#undef REAL
#undef TINY
#undef LEAST
#undef VANISHES
#define REAL double
#define TINY DBL_MIN
#define LEAST (-DBL_MAX)
#define VANISHES 746
#include "kernels/scan/native.c"

/* Waking another thread does not pay for small work. */
static int hired(int64_t elements, int threads) { return elements < 8192 ? 1 : threads; }

HEED_EXPORT int HEED(heed_scan_forward)(const struct walk *a, int threads)
{
    struct job job = {a, 0};
    threads = hired(a->B * a->H * a->T * a->S, threads);
    heed_share(a->wide ? walk_double : walk_float, &job, a->B * a->H, threads);
    return job.failed;
}

HEED_EXPORT int HEED(heed_scan_backward)(const struct walk *a, int threads)
{
    struct job job = {a, 0};
    threads = hired(a->B * a->H * a->T * a->S, threads);
    heed_share(a->wide ? walk_back_double : walk_back_float, &job, a->B * a->H, threads);
    return job.failed;
}

HEED_EXPORT int HEED(heed_mixture_forward)(const struct mixture *a, int threads)
{
    struct job job = {a, 0};
    threads = hired(a->B * a->H * a->T * a->S, threads);
    heed_share(a->wide ? mix_double : mix_float, &job, a->B * a->H, threads);
    return job.failed;
}

HEED_EXPORT int HEED(heed_mixture_backward)(const struct mixture *a, int threads)
{
    struct job job = {a, 0};
    threads = hired(a->B * a->H * a->T * a->S, threads);
    heed_share(a->wide ? mix_back_double : mix_back_float, &job, a->B * a->H, threads);
    return job.failed;
}

#else /* included once for each number type */

#define OF(name) HEED_JOIN(name, REAL)

HEED_INLINE REAL OF(folded)(REAL *lane)
{
    for (int half = LANED / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

HEED_INLINE REAL OF(sum)(const REAL *x, int64_t n)
{
    REAL lane[LANED] = {0};
    int64_t s = 0;
    for (; s + LANED <= n; s += LANED)
        for (int i = 0; i < LANED; i++)
            lane[i] += x[s + i];
    for (int i = 0; s + i < n; i++)
        lane[i] += x[s + i];
    return OF(folded)(lane);
}

HEED_INLINE REAL OF(dot)(const REAL *x, const REAL *y, int64_t n)
{
    REAL lane[LANED] = {0};
    int64_t s = 0;
    for (; s + LANED <= n; s += LANED)
        for (int i = 0; i < LANED; i++)
            lane[i] += x[s + i] * y[s + i];
    for (int i = 0; s + i < n; i++)
        lane[i] += x[s + i] * y[s + i];
    return OF(folded)(lane);
}

HEED_INLINE REAL OF(largest)(const REAL *x, int64_t n)
{
    REAL lane[LANED], top = LEAST;
    int64_t s = 0;
    for (int i = 0; i < LANED; i++)
        lane[i] = LEAST;
    for (; s + LANED <= n; s += LANED)
        for (int i = 0; i < LANED; i++)
            lane[i] = x[s + i] > lane[i] ? x[s + i] : lane[i];
    for (; s < n; s++)
        top = x[s] > top ? x[s] : top;
    for (int i = 0; i < LANED; i++)
        top = lane[i] > top ? lane[i] : top;
    return top;
}

/* The probability of stopping at each key; zero where it is hidden. */
static void OF(chance)(
    const REAL *restrict energy, const uint8_t *seen, int hard, int64_t S, REAL *restrict p)
{
    for (int64_t s = 0; !hard && s < S; s++)
        p[s] = 1 / (1 + OF(exp)(-energy[s]));
    for (int64_t s = 0; hard && s < S; s++)
        p[s] = energy[s] > 0 ? 1 : 0;
    for (int64_t s = 0; seen && s < S; s++)
        p[s] = seen[s] ? p[s] : 0;
}

/* x_j = (1 - p_{j-1}) x_{j-1} + before_j;  weight_j = p_j x_j */
static void OF(stop)(
    const REAL *restrict p, const REAL *restrict before, int64_t S, REAL *restrict weight)
{
    REAL x = 0, keep = 0;
    for (int64_t s = 0; s < S; s++) {
        x = keep * x + before[s];
        keep = 1 - p[s];
        weight[s] = p[s] * x;
    }
}

/* The prior of `forward`: what stays where it was, and what moves on from the key before, which
collects the mass of hidden keys in between. */
static void OF(forward_prior)(
    const REAL *restrict before, const uint8_t *seen, REAL move, int64_t S, REAL *restrict arriving,
    REAL *restrict prior)
{
    REAL total = 0;
    if (!S)
        return;
    arriving[0] = 0;
    if (!seen || !memchr(seen, 0, S))
        memcpy(arriving + 1, before, (S - 1) * sizeof(REAL));
    else
        for (int64_t s = 1; s < S; s++)
            arriving[s] = total = (seen[s - 1] ? 0 : total) + before[s - 1];
    for (int64_t s = 0; s < S; s++)
        prior[s] = (1 - move) * before[s] + move * arriving[s];
}

/* The prior of `forced`: the mass that has arrived, times the unused share of each key. */
static void OF(forced_prior)(
    const REAL *restrict before, const REAL *restrict covered, int64_t S, REAL *restrict reached,
    REAL *restrict prior)
{
    REAL total = 0;
    for (int64_t s = 0; s < S; s++)
        reached[s] = total += before[s];
    for (int64_t s = 0; s < S; s++) {
        REAL left = 1 - covered[s];
        prior[s] = (left < (REAL)TRACE ? (REAL)TRACE : left) * reached[s];
    }
}

/* Softmax with a prior, which is overwritten; returns whether any weight is positive. */
static int OF(weigh)(
    const REAL *restrict energy, const uint8_t *seen, REAL *restrict prior, int64_t S,
    REAL *restrict weight)
{
    for (int64_t s = 0; seen && s < S; s++)
        prior[s] = seen[s] ? prior[s] : 0;
    for (int64_t s = 0; s < S; s++) {
        REAL p = prior[s], rest, part = OF(log)(p < TINY ? TINY : p, &rest);
        weight[s] = p > 0 ? energy[s] + part : -INFINITY;
        prior[s] = p > 0 ? rest : 0;
    }
    REAL top = OF(largest)(weight, S);
    for (int64_t s = 0; s < S; s++) {
        REAL each = prior[s] * OF(exp)(weight[s] - top);
        weight[s] = weight[s] == -INFINITY ? 0 : each;
    }
    REAL total = OF(sum)(weight, S), over = total < 1 ? 1 : total;
    for (int64_t s = 0; s < S; s++)
        weight[s] /= over; /* division, not the inverse: a single key must get exactly one */
    return total > 0;
}

static void OF(walk)(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct walk *a = job->asked;
    const int64_t T = a->T, S = a->S;
    REAL *prior = heed_room(2 * S * sizeof(REAL) + S), *spare = prior + S;
    uint8_t *bytes = (uint8_t *)(spare + S);
    if (!prior)
        job->failed = 1;
    for (int64_t n; !job->failed && heed_turn(turns, &n);) {
        const int64_t b = n / a->H, h = n % a->H;
        const REAL *energy = (const REAL *)a->energy + b * a->energy_by[0] + h * a->energy_by[1];
        const REAL *move = a->move ? (const REAL *)a->move + n * T : NULL;
        const REAL *stands = (const REAL *)a->before + n * S;
        REAL *weight = (REAL *)a->weight + n * T * S, *covered = (REAL *)a->covered_last + n * S;
        int32_t stood = -1, *stand = (int32_t *)a->stand + n * T;
        if (a->kind == FORCED)
            memcpy(covered, (const REAL *)a->covered + n * S, S * sizeof(REAL));
        for (int64_t t = 0; t < T; t++, energy += a->energy_by[2], weight += S) {
            const uint8_t *seen = seen_row((const uint8_t *)a->ok, a->ok_by, b, h, t, S, bytes);
            int moved;
            if (a->kind == FORWARD) {
                OF(forward_prior)(stands, seen, move ? move[t] : (REAL)0.5, S, spare, prior);
                moved = OF(weigh)(energy, seen, prior, S, weight);
            } else if (a->kind == FORCED) {
                OF(forced_prior)(stands, covered, S, spare, prior);
                moved = OF(weigh)(energy, seen, prior, S, weight);
                for (int64_t s = 0; s < S; s++)
                    covered[s] += weight[s];
            } else {
                OF(chance)(energy, seen, a->kind == HARD, S, prior);
                OF(stop)(prior, stands, S, weight);
                moved = !seen || memchr(seen, 1, S);
            }
            if (moved)
                stands = weight, stood = (int32_t)t;
            stand[t] = stood;
        }
        memcpy((REAL *)a->last + n * S, stands, S * sizeof(REAL));
    }
    free(prior);
}

/* Backward through the softmax, weight · (grad - its mean), and on to the prior. The mean is
subtracted twice: where one key has nearly all the weight, its gradient is a small difference, which
dividing by the prior may magnify. */
static void OF(unweigh)(
    const REAL *restrict weight, REAL *restrict grad, const REAL *restrict prior, int64_t S,
    REAL *restrict d_energy, REAL *restrict d_prior)
{
    const REAL mean = OF(dot)(weight, grad, S);
    for (int64_t s = 0; s < S; s++)
        grad[s] -= mean;
    const REAL rest = OF(dot)(weight, grad, S);
    for (int64_t s = 0; s < S; s++) {
        REAL d = weight[s] * (grad[s] - rest), over = prior[s] < (REAL)FAINT ? 1 : prior[s];
        d_energy[s] = d;
        d_prior[s] = prior[s] < (REAL)FAINT ? 0 : d / over;
    }
}

/* d_stand becomes the gradient of the state before the step; d_energy follows from it. */
static void OF(monotonic_back)(
    const REAL *restrict grad, const REAL *restrict weight, const REAL *restrict p, int hard, int64_t S,
    REAL *restrict d_energy, REAL *restrict d_stand)
{
    REAL total = 0;
    for (int64_t s = S - 1; s >= 0; s--)
        d_stand[s] = total = (1 - p[s]) * total + p[s] * grad[s];
    for (int64_t s = 0; s < S; s++)
        d_energy[s] = hard ? 0 : weight[s] * (grad[s] - d_stand[s]);
}

static void OF(forward_back)(
    const REAL *restrict d_prior, const uint8_t *seen, REAL move, int64_t S, REAL *restrict d_stand)
{
    REAL total = 0;
    for (int64_t s = S - 1; s >= 0; s--) {
        d_stand[s] = (1 - move) * d_prior[s] + total;
        total = (!seen || seen[s] ? 0 : total) + move * d_prior[s];
    }
}

static void OF(forced_back)(
    const REAL *restrict covered, const REAL *restrict reached, const REAL *restrict d_prior, int64_t S,
    REAL *restrict d_stand, REAL *restrict d_covered)
{
    REAL total = 0;
    for (int64_t s = S - 1; s >= 0; s--) {
        REAL left = 1 - covered[s];
        int open = left >= (REAL)TRACE;
        d_stand[s] = total += d_prior[s] * (open ? left : (REAL)TRACE);
        d_covered[s] -= open ? d_prior[s] * reached[s] : 0;
    }
}

/* d_last and d_covered come in as the gradients of the final state and leave as those of the
initial one. Before a step is processed, its d_energy holds the coverage before that step. */
static void OF(walk_back)(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct walk *a = job->asked;
    const int64_t T = a->T, S = a->S;
    REAL *prior = heed_room(5 * S * sizeof(REAL) + S), *spare = prior + S, *all = spare + S;
    REAL *d_prior = all + S, *used = d_prior + S;
    uint8_t *bytes = (uint8_t *)(used + S);
    if (!prior)
        job->failed = 1;
    for (int64_t n; !job->failed && heed_turn(turns, &n);) {
        const int64_t b = n / a->H, h = n % a->H;
        const REAL *energies = (const REAL *)a->energy + b * a->energy_by[0] + h * a->energy_by[1];
        const REAL *before = (const REAL *)a->before + n * S;
        const REAL *weights = (const REAL *)a->weight + n * T * S;
        const REAL *grads = (const REAL *)a->grad + n * T * S;
        const REAL *move = a->move ? (const REAL *)a->move + n * T : NULL;
        const int32_t *stand = (const int32_t *)a->stand + n * T;
        REAL *d_energies = (REAL *)a->d_energy + n * T * S, *d_stand = (REAL *)a->d_last + n * S;
        REAL *d_covered = (REAL *)a->d_covered + n * S, *d_move = (REAL *)a->d_move + n * T;
        if (a->kind == FORCED) {
            memcpy(d_energies, (const REAL *)a->covered + n * S, S * sizeof(REAL));
            for (int64_t i = S; i < T * S; i++)
                d_energies[i] = d_energies[i - S] + weights[i - S];
        }
        for (int64_t t = T - 1; t >= 0; t--) {
            const REAL *weight = weights + t * S, *grad = grads + t * S;
            REAL *d_energy = d_energies + t * S;
            if (stand[t] != t) { /* the step did not move: its weights are zero for any energies */
                memset(d_energy, 0, S * sizeof(REAL));
                if (move)
                    d_move[t] = 0;
                continue;
            }
            const uint8_t *seen = seen_row((const uint8_t *)a->ok, a->ok_by, b, h, t, S, bytes);
            const int64_t from = t ? stand[t - 1] : -1;
            const REAL *stood = from < 0 ? before : weights + from * S;
            for (int64_t s = 0; s < S; s++)
                all[s] = grad[s] + d_stand[s];
            if (a->kind == FORWARD) {
                const REAL u = move ? move[t] : (REAL)0.5;
                OF(forward_prior)(stood, seen, u, S, spare, prior);
                OF(unweigh)(weight, all, prior, S, d_energy, d_prior);
                OF(forward_back)(d_prior, seen, u, S, d_stand);
                for (int64_t s = 0; move && s < S; s++)
                    spare[s] -= stood[s];
                if (move)
                    d_move[t] = OF(dot)(d_prior, spare, S);
            } else if (a->kind == FORCED) {
                memcpy(used, d_energy, S * sizeof(REAL));
                for (int64_t s = 0; s < S; s++)
                    all[s] += d_covered[s];
                OF(forced_prior)(stood, used, S, spare, prior);
                OF(unweigh)(weight, all, prior, S, d_energy, d_prior);
                OF(forced_back)(used, spare, d_prior, S, d_stand, d_covered);
            } else {
                OF(chance)(energies + t * a->energy_by[2], seen, a->kind == HARD, S, prior);
                OF(monotonic_back)(all, weight, prior, a->kind == HARD, S, d_energy, d_stand);
            }
        }
    }
    free(prior);
}

/* The keys on which a window has weight; beyond, its exponential underflows to zero. */
static void OF(extent)(REAL sharpness, REAL centre, int64_t S, int64_t *from, int64_t *to)
{
    REAL half = OF(root)(VANISHES / (sharpness > TINY ? sharpness : TINY));
    REAL low = centre - half, high = centre + half + 1;
    *from = low > 0 ? low < S ? (int64_t)low : S : 0;
    *to = high > 0 ? high < S ? (int64_t)high : S : 0;
    if (centre != centre || sharpness != sharpness)
        *from = 0, *to = S;
}

static void OF(mix)(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct mixture *a = job->asked;
    const int64_t T = a->T, S = a->S, K = a->K;
    uint8_t *bytes = heed_room(S);
    if (!bytes)
        job->failed = 1;
    for (int64_t n; !job->failed && heed_turn(turns, &n);)
        for (int64_t t = 0; t < T; t++) {
            const uint8_t *seen =
                seen_row((const uint8_t *)a->ok, a->ok_by, n / a->H, n % a->H, t, S, bytes);
            REAL *restrict weight = (REAL *)a->weight + (n * T + t) * S;
            memset(weight, 0, S * sizeof(REAL));
            for (int64_t k = 0, at = (n * T + t) * K; k < K; k++, at++) {
                const REAL height = ((const REAL *)a->height)[at];
                const REAL sharp = ((const REAL *)a->sharpness)[at], centre = ((const REAL *)a->centre)[at];
                int64_t from, to;
                OF(extent)(sharp, centre, S, &from, &to);
                for (int32_t s = (int32_t)from; s < (int32_t)to; s++) {
                    REAL away = centre - (REAL)s;
                    weight[s] += height * OF(exp)(-sharp * away * away);
                }
            }
            for (int64_t s = 0; seen && s < S; s++)
                weight[s] = seen[s] ? weight[s] : 0;
        }
    free(bytes);
}

static void OF(mix_back)(void *context, struct heed_turns *turns)
{
    struct job *job = context;
    const struct mixture *a = job->asked;
    const int64_t T = a->T, S = a->S, K = a->K;
    REAL *grad = heed_room(4 * S * sizeof(REAL) + S), *each = grad + S, *first = each + S, *second = first + S;
    uint8_t *bytes = (uint8_t *)(second + S);
    if (!grad)
        job->failed = 1;
    for (int64_t n; !job->failed && heed_turn(turns, &n);)
        for (int64_t t = 0; t < T; t++) {
            const uint8_t *seen =
                seen_row((const uint8_t *)a->ok, a->ok_by, n / a->H, n % a->H, t, S, bytes);
            const REAL *given = (const REAL *)a->grad + (n * T + t) * S;
            for (int64_t s = 0; s < S; s++)
                grad[s] = !seen || seen[s] ? given[s] : 0;
            for (int64_t k = 0, at = (n * T + t) * K; k < K; k++, at++) {
                const REAL height = ((const REAL *)a->height)[at];
                const REAL sharp = ((const REAL *)a->sharpness)[at], centre = ((const REAL *)a->centre)[at];
                int64_t from, to;
                OF(extent)(sharp, centre, S, &from, &to);
                const int64_t count = to > from ? to - from : 0;
                for (int32_t i = 0; i < (int32_t)count; i++) {
                    REAL away = centre - (REAL)(i + (int32_t)from);
                    each[i] = grad[i + from] * OF(exp)(-sharp * away * away);
                    first[i] = away;
                    second[i] = away * away;
                }
                ((REAL *)a->d_height)[at] = OF(sum)(each, count);
                ((REAL *)a->d_sharpness)[at] = -height * OF(dot)(each, second, count);
                ((REAL *)a->d_centre)[at] = -2 * height * sharp * OF(dot)(each, first, count);
            }
        }
    free(grad);
}

#undef OF
#endif
