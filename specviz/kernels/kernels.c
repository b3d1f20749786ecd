/* The kernels of a decode step on a CPU with AVX-512 VNNI and BF16: products with weights of 4, 8, 16 or 32 bits,
   attention, whole decoder layers, a block drafter's round, and a sequential read of memory. A row's result is the same
   bit for bit however many rows there are.

   Functions ending in _team contain OpenMP work-sharing loops: every thread of the parallel region around them must
   call them. Activations are float32 and row-major. */

#define _GNU_SOURCE
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "products.h"

#include "attention.h" /* after it: uses its exp_ps */

/* ---- decoder layers */

/* One decoder layer: gains of its two norms, its packed weights, its keys and values, and where its output is copied
(tap, or null). */
typedef struct {
    const float *norm_1, *norm_2;              /* [hidden] */
    const uint8_t *qkv, *out, *gate_up, *down; /* [(heads + 2 kv_heads) head_dim, hidden], [hidden, heads head_dim],
                                                   [2 inner, hidden], [hidden, inner] */
    float *keys, *values;                      /* [slots, kv_heads, capacity, head_dim] */
    float *tap;                                /* [tokens, hidden] */
} DecoderLayer;

/* x [tokens, hidden] through `count` layers, in place; by a team. inner: width of the feed-forward; bits: of the
weights. scratch: tokens * ((2 heads + 2 kv_heads) head_dim + 2 inner) floats; input_scratch: of the product with the
most inputs. */
static void layers_team(const DecoderLayer *layers, long count, const AttentionMetadata *pass, float *x, long hidden,
                        long inner, float eps, int bits, float *scratch, char *input_scratch)
{
    const long tokens = pass->tokens, width = pass->heads * pass->head_dim;
    const long qkv_width = width + 2 * pass->kv_heads * pass->head_dim;
    float *qkv = scratch, *attended = qkv + tokens * qkv_width, *gate_up = attended + tokens * width;
    for (const DecoderLayer *of = layers; of < layers + count; of++) {
        product_team(x, tokens, hidden, of->norm_1, eps, 0, bits, of->qkv, qkv_width, 0, qkv, input_scratch);
        attend_team(pass, qkv, of->keys, of->values, attended);
        product_team(attended, tokens, width, 0, 0, 0, bits, of->out, hidden, x, x, input_scratch);
        product_team(x, tokens, hidden, of->norm_2, eps, 0, bits, of->gate_up, 2 * inner, 0, gate_up, input_scratch);
        product_team(gate_up, tokens, inner, 0, 0, 1, bits, of->down, hidden, x, x, input_scratch);
        if (of->tap) {
#pragma omp single
            memcpy(of->tap, x, tokens * hidden * sizeof(float));
        }
    }
}

/* As layers_team, by a team of its own. */
void decode_layers(const DecoderLayer *layers, long count, const AttentionMetadata *pass, float *x, long hidden,
                   long inner, float eps, int bits, float *scratch, char *input_scratch, int threads)
{
#pragma omp parallel num_threads(threads)
    layers_team(layers, count, pass, x, hidden, inner, eps, bits, scratch, input_scratch);
}

#include "block.h"

/* ---- memory */

/* Reads bytes [bytes], a multiple of 256, in order and as fast as weights are read. Returns the sum of its 64-bit
integers. */
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
                _mm_prefetch(from + i + 64 * j + PREFETCH, _MM_HINT_T0);
                part[j] = _mm512_add_epi64(part[j], _mm512_loadu_si512(from + i + 64 * j));
            }
        for (int j = 0; j < 4; j++) sum += _mm512_reduce_add_epi64(part[j]);
    }
    return sum;
}

/* ---- what Python mirrors: compared with binding.py when the library is loaded */

/* sizeof, and the offset of the last field, of each structure in binding.py's order. */
const long struct_layouts[] = {
    sizeof(AttentionMetadata), offsetof(AttentionMetadata, scores), sizeof(DecoderLayer), offsetof(DecoderLayer, tap),
    sizeof(BlockDrafter),      offsetof(BlockDrafter, head),        sizeof(SerialHead),   offsetof(SerialHead, head),
};

/* The sizes that Python allocates by. */
const long tile_sizes[] = {QUERY_TILE, KEY_TILE, GROUP, OUTPUTS, SCRATCH_ROWS, sizeof(QuantizedGroup)};
