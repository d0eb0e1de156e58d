/* MaxSim of query tokens over packed codes, for ragged pages and lists of pages, on several threads.

   hatch_build.py compiles this file once per instruction set, with LEVEL as the suffix of its functions. Vector types
   are those of GCC and Clang, so every path is correct on any processor; intrinsics are used where plain C is slower.

   Three methods compute the inner products of a block of rows with all tokens:
   - 32 and 16 bits: rows are converted to float32 and multiplied with float32 tokens. With VNNI and many tokens, 16-bit
     rows and tokens are rounded to int16.
   - 8 bits: rows are unpacked to int16 and multiplied with tokens rounded to int16.
   - 4, 2 and 1 bits: four bits of a row index a table of 12-bit partial sums per token (pshufb or tbl); without such an
     instruction, and at 4 and 2 bits with many tokens or components, as for 8 bits.
   Rounding is bounded: `errors` receives an upper bound of the absolute error of the scores of each query. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512BW__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__SSSE3__) || defined(__aarch64__)
#define HAS_TABLES 1
#endif

enum {
    LANES = BYTES / 4,
    ROWS = 24,             /* rows per block of floats or int16 */
    CHUNK = 128,           /* components per block: a block of rows and of tokens fit into the L1 cache */
    TABLE_ROWS = 2 * BYTES < 32 ? 32 : 2 * BYTES,
    TABLE_BYTES = 256,     /* code bytes per row and table block: 512 sums of 6 bits fit into 16 bits */
    ROUNDED_TOKENS = 4,    /* tokens above which 16-bit rows are rounded to int16, with VNNI */
    PAGES = 16,            /* pages that a thread takes at a time */
    MAX_THREADS = 64,
};
#define THREAD_WORK 1e7    /* multiplications per thread below which another thread is not worth its start */
#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define EXPORT(name) __attribute__((visibility("default"))) CONCAT(name, LEVEL)

/* The layout of this structure is repeated in kernels.py. */
typedef struct {
    const uint8_t *codes;        /* (rows, row_bytes) */
    const uint16_t *scales;      /* (rows,) float16; NULL for floats */
    const int64_t *starts;       /* first row of each page, and the end */
    const int64_t *pages;        /* (page_count,) */
    int64_t page_count, bits, row_bytes;
    const float *tokens;         /* (token_count, components), rotated and padded like the codes */
    int64_t token_count, components;
    const int64_t *query_starts; /* (query_count + 1,) first token of each query */
    int64_t query_count;
    float *scores;               /* (query_count, score_stride) */
    int64_t score_stride;
    float *errors;               /* (query_count,) */
    int64_t threads;
} Request;

typedef float floats __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef floats floats_at __attribute__((aligned(4), may_alias));
typedef ints ints_at __attribute__((aligned(4), may_alias));
typedef int32_t int_at __attribute__((aligned(4), may_alias));
typedef int64_t long_at __attribute__((aligned(4), may_alias));
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_ints __attribute__((vector_size(16)));
typedef int64_t longs __attribute__((vector_size(BYTES)));
typedef quad quad_at __attribute__((aligned(4), may_alias));

static inline float half_to_float(uint16_t half) {
    union { uint32_t bits; float value; } number = {(uint32_t)(half & 0x7fff) << 13};
    number.value *= 0x1p112f;
    if (number.value >= 65536.0f) number.bits |= 0x7f800000;
    number.bits |= (uint32_t)(half & 0x8000) << 16;
    return number.value;
}

static void halves_to_floats(const uint16_t *restrict halves, float *restrict values, long count) {
    long i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(values + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(halves + i))));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(halves + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(values + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + i))));
#endif
    for (; i < count; i++) values[i] = half_to_float(halves[i]);
}

static inline quad maximum_of_quads(quad a, quad b) {
#if defined(__x86_64__)
    return (quad)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
    return (quad)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    quad_ints above = a > b;
    return (quad)((above & (quad_ints)a) | (~above & (quad_ints)b));
#endif
}

static inline floats maximum(floats a, floats b) {
#if defined(__AVX512F__)
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return maximum_of_quads(a, b);
#endif
}

/* Explicit, because the file is compiled without contraction: rescoring must round alike on every processor. */
static inline floats multiply_add(floats sum, floats a, floats b) {
#if defined(__AVX512F__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}

/* Add the products of two int16 per lane. */
static inline ints multiply_pairs(ints sum, ints a, ints b) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sum + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return sum + (ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* Repeat PARTS elements of 4 bytes. */
static inline ints repeat_1(const void *elements) { return (ints){0} + *(const int_at *)elements; }
static inline ints repeat_2(const void *elements) { return (ints)((longs){0} + *(const long_at *)elements); }
#if BYTES == 64
static inline ints repeat_4(const void *elements) {
    return (ints)_mm512_broadcast_i32x4(_mm_loadu_si128(elements));
}
#endif

/* Add a vector, or the sums of PARTS neighbouring lanes, to `target`. */
static inline void add_1(float *target, floats sum) { *(floats_at *)target += sum; }
#if BYTES == 64
static inline void add_2(float *target, floats sum) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0xb1);
    __m256 low = _mm512_castps512_ps256(_mm512_permutexvar_ps(even, (__m512)sum));
    _mm256_storeu_ps(target, _mm256_loadu_ps(target) + low);
}
static inline void add_4(float *target, floats sum) {
    const __m512i every_fourth = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0xb1);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0x4e);
    *(quad_at *)target += (quad)_mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, (__m512)sum));
}
#elif BYTES == 32
static inline void add_2(float *target, floats sum) {
    sum += (floats)_mm256_permute_ps((__m256)sum, 0xb1);
    __m256 even = _mm256_permutevar8x32_ps((__m256)sum, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
    *(quad_at *)target += (quad)_mm256_castps256_ps128(even);
}
#endif

/* Register-blocked products of COUNT rows of ROW_BYTES with a tile of tokens, times the factor of each row, added to
   `sums`.

   The elements of rows and tokens have 4 bytes: a float or two int16. A tile has COLUMNS vectors of tokens. With PARTS
   above 1 it has LANES / PARTS tokens, and a vector contains PARTS elements of each: few tokens fill all lanes. */
#define TILE(NAME, VECTOR, ROW_BYTES, COUNT, COLUMNS, PARTS, MULTIPLY)                                             \
    static void NAME(const char *restrict rows, const char *restrict tokens, long steps,                           \
                     const float *restrict factors, float *restrict sums, long stride) {                           \
        VECTOR sum[COUNT][COLUMNS];                                                                                \
        for (int r = 0; r < COUNT; r++)                                                                            \
            for (int c = 0; c < COLUMNS; c++) sum[r][c] = (VECTOR){0};                                             \
        for (long i = 0; i < steps; i += PARTS, tokens += COLUMNS * BYTES) {                                       \
            VECTOR token[COLUMNS];                                                                                 \
            for (int c = 0; c < COLUMNS; c++) token[c] = *(const VECTOR##_at *)(tokens + c * BYTES);               \
            for (int r = 0; r < COUNT; r++) {                                                                      \
                VECTOR row = (VECTOR)repeat_##PARTS(rows + r * ROW_BYTES + 4 * i);                                 \
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = MULTIPLY(sum[r][c], row, token[c]);                  \
            }                                                                                                      \
        }                                                                                                          \
        for (int r = 0; r < COUNT; r++)                                                                            \
            for (int c = 0; c < COLUMNS; c++)                                                                      \
                add_##PARTS(sums + r * stride + c * LANES, __builtin_convertvector(sum[r][c], floats) * factors[r]); \
    }
#define TILES(SUFFIX, COUNT, COLUMNS, PARTS)                                                                       \
    TILE(float_tile_##SUFFIX, floats, 4 * CHUNK, COUNT, COLUMNS, PARTS, multiply_add)                              \
    TILE(integer_tile_##SUFFIX, ints, 2 * CHUNK, COUNT, COLUMNS, PARTS, multiply_pairs)
typedef void Tile(const char *, const char *, long, const float *, float *, long);

#if BYTES == 64 || defined(__aarch64__)
enum { WIDE_ROWS = 12 };  /* 32 registers */
TILES(double, 12, 2, 1)
#else
enum { WIDE_ROWS = 6 };   /* 16 registers */
TILES(double, 6, 2, 1)
#endif
TILES(single, 12, 1, 1)
#if BYTES == 64
TILES(half, 12, 1, 2)
TILES(quarter, 12, 1, 4)
enum { SMALLEST = LANES / 4 };
#define SMALL_TILES {float_tile_half, integer_tile_half}, {float_tile_quarter, integer_tile_quarter}
#elif BYTES == 32
TILES(half, 12, 1, 2)
enum { SMALLEST = LANES / 2 };
#define SMALL_TILES {float_tile_half, integer_tile_half}
#else
enum { SMALLEST = LANES };
#define SMALL_TILES
#endif
/* Tiles of 2 * LANES, LANES, LANES / 2 and LANES / 4 tokens. */
static Tile *const tiles[][2] = {
    {float_tile_double, integer_tile_double}, {float_tile_single, integer_tile_single}, SMALL_TILES};

/* Number of tokens of the next tile. */
static long tile_width(long remaining) {
    long width = 2 * LANES;
    while (width > SMALLEST && remaining <= width / 2) width /= 2;
    return width;
}

static long padded_tokens(long count) {
    long total = 0;
    while (total < count) total += tile_width(count - total);
    return total;
}

typedef struct {
    const Request *request;
    int tables;           /* whether table look-ups are used */
    int integer;          /* whether rows and tokens are multiplied as int16 */
    long padded;          /* tokens, padded to tiles */
    long groups;          /* look-ups per row, a multiple of 4 */
    void *packed;         /* tokens as tiles (chunk, tile, component, token), or tables (token, group, 2, 16) */
    float *steps, *bases; /* (padded,) product = (integer * step + base) * scale */
    float *errors;        /* (padded,) bound of the error for a scale of 1 */
    int64_t page_count;
    int64_t next;         /* first page that no thread has taken */
    int64_t users;        /* threads that may still use this structure */
    int64_t running;      /* threads that work on pages */
    int failed;
    float largest_scale;
    pthread_mutex_t mutex;
    pthread_cond_t idle;
} Scan;

/* Component of a row at a position of an unpacked chunk, or -1: see unpack_words(). */
static long component_at(const Request *r, long first, long count, long position) {
    long component = position;
    if (r->bits < 8) {
        long per_word = 16 / r->bits, words = (count + per_word - 1) / per_word;
        component = position < words * per_word ? position % words * per_word + position / words : count;
    }
    return component < count ? first + component : -1;
}

/* Round a token to int16. Returns the step; `bound` receives the largest error of a product with a row per unit of the
   scale of the row, or of its length at 16 bits.

   At 16 bits, each chunk of a row is divided by its length / 32767 and rounded, which adds up to |t|_1 / 65534 per unit of
   its length for a chunk t of the token; the rounding error e of the token adds up to |e|. The sum over all chunks is
   largest if their lengths are proportional to that. Sums fit into 32 bits, because no length is above 32767. */
static float round_token(const Request *r, const float *token, int16_t *rounded, float *bound) {
    float largest = 1e-30f, error = 0;
    for (long first = 0; first < r->components; first += CHUNK) {
        float squares = 0;
        for (long i = first; i < r->components && i < first + CHUNK; i++) {
            largest = fmaxf(largest, fabsf(token[i]));
            squares += token[i] * token[i];
        }
        if (r->bits == 16) largest = fmaxf(largest, sqrtf(squares));
    }
    float step = largest / 32767;
    for (long first = 0; first < r->components; first += CHUNK) {
        float sum = 0, rest = 0, squares = 0;
        for (long i = first; i < r->components && i < first + CHUNK; i++) {
            rounded[i] = (int16_t)rintf(token[i] / step);
            float difference = fabsf(token[i] - rounded[i] * step);
            sum += fabsf(token[i]);
            rest += difference;
            squares += difference * difference;
        }
        float most = sum / 65534 + sqrtf(squares);
        error += r->bits == 16 ? most * most : rest * (float)(r->bits == 8 ? 127 : (1 << r->bits) - 1);
    }
    *bound = r->bits == 16 ? sqrtf(error) * 1.01f : error;
    return step;
}

static int pack_tokens(Scan *scan) {
    const Request *r = scan->request;
    float *values = scan->packed;
    int16_t *integers = scan->packed, *rounded = calloc(r->components + 1, sizeof *rounded);
    if (rounded == NULL) return -1;
    for (long t = 0, start = 0; t < scan->padded; start = t) {
        /* Tiles are the inner dimension of the chunks: see multiply(). */
        long width = tile_width(scan->padded - t), parts = width < LANES ? LANES / width : 1;
        for (t = start; t < start + width && t < r->token_count; t++) {
            const float *token = r->tokens + t * r->components;
            if (scan->integer) scan->steps[t] = round_token(r, token, rounded, &scan->errors[t]);
            for (long first = 0; first < r->components; first += CHUNK) {
                long count = r->components - first < CHUNK ? r->components - first : CHUNK;
                long tile = first * scan->padded + start * CHUNK;
                for (long i = 0; i < CHUNK; i++) {
                    long component = component_at(r, first, count, i), element = scan->integer ? i / 2 : i;
                    long at = (element / parts * width + t - start) * parts + element % parts;
                    if (component < 0) continue;
                    if (scan->integer)
                        integers[tile + 2 * at + i % 2] = rounded[component];
                    else
                        values[tile + at] = token[component];
                }
            }
        }
        t = start + width;
    }
    free(rounded);
    return 0;
}

/* Unpack components of 1, 2 or 4 bits to int16. Part k of all 16-bit words comes before part k + 1, which needs shifts
   and masks only. Inline, so that `bits` is a constant. */
static inline __attribute__((always_inline)) void unpack_words(
    const uint8_t *codes, long count, long bits, int16_t *restrict values) {
    uint16_t words[CHUNK / 2] = {0};
    long per_word = 16 / bits, length = (count + per_word - 1) / per_word;
    memcpy(words, codes, count * bits / 8);
    for (long k = 0; k < per_word; k++, values += length)
        for (long i = 0; i < length; i++)
            values[i] = (int16_t)(2 * (words[i] >> k * bits & ((1 << bits) - 1)) + 1 - (1 << bits));
}

/* Unpack `count` components of a row to floats or int16 in `target`. */
static void unpack(const Request *r, const uint8_t *row, long first, long count, void *restrict target) {
    const uint8_t *codes = row + first * r->bits / 8;
    int16_t *restrict values = target;
    switch (r->bits) {
        case 32: memcpy(target, codes, 4 * count); break;
        case 16: halves_to_floats((const uint16_t *)codes, target, count); break;
        case 8:
            for (long i = 0; i < count; i++) values[i] = (int8_t)codes[i];
            break;
        case 4: unpack_words(codes, count, 4, values); break;
        case 2: unpack_words(codes, count, 2, values); break;
        default: unpack_words(codes, count, 1, values);
    }
}

#if defined(__AVX512VNNI__)
#define ROUNDS_HALVES 1
/* Round `count` <= CHUNK halves to int16, so that their length is 32767. Returns their length. */
static float round_halves(const uint16_t *halves, int16_t *values, long count) {
    __m512 parts[CHUNK / 16], squares = _mm512_setzero_ps();
    for (long i = 0; i < count; i += 16) {
        __mmask16 mask = count - i < 16 ? (__mmask16)((1 << (count - i)) - 1) : 0xffff;
        parts[i / 16] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, halves + i));
        squares = _mm512_fmadd_ps(parts[i / 16], parts[i / 16], squares);
    }
    float length = sqrtf(_mm512_reduce_add_ps(squares));
    __m512 factor = _mm512_set1_ps(length > 0 ? 32767 / length : 0);
    for (long i = 0; i < count; i += 16) {
        __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(parts[i / 16], factor));
        _mm256_storeu_si256((void *)(values + i), _mm512_cvtsepi32_epi16(rounded));
    }
    return length;
}
#endif

/* Products of up to ROWS rows with all tokens, scaled: sums (ROWS, padded). Returns the largest length of a row if rows
   are rounded. */
static float multiply(
    const Scan *scan, int64_t row, long count, const float *scales, float *restrict sums, void *restrict buffer) {
    const Request *r = scan->request;
    const uint8_t *codes = r->codes + row * r->row_bytes;
    long element = scan->integer ? 2 : 4, stride = scan->padded;
    const char *tokens = scan->packed;
#ifdef ROUNDS_HALVES
    float squares[ROWS] = {0}, factors[ROWS] = {0};
    if (r->bits == 16 && scan->integer) scales = factors;
#endif
    memset(sums, 0, sizeof(float) * ROWS * stride);
    for (long first = 0; first < r->components; first += CHUNK) {
        long components = r->components - first < CHUNK ? r->components - first : CHUNK;
        long unpacked = components;
        if (r->bits < 8) unpacked = (components * r->bits + 15) / 16 * 16 / r->bits;
        long steps = (unpacked * element + 15) / 16 * 4;
        for (long i = 0; i < count; i++) {
            char *target = (char *)buffer + i * CHUNK * element;
            const uint8_t *code = codes + i * r->row_bytes;
#ifdef ROUNDS_HALVES
            if (scan->integer && r->bits == 16) {
                float length = round_halves((const uint16_t *)code + first, (int16_t *)target, components);
                squares[i] += length * length;
                factors[i] = length / 32767;
            } else
#endif
                unpack(r, code, first, components, target);
            memset(target + unpacked * element, 0, 4 * steps - unpacked * element);
        }
        for (long t = 0; t < stride;) {
            long width = tile_width(stride - t), rows = width == 2 * LANES ? WIDE_ROWS : 12;
            Tile *tile = tiles[__builtin_ctzl(2 * LANES / width)][scan->integer];
            for (long i = 0; i < count; i += rows) {
                const char *block = (const char *)buffer + i * CHUNK * element;
                tile(block, tokens, steps, scales + i, sums + i * stride + t, stride);
            }
            tokens += width * CHUNK * element;
            t += width;
        }
    }
    float largest = 0;
#ifdef ROUNDS_HALVES
    for (long i = 0; i < count; i++) largest = fmaxf(largest, sqrtf(squares[i]));
#endif
    return largest;
}

#ifdef HAS_TABLES

typedef uint8_t bytes __attribute__((vector_size(BYTES)));
typedef uint16_t words __attribute__((vector_size(BYTES)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef bytes bytes_at __attribute__((aligned(1), may_alias));
typedef words words_at __attribute__((aligned(2), may_alias));
typedef bytes16 bytes16_at __attribute__((aligned(1), may_alias));

static inline bytes look_up(const uint8_t *table, bytes indexes) {
#if BYTES == 64
    return (bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const void *)table)), (__m512i)indexes);
#elif BYTES == 32
    return (bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const void *)table)), (__m256i)indexes);
#elif defined(__aarch64__)
    return (bytes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)indexes);
#else
    return (bytes)_mm_shuffle_epi8(_mm_load_si128((const void *)table), (__m128i)indexes);
#endif
}

static inline bytes16 interleave_low(bytes16 a, bytes16 b) {
#if defined(__aarch64__)
    return (bytes16)vzip1q_u8((uint8x16_t)a, (uint8x16_t)b);
#else
    return (bytes16)_mm_unpacklo_epi8((__m128i)a, (__m128i)b);
#endif
}

static inline bytes16 interleave_high(bytes16 a, bytes16 b) {
#if defined(__aarch64__)
    return (bytes16)vzip2q_u8((uint8x16_t)a, (uint8x16_t)b);
#else
    return (bytes16)_mm_unpackhi_epi8((__m128i)a, (__m128i)b);
#endif
}

/* Tables of the sums of each group of 4 bits: 16 entries of 12 bits, the lower and the upper 6 bits in turn. */
static int make_tables(Scan *scan) {
    const Request *r = scan->request;
    long size = 4 / r->bits, levels = 1 << r->bits;
    float *sums = malloc(sizeof(float) * 16 * scan->groups);
    if (sums == NULL) return -1;
    for (long t = 0; t < r->token_count; t++) {
        float largest = 1e-30f, base = 0;
        for (long g = 0; g < scan->groups; g++) {
            float *entry = sums + 16 * g, least = INFINITY, most = -INFINITY;
            memset(entry, 0, 16 * sizeof(float));
            for (long k = 0; k < size; k++) {
                long component = g * size + k;
                float value = component < r->components ? r->tokens[t * r->components + component] : 0;
                for (long n = 0; n < 16; n++)
                    entry[n] += value * (float)(2 * (n >> k * r->bits & (levels - 1)) + 1 - levels);
            }
            for (long n = 0; n < 16; n++) {
                least = fminf(least, entry[n]);
                most = fmaxf(most, entry[n]);
            }
            for (long n = 0; n < 16; n++) entry[n] -= least;
            base += least;
            largest = fmaxf(largest, most - least);
        }
        float step = largest / 4095, factor = 4095 / largest;
        uint8_t *tables = (uint8_t *)scan->packed + t * scan->groups * 32;
        for (long g = 0; g < scan->groups; g++)
            for (long n = 0; n < 16; n++) {
                long value = (long)(sums[16 * g + n] * factor + 0.5f);
                tables[32 * g + n] = value & 63;
                tables[32 * g + 16 + n] = (uint8_t)(value >> 6);
            }
        scan->steps[t] = step;
        scan->bases[t] = base;
        scan->errors[t] = 0.51f * step * scan->groups;
    }
    free(sums);
    return 0;
}

/* Transpose 16 rows of 16 bytes. */
static inline void transpose(bytes16 *rows) {
    for (int stage = 0; stage < 4; stage++) {
        bytes16 next[16];
        for (int i = 0; i < 8; i++) {
            next[2 * i] = interleave_low(rows[i], rows[i + 8]);
            next[2 * i + 1] = interleave_high(rows[i], rows[i + 8]);
        }
        memcpy(rows, next, sizeof next);
    }
}

/* Split `length` code bytes of TABLE_ROWS rows into nibbles (2 * length, TABLE_ROWS). Of 32 rows, row i and row
   16 + i are neighbours, so that the even and the odd bytes of a vector belong to consecutive rows. */
static void split_nibbles(const Request *r, int64_t row, long count, long first, long length, uint8_t *nibbles) {
    for (long group = 0; group < TABLE_ROWS && group < count; group += 32)
        for (long at = 0; at < length; at += 16) {
            bytes16 rows[2][16];
            for (long i = 0; i < 32; i++) {
                long inside = group + i < count ? group + i : count - 1;
                const uint8_t *code = r->codes + (row + inside) * r->row_bytes + first + at;
                if (at + 16 <= length) {
                    rows[i / 16][i % 16] = *(const bytes16_at *)code;
                } else {
                    uint8_t padded[16] = {0};
                    memcpy(padded, code, length - at);
                    rows[i / 16][i % 16] = *(const bytes16_at *)padded;
                }
            }
            transpose(rows[0]);
            transpose(rows[1]);
            long columns = length - at < 16 ? length - at : 16;
            for (long j = 0; j < columns; j++) {
                uint8_t *target = nibbles + 2 * (at + j) * TABLE_ROWS + group;
                bytes16 low = interleave_low(rows[0][j], rows[1][j]), high = interleave_high(rows[0][j], rows[1][j]);
                *(bytes16_at *)target = low & 15;
                *(bytes16_at *)(target + 16) = high & 15;
                *(bytes16_at *)(target + TABLE_ROWS) = low >> 4;
                *(bytes16_at *)(target + TABLE_ROWS + 16) = high >> 4;
            }
        }
}

static inline bytes sum_of_four(const uint8_t *tables, const uint8_t *nibbles) {
    bytes sum = look_up(tables, *(const bytes_at *)nibbles);
    for (int i = 1; i < 4; i++) sum += look_up(tables + 32 * i, *(const bytes_at *)(nibbles + TABLE_ROWS * i));
    return sum;
}

/* Products of up to TABLE_ROWS rows with all tokens, scaled: products (tokens, TABLE_ROWS). */
static void look_up_products(
    const Scan *scan, int64_t row, long count, const float *scales, float *restrict products, uint8_t *nibbles) {
    const Request *r = scan->request;
    enum { VECTORS = TABLE_ROWS / BYTES };
    for (long first = 0; first < r->row_bytes; first += TABLE_BYTES) {
        long length = r->row_bytes - first < TABLE_BYTES ? r->row_bytes - first : TABLE_BYTES;
        split_nibbles(r, row, count, first, length, nibbles);
        long groups = 2 * length, padded = (groups + 3) / 4 * 4;
        if (padded > groups) memset(nibbles + groups * TABLE_ROWS, 0, (padded - groups) * TABLE_ROWS);
        for (long t = 0; t < r->token_count; t++) {
            const uint8_t *tables = (const uint8_t *)scan->packed + (t * scan->groups + 2 * first) * 32;
            words whole[2][VECTORS] = {{{0}}}, upper[2][VECTORS] = {{{0}}};
            for (long g = 0; g < padded; g += 4)
                for (int plane = 0; plane < 2; plane++)
                    for (int v = 0; v < VECTORS; v++) {
                        words sum = (words)sum_of_four(tables + 32 * g + 16 * plane, nibbles + g * TABLE_ROWS + v * BYTES);
                        whole[plane][v] += sum;
                        upper[plane][v] += sum >> 8;
                    }
            uint16_t even[2][TABLE_ROWS / 2], odd[2][TABLE_ROWS / 2];
            for (int plane = 0; plane < 2; plane++)
                for (int v = 0; v < VECTORS; v++) {
                    *(words_at *)(even[plane] + v * BYTES / 2) = whole[plane][v] - (upper[plane][v] << 8);
                    *(words_at *)(odd[plane] + v * BYTES / 2) = upper[plane][v];
                }
            float *target = products + t * TABLE_ROWS, step = scan->steps[t];
            float base = first == 0 ? scan->bases[t] : 0;
            for (long group = 0; group < TABLE_ROWS / 2; group += 16)
                for (long i = 0; i < 16; i++) {
                    float low = (float)(even[0][group + i] + 64 * even[1][group + i]) * step + base;
                    float high = (float)(odd[0][group + i] + 64 * odd[1][group + i]) * step + base;
                    low *= scales[2 * group + i];
                    high *= scales[2 * group + 16 + i];
                    target[2 * group + i] = first == 0 ? low : target[2 * group + i] + low;
                    target[2 * group + 16 + i] = first == 0 ? high : target[2 * group + 16 + i] + high;
                }
        }
    }
}

static float largest_of(const float *values, long count, float best) {
    long i = 0;
    floats most = (floats){0} + best;
    for (; i + LANES <= count; i += LANES) most = maximum(most, *(const floats_at *)(values + i));
    for (int lane = 0; lane < LANES; lane++) best = most[lane] > best ? most[lane] : best;
    for (; i < count; i++) best = values[i] > best ? values[i] : best;
    return best;
}

#endif

/* Update the maxima of tokens with `count` rows of products. */
static void update_maxima(const float *products, long count, long padded, float *best) {
    long t = 0;
    for (; t + LANES <= padded; t += LANES) {
        floats most = *(const floats_at *)(best + t);
        for (long k = 0; k < count; k++) most = maximum(*(const floats_at *)(products + k * padded + t), most);
        *(floats_at *)(best + t) = most;
    }
    for (; t < padded; t += 4) {
        quad most = *(const quad_at *)(best + t);
        for (long k = 0; k < count; k++) most = maximum_of_quads(*(const quad_at *)(products + k * padded + t), most);
        *(quad_at *)(best + t) = most;
    }
}

/* Sum the maxima of each query's tokens and reset them. */
static void finish_page(const Scan *scan, int64_t position, float *best) {
    const Request *r = scan->request;
    for (long q = 0; q < r->query_count; q++) {
        float sum = 0;
        for (long t = r->query_starts[q]; t < r->query_starts[q + 1]; t++)
            sum += scan->integer && !scan->tables ? best[t] * scan->steps[t] : best[t];
        r->scores[q * r->score_stride + position] = sum;
    }
    for (long t = 0; t < scan->padded; t++) best[t] = -INFINITY;
}

/* Score pages until none are left. */
static void work(Scan *scan) {
    const Request *r = scan->request;
    long block = scan->tables ? TABLE_ROWS : ROWS;
    size_t size = scan->tables ? (size_t)TABLE_ROWS * (2 * TABLE_BYTES + 4) : sizeof(float) * ROWS * CHUNK;
    float *best = malloc(sizeof(float) * scan->padded);
    float *products = malloc(sizeof(float) * scan->padded * block);
    void *buffer = aligned_alloc(64, (size + 63) / 64 * 64);
    float scales[TABLE_ROWS > ROWS ? TABLE_ROWS : ROWS], largest_scale = 0;
    int failed = !(best && products && buffer);
    if (!failed) {
        memset(buffer, 0, size);
        for (long t = 0; t < scan->padded; t++) best[t] = -INFINITY;
    }
    while (!failed) {
        int64_t from = __atomic_fetch_add(&scan->next, PAGES, __ATOMIC_RELAXED);
        if (from >= r->page_count) break;
        int64_t to = from + PAGES < r->page_count ? from + PAGES : r->page_count;
        for (int64_t i = from; i < to;) {
            /* Pages whose rows follow each other are one run of rows. */
            int64_t last = i + 1;
            while (last < to && r->starts[r->pages[last]] == r->starts[r->pages[last - 1] + 1]) last++;
            int64_t row = r->starts[r->pages[i]], end = r->starts[r->pages[last - 1] + 1];
            while (row < end) {
                long count = end - row < block ? (long)(end - row) : block;
                if (r->scales) {
                    halves_to_floats(r->scales + row, scales, count);
                    for (long k = 0; k < count; k++) largest_scale = fmaxf(largest_scale, scales[k]);
                } else {
                    for (long k = 0; k < count; k++) scales[k] = 1;
                }
#ifdef HAS_TABLES
                if (scan->tables)
                    look_up_products(scan, row, count, scales, products, buffer);
                else
#endif
                    largest_scale = fmaxf(largest_scale, multiply(scan, row, count, scales, products, buffer));
                for (long k = 0; k < count;) {
                    while (r->starts[r->pages[i] + 1] == row + k) finish_page(scan, i++, best);
                    int64_t stop = r->starts[r->pages[i] + 1];
                    long until = stop - row < count ? (long)(stop - row) : count;
#ifdef HAS_TABLES
                    if (scan->tables)
                        for (long t = 0; t < r->token_count; t++)
                            best[t] = largest_of(products + t * TABLE_ROWS + k, until - k, best[t]);
                    else
#endif
                        update_maxima(products + k * scan->padded, until - k, scan->padded, best);
                    k = until;
                }
                row += count;
            }
            while (i < last) finish_page(scan, i++, best);
        }
    }
    pthread_mutex_lock(&scan->mutex);
    scan->failed |= failed;
    scan->largest_scale = fmaxf(scan->largest_scale, largest_scale);
    pthread_mutex_unlock(&scan->mutex);
    free(best);
    free(products);
    free(buffer);
}

static void release(Scan *scan) {
    pthread_mutex_lock(&scan->mutex);
    int last = --scan->users == 0;
    pthread_mutex_unlock(&scan->mutex);
    if (!last) return;
    pthread_mutex_destroy(&scan->mutex);
    pthread_cond_destroy(&scan->idle);
    free(scan->packed);
    free(scan->steps);
    free(scan);
}

/* A further thread. If it starts when no page is left, the caller may have returned, and the request is not read. */
static void *help(void *argument) {
    Scan *scan = argument;
    pthread_mutex_lock(&scan->mutex);
    int late = __atomic_load_n(&scan->next, __ATOMIC_RELAXED) >= scan->page_count;
    scan->running += !late;
    pthread_mutex_unlock(&scan->mutex);
    if (!late) {
        work(scan);
        pthread_mutex_lock(&scan->mutex);
        if (--scan->running == 0) pthread_cond_signal(&scan->idle);
        pthread_mutex_unlock(&scan->mutex);
    }
    release(scan);
    return NULL;
}

static void start_threads(Scan *scan) {
    const Request *r = scan->request;
    double products = 0;
    for (int64_t i = 0; i < r->page_count; i++) products += (double)(r->starts[r->pages[i] + 1] - r->starts[r->pages[i]]);
    products *= (double)r->components * r->token_count;
    long threads = (long)fmin((double)r->threads, 1 + products / THREAD_WORK);
    for (long i = 1; i < threads && i < MAX_THREADS; i++) {
        pthread_t thread;
        pthread_mutex_lock(&scan->mutex);
        scan->users++;
        pthread_mutex_unlock(&scan->mutex);
        if (pthread_create(&thread, NULL, help, scan) != 0) {
            release(scan);
            return;
        }
        pthread_detach(thread);
    }
}

/* Score pages; returns 0, or -1 if there is too little memory. */
int EXPORT(maxsim)(const Request *request) {
    Scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) return -1;
    long tokens = request->token_count, chunks = (request->components + CHUNK - 1) / CHUNK;
    scan->request = request;
    scan->page_count = request->page_count;
    scan->users = 1;
    pthread_mutex_init(&scan->mutex, NULL);
    pthread_cond_init(&scan->idle, NULL);
#ifdef HAS_TABLES
    /* Many tokens are faster as integers, and with many components tables would need more pages to be rescored. */
    scan->tables = request->bits == 1 || (request->bits == 2 && tokens * request->components <= 65536) ||
                   (request->bits == 4 && tokens <= 8 && request->components <= 256);
#endif
    scan->integer = request->bits <= 8;
#ifdef ROUNDS_HALVES
    scan->integer |= request->bits == 16 && tokens > ROUNDED_TOKENS;
#endif
    scan->padded = padded_tokens(tokens);
    scan->groups = (request->row_bytes * 2 + 3) / 4 * 4;
    size_t packed = scan->tables ? (size_t)tokens * scan->groups * 32 : sizeof(float) * scan->padded * chunks * CHUNK;
    packed = (packed + 63) / 64 * 64;
    scan->packed = aligned_alloc(64, packed);
    scan->steps = calloc(3 * scan->padded + 1, sizeof(float));
    int failed = scan->packed == NULL || scan->steps == NULL;
    if (!failed) {
        scan->bases = scan->steps + scan->padded;
        scan->errors = scan->steps + 2 * scan->padded;
        memset(scan->packed, 0, packed);
#ifdef HAS_TABLES
        if (scan->tables)
            failed = make_tables(scan);
        else
#endif
            failed = pack_tokens(scan);
    }
    if (!failed) {
        start_threads(scan);
        work(scan);
        pthread_mutex_lock(&scan->mutex);
        while (scan->running > 0) pthread_cond_wait(&scan->idle, &scan->mutex);
        failed = scan->failed && scan->next < request->page_count; /* or other threads did the work */
        __atomic_store_n(&scan->next, INT64_MAX / 2, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&scan->mutex);
        for (long q = 0; q < request->query_count; q++) {
            float error = 0;
            for (long t = request->query_starts[q]; t < request->query_starts[q + 1]; t++) error += scan->errors[t];
            request->errors[q] = error * scan->largest_scale;
        }
    }
    release(scan);
    return failed ? -1 : 0;
}

/* Convert the components of a row to floats. `levels` has the levels of each byte, of 1, 2 or 4 bits. */
static void floats_of_row(const Request *r, const uint8_t *row, const float *levels, float *restrict values) {
    if (r->bits == 32) {
        memcpy(values, row, sizeof(float) * r->components);
    } else if (r->bits == 16) {
        halves_to_floats((const uint16_t *)row, values, r->components);
    } else if (r->bits == 8) {
        for (long i = 0; i < r->row_bytes; i++) values[i] = (int8_t)row[i];
    } else if (r->bits == 4) {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 2 * i, levels + 2 * row[i], 8);
    } else if (r->bits == 2) {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 4 * i, levels + 4 * row[i], 16);
    } else {
        for (long i = 0; i < r->row_bytes; i++) memcpy(values + 8 * i, levels + 8 * row[i], 32);
    }
}

enum { SUMS = 16, BLOCK = BYTES == 64 ? 4 : 2 };

/* Products of BLOCK rows and BLOCK tokens of `length` components, as SUMS partial sums each. */
static void partial_sums(const float *rows, const float *tokens, long length, float sums[BLOCK][BLOCK][SUMS]) {
    floats parts[BLOCK][BLOCK][SUMS / LANES] = {{{{0}}}};
    for (long i = 0; i < length; i += SUMS)
        for (long v = 0; v < SUMS / LANES; v++)
            for (long a = 0; a < BLOCK; a++) {
                floats row = *(const floats_at *)(rows + a * length + i + v * LANES);
                for (long b = 0; b < BLOCK; b++)
                    parts[a][b][v] += row * *(const floats_at *)(tokens + b * length + i + v * LANES);
            }
    memcpy(sums, parts, sizeof parts);
}

/* Score pages for one query with float32 arithmetic in a fixed order, so that every processor returns the same bits:
   16 sums of every 16th product, added in halves, times the scale. `_numpy_rescore` in kernels.py does the same. */
int EXPORT(rescore)(const Request *r) {
    long length = (r->components + SUMS - 1) / SUMS * SUMS, count = r->token_count;
    long padded = (count + BLOCK - 1) / BLOCK * BLOCK, per_byte = r->bits < 8 ? 8 / r->bits : 0;
    float *rows = calloc((padded + BLOCK) * length + padded + 256 * per_byte, sizeof(float));
    if (rows == NULL) return -1;
    float *tokens = rows + BLOCK * length, *best = tokens + padded * length, *levels = best + padded;
    for (long t = 0; t < count; t++)
        memcpy(tokens + t * length, r->tokens + t * r->components, sizeof(float) * r->components);
    for (long i = 0; i < 256 * per_byte; i++) {
        long code = i / per_byte >> i % per_byte * r->bits & ((1 << r->bits) - 1);
        levels[i] = (float)(2 * code + 1 - (1 << r->bits));
    }
    for (int64_t page = 0; page < r->page_count; page++) {
        int64_t row = r->starts[r->pages[page]], end = r->starts[r->pages[page] + 1];
        for (long t = 0; t < padded; t++) best[t] = -INFINITY;
        for (; row < end; row += BLOCK) {
            long used = end - row < BLOCK ? (long)(end - row) : BLOCK;
            for (long a = 0; a < used; a++)
                floats_of_row(r, r->codes + (row + a) * r->row_bytes, levels, rows + a * length);
            for (long t = 0; t < padded; t += BLOCK) {
                float sums[BLOCK][BLOCK][SUMS];
                partial_sums(rows, tokens + t * length, length, sums);
                for (long a = 0; a < used; a++)
                    for (long b = 0; b < BLOCK; b++) {
                        float *parts = sums[a][b];
                        for (long half = SUMS / 2; half > 0; half /= 2)
                            for (long i = 0; i < half; i++) parts[i] += parts[i + half];
                        float product = r->scales ? parts[0] * half_to_float(r->scales[row + a]) : parts[0];
                        best[t + b] = product > best[t + b] ? product : best[t + b];
                    }
            }
        }
        float score = 0;
        for (long t = 0; t < count; t++) score += best[t];
        r->scores[page] = score;
    }
    free(rows);
    return 0;
}

#ifdef DISPATCH

#define ADD_GAINS(NAME, PAGE)                                                                                      \
    static void NAME(const int64_t *bounds, const PAGE *pages, const int64_t *lists, const float *values,          \
                     int64_t count, float *restrict gains, float *restrict totals) {                               \
        for (int64_t i = 0; i < count; i++)                                                                        \
            for (int64_t j = bounds[lists[i]]; j < bounds[lists[i] + 1]; j++) gains[pages[j]] = values[i];         \
        for (int64_t i = 0; i < count; i++)                                                                        \
            for (int64_t j = bounds[lists[i]]; j < bounds[lists[i] + 1]; j++) {                                    \
                totals[pages[j]] += gains[pages[j]];                                                               \
                gains[pages[j]] = 0;                                                                               \
            }                                                                                                      \
    }
ADD_GAINS(add_gains_16, uint16_t)
ADD_GAINS(add_gains_32, uint32_t)

/* Sum the gains of the pages in the probed posting lists of one vector file.

   bounds (lists + 1,) and pages: posting lists; probed, values (token_count, probe_count): lists per token, ascending by
   value; gains (rows,): zeros; totals (rows,): result. */
__attribute__((visibility("default"))) void sum_gains(
    const int64_t *bounds, const void *pages, int64_t page_bytes, const int64_t *probed, const float *values,
    int64_t token_count, int64_t probe_count, float *gains, float *totals) {
    for (int64_t t = 0; t < token_count; t++, probed += probe_count, values += probe_count)
        if (page_bytes == 2)
            add_gains_16(bounds, pages, probed, values, probe_count, gains, totals);
        else
            add_gains_32(bounds, pages, probed, values, probe_count, gains, totals);
}

/* Name of the fastest instruction set that this processor and operating system support. */
__attribute__((visibility("default"))) const char *instruction_set(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? "avx512vnni" : "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "baseline";
}

#endif
