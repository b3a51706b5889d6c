/* y = x Wᵀ + b for few rows of x. W is in panels or row-major; the sums stay in registers.

A panel is 16 rows of W, which are 16 columns of y, laid out as K × 16: a step along K reads them as
one contiguous piece and multiplies them by one number of each row of x. Each number of y is one
chain of sums along K, the same in any tile: a row gives the same bits alone and in a batch. */

#ifndef HEED_LINEAR_PRODUCT_H
#define HEED_LINEAR_PRODUCT_H

#include "kernels/native.h"

enum { PANEL = 16, VECTORS = PANEL / LANES };

#if HEED_LANES > 4
enum { ROWS = 6 }; /* 12 accumulator registers with AVX2, which has 16 */
#else
enum { ROWS = 3 };
#endif

enum finish { STORE, RELU, ADD };

enum { CHAIN = 128 };

/* How many steps along K ahead to prefetch weights that are not in the cache. Panels are
contiguous, so this runs on into the next one. */
enum { AHEAD = 64 };

/* How much of W is worked on at a time: it stays in the cache while the rows pass over it. */
enum { NEAR = 128 * 1024 };

HEED_INLINE int64_t panels_near(int64_t K)
{
    int64_t panels = NEAR / (int64_t)(sizeof(float) * PANEL) / (K ? K : 1);
    return panels > 4 ? panels / 4 * 4 : panels > 1 ? panels : 1;
}

HEED_INLINE int64_t panels_of(int64_t N) { return (N + PANEL - 1) / PANEL; }

HEED_INLINE vec finished(vec sum, vec bias, vec before, int finish)
{
    sum += bias;
    if (finish == RELU)
        sum = pick(sum < 0, fill(0), sum);
    return finish == ADD ? sum + before : sum;
}

/* Store a vector of sums into y, which has `count` columns left. */
HEED_INLINE void finish_some(float *y, vec sum, const float *bias, int64_t count, int finish)
{
    if (count >= LANES) {
        vec before = finish == ADD ? load(y) : fill(0);
        store(y, finished(sum, bias ? load(bias) : fill(0), before, finish));
    } else if (count > 0) {
        vec before = finish == ADD ? load_some(y, (int)count, 0) : fill(0);
        vec added = bias ? load_some(bias, (int)count, 0) : fill(0);
        store_some(y, finished(sum, added, before, finish), (int)count);
    }
}

/* `rows` rows of x with `panels` adjacent panels; `columns` of y are left to write. The compiler
knows both counts, so the sums stay in registers. Long sums lose digits: every 128 products the sum
is added to a total and starts again. cold: the weights are not in the cache and are prefetched; the
processor prefetches four panels side by side by itself, but not one. */
HEED_INLINE void tile(const int rows, const int panels, const int cold, const float *x, int64_t x_row,
                      const float *w, const float *bias, float *y, int64_t y_row, int64_t K,
                      int64_t columns, int finish)
{
    vec total[ROWS][4 * VECTORS] = {{{0}}};
    for (int64_t start = 0; start < K; start += CHAIN) {
        int64_t stop = K - start < CHAIN + CHAIN / 2 ? K : start + CHAIN;
        vec sum[ROWS][4 * VECTORS];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < panels * VECTORS; j++)
                sum[i][j] = fill(0);
        for (int64_t k = start; k < stop; k++)
            for (int p = 0; p < panels; p++) {
                if (cold)
                    __builtin_prefetch(w + (p * K + k + AHEAD) * PANEL);
                vec weight[VECTORS];
                for (int j = 0; j < VECTORS; j++)
                    weight[j] = load(w + (p * K + k) * PANEL + j * LANES);
                for (int i = 0; i < rows; i++) {
                    vec each = fill(x[i * x_row + k]);
                    for (int j = 0; j < VECTORS; j++)
                        sum[i][p * VECTORS + j] += each * weight[j];
                }
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < panels * VECTORS; j++)
                total[i][j] += sum[i][j];
        if (stop == K)
            break;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < panels * VECTORS; j++) {
            float *to = y + i * y_row + j * LANES;
            const float *add = bias ? bias + j * LANES : 0;
            if (columns >= panels * PANEL) /* almost always */
                finish_some(to, total[i][j], add, LANES, finish);
            else
                finish_some(to, total[i][j], add, columns - j * LANES, finish);
        }
}

/* Some rows with panels `from` to `to`. If rows are few, adjacent panels hide latency: a sum then
waits four turns for the previous one. */
HEED_INLINE void strip(const int rows, const int cold, const float *x, int64_t x_row, const float *packed,
                       const float *bias, float *y, int64_t y_row, int64_t K, int64_t N,
                       int64_t from, int64_t to, int finish)
{
    const int wide = rows == 1 ? 4 : rows <= ROWS / 2 || VECTORS == 1 ? 2 : 1;
    int64_t p = from;
    for (; p < to; p += p + wide <= to ? wide : 1) {
        const float *w = packed + p * K * PANEL, *b = bias ? bias + p * PANEL : 0;
        float *out = y + (p - from) * PANEL;
        if (p + wide <= to)
            tile(rows, wide, cold, x, x_row, w, b, out, y_row, K, N - p * PANEL, finish);
        else
            tile(rows, 1, cold, x, x_row, w, b, out, y_row, K, N - p * PANEL, finish);
    }
}

HEED_INLINE float finished_one(float sum, const float *bias, float before, int finish)
{
    sum += bias ? *bias : 0;
    if (finish == RELU)
        sum = sum < 0 ? 0 : sum;
    return finish == ADD ? sum + before : sum;
}

/* As `sum_of`, in the same order, but without going through memory. */
HEED_INLINE float lanes_of(vec x)
{
    typedef float four __attribute__((vector_size(16)));
    typedef float two __attribute__((vector_size(8)));
    four parts[LANES / 4];
    memcpy(parts, &x, sizeof x);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            parts[i] += parts[i + half];
    two ends[2];
    memcpy(ends, parts, sizeof ends);
    ends[0] += ends[1];
    return ends[0][0] + ends[0][1];
}

/* `rows` rows of x with `outs` rows of row-major W: vectors along K, whose lanes are added at the
end. It loses a quarter of the speed but needs no packed copy. It is for weights too large for the
cache, where reading them takes the time. */
HEED_INLINE void tile_as_it_is(const int rows, const int outs, const float *x, int64_t x_row,
                               const float *w, int64_t w_row, const float *bias, float *y,
                               int64_t y_row, int64_t K, int finish)
{
    float total[ROWS][8] = {{0}};
    for (int64_t start = 0; start < K; start += CHAIN * LANES) {
        int64_t stop = K - start < CHAIN * LANES ? K : start + CHAIN * LANES, k = start;
        vec sum[ROWS][8];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < outs; j++)
                sum[i][j] = fill(0);
        for (; k + LANES <= stop; k += LANES) {
            vec weight[8];
            for (int j = 0; j < outs; j++)
                weight[j] = load(w + j * w_row + k);
            for (int i = 0; i < rows; i++) {
                vec each = load(x + i * x_row + k);
                for (int j = 0; j < outs; j++)
                    sum[i][j] += each * weight[j];
            }
        }
        for (int i = 0; i < rows && k < stop; i++)
            for (int j = 0; j < outs; j++)
                sum[i][j] += load_some(x + i * x_row + k, (int)(stop - k), 0) *
                             load_some(w + j * w_row + k, (int)(stop - k), 0);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < outs; j++)
                total[i][j] += lanes_of(sum[i][j]);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < outs; j++) {
            float *to = y + i * y_row + j;
            *to = finished_one(total[i][j], bias ? bias + j : 0, finish == ADD ? *to : 0, finish);
        }
}

/* Some rows with the columns of panels `from` to `to`, for row-major weights. */
HEED_INLINE void strip_as_it_is(const int rows, const float *x, int64_t x_row, const float *w,
                                int64_t w_row, const float *bias, float *y, int64_t y_row,
                                int64_t K, int64_t N, int64_t from, int64_t to, int finish)
{
    const int wide = rows == 1 ? 8 : rows <= 3 ? 4 : rows == 4 ? 3 : 2;
    int64_t first = from * PANEL, n = first, stop = to * PANEL < N ? to * PANEL : N;
    for (; n < stop; n += n + wide <= stop ? wide : 1) {
        const float *b = bias ? bias + n : 0;
        if (n + wide <= stop)
            tile_as_it_is(rows, wide, x, x_row, w + n * w_row, w_row, b, y + n - first, y_row, K,
                          finish);
        else
            tile_as_it_is(rows, 1, x, x_row, w + n * w_row, w_row, b, y + n - first, y_row, K,
                          finish);
    }
}

/* The weights of the columns from panel `from` on. */
HEED_INLINE const float *panel_at(const float *w, int64_t w_row, int64_t K, int64_t from)
{
    return w + from * PANEL * (w_row ? w_row : K);
}

/* y points at the first column of panel `from`. w_row: the stride between rows of row-major W; 0: W
is in panels. first: these panels are not yet in the cache. */
static __attribute__((noinline)) void rows_by_panels(
    int64_t rows, int first, const float *x, int64_t x_row, const float *w, int64_t w_row, const float *bias,
    float *y, int64_t y_row, int64_t K, int64_t N, int64_t from, int64_t to, int finish)
{
#define CASE(count)                                                                               \
    case count:                                                                                   \
        if (w_row)                                                                                \
            strip_as_it_is(count, x, x_row, w, w_row, bias, y, y_row, K, N, from, to, finish);    \
        else if (first && count > 1)                                                              \
            strip(count, 1, x, x_row, w, bias, y, y_row, K, N, from, to, finish);                 \
        else                                                                                      \
            strip(count, 0, x, x_row, w, bias, y, y_row, K, N, from, to, finish);                 \
        break;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
#if HEED_LANES > 4
        CASE(4)
        CASE(5)
        CASE(6)
#endif
    }
#undef CASE
}

/* How many rows the next tile takes, so that tiles are as equal as possible: 7 is 4 and 3, not 6
and 1. */
HEED_INLINE int64_t next_rows(int64_t left)
{
    int64_t tiles = (left + ROWS - 1) / ROWS;
    return (left + tiles - 1) / tiles;
}

/* All of y.    x: M K, w: panels_of(N) K 16, or N K with rows `w_row` apart, y: M N */
static __attribute__((noinline)) void product(
    const float *x, int64_t x_row, const float *w, int64_t w_row, const float *bias, float *y,
    int64_t y_row, int64_t M, int64_t K, int64_t N, int finish)
{
    int64_t panels = panels_of(N), near = M <= ROWS ? panels : panels_near(K);
    for (int64_t from = 0; from < panels; from += near) {
        int64_t to = from + near < panels ? from + near : panels;
        for (int64_t m = 0, rows; m < M; m += rows) {
            rows = next_rows(M - m);
            rows_by_panels(rows, m == 0, x + m * x_row, x_row, w, w_row, bias,
                           y + m * y_row + from * PANEL, y_row, K, N, from, to, finish);
        }
    }
}

/* The same shared among workers, each computing some columns. */
struct mapping {
    const float *x, *w, *bias;
    float *y;
    int64_t x_row, w_row, y_row, M, K, N, finish;
};

static __attribute__((unused)) void map_panels(const struct mapping *a, int64_t from, int64_t to)
{
    int64_t columns = to * PANEL < a->N ? to * PANEL : a->N;
    product(a->x, a->x_row, panel_at(a->w, a->w_row, a->K, from), a->w_row,
            a->bias ? a->bias + from * PANEL : 0, a->y + from * PANEL, a->y_row, a->M, a->K,
            columns - from * PANEL, (int)a->finish);
}

#endif
