#include "_planes.h"

#include <string.h>

#include "_kernels.h"

enum { WIDE = 16, PARTS = PERIOD / WIDE, MOST = 257 }; /* MOST x 255 fits 16 bits */

typedef uint8_t Bytes __attribute__((vector_size(WIDE)));
typedef uint16_t Shorts __attribute__((vector_size(2 * WIDE)));

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLED __builtin_shufflevector

/* Writes the pixels that whole vectors cover; returns how many. */
static inline int64_t interleave_vectors(const uint8_t *from, int64_t plane, uint8_t *to) {
    int64_t i = 0;
    for (; i + WIDE <= plane; i += WIDE, from += WIDE, to += RGB * WIDE) {
        Bytes red, green, blue;
        memcpy(&red, from, WIDE);
        memcpy(&green, from + plane, WIDE);
        memcpy(&blue, from + 2 * plane, WIDE);
        Bytes low = SHUFFLED(red, green, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        Bytes middle = SHUFFLED(red, green, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28);
        Bytes high = SHUFFLED(red, green, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        low = SHUFFLED(low, blue, 0, 1, 16, 2, 3, 17, 4, 5, 18, 6, 7, 19, 8, 9, 20, 10);
        middle = SHUFFLED(middle, blue, 1, 21, 2, 3, 22, 4, 5, 23, 6, 7, 24, 8, 9, 25, 10, 11);
        high = SHUFFLED(high, blue, 26, 6, 7, 27, 8, 9, 28, 10, 11, 29, 12, 13, 30, 14, 15, 31);
        memcpy(to, &low, WIDE);
        memcpy(to + WIDE, &middle, WIDE);
        memcpy(to + 2 * WIDE, &high, WIDE);
    }
    return i;
}
#define INTERLEAVE_VECTORS interleave_vectors
#endif
#endif
#ifndef INTERLEAVE_VECTORS
#define INTERLEAVE_VECTORS(from, plane, to) 0
#endif

KERNEL void interleave(const uint8_t *from, int64_t step, int64_t images, int64_t plane, uint8_t *to) {
    for (int64_t n = 0; n < images; n++, from += step, to += RGB * plane)
        for (int64_t i = INTERLEAVE_VECTORS(from, plane, to); i < plane; i++)
            for (int64_t c = 0; c < RGB; c++) to[RGB * i + c] = from[c * plane + i];
}

KERNEL void sum_values(const uint8_t *values, int64_t size, int64_t *sums, int64_t *squares) {
    memset(sums, 0, PERIOD * sizeof *sums);
    memset(squares, 0, PERIOD * sizeof *squares);
    while (size >= PERIOD) {
        /* A square takes 16 bits; its two bytes are added up apart. */
        Shorts sum[PARTS] = {{0}}, low[PARTS] = {{0}}, high[PARTS] = {{0}};
        int64_t times = size / PERIOD < MOST ? size / PERIOD : MOST;
        for (int64_t i = 0; i < times; i++, values += PERIOD)
            for (int j = 0; j < PARTS; j++) {
                Bytes bytes;
                memcpy(&bytes, values + j * WIDE, WIDE);
                Shorts value = __builtin_convertvector(bytes, Shorts), square = value * value;
                sum[j] += value;
                low[j] += square & UINT8_MAX;
                high[j] += square >> 8;
            }
        size -= times * PERIOD;
        for (int i = 0; i < PERIOD; i++) {
            sums[i] += sum[i / WIDE][i % WIDE];
            squares[i] += low[i / WIDE][i % WIDE] + 256 * (int64_t)high[i / WIDE][i % WIDE];
        }
    }
    for (int64_t i = 0; i < size; i++) {
        sums[i] += values[i];
        squares[i] += (int64_t)values[i] * values[i];
    }
}
