/* Products with packed weights: out[r, n] = sum over k of x[r, k] * w[n, k]. */

/* A weight is cut into blocks of 16 outputs, a block into groups of 32 inputs. In 32 bits number 16 k + n of a group is
that of input k and output n. In 16 bits (bfloat16) number 32 p + 2 n + i is that of input 2 p + i and output n; inputs
are rounded to bfloat16. In 8 or 4 bits a group is
  16 float16   scale of each output
  16 float16   lowest weight of each output
  its levels   of 8 bits: byte 64 p + 4 n + i is that of input 4 p + i, the i-th of part p, of output n
               of 4 bits: the same byte holds those of parts p (its low half) and p + 4 (its high half)
and w = scale * level + lowest. Of the 32 inputs of a group, too, whole numbers of one unit are made: the four of the
part with the largest have 16 bits, the others 8. Sums of what they give with the levels are exact. */

enum { OUTPUTS = 16, INPUTS = 32, SCALES = 64, PART = 64, TILE = 8, AHEAD = 10240, CHAINS = 2 };

/* A group of a row of x: 32 numbers as whole ones times unit. */
typedef struct {
    int8_t low[INPUTS];
    int8_t high[4]; /* of one part, times 256 and to be added */
    int32_t part;   /* which */
    float unit;
    float sum; /* of what they stand for */
} Group;

/* Bytes of a group of a weight, and of one of a row of x. */
static long group_bytes(int bits) { return (bits < 16 ? SCALES : 0) + OUTPUTS * INPUTS * bits / 8; }
static long room_bytes(int bits) { return bits < 16 ? sizeof(Group) : INPUTS * bits / 8; }

/* In each four numbers, the largest of them four times. */
static __m512 largest_of_part(__m512 x)
{
    x = _mm512_max_ps(x, _mm512_permute_ps(x, 0xB1));
    return _mm512_max_ps(x, _mm512_permute_ps(x, 0x4E));
}

/* 32 numbers as a Group. */
static void narrow(__m512 first, __m512 second, Group *to)
{
    const __m512 a = largest_of_part(_mm512_abs_ps(first)), b = largest_of_part(_mm512_abs_ps(second));
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
    const uint32_t where = _mm512_cmpeq_ps_mask(a, _mm512_set1_ps(most))
                         | (uint32_t)_mm512_cmpeq_ps_mask(b, _mm512_set1_ps(most)) << 16;
    const int part = __builtin_ctz(where | 1u << 31) / 4;
    const uint32_t others = ~(15u << 4 * part);
    const float most_of_others = _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_maskz_mov_ps((__mmask16)others, a), _mm512_maskz_mov_ps((__mmask16)(others >> 16), b)));
    const float unit = fmaxf(most_of_others / 127, most / 32639); /* 127 * 256 + 127 */
    const __m512 inverse = _mm512_set1_ps(unit > FLT_MIN ? 1 / unit : 0);
    const __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
    const __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
    const __m512i half = _mm512_set1_epi32(128);
    int8_t high[INPUTS];
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(x, half), 8)));
    _mm_storeu_si128((__m128i *)(high + 16), _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(y, half), 8)));
    _mm_storeu_si128((__m128i *)to->low, _mm512_cvtepi32_epi8(x)); /* of 16 bits, the last 8 */
    _mm_storeu_si128((__m128i *)(to->low + 16), _mm512_cvtepi32_epi8(y));
    memcpy(to->high, high + 4 * part, 4);
    to->part = part;
    to->unit = unit;
    to->sum = unit * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(x, y));
}

/* 1 / root mean square of n numbers, n a multiple of 16. */
static float root(const float *x, long n, float eps)
{
    __m512 sum = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i), sum);
    return 1 / sqrtf(_mm512_reduce_add_ps(sum) / (float)n + eps);
}

/* Powers of e: a power of two times the first terms of a series. */
static __m512 exponential(__m512 x)
{
    static const float SERIES[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f,
                                   6.9314718e-1f, 1};
    const __m512 power = _mm512_max_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _mm512_set1_ps(-126));
    const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 part = _mm512_sub_ps(power, whole);
    __m512 sum = _mm512_set1_ps(0);
    for (int i = 0; i < 7; i++) sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(SERIES[i]));
    return _mm512_scalef_ps(sum, whole);
}

/* gate / (1 + exp(-gate)) * up */
static __m512 gated(const float *gate, const float *up)
{
    const __m512 x = _mm512_loadu_ps(gate);
    const __m512 below = _mm512_add_ps(_mm512_set1_ps(1), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_mul_ps(_mm512_div_ps(x, below), _mm512_loadu_ps(up));
}

/* A row's sums of one block of outputs, and what they are added to (or null). */
static inline void put(__m512 sum, const float *add, float *out)
{
    _mm512_storeu_ps(out, add ? _mm512_add_ps(sum, _mm512_loadu_ps(add)) : sum);
}

/* One block of outputs for `rows` <= TILE rows of x [rows, groups]. */
static inline __attribute__((always_inline)) void tile(
    int bits, int rows, long groups, const Group *x, const uint8_t *w, const float *add, float *out, long stride)
{
    const __m512i mask = _mm512_set1_epi8(15);
    uint8_t wide[OUTPUTS * INPUTS] __attribute__((aligned(64))); /* levels of 4 bits as those of 8 lie */
    __m512 total[TILE];
    for (int r = 0; r < rows; r++) total[r] = _mm512_setzero_ps();
    for (long g = 0; g < groups; g++, w += group_bytes(bits), x++) {
        const uint8_t *levels = w + SCALES, *parts = bits == 4 ? wide : levels;
        for (long i = 0; i < group_bytes(bits); i += 64)
            _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
        __m512i sum[TILE];
        for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            __m512i first = _mm512_loadu_si512(levels + PART * p), second;
            if (bits == 4) {
                second = _mm512_and_si512(_mm512_srli_epi16(first, 4), mask), first = _mm512_and_si512(first, mask);
                _mm512_store_si512(wide + PART * p, first);
                _mm512_store_si512(wide + PART * (p + 4), second);
            } else
                second = _mm512_loadu_si512(levels + PART * (p + 4));
            for (int r = 0; r < rows; r++) {
                const int *low = (const int *)x[r * groups].low + p;
                sum[r] = _mm512_dpbusd_epi32(sum[r], first, _mm512_set1_epi32(low[0]));
                sum[r] = _mm512_dpbusd_epi32(sum[r], second, _mm512_set1_epi32(low[4]));
            }
        }
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        const __m512 lowest = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32)));
        for (int r = 0; r < rows; r++) {
            const Group *of = x + r * groups;
            const __m512i part = _mm512_loadu_si512(parts + PART * of->part);
            const __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), part,
                                                     _mm512_set1_epi32(*(const int *)of->high));
            sum[r] = _mm512_add_epi32(sum[r], _mm512_slli_epi32(high, 8));
            const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(of->unit));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), unit, total[r]);
            total[r] = _mm512_fmadd_ps(_mm512_set1_ps(of->sum), lowest, total[r]);
        }
    }
    for (int r = 0; r < rows; r++) put(total[r], add ? add + r * stride : 0, out + r * stride);
}

/* The same with weights and x [rows, groups, INPUTS] of 32 bits: CHAINS sums, which do not wait for each other. */
static inline __attribute__((always_inline)) void tile_32(
    int rows, long groups, const float *x, const uint8_t *w, const float *add, float *out, long stride)
{
    __m512 total[TILE][CHAINS];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < CHAINS; j++) total[r][j] = _mm512_setzero_ps();
    for (long k = 0; k < groups * INPUTS; k += CHAINS, w += CHAINS * PART)
#pragma GCC unroll 2
        for (int j = 0; j < CHAINS; j++) {
            const __m512 part = _mm512_loadu_ps(w + j * PART);
            _mm_prefetch((const char *)w + AHEAD + j * PART, _MM_HINT_T0);
            for (int r = 0; r < rows; r++)
                total[r][j] = _mm512_fmadd_ps(part, _mm512_set1_ps(x[r * groups * INPUTS + k + j]), total[r][j]);
        }
    for (int r = 0; r < rows; r++)
        put(_mm512_add_ps(total[r][0], total[r][1]), add ? add + r * stride : 0, out + r * stride);
}

#ifdef __AVX512BF16__
/* 32 numbers rounded to bfloat16. */
static void round_16(__m512 first, __m512 second, char *to)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/* The same with weights and x of 16 bits. */
static inline __attribute__((always_inline)) void tile_16(
    int rows, long groups, const char *x, const uint8_t *w, const float *add, float *out, long stride)
{
    __m512 total[TILE][CHAINS];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < CHAINS; j++) total[r][j] = _mm512_setzero_ps();
    for (long p = 0; p < groups * INPUTS / 2; p += CHAINS, w += CHAINS * PART)
#pragma GCC unroll 2
        for (int j = 0; j < CHAINS; j++) {
            const __m512bh part = (__m512bh)_mm512_loadu_si512(w + j * PART);
            _mm_prefetch((const char *)w + AHEAD + j * PART, _MM_HINT_T0);
            for (int r = 0; r < rows; r++) {
                const int pair = ((const int *)(x + r * groups * room_bytes(16)))[p + j];
                total[r][j] = _mm512_dpbf16_ps(total[r][j], part, (__m512bh)_mm512_set1_epi32(pair));
            }
        }
    for (int r = 0; r < rows; r++)
        put(_mm512_add_ps(total[r][0], total[r][1]), add ? add + r * stride : 0, out + r * stride);
}
#else /* never called: see native.py */
static void round_16(__m512 first, __m512 second, char *to) {}
static void tile_16(int r, long g, const char *x, const uint8_t *w, const float *a, float *o, long s) {}
#endif

/* One block of outputs, for any number of rows. x: room. */
static void tiles(int bits, long rows, long groups, const char *x, const uint8_t *w, const float *add, float *out,
                  long stride)
{
#define ROWS(n) \
    case n: \
        if (bits == 32) tile_32(n, groups, (const float *)x, w, add, out, stride); \
        else if (bits == 16) tile_16(n, groups, x, w, add, out, stride); \
        else if (bits == 8) tile(8, n, groups, (const Group *)x, w, add, out, stride); \
        else tile(4, n, groups, (const Group *)x, w, add, out, stride); \
        break;
    for (; rows > 0; rows -= TILE) {
        switch (rows < TILE ? rows : TILE) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) }
        x += TILE * groups * room_bytes(bits), out += TILE * stride;
        if (add) add += TILE * stride;
    }
#undef ROWS
}

/* The matrix unit (AMX), where there is one and this process may use it, multiplies up to MOST rows by weights of 16
bits in the time of one. */

enum { MOST = 16 };
static int has_matrix_unit;

/* Asks the system for the matrix unit if it is wanted. Returns whether it is used from now on. */
int use_matrix_unit(int wanted)
{
#ifdef __AMX_BF16__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    has_matrix_unit = wanted && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#endif
    return has_matrix_unit;
}

#ifdef __AMX_BF16__
/* Shapes the unit's tiles: 0 for sums [rows, OUTPUTS], 1 for x [rows, INPUTS], 2 for w [INPUTS / 2, OUTPUTS, 2]. */
static void begin_tiles(long rows)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 3; i++) shape.bytes[i] = 64, shape.rows[i] = i == 2 || rows > MOST ? 16 : rows;
    _tile_loadconfig(&shape);
}

static void end_tiles(void) { _tile_release(); }

/* As tiles, by the matrix unit. x: with room for rows rounded up to MOST, if there are more. */
static void tiles_of_unit(long rows, long groups, const char *x, const uint8_t *w, const float *add, float *out,
                          long stride)
{
    float sums[MOST * OUTPUTS] __attribute__((aligned(64)));
    for (long first = 0; first < rows; first += MOST) {
        _tile_zero(0);
        for (long g = 0; g < groups; g++) {
            const uint8_t *of = w + g * group_bytes(16);
            for (long i = 0; i < group_bytes(16); i += 64) _mm_prefetch((const char *)of + AHEAD + i, _MM_HINT_T0);
            _tile_loadd(2, of, PART);
            _tile_loadd(1, x + (first * groups + g) * room_bytes(16), groups * room_bytes(16));
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, sums, OUTPUTS * sizeof(float));
        for (long r = first; r < rows && r < first + MOST; r++)
            put(_mm512_load_ps(sums + (r - first) * OUTPUTS), add ? add + r * stride : 0, out + r * stride);
    }
}
#else
static void begin_tiles(long rows) {}
static void end_tiles(void) {}
static void tiles_of_unit(long r, long g, const char *x, const uint8_t *w, const float *a, float *o, long s) {}
#endif

/* x [rows, inputs] -> out [rows, outputs], which may be `add`, by every thread of a team.

gain [inputs], or null: x is divided by its root mean square (eps added to the square) and multiplied by gain first.
is_gated: x is [rows, 2 * inputs], gates and what they let through. bits: of w, 4, 8, 16 or 32. add [rows,
outputs], or null, is added to out. room: for [rows rounded up to MOST, inputs / 32] times room_bytes. */
static void product_shared(const float *x, long rows, long inputs, const float *gain, float eps, int is_gated, int bits,
                           const uint8_t *w, long outputs, const float *add, float *out, char *room)
{
    const long groups = inputs / INPUTS, blocks = outputs / OUTPUTS;
    long normed = -1;
    __m512 scale = _mm512_setzero_ps();
#pragma omp for schedule(static)
    for (long i = 0; i < rows * groups; i++) {
        const long r = i / groups, at = i % groups * INPUTS;
        __m512 first, second;
        if (is_gated) {
            const float *gate = x + 2 * r * inputs + at;
            first = gated(gate, gate + inputs), second = gated(gate + 16, gate + inputs + 16);
        } else
            first = _mm512_loadu_ps(x + r * inputs + at), second = _mm512_loadu_ps(x + r * inputs + at + 16);
        if (gain) {
            if (normed != r) scale = _mm512_set1_ps(root(x + r * inputs, inputs, eps)), normed = r;
            first = _mm512_mul_ps(_mm512_mul_ps(first, scale), _mm512_loadu_ps(gain + at));
            second = _mm512_mul_ps(_mm512_mul_ps(second, scale), _mm512_loadu_ps(gain + at + 16));
        }
        char *to = room + i * room_bytes(bits);
        if (bits == 32)
            _mm512_storeu_ps(to, first), _mm512_storeu_ps(to + 64, second);
        else if (bits == 16)
            round_16(first, second, to);
        else
            narrow(first, second, (Group *)to);
    }
    const int by_unit = bits == 16 && has_matrix_unit;
    if (by_unit) begin_tiles(rows);
#pragma omp for schedule(static)
    for (long b = 0; b < blocks; b++) {
        const uint8_t *block = w + b * groups * group_bytes(bits);
        const float *add_to = add ? add + b * OUTPUTS : 0;
        if (by_unit)
            tiles_of_unit(rows, groups, room, block, add_to, out + b * OUTPUTS, outputs);
        else
            tiles(bits, rows, groups, room, block, add_to, out + b * OUTPUTS, outputs);
    }
    if (by_unit) end_tiles();
}

/* x [rows, inputs] -> out [rows, outputs]. bits: of w, 4, 8, 16 or 32. gain [inputs], or null: x goes through an
RMS norm first. room: for [rows rounded up to MOST, inputs / 32] times room_bytes. */
void product(const float *x, long rows, long inputs, const float *gain, float eps, int bits, const uint8_t *w,
             long outputs, float *out, char *room, int threads)
{
#pragma omp parallel num_threads(threads)
    product_shared(x, rows, inputs, gain, eps, 0, bits, w, outputs, 0, out, room);
}
