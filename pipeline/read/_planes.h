/* Pixels of raw images, as the converter takes them from files: planes become pixels, and values are added up. */
#pragma once
#include <stdint.h>

enum { RGB = 3, PERIOD = 48 }; /* channels of planes; places that values are added up by, a multiple of most channels */

/* Writes the pixels of RGB images whose planes lie one after the other, each image `step` bytes behind the one before. */
void interleave(const uint8_t *from, int64_t step, int64_t images, int64_t plane, uint8_t *to);

/* Adds up the values, and their squares, at each of PERIOD places, which they go through again and again. */
void sum_values(const uint8_t *values, int64_t size, int64_t *sums, int64_t *squares);
