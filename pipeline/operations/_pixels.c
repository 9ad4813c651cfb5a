/* Passes over the pixels of images. Each gives the same bytes as its form in pipeline/augmentation, which XLA compiles:
 * both compute with integers in fixed point and round in the same places. */
#include "_pixels.h"

#include <math.h>
#include <string.h>

#include "_kernels.h"
#include "_resize.h"

enum { ABREAST = 8 }; /* words in a vector */
typedef uint8_t Sixteen __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(4 * ABREAST), aligned(4), may_alias));

enum { PLACE = 11, SHARE = 16 }; /* bits of fractions, as in pipeline/augmentation/kernels.py */
enum { RGB = 3, VALUES = 256, SLACK = 64 };

/* Of RandAugment: pipeline/augmentation/randaugment.py. */
enum {
    IDENTITY,
    SHEAR_X,
    SHEAR_Y,
    TRANSLATE_X,
    TRANSLATE_Y,
    ROTATE,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    SHARPNESS,
    POSTERIZE,
    SOLARIZE,
    AUTO_CONTRAST,
    EQUALIZE,
    OPERATIONS
};
enum { MOVES = ROTATE - SHEAR_X + 1 };
enum { FILL, MASK, THRESHOLD, WAYS }; /* numbers of augment; after them those of each way */
enum { FACTOR, TOWARDS, SMOOTHED = TOWARDS + 2, MATRIX, OF_WAY = MATRIX + RGB * RGB };

static int64_t volume(Size size) { return size.height * size.width * size.channels; }

static Extent extent(Size size) { return (Extent){size.height, size.width}; }

static int64_t lanes_of(Size size) { return size.width * size.channels; }

static int32_t clipped(int32_t value) { return value < 0 ? 0 : value > UINT8_MAX ? UINT8_MAX : value; }

/* Adds places with wrap-around, as XLA does. */
static int32_t sum(int32_t one, int32_t other) { return (int32_t)((uint32_t)one + (uint32_t)other); }

static double as_double(const int32_t *halves) {
    double value;
    memcpy(&value, halves, sizeof value);
    return value;
}

static float as_float(const int32_t *bits) {
    float value;
    memcpy(&value, bits, sizeof value);
    return value;
}

/* Rounds up to whole vectors. */
static int64_t in_vectors(int64_t count) { return (count + ABREAST - 1) / ABREAST * ABREAST; }

/* ---- RGB pixels as words, of which the highest byte does not count ---- */

enum { WORDS = 4, REACH = 6 }; /* sixteen bytes have four pixels as words; as RGB they reach into the sixth */

INLINED void read_words(const uint8_t *restrict from, int64_t count, uint32_t *restrict words) {
    int64_t i = 0;
#ifdef SHUFFLED
    for (; i + REACH <= count; i += WORDS) {
        Sixteen bytes;
        memcpy(&bytes, from + RGB * i, sizeof bytes);
        bytes = SHUFFLED(bytes, bytes, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
        memcpy(words + i, &bytes, sizeof bytes);
    }
#endif
    for (; i < count; i++) words[i] = from[RGB * i] | from[RGB * i + 1] << 8 | from[RGB * i + 2] << 16;
}

INLINED void write_words(const uint32_t *restrict words, int64_t count, uint8_t *restrict to) {
    int64_t i = 0;
#ifdef SHUFFLED
    for (; i + REACH <= count; i += WORDS) {
        Sixteen bytes;
        memcpy(&bytes, words + i, sizeof bytes);
        bytes = SHUFFLED(bytes, bytes, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
        memcpy(to + RGB * i, &bytes, sizeof bytes); /* the last four are overwritten by the next pixels */
    }
#endif
    for (; i < count; i++)
        for (int c = 0; c < RGB; c++) to[RGB * i + c] = (uint8_t)(words[i] >> 8 * c);
}

/* ---- where pixels go ---- */

static void crop(const uint8_t *from, uint8_t *to, const Pass *pass, int64_t top, int64_t left) {
    int64_t wide = lanes_of(pass->after), line = lanes_of(pass->before), start = left * pass->before.channels;
    int64_t first = start < 0 ? -start : 0, end = line - start < wide ? line - start : wide;
    int64_t upper = top < 0 ? -top : 0, lower = pass->before.height - top;
    if (lower > pass->after.height) lower = pass->after.height;
    /* All at once, because to set some bytes of each line costs as much as to copy the line. */
    if (upper || lower < pass->after.height || first || end < wide) memset(to, 0, (size_t)volume(pass->after));
    for (int64_t y = upper; y < lower && first < end; y++)
        memcpy(to + y * wide + first, from + (top + y) * line + start + first, (size_t)(end - first));
}

#ifdef SHUFFLED
enum { TOGETHER = 5 }; /* RGB pixels in a vector of sixteen bytes */

/* Mirrors the pixels of a line that whole vectors cover; returns how many. */
INLINED int64_t flip_vectors(const uint8_t *from, uint8_t *to, int64_t width) {
    int64_t x = 0;
    for (; x + TOGETHER < width; x += TOGETHER) {
        Sixteen pixels;
        memcpy(&pixels, from + (width - x - TOGETHER) * RGB - 1, sizeof pixels);
        pixels = SHUFFLED(pixels, pixels, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
        memcpy(to + x * RGB, &pixels, sizeof pixels); /* the last byte is overwritten by the next pixel */
    }
    return x;
}
#define FLIP_VECTORS flip_vectors
#else
#define FLIP_VECTORS(from, to, width) 0
#endif

KERNEL static void flip(const uint8_t *from, uint8_t *to, Size size, int64_t bytes) {
    int64_t line = size.width * bytes;
    for (int64_t y = 0; y < size.height; y++, from += line, to += line) {
        int64_t x = bytes == RGB ? FLIP_VECTORS(from, to, size.width) : 0;
        if (bytes == 1) /* of grey images and masks: without a call for each pixel */
            for (; x < size.width; x++) to[x] = from[line - 1 - x];
        for (; x < size.width; x++) memcpy(to + x * bytes, from + line - (x + 1) * bytes, (size_t)bytes);
    }
}

/* Copies an image into a frame that is one pixel wide above and on the left, and two below and on the right. */
static void pad(const uint8_t *from, uint8_t *to, Size size, int32_t fill) {
    int64_t line = lanes_of(size), stride = line + 3 * size.channels;
    memset(to, fill, (size_t)(stride + size.channels));
    for (int64_t y = 0; y < size.height; y++, from += line) {
        uint8_t *start = to + (y + 1) * stride + size.channels;
        memcpy(start, from, (size_t)line);
        memset(start + line, fill, (size_t)(3 * size.channels));
    }
    memset(to + (size.height + 1) * stride, fill, (size_t)(2 * stride));
}

/* For each pixel in a line of the result: the offset of its upper left source pixel in the frame, the fractions to the
 * right of it and below it; and of the frame eight bytes that begin with the two upper source pixels, and eight that
 * begin with the two lower ones. */
typedef struct {
    int32_t *corners, *right, *below;
    uint64_t *upper, *lower;
} Line;
enum { OF_LINE = 7 };

static inline void locate(const int32_t *restrict x_across, int32_t x_down, const int32_t *restrict y_across,
                          int32_t y_down, Size size, int32_t *restrict corners, int32_t *restrict right,
                          int32_t *restrict below) {
    int32_t least = -(1 << PLACE), most_x = (int32_t)size.width << PLACE, most_y = (int32_t)size.height << PLACE;
    int32_t channels = (int32_t)size.channels, stride = (int32_t)(size.width + 3) * channels, part = (1 << PLACE) - 1;
    for (int64_t i = 0; i < size.width; i++) {
        int32_t x = sum(x_across[i], x_down), y = sum(y_across[i], y_down);
        x = x < least ? least : x;
        y = y < least ? least : y;
        x = x > most_x ? most_x : x;
        y = y > most_y ? most_y : y;
        corners[i] = ((y >> PLACE) + 1) * stride + ((x >> PLACE) + 1) * channels;
        right[i] = x & part;
        below[i] = y & part;
    }
}

/* Interpolates between four values by the fractions to the right of the first and below it. */
static inline int32_t between(int32_t one, int32_t next, int32_t under, int32_t last, int32_t right, int32_t below) {
    int32_t upper = (one << PLACE) + (next - one) * right, lower = (under << PLACE) + (last - under) * right;
    return ((upper << PLACE) + (lower - upper) * below + (1 << (2 * PLACE - 1))) >> 2 * PLACE;
}

/* Pixel k of eight is where `take_apart` finds it by shuffling within the halves of vectors. */
static const int SLOTS[ABREAST] = {0, 1, 4, 5, 2, 3, 6, 7};

/* Takes apart the pairs of words of eight pixels. */
INLINED void take_apart(const uint64_t *pairs, Words *first, Words *second) {
    Words one, other;
    memcpy(&one, pairs, sizeof one);
    memcpy(&other, pairs + ABREAST / 2, sizeof other);
#ifdef SHUFFLED
    *first = SHUFFLED(one, other, 0, 2, 8, 10, 4, 6, 12, 14);
    *second = SHUFFLED(one, other, 1, 3, 9, 11, 5, 7, 13, 15);
#else
    for (int k = 0; k < ABREAST; k++) {
        (*first)[k] = (uint32_t)pairs[SLOTS[k]];
        (*second)[k] = (uint32_t)(pairs[SLOTS[k]] >> 32);
    }
#endif
}

/* Interpolates eight pixels. Their weights are whole numbers, of which no sum is too large for a word. */
INLINED void interpolate(const uint64_t *upper, const uint64_t *lower, const int32_t *to_right, const int32_t *down,
                         uint32_t *result) {
    Words right = *(const Words *)to_right, below = *(const Words *)down;
    Words one, after_one, under, after_under; /* the next pixel's first byte is the last of `one` */
    take_apart(upper, &one, &after_one);
    take_apart(lower, &under, &after_under);
    Words of_last = right * below, of_next = (right << PLACE) - of_last, of_under = (below << PLACE) - of_last;
    Words of_one = (1u << 2 * PLACE) - (right << PLACE) - of_under;
    uint32_t byte = UINT8_MAX, half = 1u << (2 * PLACE - 1);
    Words r = (one & byte) * of_one + (one >> 24) * of_next + (under & byte) * of_under + (under >> 24) * of_last;
    Words g = (one >> 8 & byte) * of_one + (after_one & byte) * of_next + (under >> 8 & byte) * of_under +
              (after_under & byte) * of_last;
    Words b = (one >> 16 & byte) * of_one + (after_one >> 8 & byte) * of_next + (under >> 16 & byte) * of_under +
              (after_under >> 8 & byte) * of_last;
    *(Words *)result = (r + half) >> 2 * PLACE | (g + half) >> 2 * PLACE << 8 | (b + half) >> 2 * PLACE << 16;
}

/* Two loops, because only the one that interpolates can use vectors. Behind a line's last pixel there are others, which
 * are not written. */
INLINED void move_rgb(const uint8_t *restrict frame, int64_t stride, uint8_t *restrict to, int64_t width, Line line) {
    int64_t whole = in_vectors(width);
    for (int64_t i = width; i < whole; i++) line.corners[i] = 0;
    for (int64_t i = 0; i < whole; i += ABREAST)
        for (int k = 0; k < ABREAST; k++) {
            const uint8_t *corner = frame + line.corners[i + k];
            memcpy(line.upper + i + SLOTS[k], corner, sizeof *line.upper);
            memcpy(line.lower + i + SLOTS[k], corner + stride, sizeof *line.lower);
        }
    uint32_t *result = (uint32_t *)line.corners;
    for (int64_t i = 0; i < whole; i += ABREAST)
        interpolate(line.upper + i, line.lower + i, line.right + i, line.below + i, result + i);
    write_words(result, width, to);
}

KERNEL static void move(const uint8_t *from, uint8_t *to, Size size, const int32_t *places, int32_t fill,
                        uint8_t *frame, int32_t *numbers) {
    int64_t height = size.height, width = size.width, channels = size.channels, stride = (width + 3) * channels;
    const int32_t *x_down = places + width, *y_across = x_down + height, *y_down = y_across + width;
    int64_t whole = in_vectors(width);
    Line line = {numbers, numbers + whole, numbers + 2 * whole, (uint64_t *)(numbers + 3 * whole), NULL};
    line.lower = line.upper + whole;
    pad(from, frame, size, fill);
    for (int64_t y = 0; y < height; y++, to += width * channels) {
        locate(places, x_down[y], y_across, y_down[y], size, line.corners, line.right, line.below);
        if (channels == RGB)
            move_rgb(frame, stride, to, width, line);
        else
            for (int64_t x = 0; x < width; x++)
                for (int64_t c = 0; c < channels; c++) {
                    const uint8_t *upper = frame + line.corners[x] + c, *lower = upper + stride;
                    int32_t value =
                        between(upper[0], upper[channels], lower[0], lower[channels], line.right[x], line.below[x]);
                    to[x * channels + c] = (uint8_t)value;
                }
    }
}

/* ---- values ---- */

/* Replaces every value by factor * value + offset. */
KERNEL static void scale(const uint8_t *from, uint8_t *to, int64_t count, int32_t factor, int32_t offset) {
    offset += 1 << (SHARE - 1);
    for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)clipped((factor * from[i] + offset) >> SHARE);
}

enum { SOME = 128 }; /* pixels, of which the words fit the first-level cache */

/* Replaces every RGB pixel by matrix @ pixel + offset. */
KERNEL static void recolour(const uint8_t *restrict from, uint8_t *restrict to, int64_t pixels, const int32_t *matrix,
                            int32_t offset) {
    int32_t m[RGB * RGB];
    uint32_t words[SOME];
    memcpy(m, matrix, sizeof m);
    offset += 1 << (SHARE - 1);
    for (; pixels > 0; pixels -= SOME, from += RGB * SOME, to += RGB * SOME) {
        int64_t count = pixels < SOME ? pixels : SOME;
        read_words(from, count, words);
        for (int64_t i = 0; i < count; i++) {
            int32_t r = words[i] & UINT8_MAX, g = words[i] >> 8 & UINT8_MAX, b = words[i] >> 16 & UINT8_MAX;
            int32_t red = clipped((m[0] * r + m[1] * g + m[2] * b + offset) >> SHARE);
            int32_t green = clipped((m[3] * r + m[4] * g + m[5] * b + offset) >> SHARE);
            int32_t blue = clipped((m[6] * r + m[7] * g + m[8] * b + offset) >> SHARE);
            words[i] = (uint32_t)(red | green << 8 | blue << 16);
        }
        write_words(words, count, to);
    }
}

static void look_up(const uint8_t *from, uint8_t *to, Size size, uint8_t (*tables)[VALUES]) {
    int64_t pixels = size.height * size.width;
    if (size.channels == 1)
        for (int64_t i = 0; i < pixels; i++) to[i] = tables[0][from[i]];
    else
        for (int64_t i = 0; i < RGB * pixels; i += RGB)
            for (int c = 0; c < RGB; c++) to[i + c] = tables[c][from[i + c]];
}

/* Returns an image's mean grey times a factor, in the fixed point of `scale`. */
KERNEL static int32_t mean_grey(const uint8_t *from, Size size, double factor, int32_t *sums) {
    int64_t lanes = lanes_of(size), totals[RGB] = {0};
    memset(sums, 0, sizeof *sums * (size_t)lanes);
    for (int64_t y = 0; y < size.height; y++, from += lanes)
        for (int64_t i = 0; i < lanes; i++) sums[i] += from[i];
    for (int64_t i = 0; i < lanes; i += size.channels)
        for (int64_t c = 0; c < size.channels; c++) totals[c] += sums[i + c];
    double pixels = (double)(size.height * size.width);
    /* Whole numbers, of which one division makes the mean, so that no processor rounds it otherwise. */
    double mean = size.channels == 1 ? (double)totals[0] / pixels
                                     : (double)(299 * totals[0] + 587 * totals[1] + 114 * totals[2]) / (1000 * pixels);
    double grey = rint(mean * factor * (1 << SHARE));
    return grey > INT32_MIN && grey < INT32_MAX ? (int32_t)grey : 0; /* processors convert others, and NaN, as they like */
}

KERNEL static void extremes(const uint8_t *from, Size size, uint8_t *least, uint8_t *most, uint8_t *of_lanes) {
    int64_t lanes = lanes_of(size);
    uint8_t *low = of_lanes, *high = of_lanes + lanes;
    memcpy(low, from, (size_t)lanes);
    memcpy(high, from, (size_t)lanes);
    for (int64_t y = 1; y < size.height; y++) {
        from += lanes;
        for (int64_t i = 0; i < lanes; i++) low[i] = from[i] < low[i] ? from[i] : low[i];
        for (int64_t i = 0; i < lanes; i++) high[i] = from[i] > high[i] ? from[i] : high[i];
    }
    for (int64_t c = 0; c < size.channels; c++) least[c] = UINT8_MAX, most[c] = 0;
    for (int64_t i = 0, c = 0; i < lanes; i++, c = c + 1 < size.channels ? c + 1 : 0) {
        if (low[i] < least[c]) least[c] = low[i];
        if (high[i] > most[c]) most[c] = high[i];
    }
}

static void stretch(const uint8_t *from, uint8_t *to, Size size, uint8_t *of_lanes) {
    uint8_t least[RGB], most[RGB], tables[RGB][VALUES];
    extremes(from, size, least, most, of_lanes);
    for (int64_t c = 0; c < size.channels; c++) {
        int32_t range = most[c] - least[c], factor = 1 << SHARE;
        if (range) factor = (int32_t)rint(255.0 / range * (1 << SHARE));
        for (int32_t value = 0; value < VALUES; value++) {
            int32_t above = range ? (value < least[c] ? 0 : value - least[c]) : value;
            tables[c][value] = (uint8_t)clipped((factor * above + (1 << (SHARE - 1))) >> SHARE);
        }
    }
    look_up(from, to, size, tables);
}

static void count_values(const uint8_t *from, Size size, int32_t (*counts)[VALUES]) {
    int64_t pixels = size.height * size.width;
    memset(counts, 0, sizeof *counts * (size_t)size.channels);
    if (size.channels == 1)
        for (int64_t i = 0; i < pixels; i++) counts[0][from[i]]++;
    else
        for (int64_t i = 0; i < RGB * pixels; i += RGB)
            for (int c = 0; c < RGB; c++) counts[c][from[i + c]]++;
}

/* Makes the table that spreads values evenly. A double quotient of integers this small truncates
 * to the right integer. */
KERNEL static void spread(const int32_t *counts, int64_t pixels, uint8_t *restrict table) {
    int32_t highest = VALUES - 1, below[VALUES];
    while (highest > 0 && !counts[highest]) highest--;
    int32_t step = (int32_t)((pixels - counts[highest]) / UINT8_MAX), before = step / 2;
    for (int value = 0; value < VALUES; before += counts[value++]) below[value] = before;
    if (!step)
        for (int value = 0; value < VALUES; value++) table[value] = (uint8_t)value;
    else
        for (int value = 0; value < VALUES; value++) {
            int32_t whole = (int32_t)(below[value] / (double)step);
            table[value] = (uint8_t)(whole > UINT8_MAX ? UINT8_MAX : whole);
        }
}

static void equalize(const uint8_t *from, uint8_t *to, Size size) {
    int32_t counts[RGB][VALUES];
    uint8_t tables[RGB][VALUES];
    count_values(from, size, counts);
    for (int64_t c = 0; c < size.channels; c++) spread(counts[c], size.height * size.width, tables[c]);
    look_up(from, to, size, tables);
}

KERNEL static void sharpen(const uint8_t *from, uint8_t *to, Size size, int32_t part, int32_t *sums) {
    int64_t lanes = lanes_of(size), channels = size.channels;
    memcpy(to, from, (size_t)lanes);
    for (int64_t y = 1; y < size.height - 1; y++) {
        const uint8_t *line = from + y * lanes, *above = line - lanes, *below = line + lanes;
        uint8_t *out = to + y * lanes;
        for (int64_t i = 0; i < lanes; i++) sums[i] = above[i] + line[i] + below[i];
        memcpy(out, line, (size_t)channels);
        for (int64_t i = channels; i < lanes - channels; i++) {
            int32_t difference = sums[i - channels] + sums[i] + sums[i + channels] - 9 * line[i];
            int32_t whole = (line[i] << SHARE) + part * difference + (1 << (SHARE - 1));
            out[i] = (uint8_t)clipped(whole >> SHARE);
        }
        memcpy(out + lanes - channels, line + lanes - channels, (size_t)channels);
    }
    memcpy(to + (size.height - 1) * lanes, from + (size.height - 1) * lanes, (size_t)lanes);
}

KERNEL static void reduce(const uint8_t *from, uint8_t *to, int64_t count, uint8_t mask) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i] & mask;
}

KERNEL static void invert(const uint8_t *from, uint8_t *to, int64_t count, int32_t threshold) {
    for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)(from[i] >= threshold ? UINT8_MAX - from[i] : from[i]);
}

KERNEL static void normalise(const uint8_t *restrict from, float *restrict to, Size size, const int32_t *numbers,
                             float *of_lanes) {
    int64_t lanes = lanes_of(size);
    float *mean = of_lanes, *inverse = of_lanes + lanes;
    for (int64_t x = 0; x < size.width; x++) {
        memcpy(mean + x * size.channels, numbers, sizeof(float) * (size_t)size.channels);
        memcpy(inverse + x * size.channels, numbers + size.channels, sizeof(float) * (size_t)size.channels);
    }
    for (int64_t y = 0; y < size.height; y++, from += lanes, to += lanes)
        for (int64_t i = 0; i < lanes; i++) to[i] = ((float)from[i] - mean[i]) * inverse[i];
}

/* ---- sizes ---- */

enum { NEW_HEIGHT, NEW_WIDTH, TAPS_DOWN, TAPS_ACROSS, WEIGHTS }; /* numbers of resize */

static const int32_t *weights_across(const Pass *pass) {
    return pass->numbers + WEIGHTS + pass->after.height * (pass->numbers[TAPS_DOWN] + 1);
}

/* ---- boxes ---- */

enum { TOP, LEFT, TALL, WIDE, OF_BOX }; /* parameters of passes over boxes, which may reach beyond an image */

/* Where the part of a box that lies in the image begins and ends, in lines and in bytes of a line. */
typedef struct {
    int64_t top, bottom, first, end, line;
} Box;

static Box inside(const Pass *pass, int64_t top, int64_t left, int64_t tall, int64_t wide) {
    Size size = pass->before;
    int64_t pixel = size.channels * (pass->floats ? (int64_t)sizeof(float) : 1), bottom = top + tall;
    int64_t right = left + wide < size.width ? left + wide : size.width;
    if (left < 0) left = 0;
    if (right < left) left = right = 0;
    return (Box){top < 0 ? 0 : top, bottom < size.height ? bottom : size.height, left * pixel, right * pixel,
                 size.width * pixel};
}

enum { COVER_HEIGHT, COVER_WIDTH, COLOUR }; /* numbers of cover */

static void cover(const Pass *pass, uint8_t *to, const int32_t *given) {
    const int32_t *numbers = pass->numbers;
    Box box = inside(pass, given[TOP], given[LEFT], numbers[COVER_HEIGHT], numbers[COVER_WIDTH]);
    uint8_t *first = to + box.top * box.line + box.first;
    size_t bytes = (size_t)(box.end - box.first);
    if (box.top >= box.bottom) return;
    if (pass->floats)
        memset(first, 0, bytes);
    else
        for (size_t i = 0; i < bytes; i += (size_t)pass->before.channels)
            for (int64_t c = 0; c < pass->before.channels; c++) first[i + (size_t)c] = (uint8_t)numbers[COLOUR + c];
    for (int64_t y = box.top + 1; y < box.bottom; y++) memcpy(first + (y - box.top) * box.line, first, bytes);
}

enum { KEY = OF_BOX, NOISE_COLUMNS = KEY + 2 }; /* parameters of noise, after those of its box */

static uint64_t splitmix64(uint64_t x) {
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Byte b of an image's noise is byte b % 8 of the hash of key + b / 8. */
static void noise(const Pass *pass, uint8_t *to, const int32_t *parameters) {
    Size size = pass->before;
    uint64_t key = (uint32_t)parameters[KEY] | (uint64_t)(uint32_t)parameters[KEY + 1] << 32;
    for (int64_t y = parameters[TOP]; y < parameters[TOP] + parameters[TALL]; y++) {
        int64_t at = (y * size.width + parameters[LEFT]) * size.channels, end = at + parameters[WIDE] * size.channels;
        while (at < end) {
            uint64_t hash = splitmix64(key + (uint64_t)at / 8) >> 8 * (at % 8);
            int64_t count = 8 - at % 8 < end - at ? 8 - at % 8 : end - at;
            memcpy(to + at, &hash, (size_t)count);
            at += count;
        }
    }
}

/* ---- pairs ---- */

/* Parameters of mix, after those of the box where all is the partner's: its part of the other pixels, for bytes and for
 * floats. */
enum { PART = OF_BOX, PART_OF_FLOATS, MIX_COLUMNS };

KERNEL static void blend(uint8_t *restrict one, uint8_t *restrict other, int64_t count, int32_t part,
                         int32_t of_other) {
    for (int64_t i = 0; i < count; i++) {
        int32_t value = one[i], partner = other[i], half = 1 << (SHARE - 1);
        one[i] = (uint8_t)clipped(((value << SHARE) + part * (partner - value) + half) >> SHARE);
        other[i] = (uint8_t)clipped(((partner << SHARE) + of_other * (value - partner) + half) >> SHARE);
    }
}

/* XLA, too, rounds the product and the sum once, on processors with FMA; without it, it rounds each. */
KERNEL_FUSED static void blend_floats(float *restrict one, float *restrict other, int64_t count, float part,
                                      float of_other) {
    for (int64_t i = 0; i < count; i++) {
        float value = one[i], partner = other[i];
        one[i] = __builtin_fmaf(part, partner - value, value);
        other[i] = __builtin_fmaf(of_other, value - partner, partner);
    }
}

/* Copies the pixels of a box to the same places of another image. */
static void copy_box(const uint8_t *from, uint8_t *to, const Pass *pass, const int32_t *given) {
    Box box = inside(pass, given[TOP], given[LEFT], given[TALL], given[WIDE]);
    for (int64_t y = box.top; y < box.bottom; y++)
        memcpy(to + y * box.line + box.first, from + y * box.line + box.first, (size_t)(box.end - box.first));
}

/* Mixes two images in place. What each gets in its box is kept in `kept` and `kept_of_other` until both are blended. */
static void mix(const Pass *pass, uint8_t *one, uint8_t *other, const int32_t *given, const int32_t *of_other,
                uint8_t *kept, uint8_t *kept_of_other) {
    int64_t count = volume(pass->before);
    int column = pass->floats ? PART_OF_FLOATS : PART;
    copy_box(other, kept, pass, given);
    copy_box(one, kept_of_other, pass, of_other);
    if (given[column] || of_other[column]) { /* else they stay as they are */
        if (pass->floats)
            blend_floats((float *)one, (float *)other, count, as_float(given + column), as_float(of_other + column));
        else
            blend(one, other, count, given[column], of_other[column]);
    }
    copy_box(kept, one, pass, given);
    copy_box(kept_of_other, other, pass, of_other);
}

/* The parts of the scratch memory: two images, a frame, and lines of numbers. */
typedef struct {
    int64_t image, frame, lines;
} Sizes;

/* Where a frame and lines of numbers may be written. */
typedef struct {
    uint8_t *frame;
    int32_t *lines;
} Room;

/* ---- RandAugment ---- */

static int augment(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    Size size = pass->before;
    int64_t count = volume(size), places = 2 * (size.height + size.width);
    int32_t drawn = given[0], operation = drawn / 2;
    const int32_t *numbers = pass->numbers, *way = numbers + WAYS + drawn % 2 * OF_WAY;
    switch (operation) {
        case SHEAR_X:
        case SHEAR_Y:
        case TRANSLATE_X:
        case TRANSLATE_Y:
        case ROTATE:
            numbers += WAYS + 2 * OF_WAY + (drawn - 2 * SHEAR_X) * places;
            move(from, to, size, numbers, pass->numbers[FILL], room.frame, room.lines);
            return 1;
        case BRIGHTNESS:
            scale(from, to, count, way[FACTOR], 0);
            return 1;
        case CONTRAST:
            scale(from, to, count, way[FACTOR], mean_grey(from, size, as_double(way + TOWARDS), room.lines));
            return 1;
        case COLOR:
            if (size.channels == 1) return 0;
            recolour(from, to, size.height * size.width, way + MATRIX, 0);
            return 1;
        case SHARPNESS:
            if (size.height < 3 || size.width < 3) return 0;
            sharpen(from, to, size, way[SMOOTHED], room.lines);
            return 1;
        case POSTERIZE:
            reduce(from, to, count, (uint8_t)numbers[MASK]);
            return 1;
        case SOLARIZE:
            invert(from, to, count, numbers[THRESHOLD]);
            return 1;
        case AUTO_CONTRAST:
            stretch(from, to, size, (uint8_t *)room.lines);
            return 1;
        case EQUALIZE:
            equalize(from, to, size);
            return 1;
        default: /* IDENTITY */
            return 0;
    }
}

/* ---- kinds of passes: reading, checking and applying each ---- */

struct Kind {
    const char name[NAME];          /* as pipeline/augmentation has it */
    int takes_floats, gives_floats; /* whether it may follow a pass that gives floats; whether it makes them */
    int64_t columns;                /* of parameters that it takes, where that does not depend on the image */
    /* Reads the numbers of a pass; sets its columns or size if these depend on them. NULL: it has no numbers. */
    const char *(*read)(Pass *pass);
    /* Returns what is wrong with the parameters of an image, or NULL; itself NULL: nothing can be. */
    const char *(*check)(const Pass *pass, const int32_t *given);
    /* Makes room for a pass that needs more than usual; NULL: it does not. */
    void (*needs)(const Pass *pass, Sizes *sizes);
    /* One of three. The first returns 0 without writing if the image does not change. */
    int (*apply)(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room);
    void (*paint)(const Pass *pass, uint8_t *image, const int32_t *given); /* in place */
    void (*mix)(const Pass *pass, uint8_t *one, uint8_t *other, const int32_t *given, const int32_t *of_other,
                uint8_t *kept, uint8_t *kept_of_other); /* two images, in place */
};

static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t places_of(Size size) { return 2 * (size.height + size.width); }

static int has_grey(Size size) { return size.channels == 1 || size.channels == RGB; }

static const char *read_size(Pass *pass, int64_t height, int64_t width) {
    if (height < 1 || width < 1 || height > MOST_SIDE || width > MOST_SIDE)
        return "sizes must be at least 1, and no more than 524288";
    pass->after.height = height;
    pass->after.width = width;
    return NULL;
}

static void move_needs(const Pass *pass, Sizes *sizes) {
    Size size = pass->before;
    sizes->frame = larger(sizes->frame, (size.height + 3) * (size.width + 3) * size.channels);
}

enum { PADDING, CROP_HEIGHT, CROP_WIDTH, CROP_NUMBERS }; /* numbers of crop */

static const char *read_crop(Pass *pass) {
    const int32_t *numbers = pass->numbers;
    if (pass->count != CROP_NUMBERS || numbers[PADDING] < 0 || numbers[PADDING] > MOST_SIDE)
        return "crop: wrong numbers";
    if (numbers[CROP_HEIGHT] > pass->before.height + 2 * numbers[PADDING] ||
        numbers[CROP_WIDTH] > pass->before.width + 2 * numbers[PADDING])
        return "crop: must not be larger than the padded image";
    return read_size(pass, numbers[CROP_HEIGHT], numbers[CROP_WIDTH]);
}

static const char *check_crop(const Pass *pass, const int32_t *given) {
    int64_t around = 2 * pass->numbers[PADDING];
    if (given[TOP] < 0 || given[TOP] > pass->before.height + around - pass->after.height || given[LEFT] < 0 ||
        given[LEFT] > pass->before.width + around - pass->after.width)
        return "crop: must lie in the padded image";
    return NULL;
}

static int apply_crop(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    crop(from, to, pass, given[TOP] - pass->numbers[PADDING], given[LEFT] - pass->numbers[PADDING]);
    return 1;
}

static int apply_flip(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    if (given[0]) flip(from, to, pass->before, pass->before.channels * (pass->floats ? (int64_t)sizeof(float) : 1));
    return given[0] != 0;
}

static const char *read_move(Pass *pass) {
    pass->columns = places_of(pass->before);
    return pass->count == 1 ? NULL : "move: wrong numbers";
}

static int apply_move(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    move(from, to, pass->before, given, pass->numbers[0], room.frame, room.lines);
    return 1;
}

static const char *read_recolour(Pass *pass) {
    pass->columns = pass->before.channels * pass->before.channels + 2;
    return !pass->count && has_grey(pass->before) ? NULL : "recolour: wrong numbers or channels";
}

static int apply_recolour(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    Size size = pass->before;
    int32_t offset = mean_grey(from, size, as_double(given + size.channels * size.channels), room.lines);
    if (size.channels == 1)
        scale(from, to, volume(size), given[0], offset);
    else
        recolour(from, to, size.height * size.width, given, offset);
    return 1;
}

static const char *read_weights(const int32_t *table, int64_t count, int64_t taps, int64_t before) {
    for (int64_t i = 0; i < count; i++, table += taps + 1) {
        int64_t total = 0;
        if (table[0] < 0 || table[0] + taps > before) return "resize: weights must be those of an image's lines";
        if (i && table[0] < table[-taps - 1]) return "resize: weights must be in the order of the image's lines";
        for (int64_t t = 1; t <= taps; t++) {
            if (table[t] < 0) return "resize: weights must not be negative";
            total += table[t];
        }
        if (total > WHOLE) return "resize: weights must add up to no more than 1";
    }
    return NULL;
}

static const char *read_resize(Pass *pass) {
    const int32_t *numbers = pass->numbers;
    if (pass->count < WEIGHTS || numbers[TAPS_DOWN] < 1 || numbers[TAPS_ACROSS] < 1) return "resize: wrong numbers";
    const char *problem = read_size(pass, numbers[NEW_HEIGHT], numbers[NEW_WIDTH]);
    if (problem) return problem;
    int64_t down = numbers[TAPS_DOWN], across = numbers[TAPS_ACROSS];
    int64_t of_lines = pass->after.height * (down + 1), of_pixels = pass->after.width * (across + 1);
    if (pass->count != WEIGHTS + of_lines + of_pixels) return "resize: wrong numbers";
    problem = read_weights(numbers + WEIGHTS, pass->after.height, down, pass->before.height);
    return problem ? problem
                   : read_weights(numbers + WEIGHTS + of_lines, pass->after.width, across, pass->before.width);
}

static void resize_needs(const Pass *pass, Sizes *sizes) {
    int64_t room = room_to_resize_whole(extent(pass->before), extent(pass->after), pass->before.channels,
                                        pass->numbers[TAPS_DOWN], pass->numbers[TAPS_ACROSS]);
    sizes->lines = larger(sizes->lines, room);
}

static int apply_resize(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    resize_whole(from, extent(pass->before), to, extent(pass->after), pass->before.channels, pass->numbers + WEIGHTS,
                 pass->numbers[TAPS_DOWN], weights_across(pass), pass->numbers[TAPS_ACROSS], room.lines);
    return 1;
}

static const char *read_cover(Pass *pass) {
    const int32_t *numbers = pass->numbers;
    return pass->count == COLOUR + pass->before.channels && numbers[0] >= 0 && numbers[1] >= 0 ? NULL
                                                                                              : "cover: wrong numbers";
}

static const char *check_noise(const Pass *pass, const int32_t *given) {
    if (given[TOP] < 0 || given[LEFT] < 0 || given[TALL] < 0 || given[WIDE] < 0 ||
        (int64_t)given[TOP] + given[TALL] > pass->before.height ||
        (int64_t)given[LEFT] + given[WIDE] > pass->before.width)
        return "noise: must lie in the image";
    return NULL;
}

static const char *read_augment(Pass *pass) {
    int64_t count = WAYS + 2 * OF_WAY + 2 * MOVES * places_of(pass->before);
    return pass->count == count && has_grey(pass->before) ? NULL : "augment: wrong numbers or channels";
}

static const char *check_augment(const Pass *pass, const int32_t *given) {
    return given[0] < 0 || given[0] >= 2 * OPERATIONS ? "augment: there is no such operation" : NULL;
}

static const char *read_normalise(Pass *pass) {
    return pass->count == 2 * pass->before.channels ? NULL : "normalise: wrong numbers";
}

static int apply_normalise(const Pass *pass, const uint8_t *from, uint8_t *to, const int32_t *given, Room room) {
    normalise(from, (float *)to, pass->before, pass->numbers, (float *)room.lines);
    return 1;
}

/* All that is known of a pass: to add one, add its functions and its row. */
static const Kind KINDS[] = {
    {.name = "crop", .columns = 2, .read = read_crop, .check = check_crop, .apply = apply_crop},
    {.name = "flip", .columns = 1, .apply = apply_flip, .takes_floats = 1},
    {.name = "move", .read = read_move, .needs = move_needs, .apply = apply_move},
    {.name = "recolour", .read = read_recolour, .apply = apply_recolour},
    {.name = "resize", .read = read_resize, .needs = resize_needs, .apply = apply_resize},
    {.name = "cover", .columns = 2, .read = read_cover, .paint = cover, .takes_floats = 1},
    {.name = "noise", .columns = NOISE_COLUMNS, .check = check_noise, .paint = noise},
    {.name = "augment", .columns = 1, .read = read_augment, .check = check_augment, .needs = move_needs,
     .apply = augment},
    {.name = "normalise", .read = read_normalise, .apply = apply_normalise, .gives_floats = 1},
    {.name = "mix", .columns = MIX_COLUMNS, .mix = mix, .takes_floats = 1},
};

/* ---- programs ---- */

/* Returns the kind of this name; NULL: there is none. */
static const Kind *kind_of(const int32_t *name) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!memcmp(KINDS[i].name, name, NAME)) return &KINDS[i];
    return NULL;
}

static int64_t aligned(int64_t bytes) { return (bytes + SLACK - 1) / SLACK * SLACK + SLACK; }

static Sizes sizes_of(const Program *program) {
    Sizes sizes = {0};
    for (int i = 0; i < program->count; i++) {
        const Pass *pass = &program->passes[i];
        Size size = pass->before;
        int64_t after = volume(pass->after) * (pass->floats || pass->kind->gives_floats ? (int64_t)sizeof(float) : 1);
        sizes.image = larger(sizes.image, after);
        sizes.lines = larger(sizes.lines, OF_LINE * (int64_t)sizeof(int32_t) * in_vectors(lanes_of(size)));
        if (pass->kind->needs) pass->kind->needs(pass, &sizes);
    }
    return (Sizes){aligned(sizes.image), aligned(sizes.frame), aligned(sizes.lines)};
}

enum { COUNT = NAME / sizeof(int32_t), HEADER }; /* numbers of a pass in a program: its name, its count, its own */

const char *read_program(const int32_t *numbers, int64_t count, Size size, Program *program) {
    memset(program, 0, sizeof *program);
    if (size.height < 1 || size.width < 1 || size.channels < 1 || size.height > MOST_SIDE || size.width > MOST_SIDE ||
        size.channels > MOST_CHANNELS)
        return "images must have a height and width of 1 to 524288, and 1 to 65536 channels";
    program->before = program->after = size;
    while (count) {
        if (program->count == MOST_PASSES) return "a program must not have more than 256 passes";
        if (program->mixes) return "mix: must be the last pass";
        if (count < HEADER || numbers[COUNT] < 0 || numbers[COUNT] > count - HEADER)
            return "a program must not end within a pass";
        const Kind *kind = kind_of(numbers);
        if (!kind) return "pass: there is no such kind";
        if (program->floats && !kind->takes_floats) return "pass: takes no floats";
        Pass *pass = &program->passes[program->count++];
        *pass = (Pass){kind,          numbers + HEADER, numbers[COUNT], program->columns,
                       kind->columns, program->after,   program->after, program->floats};
        if (!kind->read && pass->count) return "pass: wrong numbers";
        const char *problem = kind->read ? kind->read(pass) : NULL;
        if (problem) return problem;
        if (volume(pass->after) > INT32_MAX / 8 || volume(pass->before) > INT32_MAX / 8)
            return "images must be smaller";
        program->columns += pass->columns;
        program->after = pass->after;
        program->floats |= kind->gives_floats;
        program->mixes |= kind->mix != NULL;
        numbers += HEADER + pass->count;
        count -= HEADER + pass->count;
    }
    Sizes sizes = sizes_of(program);
    program->scratch = 2 * sizes.image + sizes.frame + sizes.lines;
    return NULL;
}

const char *check_parameters(const Program *program, const int32_t *parameters, int64_t images) {
    for (int64_t i = 0; i < images; i++, parameters += program->columns)
        for (int p = 0; p < program->count; p++) {
            const Pass *pass = &program->passes[p];
            const char *problem = pass->kind->check ? pass->kind->check(pass, parameters + pass->first) : NULL;
            if (problem) return problem;
        }
    return NULL;
}

void run_passes(const Program *program, const uint8_t *images, const int32_t *parameters, int64_t count, void *result,
             uint8_t *scratch) {
    Sizes sizes = sizes_of(program);
    uint8_t *own_rooms[2] = {scratch, scratch + sizes.image}, *frame = scratch + 2 * sizes.image;
    Room room = {frame, (int32_t *)(frame + sizes.frame)};
    int64_t before = volume(program->before);
    size_t after = (size_t)volume(program->after) * (program->floats ? sizeof(float) : 1);
    int own_passes = program->count - program->mixes, last = own_passes - 1; /* that is not in place */
    while (last >= 0 && program->passes[last].kind->paint) last--;
    for (int64_t i = 0; i < count; i++, images += before, parameters += program->columns) {
        uint8_t *out = (uint8_t *)result + (size_t)i * after, *own = NULL; /* where the image is that may be changed */
        const uint8_t *at = images;
        for (int p = 0; p < own_passes; p++) {
            const Pass *pass = &program->passes[p];
            uint8_t *to = p >= last ? out : own == own_rooms[0] ? own_rooms[1] : own_rooms[0];
            const int32_t *given = parameters + pass->first;
            if (!pass->kind->paint) {
                if (pass->kind->apply(pass, at, to, given, room)) at = own = to;
                continue;
            }
            if (!own) at = own = memcpy(to, at, (size_t)volume(pass->before)); /* never of floats: these are our own */
            pass->kind->paint(pass, own, given);
        }
        if (at != out) memcpy(out, at, after);
        if (program->mixes && i % 2) {
            const Pass *pass = &program->passes[own_passes];
            const int32_t *given = parameters + pass->first;
            pass->kind->mix(pass, out - after, out, given - program->columns, given, own_rooms[0], own_rooms[1]);
        }
    }
}
