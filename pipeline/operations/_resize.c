/* Bilinear resizing, antialiased if an image is made smaller: the bytes of TensorFlow's ScaleAndTranslate with the
 * triangle kernel, whose float operations it repeats in their order
 * (tensorflow/core/kernels/image/scale_and_translate_op.cc), rounded to whole numbers. TensorFlow's passes cost three
 * times as much, since they write whole images of floats. */
#include "_resize.h"

#include <math.h>
#include <string.h>

#include "_kernels.h"

typedef float Four __attribute__((vector_size(16)));

enum { RGB = 3, LINE = 64 };
static const float TO_WHOLE =
    8388608.0f; /* 2^23: a float as large has no fraction, so adding it rounds, halves to even */

/* For each pixel in a line of the result: the first pixel that it sums, how many it sums, and up to `span` weights. */
typedef struct {
    int64_t span;
    int32_t *starts, *counts;
    float *weights;
} Spans;

static float scale_of(int64_t before, int64_t after) { return 1.0f / (float)((double)after / (double)before); }

static int64_t span_of(int64_t before, int64_t after) {
    float inverse = scale_of(before, after), radius = inverse > 1.0f ? inverse : 1.0f;
    int64_t span = 2 * (int64_t)ceilf(radius) + 1;
    return span < before ? span : before;
}

static int64_t within(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }

static void make_spans(int64_t before, int64_t after, const Spans *spans) {
    float inverse = scale_of(before, after), radius = inverse > 1.0f ? inverse : 1.0f, narrower = 1.0f / radius;
    memset(spans->weights, 0, sizeof(float) * (size_t)(after * spans->span));
    for (int64_t x = 0; x < after; x++) {
        float *weights = spans->weights + x * spans->span, place = ((float)x + 0.5f) * inverse, total = 0.0f;
        spans->starts[x] = 0;
        spans->counts[x] = 1;
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
        spans->counts[x] = (int32_t)(end - first);
    }
}

static inline void sum_lines(const uint8_t *restrict first, int64_t lanes, const float *restrict weights, int64_t count,
                             float *restrict sums) {
    for (int64_t i = 0; i < lanes; i++) sums[i] = weights[0] * (float)first[i];
    for (int64_t t = 1; t < count; t++)
        for (int64_t i = 0; i < lanes; i++) sums[i] += weights[t] * (float)first[t * lanes + i];
}

static inline void sum_pixels(const float *restrict first, int64_t channels, const float *restrict weights,
                              int64_t count, float *restrict sums) {
    if (channels == RGB) { /* the fourth lane is overwritten by the next pixel */
        Four all = {0}, next;
        for (int64_t t = 0; t < count; t++) {
            memcpy(&next, first + t * RGB, sizeof next);
            all += next * weights[t];
        }
        memcpy(sums, &all, sizeof all);
    } else
        for (int64_t c = 0; c < channels; c++) {
            sums[c] = 0.0f;
            for (int64_t t = 0; t < count; t++) sums[c] += first[t * channels + c] * weights[t];
        }
}

static inline void round_all(const float *restrict values, int64_t count, uint8_t *restrict to) {
    for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)(int32_t)((values[i] + TO_WHOLE) - TO_WHOLE);
}

/* Behind a line there is room for a lane more. */
static int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE + LINE; }

static int64_t of_spans(int64_t before, int64_t after) {
    return 2 * aligned(4 * after) + aligned(4 * after * span_of(before, after));
}

int64_t room_to_resize(Extent before, Extent after, int64_t channels) {
    return of_spans(before.height, after.height) + of_spans(before.width, after.width) +
           aligned(4 * before.width * channels) + aligned(4 * after.width * channels);
}

static uint8_t *take_spans(int64_t before, int64_t after, uint8_t *room, Spans *spans) {
    int64_t numbers = aligned(4 * after);
    *spans =
        (Spans){span_of(before, after), (int32_t *)room, (int32_t *)(room + numbers), (float *)(room + 2 * numbers)};
    make_spans(before, after, spans);
    return room + of_spans(before, after);
}

KERNEL void resize_image(const uint8_t *image, Extent before, uint8_t *to, Extent after, int64_t channels, void *room) {
    Spans down, across;
    uint8_t *rest = take_spans(before.height, after.height, room, &down);
    rest = take_spans(before.width, after.width, rest, &across);
    int64_t lanes = before.width * channels, result = after.width * channels;
    float *line = (float *)rest, *sums = (float *)(rest + aligned(4 * lanes));
    for (int64_t y = 0; y < after.height; y++, to += result) {
        sum_lines(image + down.starts[y] * lanes, lanes, down.weights + y * down.span, down.counts[y], line);
        for (int64_t x = 0; x < after.width; x++)
            sum_pixels(line + across.starts[x] * channels, channels, across.weights + x * across.span, across.counts[x],
                       sums + x * channels);
        round_all(sums, result, to);
    }
}
