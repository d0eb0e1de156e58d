/* Inner products of blocks of rows with tokens, by register-blocked multiplication of floats or int16.

   - 32 and 16 bits: rows are converted to float32. With VNNI and many tokens, 16-bit rows and tokens are rounded to int16.
   - Fewer bits: rows are unpacked to int16 and multiplied with tokens rounded to int16. */

enum { ROUNDED_TOKENS = 8 }; /* tokens above which 16-bit rows are rounded to int16, with VNNI */

/* Store a vector, or the sums of PARTS neighbouring lanes, in `target`, or add them to it. */
static inline void put_1(float *target, floats sum, int add) {
    if (add) sum += *(const floats_at *)target;
    *(floats_at *)target = sum;
}
static inline void put_quad(float *target, quad sum, int add) {
    if (add) sum += *(const quad_at *)target;
    *(quad_at *)target = sum;
}
#if BYTES == 64
static inline void put_2(float *target, floats sum, int add) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0xb1);
    __m256 low = _mm512_castps512_ps256(_mm512_permutexvar_ps(even, (__m512)sum));
    if (add) low += _mm256_loadu_ps(target);
    _mm256_storeu_ps(target, low);
}
static inline void put_4(float *target, floats sum, int add) {
    const __m512i every_fourth = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0xb1);
    sum += (floats)_mm512_permute_ps((__m512)sum, 0x4e);
    put_quad(target, (quad)_mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, (__m512)sum)), add);
}
#elif BYTES == 32
static inline void put_2(float *target, floats sum, int add) {
    sum += (floats)_mm256_permute_ps((__m256)sum, 0xb1);
    __m256 even = _mm256_permutevar8x32_ps((__m256)sum, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
    put_quad(target, (quad)_mm256_castps256_ps128(even), add);
}
#endif

/* Register-blocked products of COUNT rows of ROW_BYTES with a tile of tokens, times the factor of each row, stored in
   `sums` or added to it.

   The elements of rows and tokens have 4 bytes: a float or two int16. A tile has COLUMNS vectors of tokens. With PARTS
   above 1 it has LANES / PARTS tokens, and a vector contains PARTS elements of each: few tokens fill all lanes. */
#define TILE(NAME, VECTOR, ROW_BYTES, COUNT, COLUMNS, PARTS, MULTIPLY)                                             \
    static void NAME(const char *restrict rows, const char *restrict tokens, long steps,                           \
                     const float *restrict factors, float *restrict sums, long stride, int add) {                  \
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
                put_##PARTS(sums + r * stride + c * LANES,                                                         \
                            __builtin_convertvector(sum[r][c], floats) * factors[r], add);                         \
    }
#define TILES(SUFFIX, COUNT, COLUMNS, PARTS)                                                                       \
    TILE(float_tile_##SUFFIX, floats, 4 * CHUNK, COUNT, COLUMNS, PARTS, multiply_add)                              \
    TILE(integer_tile_##SUFFIX, ints, 2 * CHUNK, COUNT, COLUMNS, PARTS, multiply_pairs)
typedef void Tile(const char *, const char *, long, const float *, float *, long, int);

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
    if (remaining > LANES) return 2 * remaining > 3 * LANES ? 2 * LANES : LANES;
    long width = LANES;
    while (width > SMALLEST && remaining <= width / 2) width /= 2;
    return width;
}

static long padded_tokens(long count) {
    long total = 0;
    while (total < count) total += tile_width(count - total);
    return total;
}

/* Component of a row at a position of an unpacked chunk, or -1: see unpack_row() and round_rows(). */
static long component_at(const Scan *scan, long first, long count, long position) {
    const Request *r = scan->request;
    long component = position;
    if (r->bits < 8) {
        long per_word = 16 / r->bits, words = (count + per_word - 1) / per_word;
        component = position < words * per_word ? position % words * per_word + position / words : count;
    } else if (r->bits == 16 && scan->integer) {
        component = position / 32 * 32 + position % 32 / 8 * 4 + position % 4 + position % 8 / 4 * 16;
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
                    long component = component_at(scan, first, count, i), element = scan->integer ? i / 2 : i;
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
   and masks only. Inline, so that `bits` and `count` are constants. */
static inline __attribute__((always_inline)) void unpack_words(
    const uint8_t *codes, long count, long bits, int16_t *restrict values) {
    long per_word = 16 / bits, length = (count + per_word - 1) / per_word;
#if defined(__AVX512BW__)
    if (count == CHUNK) {
        int16_t shifts[32];
        for (long i = 0; i < 32; i++) shifts[i] = (int16_t)(i / length * bits);
        __m512i words = bits == 4   ? _mm512_loadu_si512(codes)
                        : bits == 2 ? _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)codes))
                                    : _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)codes));
        words = _mm512_srlv_epi16(words, _mm512_loadu_si512(shifts));
        for (long part = 0; part < 4; part++, values += 32) {
            __m512i code = _mm512_and_si512(words, _mm512_set1_epi16((1 << bits) - 1));
            __m512i level = _mm512_add_epi16(_mm512_add_epi16(code, code), _mm512_set1_epi16(1 - (1 << bits)));
            _mm512_storeu_si512(values, level);
            words = _mm512_srli_epi16(words, 4);
        }
        return;
    }
#endif
    uint16_t words[CHUNK / 2] = {0};
    memcpy(words, codes, count * bits / 8);
    for (long k = 0; k < per_word; k++, values += length)
        for (long i = 0; i < length; i++)
            values[i] = (int16_t)(2 * (words[i] >> k * bits & ((1 << bits) - 1)) + 1 - (1 << bits));
}

/* Unpack `count` components of each row of a block to floats or int16 in `target` (ROWS, CHUNK). */
static inline __attribute__((always_inline)) void unpack_rows(
    const Block *block, const Block *next, long bits, long row_bytes, long first, long count, char *restrict target) {
    long bytes = CHUNK * (bits < 16 ? 2 : 4), offset = first * bits / 8, length = count * bits / 8;
    for (long i = 0; i < block->count; i++, target += bytes) {
        const uint8_t *codes = block->codes[i] + offset;
        prefetch(length < row_bytes ? codes + length : next->codes[i], length);
        int16_t *integers = (int16_t *)target;
        switch (bits) {
            case 32: memcpy(target, codes, 4 * count); break;
            case 16: halves_to_floats((const uint16_t *)codes, (float *)target, count); break;
            case 8:
                for (long k = 0; k < count; k++) integers[k] = (int8_t)codes[k];
                break;
            default: unpack_words(codes, count, bits, integers);
        }
    }
}

static void unpack(
    const Request *r, const Block *block, const Block *next, long first, long count, char *restrict target) {
#define UNPACK(BITS)                                                                \
    case BITS:                                                                      \
        if (count == CHUNK)                                                         \
            unpack_rows(block, next, BITS, r->row_bytes, first, CHUNK, target);     \
        else                                                                        \
            unpack_rows(block, next, BITS, r->row_bytes, first, count, target);     \
        break;
    switch (r->bits) { UNPACK(32) UNPACK(16) UNPACK(8) UNPACK(4) UNPACK(2) UNPACK(1) }
#undef UNPACK
}

#if defined(__AVX512VNNI__)
#define ROUNDS_HALVES 1
/* Round `count` <= CHUNK halves of each row of a block to int16, so that the length of each row is 32767. `factors`
   receives the lengths / 32767. The components of every 32 are in the order of component_at(). */
static void round_rows(const Block *block, const Block *next, long row_bytes, long first, long count,
                       int16_t *restrict target, float *restrict factors) {
    float values[ROWS][CHUNK] __attribute__((aligned(64))), lengths[(ROWS + 15) / 16 * 16];
    long padded = (count + 31) / 32 * 32;
    for (long i = 0; i < block->count; i++) {
        const uint16_t *halves = (const uint16_t *)block->codes[i] + first;
        prefetch(2 * count < row_bytes ? (const uint8_t *)(halves + count) : next->codes[i], 2 * count);
        __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (long k = 0; k < padded; k += 32)
            for (long half = 0; half < 2; half++) {
                long at = k + 16 * half, rest = count - at;
                __mmask16 mask = rest >= 16 ? 0xffff : rest > 0 ? (__mmask16)((1 << rest) - 1) : 0;
                __m512 part = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, halves + at));
                _mm512_store_ps(values[i] + at, part);
                squares[half] = _mm512_fmadd_ps(part, part, squares[half]);
            }
        lengths[i] = _mm512_reduce_add_ps(_mm512_add_ps(squares[0], squares[1]));
    }
    for (long i = 0; i < block->count; i++) {
        lengths[i] = sqrtf(lengths[i]);
        factors[i] = lengths[i] / 32767;
        lengths[i] = lengths[i] > 0 ? 32767 / lengths[i] : 0;
    }
    for (long i = 0; i < block->count; i++) {
        __m512 factor = _mm512_set1_ps(lengths[i]);
        for (long k = 0; k < padded; k += 32) {
            __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values[i] + k), factor));
            __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values[i] + k + 16), factor));
            _mm512_storeu_si512(target + i * CHUNK + k, _mm512_packs_epi32(low, high));
        }
    }
}
#endif

/* Products of the rows of a block with all tokens, scaled: sums (ROWS, padded). Returns the largest length of a row if
   rows are rounded. */
static float multiply(
    const Scan *scan, const Block *block, const Block *next, float *restrict sums, char *restrict buffer) {
    const Request *r = scan->request;
    const float *scales = block->scales;
    long element = scan->integer ? 2 : 4, stride = scan->padded;
    const char *tokens = scan->packed;
    float ones[ROWS];
    for (long i = 0; i < ROWS; i++) ones[i] = 1;
    if (!r->scales) scales = ones;
#ifdef ROUNDS_HALVES
    float squares[ROWS] = {0}, factors[ROWS] = {0};
    if (r->bits == 16 && scan->integer) scales = factors;
#endif
    for (long first = 0; first < r->components; first += CHUNK) {
        long components = r->components - first < CHUNK ? r->components - first : CHUNK;
        long unpacked = components;
        if (r->bits < 8) unpacked = (components * r->bits + 15) / 16 * 16 / r->bits;
#ifdef ROUNDS_HALVES
        if (r->bits == 16 && scan->integer) {
            round_rows(block, next, r->row_bytes, first, components, (int16_t *)buffer, factors);
            for (long i = 0; i < block->count; i++) squares[i] += factors[i] * factors[i];
            unpacked = (components + 31) / 32 * 32;
        } else
#endif
            unpack(r, block, next, first, components, buffer);
        long steps = (unpacked * element + 15) / 16 * 4, rest = 4 * steps - unpacked * element;
        if (rest > 0)
            for (long i = 0; i < block->count; i++) memset(buffer + (i * CHUNK + unpacked) * element, 0, rest);
        for (long t = 0; t < stride;) {
            long width = tile_width(stride - t), rows = width == 2 * LANES ? WIDE_ROWS : 12;
            Tile *tile = tiles[__builtin_ctzl(2 * LANES / width)][scan->integer];
            for (long i = 0; i < block->count; i += rows)
                tile(buffer + i * CHUNK * element, tokens, steps, scales + i, sums + i * stride + t, stride, first > 0);
            tokens += width * CHUNK * element;
            t += width;
        }
    }
    float largest = 0;
#ifdef ROUNDS_HALVES
    for (long i = 0; i < block->count; i++) largest = squares[i] > largest ? squares[i] : largest;
#endif
    return 32767 * sqrtf(largest);
}

/* Update the maxima of tokens with `count` rows of products. */
static void update_maxima(const float *products, long count, long padded, float *best) {
    long t = 0;
    for (; t + LANES <= padded; t += LANES) {
        floats even = *(const floats_at *)(best + t), odd = even;
        long k = 0;
        for (; k + 2 <= count; k += 2) {
            even = maximum(*(const floats_at *)(products + k * padded + t), even);
            odd = maximum(*(const floats_at *)(products + (k + 1) * padded + t), odd);
        }
        if (k < count) even = maximum(*(const floats_at *)(products + k * padded + t), even);
        *(floats_at *)(best + t) = maximum(even, odd);
    }
    for (; t < padded; t += 4) {
        quad even = *(const quad_at *)(best + t), odd = even;
        long k = 0;
        for (; k + 2 <= count; k += 2) {
            even = maximum_of_quads(*(const quad_at *)(products + k * padded + t), even);
            odd = maximum_of_quads(*(const quad_at *)(products + (k + 1) * padded + t), odd);
        }
        if (k < count) even = maximum_of_quads(*(const quad_at *)(products + k * padded + t), even);
        *(quad_at *)(best + t) = maximum_of_quads(even, odd);
    }
}
