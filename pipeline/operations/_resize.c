/* Bilinear resizing, antialiased if an image is made smaller. With weights of its own it gives the bytes of
 * TensorFlow's ScaleAndTranslate with the triangle kernel, whose float operations it repeats in their order
 * (tensorflow/core/kernels/image/scale_and_translate_op.cc), rounded to whole numbers. TensorFlow's passes write whole
 * images of floats. Here eight lines of the result are made at a time, or sixteen (_resize_wide.c): their sums of lines
 * are transposed, so that the sums of pixels, of which there are too few side by side for vectors, are made for all of
 * them at once. */
#include "_resize.h"

#include <math.h>
#include <string.h>

#include "_kernels.h"

#ifndef WIDE
enum { ABREAST = 8 };
#endif
enum { RGB = 3, LINE = 64, STRIP = 64, IN_STRIP = STRIP / ABREAST, IN_WORD = 4, PIECE = IN_WORD * ABREAST };
/* A float of 2^23 or more has no fraction, so adding it rounds, halves to even; one of 2^19 has four bits of it. */
static const float TO_WHOLE = 8388608.0f, TO_SIXTEENTHS = 524288.0f;

typedef float Floats __attribute__((vector_size(4 * ABREAST), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * ABREAST), may_alias));
typedef uint32_t Anywhere __attribute__((vector_size(4 * ABREAST), aligned(1), may_alias));

/* For each pixel in a line of the result: the first pixel that it sums, and `most` weights. Those behind the last pixel
 * that it sums are 0, as many for all pixels, so that no branch depends on the pixel. */
typedef struct {
    int64_t span, most;
    int32_t *starts;
    float *weights;
} Spans;

static float scale_of(int64_t before, int64_t after) { return 1.0f / (float)((double)after / (double)before); }

static int64_t span_of(int64_t before, int64_t after) {
    float inverse = scale_of(before, after), radius = inverse > 1.0f ? inverse : 1.0f;
    int64_t span = 2 * (int64_t)ceilf(radius) + 1;
    return span < before ? span : before;
}

static int64_t within(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }

KERNEL static void make_spans(int64_t before, int64_t after, Spans *spans) {
    float inverse = scale_of(before, after), radius = inverse > 1.0f ? inverse : 1.0f, narrower = 1.0f / radius;
    memset(spans->weights, 0, sizeof(float) * (size_t)(after * spans->span));
    spans->most = 1;
    for (int64_t x = 0; x < after; x++) {
        float *weights = spans->weights + x * spans->span, place = ((float)x + 0.5f) * inverse, total = 0.0f;
        spans->starts[x] = x ? spans->starts[x - 1] : 0;
        if (place < 0.0f || place > (float)before) continue;
        int64_t first = within((int64_t)ceilf(place - radius - 0.5f), before - 1);
        int64_t end = within((int64_t)floorf(place + radius - 0.5f), before - 1) + 1;
        for (int64_t i = first; i < end; i++) {
            float distance = fabsf(((float)i + 0.5f - place) * narrower);
            weights[i - first] = distance < 1.0f ? 1.0f - distance : 0.0f;
            total += weights[i - first];
        }
        float share = 1.0f / total;
        for (int64_t i = first; i < end; i++) weights[i - first] *= share;
        spans->starts[x] = (int32_t)first;
        if (end - first > spans->most) spans->most = end - first;
    }
}

/* Transposes vectors in place: value i of vector k becomes value k of vector i. */
#ifdef WIDE
INLINED void transpose(Words *v) {
    Words t[ABREAST] = {{0}};
    for (int k = 0; k < ABREAST; k += 2) {
        t[k] = SHUFFLED(v[k], v[k + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        t[k + 1] = SHUFFLED(v[k], v[k + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    for (int k = 0; k < ABREAST; k += 4)
        for (int i = 0; i < 2; i++) {
            v[k + 2 * i] = SHUFFLED(t[k + i], t[k + i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            v[k + 2 * i + 1] =
                SHUFFLED(t[k + i], t[k + i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    for (int k = 0; k < ABREAST; k += 8)
        for (int i = k; i < k + 4; i++) {
            t[i] = SHUFFLED(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            t[i + 4] = SHUFFLED(v[i], v[i + 4], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        }
    for (int k = 0; k < ABREAST; k += 8)
        for (int i = 0; i < 4; i++) {
            const Words *of = t + k / 2 + i;
            v[k + i] = SHUFFLED(of[0], of[8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
            v[k + i + 4] = SHUFFLED(of[0], of[8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        }
}
#else
INLINED void transpose(Words *v) {
    Words t[ABREAST] = {{0}};
#ifdef SHUFFLED
    for (int k = 0; k < ABREAST; k += 2) {
        t[k] = SHUFFLED(v[k], v[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[k + 1] = SHUFFLED(v[k], v[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int k = 0; k < ABREAST; k += 4)
        for (int i = 0; i < 2; i++) {
            v[k + 2 * i] = SHUFFLED(t[k + i], t[k + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            v[k + 2 * i + 1] = SHUFFLED(t[k + i], t[k + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int k = 0; k < ABREAST / 2; k++) {
        t[k] = SHUFFLED(v[k], v[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[k + 4] = SHUFFLED(v[k], v[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    for (int i = 0; i < ABREAST; i++)
        for (int k = 0; k < ABREAST; k++) t[i][k] = v[k][i];
#endif
    for (int k = 0; k < ABREAST; k++) v[k] = t[k];
}
#endif

/* ---- lines of the result, as many as are made at a time ---- */

/* Writes a strip of lines as floats, side by side; what is behind their lanes, as zeros. */
INLINED void read_strip(const uint8_t *from, int64_t stride, int64_t lanes, int64_t lines, float *restrict to) {
    for (int64_t n = 0; n < lines; n++, from += stride, to += STRIP) {
        __builtin_prefetch(from + 4 * STRIP); /* a strip of many lines at a time is nothing that processors foresee */
        uint8_t last[STRIP];
        const uint8_t *bytes = from;
        if (lanes < STRIP) {
            memset(last, 0, sizeof last);
            bytes = memcpy(last, from, (size_t)lanes);
        }
        for (int i = 0; i < STRIP; i++) to[i] = (float)bytes[i];
    }
}

/* Writes sums of lines: value r of vector i of `sums` is lane i of line r of the result. `floats` has room for a strip
 * of each line that is summed. Sums are rounded to the fractions that `rounds` has; 0: they are not. */
INLINED void sum_lines(const uint8_t *restrict from, int64_t stride, int64_t lanes, int64_t lines, const Spans *down,
                       const int64_t *rows, float rounds, Floats *restrict floats, Floats *restrict sums) {
    for (int64_t at = 0; at < lanes; at += STRIP, from += STRIP, sums += STRIP) {
        read_strip(from, stride, lanes - at, lines, (float *)floats);
        for (int r = 0; r < ABREAST; r++) {
            const float *weights = down->weights + rows[r] * down->span;
            const Floats *line = floats + (down->starts[rows[r]] - down->starts[rows[0]]) * IN_STRIP;
            Floats all[IN_STRIP];
            for (int k = 0; k < IN_STRIP; k++) all[k] = line[k] * weights[0];
            for (int64_t t = 1; t < down->most; t++)
                for (int k = 0; k < IN_STRIP; k++) all[k] += line[t * IN_STRIP + k] * weights[t];
            if (rounds != 0.0f)
                for (int k = 0; k < IN_STRIP; k++) all[k] = all[k] + rounds - rounds;
            for (int k = 0; k < IN_STRIP; k++) sums[k * ABREAST + r] = all[k];
        }
        for (int k = 0; k < IN_STRIP; k++) transpose((Words *)sums + k * ABREAST);
    }
}

/* Writes the channels of a pixel of all lines, as whole numbers in the lowest bytes of words. */
INLINED void sum_pixel(const Floats *restrict first, int64_t channels, const float *restrict weights, int64_t count,
                       Words *restrict to) {
    if (channels == RGB) {
        Floats r = first[0] * weights[0], g = first[1] * weights[0], b = first[2] * weights[0];
        for (int64_t t = 1; t < count; t++) {
            first += RGB;
            r += first[0] * weights[t];
            g += first[1] * weights[t];
            b += first[2] * weights[t];
        }
        to[0] = (Words)(r + TO_WHOLE);
        to[1] = (Words)(g + TO_WHOLE);
        to[2] = (Words)(b + TO_WHOLE);
    } else
        for (int64_t c = 0; c < channels; c++, first++) {
            Floats all = first[0] * weights[0];
            for (int64_t t = 1; t < count; t++) all += first[t * channels] * weights[t];
            to[c] = (Words)(all + TO_WHOLE);
        }
}

/* Writes the bytes of all lines, four of a line to a word; `four` has room for so many pixels. */
INLINED void sum_pixels(const Floats *restrict sums, int64_t channels, const Spans *across, int64_t count,
                        int64_t width, int mirrored, Words *restrict four, Words *restrict to) {
    for (int64_t i = 0; i < width; i += IN_WORD, to += channels) {
        for (int64_t k = 0; k < IN_WORD && i + k < width; k++) {
            int64_t x = mirrored ? width - 1 - i - k : i + k;
            sum_pixel(sums + across->starts[x] * channels, channels, across->weights + x * across->span, count,
                      four + k * channels);
        }
        for (int64_t c = 0; c < channels; c++) {
            const Words *w = four + c * IN_WORD;
            to[c] = (w[0] & UINT8_MAX) | w[1] << 8 | w[2] << 16 | w[3] << 24;
        }
    }
}

/* Writes the bytes of words to lines: of value r of vector i to bytes 4i to 4i + 3 of line r. */
INLINED void write_lines(const Words *restrict words, int64_t count, uint8_t *restrict to, int64_t lines) {
    for (int64_t at = 0; at < count; at += PIECE, words += ABREAST) {
        Words packed[ABREAST];
        for (int k = 0; k < ABREAST; k++) packed[k] = words[k];
        transpose(packed);
        if (lines == ABREAST && at + PIECE <= count)
            for (int r = 0; r < ABREAST; r++) *(Anywhere *)(to + r * count + at) = packed[r];
        else
            for (int64_t r = 0; r < lines; r++)
                memcpy(to + r * count + at, packed + r, count - at < PIECE ? (size_t)(count - at) : PIECE);
    }
}

/* Behind numbers there is room for a line of the cache more. */
static int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE + LINE; }

static int64_t strips(int64_t lanes) { return (lanes + STRIP - 1) / STRIP * STRIP; }

/* How many words all lines are written to: a line's are whole pixels, and taken in whole pieces. */
static int64_t words_of(int64_t width, int64_t channels) {
    int64_t words = (width + IN_WORD - 1) / IN_WORD * channels;
    return (words + ABREAST - 1) / ABREAST * ABREAST;
}

static int64_t of_spans(int64_t after, int64_t span) { return aligned(4 * after) + aligned(4 * after * span); }

/* The parts of the room, in bytes: strips of the lines that eight lines sum, their sums, and words. */
typedef struct {
    int64_t floats, sums, words;
} Sizes;

static Sizes sizes_for(int64_t lines, int64_t lanes, int64_t width, int64_t channels) {
    return (Sizes){aligned(4 * STRIP * lines), aligned(4 * ABREAST * lanes),
                   aligned(4 * ABREAST * (words_of(width, channels) + IN_WORD * channels))};
}

static Sizes sizes_of(Extent before, Extent after, int64_t channels) {
    int64_t lines = (int64_t)ceilf(ABREAST * scale_of(before.height, after.height)) + 2;
    lines = (lines < before.height ? lines : before.height) + span_of(before.height, after.height);
    int64_t lanes = strips(before.width * channels) + channels * span_of(before.width, after.width);
    return sizes_for(lines, lanes, after.width, channels);
}

static int64_t room_of(Extent before, Extent after, int64_t channels) {
    Sizes sizes = sizes_of(before, after, channels);
    return of_spans(after.height, span_of(before.height, after.height)) +
           of_spans(after.width, span_of(before.width, after.width)) + sizes.floats + sizes.sums + sizes.words;
}

static uint8_t *take_spans(int64_t before, int64_t after, uint8_t *room, Spans *spans) {
    *spans = (Spans){span_of(before, after), 1, (int32_t *)room, (float *)(room + aligned(4 * after))};
    return room + of_spans(after, spans->span);
}

KERNEL static void resize(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after,
                          int64_t channels, int mirrored, const Spans *down, const Spans *across, float rounds,
                          Floats *floats, Floats *sums, Words *words) {
    int64_t lanes = before.width * channels, result = after.width * channels;
    Words *four = words + words_of(after.width, channels);
    for (int64_t y = 0; y < after.height; y += ABREAST, to += ABREAST * result) {
        int64_t rows[ABREAST], count = within(after.height - y, ABREAST);
        for (int r = 0; r < ABREAST; r++) rows[r] = y + within(r, count - 1); /* the last line several times */
        int64_t first = down->starts[y], end = within(down->starts[rows[ABREAST - 1]] + down->most, before.height);
        sum_lines(image + first * stride, stride, lanes, end - first, down, rows, rounds, floats, sums);
        if (channels == RGB && across->most == 2) /* constant numbers of sums, of which no loop is left */
            sum_pixels(sums, RGB, across, 2, after.width, mirrored, four, words);
        else if (channels == RGB && across->most == 3)
            sum_pixels(sums, RGB, across, 3, after.width, mirrored, four, words);
        else if (channels == RGB && across->most == 4)
            sum_pixels(sums, RGB, across, 4, after.width, mirrored, four, words);
        else
            sum_pixels(sums, channels, across, across->most, after.width, mirrored, four, words);
        write_lines(words, result, to, count);
    }
}

static void resize_in(void *room, const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after,
                      int64_t channels, int mirrored) {
    Spans down, across;
    Sizes sizes = sizes_of(before, after, channels);
    uint8_t *rest = take_spans(before.height, after.height, room, &down);
    rest = take_spans(before.width, after.width, rest, &across);
    make_spans(before.height, after.height, &down);
    make_spans(before.width, after.width, &across);
    Floats *floats = (Floats *)rest, *sums = (Floats *)(rest + sizes.floats);
    Words *words = (Words *)(rest + sizes.floats + sizes.sums);
    int64_t lanes = strips(before.width * channels);
    /* Weights of 0 are multiplied with what is behind the last line and pixel, which must not be infinite. */
    memset(floats, 0, (size_t)sizes.floats);
    memset(sums + lanes, 0, (size_t)(sizes.sums - 4 * ABREAST * lanes));
    memset(words, 0, (size_t)sizes.words);
    resize(image, stride, before, to, after, channels, mirrored, &down, &across, 0.0f, floats, sums, words);
}

#ifndef WIDE
/* Both choose the wide build where there is one. */
int64_t room_to_resize(Extent before, Extent after, int64_t channels) {
    return can_resize_wide() ? room_to_resize_wide(before, after, channels) : room_of(before, after, channels);
}

void resize_image(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after, int64_t channels,
                  int mirrored, void *room) {
    if (can_resize_wide())
        resize_wide(image, stride, before, to, after, channels, mirrored, room);
    else
        resize_in(room, image, stride, before, to, after, channels, mirrored);
}

/* ---- with whole weights ---- */

static Sizes sizes_of_whole(Extent before, Extent after, int64_t channels) {
    return sizes_for(before.height, strips(before.width * channels), after.width, channels);
}

int64_t room_to_resize_whole(Extent before, Extent after, int64_t channels, int64_t taps_down, int64_t taps_across) {
    Sizes sizes = sizes_of_whole(before, after, channels);
    return of_spans(after.height, taps_down) + of_spans(after.width, taps_across) + sizes.floats + sizes.sums +
           sizes.words;
}

static uint8_t *take_whole(const int32_t *table, int64_t after, int64_t taps, uint8_t *room, Spans *spans) {
    *spans = (Spans){taps, taps, (int32_t *)room, (float *)(room + aligned(4 * after))};
    for (int64_t i = 0; i < after; i++, table += taps + 1) {
        spans->starts[i] = table[0];
        for (int64_t t = 0; t < taps; t++) spans->weights[i * taps + t] = (float)table[1 + t] * (1.0f / WHOLE);
    }
    return room + of_spans(after, taps);
}

void resize_whole(const uint8_t *image, Extent before, uint8_t *to, Extent after, int64_t channels, const int32_t *down,
                  int64_t taps_down, const int32_t *across, int64_t taps_across, void *room) {
    Spans lines, pixels;
    Sizes sizes = sizes_of_whole(before, after, channels);
    uint8_t *rest = take_whole(down, after.height, taps_down, room, &lines);
    rest = take_whole(across, after.width, taps_across, rest, &pixels);
    Floats *floats = (Floats *)rest, *sums = (Floats *)(rest + sizes.floats);
    Words *words = (Words *)(rest + sizes.floats + sizes.sums);
    resize(image, before.width * channels, before, to, after, channels, 0, &lines, &pixels, TO_SIXTEENTHS, floats, sums,
           words);
}
#endif
