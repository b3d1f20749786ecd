/* What a decode step spends its time on, for processors with AVX-512 VNNI and BF16: products with weights of 4, 8, 16
   or 32 bits, attention, and a decoder's layers of both. A row's result does not depend on how many rows there are.

   Functions whose names end in _shared are called by every thread of a team; they share the work. */

#define _GNU_SOURCE
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "products.h"

#include "attention.h" /* after it: it raises numbers to powers by the same function */

/* ---- a decoder's layers */

/* One layer: gains of its norms, its weights, keys and values, and where its output goes beside (or null). */
typedef struct {
    const float *norm_1, *norm_2;
    const uint8_t *qkv, *out, *gate_up, *down;
    float *keys, *values, *tap;
} Layer;

/* x [tokens, hidden] through `count` layers, in place, by every thread of a team. inner: numbers that the gates let
through. bits: of the weights. numbers: room for [tokens, heads + 2 kv_heads, dim], [tokens, heads, dim] and [tokens, 2
inner] ones; room: of the product with the most inputs. */
static void layers_shared(const Layer *layers, long count, const Pass *pass, float *x, long hidden, long inner, float eps,
                          int bits, float *numbers, char *room)
{
    const long tokens = pass->tokens, mixed = pass->heads * pass->dim, packed = mixed + 2 * pass->kv_heads * pass->dim;
    float *heads = numbers, *attended = heads + tokens * packed, *gates = attended + tokens * mixed;
    for (const Layer *of = layers; of < layers + count; of++) {
        product_shared(x, tokens, hidden, of->norm_1, eps, 0, bits, of->qkv, packed, 0, heads, room);
        attend_shared(pass, heads, of->keys, of->values, attended);
        product_shared(attended, tokens, mixed, 0, 0, 0, bits, of->out, hidden, x, x, room);
        product_shared(x, tokens, hidden, of->norm_2, eps, 0, bits, of->gate_up, 2 * inner, 0, gates, room);
        product_shared(gates, tokens, inner, 0, 0, 1, bits, of->down, hidden, x, x, room);
        if (of->tap) {
#pragma omp single
            memcpy(of->tap, x, tokens * hidden * sizeof(float));
        }
    }
}

/* As layers_shared, with a team of its own. */
void decode_layers(const Layer *layers, long count, const Pass *pass, float *x, long hidden, long inner, float eps,
                   int bits, float *numbers, char *room, int threads)
{
#pragma omp parallel num_threads(threads)
    layers_shared(layers, count, pass, x, hidden, inner, eps, bits, numbers, room);
}

#include "block.h"

/* ---- the memory */

/* Reads `bytes` (a multiple of 256) as fast as weights are read. Returns the sum of its 64-bit numbers. */
int64_t stream(const char *from, long bytes, int threads)
{
    int64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        __m512i part[4];
        for (int j = 0; j < 4; j++) part[j] = _mm512_setzero_si512();
#pragma omp for schedule(static)
        for (long i = 0; i < bytes; i += 256)
            for (int j = 0; j < 4; j++) {
                _mm_prefetch(from + i + 64 * j + AHEAD, _MM_HINT_T0);
                part[j] = _mm512_add_epi64(part[j], _mm512_loadu_si512(from + i + 64 * j));
            }
        for (int j = 0; j < 4; j++) sum += _mm512_reduce_add_epi64(part[j]);
    }
    return sum;
}
