/* Passes over the pixels of an image, one after another while it is in the cache: pipeline/augmentation/passes.py
 * describes them. */
#ifndef STEPFEED_PIXELS_H
#define STEPFEED_PIXELS_H
#include <stdint.h>

enum { MOST_PASSES = 256, MOST_SIDE = 1 << 19, MOST_CHANNELS = 1 << 16 };
enum { NAME = 16 }; /* bytes of a pass's name in a program; zeros follow the letters */

typedef struct {
    int64_t height, width, channels;
} Size;

typedef struct Kind Kind;

typedef struct {
    const Kind *kind;
    const int32_t *numbers; /* the same for all images */
    int64_t count;          /* of them */
    int64_t first, columns; /* the parameters that it takes: the first column, and how many */
    Size before, after;
    int floats; /* whether it takes floats, not bytes */
} Pass;

typedef struct {
    Pass passes[MOST_PASSES];
    int count;
    Size before, after;
    int floats;      /* whether the result is floats */
    int mixes;       /* whether the last pass mixes images 0 and 1, 2 and 3, ...: there must be an even number */
    int64_t columns; /* of parameters */
    int64_t scratch; /* bytes that `run_passes` needs */
} Program;

/* Reads a program for images of a size. Returns what is wrong with it, or NULL. */
const char *read_program(const int32_t *numbers, int64_t count, Size size, Program *program);

/* Returns what is wrong with the parameters of one of the images, or NULL. */
const char *check_parameters(const Program *program, const int32_t *parameters, int64_t images);

/* Augments images. `scratch` is aligned to 64 bytes. */
void run_passes(const Program *program, const uint8_t *images, const int32_t *parameters, int64_t count, void *result,
             uint8_t *scratch);
#endif
