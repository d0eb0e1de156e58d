/* Vector types of one instruction set, and operations on them.

   The types are those of GCC and Clang, so every path is correct on any processor; intrinsics are used where plain C is
   slower. */

#include <math.h>
#include <stdint.h>
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

enum { LANES = BYTES / 4 };

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

static inline void halves_to_floats(const uint16_t *restrict halves, float *restrict values, long count) {
    long i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(values + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(halves + i))));
    if (i < count) {
        __mmask16 rest = (__mmask16)((1 << (count - i)) - 1);
        _mm512_mask_storeu_ps(values + i, rest, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, halves + i)));
    }
    return;
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(halves + i))));
    for (; i < count; i++) values[i] = _cvtsh_ss(halves[i]);
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
/* Largest lane. */
static inline float largest_lane(floats values) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)values);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)values);
#else
#if defined(__AVX2__)
    quad four = maximum_of_quads((quad)_mm256_extractf128_ps((__m256)values, 1),
                                 (quad)_mm256_castps256_ps128((__m256)values));
#else
    quad four = values;
#endif
    float low = four[0] > four[1] ? four[0] : four[1], high = four[2] > four[3] ? four[2] : four[3];
    return low > high ? low : high;
#endif
}

static inline void prefetch(const void *address, long count) {
    for (long i = 0; i < count; i += 64) __builtin_prefetch((const char *)address + i);
}
