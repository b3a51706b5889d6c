/* Additive attention on the CPU: softmax_s(sum_d w_d tanh(q_td + k_sd)) v_s, and its gradients.

Both ways of writing tanh(q + k) as a fraction need nothing but numbers of each row by itself, so
that one product of the rows is left per (t, s, d); and fractions share a division:

    exponential  (x - 1) / (x + 1)              x = e^{2q} e^{2k}
    addition     (a + c) / (1 + a c)            a = tanh q, c = tanh k
    together     n1/d1 + n2/d2 = (n1 d2 + n2 d1) / (d1 d2)

Addition keeps the digits of small numbers, where x - 1 would lose them; it is for small keys in
float32. The exponential is for all others as long as the products of the denominators stay in
range; beyond, tanh is computed element by element. Each key decides for itself (and for the largest
query of a few rows), so that what nobody may see changes no bit of what is seen.

Vectors run along D. A prepared key is D numbers (e^{2k} or tanh k) filled up with zeros to a
multiple of 16, then its largest magnitude and its form; README.md has the derivation. */

#include "kernels/additive/attend.h"
#include "kernels/additive/retrace.h"

HEED_EXPORT int HEED(heed_additive_forward)(const struct forward *forward, int threads)
{
    const struct call *c = &forward->call;
    struct job job = {.call = c, .forward = forward};
    job.keys = prepared_keys(c, &job, threads);
    int64_t tasks = c->B * c->H * ((c->T + ROWS - 1) / ROWS);
    heed_share(attend_some, &job, tasks, workers(c, c->T, threads));
    return job.failed;
}

HEED_EXPORT int HEED(heed_additive_backward)(const struct backward *back, int threads)
{
    const struct call *c = &back->call;
    struct job job = {.call = c, .backward = back};
    job.keys = prepared_keys(c, &job, threads);
    threads = workers(c, c->T, threads);
    heed_share(retrace_some, &job, c->B * c->G * back->chunks, threads);
    if (job.failed)
        return 1;
    if (back->part_dk != back->dk || back->part_dv != back->dv)
        heed_share(add_some, &job, c->B * c->G, threads);
    add_scores(back);
    return 0;
}

struct preparing {
    const float *k;
    float *keys;
    int64_t B, G, S, D;
    struct places at_k;
    int64_t fine;
};

HEED_EXPORT int HEED(heed_additive_prepare)(const struct preparing *p, int threads)
{
    struct call c = {.k = p->k, .keys = p->keys, .at_k = p->at_k, .fine = p->fine};
    c.B = p->B, c.H = c.G = p->G, c.S = p->S, c.D = p->D;
    struct job job = {.call = &c};
    prepared_keys(&c, &job, threads);
    return 0;
}

struct keeping {
    float *factor;
    int64_t rows, S;
    const int64_t *seed;
    double dropout;
};

/* What dropout does to the weights of every row.    B H T S */
HEED_EXPORT int HEED(heed_additive_kept)(const struct keeping *k, int threads)
{
    struct call c = {.seed = k->seed, .dropout = k->dropout};
    (void)threads;
    for (int64_t row = 0; row < k->rows; row++)
        kept(&c, row, 0, k->S, k->factor + row * k->S);
    return 0;
}
