/* Matrix products with packed weights: out[r, n] = sum over k of x[r, k] * w[n, k]. */

/* Layout of a packed weight [N, K]: blocks of 16 outputs, and in each block groups of 32 inputs. Of a group,
     32 bits (float32)    element 16 k + n is input k of output n
     16 bits (bfloat16)   element 32 p + 2 n + i is input 2 p + i of output n; activations are rounded to bfloat16
     8 or 4 bits          16 float16: scale of each output
                          16 float16: minimum of each output
                          levels; 8 bits: byte 64 q + 4 n + i is input 4 q + i of output n
                                  4 bits: the low half of that byte is quad q, the high half quad q + 4
   and w = scale * level + minimum. A quad is 4 consecutive inputs, which one vpdpbusd multiplies. Activations: 32 share
   a scale; the 4 around the largest get 16 bits, the others 8. Their products with the levels are summed exactly.

   Every row is computed by the same operations in the same order, whatever the number of rows. */

#define INLINE static inline __attribute__((always_inline))

enum {
    OUTPUTS = 16,      /* of a block: lanes of a vector */
    GROUP = 32,        /* inputs of a group */
    HEADER = 64,       /* bytes of a group's scales and minimums */
    VECTOR = 64,       /* bytes of a vector */
    ROW_TILE = 8,      /* rows that one pass over a block multiplies */
    ACCUMULATORS = 2,  /* independent sums per row in float32 and bfloat16 */
    PREFETCH = 10240,  /* bytes that weights are prefetched ahead */
    SCRATCH_ROWS = 16, /* input scratch holds a multiple of this many rows */
};

/* 32 activations quantized to integers times `scale`. */
typedef struct {
    int8_t low[GROUP]; /* the integers; of the 16-bit ones, the last 8 bits */
    int8_t high[4];    /* of the 16-bit ones: times 256, and added */
    int32_t quad;      /* the four inputs with 16 bits: 4 quad .. 4 quad + 3 */
    float scale;
    float sum; /* scale * the sum of the integers */
} QuantizedGroup;

/* Bytes of a group of a packed weight, for its 16 outputs. */
static inline long weight_group_bytes(int bits) { return (bits < 16 ? HEADER : 0) + OUTPUTS * GROUP * bits / 8; }

/* Bytes of a group of a row in the input scratch. */
static inline long input_group_bytes(int bits) { return bits < 16 ? (long)sizeof(QuantizedGroup) : GROUP * bits / 8; }

/* 32 bits from any address, by a copy that strict aliasing allows. */
static inline int32_t load_int32(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* The maximum of each four consecutive lanes, in all four of them. */
static inline __m512 max_of_4(__m512 x)
{
    x = _mm512_max_ps(x, _mm512_permute_ps(x, 0xB1));
    return _mm512_max_ps(x, _mm512_permute_ps(x, 0x4E));
}

/* Quantizes 32 activations: they share a scale; the 4 around the largest get 16 bits, the others 8. */
static void quantize_group(__m512 first, __m512 second, QuantizedGroup *to)
{
    const __m512 a = max_of_4(_mm512_abs_ps(first)), b = max_of_4(_mm512_abs_ps(second));
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
    const uint32_t at_largest = _mm512_cmpeq_ps_mask(a, _mm512_set1_ps(largest))
                                | (uint32_t)_mm512_cmpeq_ps_mask(b, _mm512_set1_ps(largest)) << 16;
    const int quad = __builtin_ctz(at_largest | 1u << 31) / 4;
    const uint32_t others = ~(15u << 4 * quad);
    const float largest_of_others = _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_maskz_mov_ps((__mmask16)others, a), _mm512_maskz_mov_ps((__mmask16)(others >> 16), b)));
    const float scale = fmaxf(largest_of_others / 127, largest / 32639); /* 127 * 256 + 127 */
    const __m512 inverse = _mm512_set1_ps(scale > FLT_MIN ? 1 / scale : 0);
    const __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
    const __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
    const __m512i half = _mm512_set1_epi32(128);
    int8_t high[GROUP];
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(x, half), 8)));
    _mm_storeu_si128((__m128i *)(high + 16), _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(y, half), 8)));
    _mm_storeu_si128((__m128i *)to->low, _mm512_cvtepi32_epi8(x)); /* truncated to 8 bits */
    _mm_storeu_si128((__m128i *)(to->low + 16), _mm512_cvtepi32_epi8(y));
    memcpy(to->high, high + 4 * quad, 4);
    to->quad = quad;
    to->scale = scale;
    to->sum = scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(x, y));
}

/* 1 / sqrt(mean(x^2) + eps) of x [n], n a multiple of 16. */
static float inv_rms(const float *x, long n, float eps)
{
    __m512 sum = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i), sum);
    return 1 / sqrtf(_mm512_reduce_add_ps(sum) / (float)n + eps);
}

/* e^x of each lane: 2^k by scalef, times a polynomial of degree 6 in the remaining power of two. */
static inline __m512 exp_ps(__m512 x)
{
    static const float COEFFICIENTS[] = {
        1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1};
    const __m512 power = _mm512_max_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _mm512_set1_ps(-126));
    const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 fraction = _mm512_sub_ps(power, whole);
    __m512 sum = _mm512_set1_ps(0);
    for (int i = 0; i < 7; i++) sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(COEFFICIENTS[i]));
    return _mm512_scalef_ps(sum, whole);
}

/* SwiGLU of 16 values: silu(gate) * up, with silu(g) = g / (1 + e^-g). */
static inline __m512 silu_mul(const float *gate, const float *up)
{
    const __m512 x = _mm512_loadu_ps(gate);
    const __m512 divisor = _mm512_add_ps(_mm512_set1_ps(1), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_mul_ps(_mm512_div_ps(x, divisor), _mm512_loadu_ps(up));
}

/* Stores the sums of one row and block [16], plus the residual [16] where there is one (or null). */
static inline void store_sum(__m512 sum, const float *residual, float *out)
{
    _mm512_storeu_ps(out, residual ? _mm512_add_ps(sum, _mm512_loadu_ps(residual)) : sum);
}

/* One block of outputs for rows <= ROW_TILE, weights of 4 or 8 bits. x [rows, groups]; w: the block's groups;
residual (or null), out [rows, 16] with `stride` floats from row to row. */
INLINE void quantized_tile(int bits, int rows, long groups, const QuantizedGroup *x, const uint8_t *w,
                           const float *residual, float *out, long stride)
{
    const __m512i low_half = _mm512_set1_epi8(15);
    uint8_t unpacked[OUTPUTS * GROUP] __attribute__((aligned(64))); /* 4-bit levels in the 8-bit layout */
    __m512 total[ROW_TILE];
    for (int r = 0; r < rows; r++) total[r] = _mm512_setzero_ps();
    for (long g = 0; g < groups; g++, w += weight_group_bytes(bits), x++) {
        const uint8_t *stored = w + HEADER, *levels = bits == 4 ? unpacked : stored;
        for (long i = 0; i < weight_group_bytes(bits); i += 64)
            _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        __m512i sum[ROW_TILE];
        for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            __m512i first = _mm512_loadu_si512(stored + VECTOR * q), second;
            if (bits == 4) {
                second = _mm512_and_si512(_mm512_srli_epi16(first, 4), low_half);
                first = _mm512_and_si512(first, low_half);
                _mm512_store_si512(unpacked + VECTOR * q, first);
                _mm512_store_si512(unpacked + VECTOR * (q + 4), second);
            } else {
                second = _mm512_loadu_si512(stored + VECTOR * (q + 4));
            }
            for (int r = 0; r < rows; r++) {
                const int8_t *low = x[r * groups].low + 4 * q;
                sum[r] = _mm512_dpbusd_epi32(sum[r], first, _mm512_set1_epi32(load_int32(low)));
                sum[r] = _mm512_dpbusd_epi32(sum[r], second, _mm512_set1_epi32(load_int32(low + 16)));
            }
        }
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32)));
        for (int r = 0; r < rows; r++) {
            const QuantizedGroup *of = x + r * groups;
            const __m512i quad = _mm512_loadu_si512(levels + VECTOR * of->quad);
            const __m512i high =
                _mm512_dpbusd_epi32(_mm512_setzero_si512(), quad, _mm512_set1_epi32(load_int32(of->high)));
            sum[r] = _mm512_add_epi32(sum[r], _mm512_slli_epi32(high, 8));
            const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(of->scale));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), unit, total[r]);
            total[r] = _mm512_fmadd_ps(_mm512_set1_ps(of->sum), minimum, total[r]);
        }
    }
    for (int r = 0; r < rows; r++) store_sum(total[r], residual ? residual + r * stride : 0, out + r * stride);
}

/* sum + w * x for 16 outputs: w [16] floats and one float x, or w [16, 2] bfloat16 and two of x. */
INLINE __m512 multiply_add(int bits, __m512 sum, __m512i w, int32_t x)
{
#ifdef __AVX512BF16__
    if (bits == 16) return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(x));
#endif
    (void)bits; /* without the instructions Python asks for no 16 bits: see has_bf16 */
    return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(_mm512_set1_epi32(x)), sum);
}

/* As quantized_tile, weights of 16 or 32 bits. x [rows, groups, 32] of their type. */
INLINE void float_tile(int bits, int rows, long groups, const char *x, const uint8_t *w, const float *residual,
                       float *out, long stride)
{
    const long row_bytes = groups * input_group_bytes(bits);
    __m512 total[ROW_TILE][ACCUMULATORS];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < ACCUMULATORS; j++) total[r][j] = _mm512_setzero_ps();
    for (long at = 0; at < row_bytes; at += ACCUMULATORS * 4, w += ACCUMULATORS * VECTOR)
#pragma GCC unroll 2
        for (int j = 0; j < ACCUMULATORS; j++) {
            const __m512i part = _mm512_loadu_si512(w + j * VECTOR);
            _mm_prefetch((const char *)w + PREFETCH + j * VECTOR, _MM_HINT_T0);
            for (int r = 0; r < rows; r++)
                total[r][j] = multiply_add(bits, total[r][j], part, load_int32(x + r * row_bytes + at + 4 * j));
        }
    for (int r = 0; r < rows; r++)
        store_sum(_mm512_add_ps(total[r][0], total[r][1]), residual ? residual + r * stride : 0, out + r * stride);
}

/* One block of outputs for any number of rows. x: the input scratch; the rest as quantized_tile. */
static void block_product(int bits, long rows, long groups, const char *x, const uint8_t *w, const float *residual,
                          float *out, long stride)
{
#define TILE(n)                                                                                \
    case n:                                                                                    \
        if (bits == 32)                                                                        \
            float_tile(32, n, groups, x, w, residual, out, stride);                            \
        else if (bits == 16)                                                                   \
            float_tile(16, n, groups, x, w, residual, out, stride);                            \
        else if (bits == 8)                                                                    \
            quantized_tile(8, n, groups, (const QuantizedGroup *)x, w, residual, out, stride); \
        else                                                                                   \
            quantized_tile(4, n, groups, (const QuantizedGroup *)x, w, residual, out, stride); \
        break;
    for (; rows > 0; rows -= ROW_TILE) {
        switch (rows < ROW_TILE ? rows : ROW_TILE) {
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
        }
        x += ROW_TILE * groups * input_group_bytes(bits), out += ROW_TILE * stride;
        if (residual) residual += ROW_TILE * stride;
    }
#undef TILE
}

/* Whether these kernels multiply weights of 16 bits: whether the compiler was given AVX-512 BF16. */
int has_bf16(void)
{
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

/* AMX: tiles of up to 16 rows by weights of 16 bits, in the time of one row. */

static int amx_enabled;

/* Asks the system for the use of AMX, or (wanted 0) leaves it unused. Returns whether it is used from now on. */
int enable_amx(int wanted)
{
#ifdef __AMX_BF16__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    amx_enabled = wanted && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    (void)wanted;
#endif
    return amx_enabled;
}

#ifdef __AMX_BF16__
/* Shapes this thread's tiles: 0 for sums [rows, 16], 1 for x [rows, 32], 2 for w [16, 16, 2]. */
static void amx_configure(long rows)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 3; i++) shape.bytes[i] = 64, shape.rows[i] = i == 2 || rows > SCRATCH_ROWS ? 16 : rows;
    _tile_loadconfig(&shape);
}

/* As block_product with 16 bits, by AMX. x: with memory for rows rounded up to 16, if there are more. */
static void amx_block_product(long rows, long groups, const char *x, const uint8_t *w, const float *residual,
                              float *out, long stride)
{
    float sums[SCRATCH_ROWS * OUTPUTS] __attribute__((aligned(64)));
    const long group_bytes = input_group_bytes(16);
    for (long first = 0; first < rows; first += SCRATCH_ROWS) {
        _tile_zero(0);
        for (long g = 0; g < groups; g++) {
            const uint8_t *of = w + g * weight_group_bytes(16);
            for (long i = 0; i < weight_group_bytes(16); i += 64)
                _mm_prefetch((const char *)of + PREFETCH + i, _MM_HINT_T0);
            _tile_loadd(2, of, VECTOR);
            _tile_loadd(1, x + (first * groups + g) * group_bytes, groups * group_bytes);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, sums, OUTPUTS * sizeof(float));
        for (long r = first; r < rows && r < first + SCRATCH_ROWS; r++)
            store_sum(_mm512_load_ps(sums + (r - first) * OUTPUTS), residual ? residual + r * stride : 0,
                      out + r * stride);
    }
}
#endif

/* Writes 32 activations to their group of the input scratch, in the form that weights of `bits` are multiplied with. */
static inline void store_inputs(__m512 first, __m512 second, int bits, char *to)
{
    if (bits == 32) _mm512_storeu_ps(to, first), _mm512_storeu_ps(to + 64, second);
#ifdef __AVX512BF16__
    else if (bits == 16)
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
#endif
    else
        quantize_group(first, second, (QuantizedGroup *)to);
}

/* Fills the input scratch [rows, inputs / 32] with x [rows, inputs] after RMS norm or SwiGLU; by a team. Arguments as
product_team's. */
static void store_inputs_team(const float *x, long rows, long inputs, const float *gain, float eps, int is_gated,
                              int bits, char *input_scratch)
{
    const long groups = inputs / GROUP;
    long normed_row = -1; /* whose scale this is */
    __m512 scale = _mm512_setzero_ps();
#pragma omp for schedule(static)
    for (long i = 0; i < rows * groups; i++) {
        const long r = i / groups, at = i % groups * GROUP;
        __m512 first, second;
        if (is_gated) {
            const float *gate = x + 2 * r * inputs + at;
            first = silu_mul(gate, gate + inputs), second = silu_mul(gate + 16, gate + inputs + 16);
        } else {
            first = _mm512_loadu_ps(x + r * inputs + at), second = _mm512_loadu_ps(x + r * inputs + at + 16);
        }
        if (gain) {
            if (normed_row != r) scale = _mm512_set1_ps(inv_rms(x + r * inputs, inputs, eps)), normed_row = r;
            first = _mm512_mul_ps(_mm512_mul_ps(first, scale), _mm512_loadu_ps(gain + at));
            second = _mm512_mul_ps(_mm512_mul_ps(second, scale), _mm512_loadu_ps(gain + at + 16));
        }
        store_inputs(first, second, bits, input_scratch + i * input_group_bytes(bits));
    }
}

/* x [rows, inputs] @ w^T -> out [rows, outputs], which may be the residual; by a team.

gain [inputs], or null: x goes through an RMS norm first. is_gated: x is [rows, 2 * inputs], gate and up of a SwiGLU.
bits: of w, 4, 8, 16 or 32. residual [rows, outputs], or null, is added. input_scratch: input_group_bytes for [rows
rounded up to SCRATCH_ROWS, inputs / 32]. */
static void product_team(const float *x, long rows, long inputs, const float *gain, float eps, int is_gated, int bits,
                         const uint8_t *w, long outputs, const float *residual, float *out, char *input_scratch)
{
    const long groups = inputs / GROUP, blocks = outputs / OUTPUTS, block_bytes = groups * weight_group_bytes(bits);
    store_inputs_team(x, rows, inputs, gain, eps, is_gated, bits, input_scratch);
#ifdef __AMX_BF16__
    if (bits == 16 && amx_enabled) {
        amx_configure(rows);
#pragma omp for schedule(static)
        for (long b = 0; b < blocks; b++)
            amx_block_product(rows, groups, input_scratch, w + b * block_bytes, residual ? residual + b * OUTPUTS : 0,
                              out + b * OUTPUTS, outputs);
        _tile_release();
        return;
    }
#endif
#pragma omp for schedule(static)
    for (long b = 0; b < blocks; b++)
        block_product(bits, rows, groups, input_scratch, w + b * block_bytes, residual ? residual + b * OUTPUTS : 0,
                      out + b * OUTPUTS, outputs);
}

/* x [rows, inputs] @ w^T -> out [rows, outputs], by a team of its own. Arguments as product_team's. */
void product(const float *x, long rows, long inputs, const float *gain, float eps, int bits, const uint8_t *w,
             long outputs, float *out, char *input_scratch, int threads)
{
#pragma omp parallel num_threads(threads)
    product_team(x, rows, inputs, gain, eps, 0, bits, w, outputs, 0, out, input_scratch);
}
