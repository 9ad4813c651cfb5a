/* Operations of TensorFlow, which pipeline/operations/__init__.py describes: they copy crops of images, augment and
 * resize images, find images in records and the sizes of JPEG files, and copy records out of the memory that they were
 * read into.
 *
 * They are written against TensorFlow's C interface (tensorflow/c), whose functions are looked up when TensorFlow loads
 * this library: so it compiles without TensorFlow, and one build serves its versions. Where a function is missing,
 * nothing is registered. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "_pixels.h"
#include "_resize.h"

enum { OK = 0, INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8 };   /* TF_Code */
enum { FLOAT = 1, INT32 = 3, UINT8 = 4, STRING = 7, INT64 = 9 }; /* TF_DataType */
enum { LINE = 64 };                                              /* bytes of a line of the cache */
enum { MOST_INPUTS = 5, MOST_RANK = 8, MOST_RESIZED = 1 << 19 };

/* All objects of TensorFlow are pointers here. */
#define FUNCTIONS(F)                                                                                            \
    F(void *, TF_NewStatus, (void))                                                                             \
    F(void, TF_DeleteStatus, (void *status))                                                                    \
    F(void, TF_SetStatus, (void *status, int code, const char *message))                                        \
    F(int, TF_GetCode, (const void *status))                                                                    \
    F(int, TF_NumDims, (const void *tensor))                                                                    \
    F(int64_t, TF_Dim, (const void *tensor, int dimension))                                                     \
    F(void *, TF_TensorData, (const void *tensor))                                                              \
    F(void, TF_DeleteTensor, (void *tensor))                                                                    \
    F(void *, TF_NewOpDefinitionBuilder, (const char *name))                                                    \
    F(void, TF_OpDefinitionBuilderAddInput, (void *builder, const char *spec))                                  \
    F(void, TF_OpDefinitionBuilderAddOutput, (void *builder, const char *spec))                                 \
    F(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (void *builder, void (*infer)(void *, void *)))    \
    F(void, TF_ShapeInferenceContextSetUnknownShape, (void *context, void *status))                             \
    F(void, TF_RegisterOpDefinition, (void *builder, void *status))                                             \
    F(void *, TF_NewKernelBuilder, (const char *operation, const char *device, void *(*create)(void *),         \
                                    void (*compute)(void *, void *), void (*release)(void *)))                  \
    F(void, TF_RegisterKernelBuilder, (const char *name, void *builder, void *status))                          \
    F(void, TF_GetInput, (void *context, int number, void **tensor, void *status))                              \
    F(void *, TF_AllocateOutput, (void *context, int number, int type, const int64_t *shape, int rank,          \
                                  size_t bytes, void *status))                                                  \
    F(void, TF_OpKernelContext_Failure, (void *context, void *status))

#define DECLARED(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARED)

/* What an operation does with its inputs. Returns what is wrong with them, or NULL. Its output may be NULL, where
 * `status` says why. */
typedef const char *Computation(void *const *inputs, void *context, void **output, void *status);

/* ---- crops ---- */

enum { IMAGES, ROWS, TOP, LEFT, SIZE, CROPS_INPUTS };
static const int RANKS[CROPS_INPUTS] = {3, 1, 1, 1, 1};

typedef struct {
    int64_t images, height, width; /* of the images: how many, lines, bytes of a line */
    int64_t crops, tall, wide;     /* of the crops: the same */
} Shape;

/* Copies a crop that lies inside its image. */
static void copy_inside(const uint8_t *from, uint8_t *to, const Shape *shape) {
    for (int64_t y = 0; y < shape->tall; y++, from += shape->width, to += shape->wide)
        memcpy(to, from, (size_t)shape->wide);
}

/* Copies a crop of which some lies outside: zeros. */
static void copy_beyond(const uint8_t *image, int64_t top, int64_t left, uint8_t *to, const Shape *shape) {
    int64_t first = left < 0 ? -left : 0, end = shape->width - left; /* bytes of its lines that lie inside */
    if (end > shape->wide) end = shape->wide;
    memset(to, 0, (size_t)(shape->tall * shape->wide));
    for (int64_t y = 0; y < shape->tall; y++, to += shape->wide)
        if (top + y >= 0 && top + y < shape->height && first < end)
            memcpy(to + first, image + (top + y) * shape->width + left + first, (size_t)(end - first));
}

static int is_inside(int64_t top, int64_t left, const Shape *shape) {
    return top >= 0 && left >= 0 && top + shape->tall <= shape->height && left + shape->wide <= shape->width;
}

static void copy(const uint8_t *images, const int64_t *rows, const int32_t *top, const int32_t *left, uint8_t *to,
                 const Shape *shape) {
    int64_t image = shape->height * shape->width, crop = shape->tall * shape->wide;
    for (int64_t i = 0; i < shape->crops; i++, to += crop) {
        const uint8_t *this = images + rows[i] * image;
        if (i + 1 < shape->crops && is_inside(top[i + 1], left[i + 1], shape)) {
            const uint8_t *next = images + rows[i + 1] * image + top[i + 1] * shape->width;
            for (int64_t k = 0; k < shape->tall * shape->width; k += LINE) __builtin_prefetch(next + k);
        }
        if (is_inside(top[i], left[i], shape))
            copy_inside(this + top[i] * shape->width + left[i], to, shape);
        else
            copy_beyond(this, top[i], left[i], to, shape);
    }
}

/* Returns what is wrong with the inputs, or NULL. */
static const char *checked(void *const *inputs, Shape *shape) {
    for (int i = 0; i < CROPS_INPUTS; i++)
        if (TF_NumDims(inputs[i]) != RANKS[i]) return "images must have three dimensions, the others one";
    shape->images = TF_Dim(inputs[IMAGES], 0);
    shape->height = TF_Dim(inputs[IMAGES], 1);
    shape->width = TF_Dim(inputs[IMAGES], 2);
    shape->crops = TF_Dim(inputs[ROWS], 0);
    if (TF_Dim(inputs[TOP], 0) != shape->crops || TF_Dim(inputs[LEFT], 0) != shape->crops)
        return "rows, top and left must be equally long";
    if (TF_Dim(inputs[SIZE], 0) != 2) return "size must be two numbers";
    const int32_t *size = TF_TensorData(inputs[SIZE]);
    shape->tall = size[0];
    shape->wide = size[1];
    if (shape->tall < 0 || shape->wide < 0) return "size must not be negative";
    const int64_t *rows = TF_TensorData(inputs[ROWS]);
    for (int64_t i = 0; i < shape->crops; i++)
        if (rows[i] < 0 || rows[i] >= shape->images) return "rows must be those of images";
    return NULL;
}

static Computation crops;
static const char *crops(void *const *inputs, void *context, void **output, void *status) {
    Shape shape = {0};
    const char *problem = checked(inputs, &shape);
    if (problem) return problem;
    int64_t dimensions[3] = {shape.crops, shape.tall, shape.wide}, bytes;
    if (__builtin_mul_overflow(shape.tall * shape.wide, shape.crops, &bytes)) return "crops are too large";
    *output = TF_AllocateOutput(context, 0, UINT8, dimensions, 3, (size_t)bytes, status);
    if (TF_GetCode(status) == OK && bytes) /* else there may be no memory at all */
        copy(TF_TensorData(inputs[IMAGES]), TF_TensorData(inputs[ROWS]), TF_TensorData(inputs[TOP]),
             TF_TensorData(inputs[LEFT]), TF_TensorData(*output), &shape);
    return NULL;
}

/* ---- augmentations ---- */

enum { PIXELS, PROGRAM, PARAMETERS, AUGMENT_INPUTS };

static const char *augmented(void *const *inputs, void *context, void **output, void *status, int floats) {
    Program program;
    if (TF_NumDims(inputs[PIXELS]) != 4 || TF_NumDims(inputs[PROGRAM]) != 1 || TF_NumDims(inputs[PARAMETERS]) != 2)
        return "images must have four dimensions, a program one, parameters two";
    int64_t count = TF_Dim(inputs[PIXELS], 0);
    Size size = {TF_Dim(inputs[PIXELS], 1), TF_Dim(inputs[PIXELS], 2), TF_Dim(inputs[PIXELS], 3)};
    const char *problem = read_program(TF_TensorData(inputs[PROGRAM]), TF_Dim(inputs[PROGRAM], 0), size, &program);
    if (problem) return problem;
    if (program.floats != floats) return "a program gives floats if it normalises, else bytes";
    if (TF_Dim(inputs[PARAMETERS], 0) != count || TF_Dim(inputs[PARAMETERS], 1) != program.columns)
        return "parameters must be those of the program, a line for each image";
    if (program.mixes && count % 2) return "mix: needs an even number of images";
    const int32_t *parameters = TF_TensorData(inputs[PARAMETERS]);
    if ((problem = check_parameters(&program, parameters, count))) return problem;
    int64_t dimensions[4] = {count, program.after.height, program.after.width, program.after.channels};
    size_t bytes = (size_t)(count * program.after.height * program.after.width * program.after.channels);
    *output = TF_AllocateOutput(context, 0, floats ? FLOAT : UINT8, dimensions, 4, floats ? 4 * bytes : bytes, status);
    if (TF_GetCode(status) != OK) return NULL;
    uint8_t *scratch = aligned_alloc(LINE, (size_t)program.scratch);
    if (scratch)
        run_passes(&program, TF_TensorData(inputs[PIXELS]), parameters, count, TF_TensorData(*output), scratch);
    else
        TF_SetStatus(status, RESOURCE_EXHAUSTED, "no memory to augment images in");
    free(scratch);
    return NULL;
}

static Computation pixels, floats;
static const char *pixels(void *const *inputs, void *context, void **output, void *status) {
    return augmented(inputs, context, output, status, 0);
}

static const char *floats(void *const *inputs, void *context, void **output, void *status) {
    return augmented(inputs, context, output, status, 1);
}

/* ---- sizes ---- */

enum { IMAGE, PART, NEW_SIZE, MIRRORED, RESIZE_INPUTS };

static Computation resized;
static const char *resized(void *const *inputs, void *context, void **output, void *status) {
    if (TF_NumDims(inputs[IMAGE]) != 3 || TF_NumDims(inputs[PART]) != 1 || TF_Dim(inputs[PART], 0) != 4 ||
        TF_NumDims(inputs[NEW_SIZE]) != 1 || TF_Dim(inputs[NEW_SIZE], 0) != 2 || TF_NumDims(inputs[MIRRORED]))
        return "an image must have three dimensions, its part must be four numbers, a new size two";
    const int32_t *part = TF_TensorData(inputs[PART]), *size = TF_TensorData(inputs[NEW_SIZE]);
    Extent before = {part[2], part[3]}, after = {size[0], size[1]};
    int64_t channels = TF_Dim(inputs[IMAGE], 2), sides[] = {before.height, before.width, after.height, after.width};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MOST_RESIZED) return "an image must have a height and width of 1 to 524288";
    if (channels < 1 || channels > MOST_CHANNELS) return "an image must have 1 to 65536 channels";
    if (part[0] < 0 || part[0] + before.height > TF_Dim(inputs[IMAGE], 0) || part[1] < 0 ||
        part[1] + before.width > TF_Dim(inputs[IMAGE], 1))
        return "a part must lie in its image";
    int64_t dimensions[3] = {after.height, after.width, channels}, stride = TF_Dim(inputs[IMAGE], 1) * channels;
    size_t bytes = (size_t)(after.height * after.width * channels);
    *output = TF_AllocateOutput(context, 0, UINT8, dimensions, 3, bytes, status);
    if (TF_GetCode(status) != OK) return NULL;
    void *room = aligned_alloc(LINE, (size_t)room_to_resize(before, after, channels));
    const uint8_t *image = (const uint8_t *)TF_TensorData(inputs[IMAGE]) + part[0] * stride + part[1] * channels;
    if (room)
        resize_image(image, stride, before, TF_TensorData(*output), after, channels,
                     *(const uint8_t *)TF_TensorData(inputs[MIRRORED]), room);
    else
        TF_SetStatus(status, RESOURCE_EXHAUSTED, "no memory to resize an image in");
    free(room);
    return NULL;
}

/* ---- images that EXIF data turn ---- */

enum { STORED, STORED_PART, TURN, TURN_INPUTS };
enum { ON_ITS_SIDE = 5, LAST_TURN = 8, TURNED_LINES = 16 };
/* By EXIF's orientation: whether an upright image has its lines, or the pixels of a line, in the other order. */
static const uint8_t LINES_REVERSED[] = {0, 0, 0, 1, 1, 0, 0, 1, 1}, PIXELS_REVERSED[] = {0, 0, 1, 1, 0, 0, 1, 1, 0};

/* Copies an image of which the pixel below another one, and the one right of it, lie `down` and `across` bytes behind
 * it. Lines that are columns of what is stored are made several at a time, whose pixels then lie together. */
static inline void turn_pixels(const uint8_t *from, int64_t down, int64_t across, uint8_t *to, Extent upright,
                               int64_t channels, int64_t lines) {
    for (int64_t first = 0; first < upright.height; first += lines) {
        int64_t end = first + lines < upright.height ? first + lines : upright.height;
        for (int64_t x = 0; x < upright.width; x++)
            for (int64_t y = first; y < end; y++)
                memcpy(to + (y * upright.width + x) * channels, from + y * down + x * across, (size_t)channels);
    }
}

static void turn(const uint8_t *from, int64_t stride, uint8_t *to, Extent upright, int64_t channels, int orientation) {
    int is_on_side = orientation >= ON_ITS_SIDE;
    int64_t down = is_on_side ? channels : stride, across = is_on_side ? stride : channels;
    int64_t lines = is_on_side ? TURNED_LINES : 1;
    if (LINES_REVERSED[orientation]) {
        from += (upright.height - 1) * down;
        down = -down;
    }
    if (PIXELS_REVERSED[orientation]) {
        from += (upright.width - 1) * across;
        across = -across;
    }
    if (channels == 3) /* a constant number, of which no loop is left */
        turn_pixels(from, down, across, to, upright, 3, lines);
    else
        turn_pixels(from, down, across, to, upright, channels, lines);
}

static Computation turned;
static const char *turned(void *const *inputs, void *context, void **output, void *status) {
    if (TF_NumDims(inputs[STORED]) != 3 || TF_NumDims(inputs[STORED_PART]) != 1 ||
        TF_Dim(inputs[STORED_PART], 0) != 4 || TF_NumDims(inputs[TURN]))
        return "an image must have three dimensions, its part must be four numbers, an orientation one";
    int32_t orientation = *(const int32_t *)TF_TensorData(inputs[TURN]);
    if (orientation < 1 || orientation > LAST_TURN) return "an orientation must be 1 to 8";
    const int32_t *part = TF_TensorData(inputs[STORED_PART]);
    for (int i = 0; i < 2; i++)
        if (part[i] < 0 || part[i + 2] < 0 || (int64_t)part[i] + part[i + 2] > TF_Dim(inputs[STORED], i))
            return "a part must lie in its image";
    int is_on_side = orientation >= ON_ITS_SIDE;
    Extent upright = {part[is_on_side ? 3 : 2], part[is_on_side ? 2 : 3]};
    int64_t channels = TF_Dim(inputs[STORED], 2), stride = TF_Dim(inputs[STORED], 1) * channels;
    int64_t dimensions[3] = {upright.height, upright.width, channels};
    size_t bytes = (size_t)(upright.height * upright.width * channels);
    *output = TF_AllocateOutput(context, 0, UINT8, dimensions, 3, bytes, status);
    if (TF_GetCode(status) == OK && bytes) /* else there may be no memory at all */
        turn((const uint8_t *)TF_TensorData(inputs[STORED]) + part[0] * stride + part[1] * channels, stride,
             TF_TensorData(*output), upright, channels, orientation);
    return NULL;
}

/* ---- strings ---- */

enum { MEMORY, BOUNDS, RECORDS_INPUTS };

/* A string of TensorFlow, TF_TString in xla/tsl/platform/ctstring_internal.h: a short one lies in place, a longer one
 * in memory of malloc, or in another's memory, or somewhere behind itself. The lowest two bits of the first byte tell
 * which. */
enum { SHORT, LONG, BEHIND, KIND_BITS = 2, MOST_SHORT = 22, ALIGNED = 16 };
typedef union {
    struct {
        uint8_t size;
        char bytes[MOST_SHORT + 1];
    } in_place;
    struct {
        size_t size, capacity;
        char *bytes;
    } elsewhere;
    struct {
        size_t size;
        const char *bytes;
    } of_another;
    struct {
        uint32_t size, offset;
    } behind;
} String;

/* Makes an empty string one of these bytes. Returns 0 where there is no memory. */
static int assign(String *to, const uint8_t *bytes, size_t size) {
    if (size <= MOST_SHORT) {
        to->in_place.size = (uint8_t)(size << KIND_BITS | SHORT);
        if (size) memcpy(to->in_place.bytes, bytes, size); /* of no bytes there may be no memory */
        to->in_place.bytes[size] = 0;
        return 1;
    }
    size_t room = (size + ALIGNED) & ~(size_t)(ALIGNED - 1); /* with a zero at the end */
    char *memory = malloc(room);
    if (!memory) return 0;
    memcpy(memory, bytes, size);
    memory[size] = 0;
    to->elsewhere.bytes = memory;
    to->elsewhere.capacity = room - 1;
    to->elsewhere.size = size << KIND_BITS | LONG;
    return 1;
}

static Computation records;
static const char *records(void *const *inputs, void *context, void **output, void *status) {
    int rank = TF_NumDims(inputs[BOUNDS]) - 1;
    int64_t dimensions[MOST_RANK], count = 1, size = 1;
    if (rank < 0 || rank > MOST_RANK || TF_Dim(inputs[BOUNDS], rank) != 2) return "bounds must have two columns";
    for (int i = 0; i < rank; i++) count *= dimensions[i] = TF_Dim(inputs[BOUNDS], i);
    for (int i = 0; i < TF_NumDims(inputs[MEMORY]); i++) size *= TF_Dim(inputs[MEMORY], i);
    const int64_t *bounds = TF_TensorData(inputs[BOUNDS]);
    for (int64_t i = 0; i < count; i++)
        if (bounds[2 * i] < 0 || bounds[2 * i + 1] < bounds[2 * i] || bounds[2 * i + 1] > size)
            return "bounds must lie in memory";
    *output = TF_AllocateOutput(context, 0, STRING, dimensions, rank, sizeof(String) * (size_t)count, status);
    if (TF_GetCode(status) != OK) return NULL;
    const uint8_t *memory = TF_TensorData(inputs[MEMORY]);
    String *strings = count ? TF_TensorData(*output) : NULL; /* TensorFlow made them, empty */
    for (int64_t i = 0; i < count; i++)
        if (!assign(strings + i, memory + bounds[2 * i], (size_t)(bounds[2 * i + 1] - bounds[2 * i]))) {
            TF_SetStatus(status, RESOURCE_EXHAUSTED, "no memory for a record");
            break;
        }
    return NULL;
}

static const uint8_t *bytes_of(const String *string, size_t *size) {
    switch (string->in_place.size & ((1 << KIND_BITS) - 1)) {
        case SHORT:
            *size = string->in_place.size >> KIND_BITS;
            return (const uint8_t *)string->in_place.bytes;
        case LONG:
            *size = string->elsewhere.size >> KIND_BITS;
            return (const uint8_t *)string->elsewhere.bytes;
        case BEHIND:
            *size = string->behind.size >> KIND_BITS;
            return (const uint8_t *)string + string->behind.offset;
        default:
            *size = string->of_another.size >> KIND_BITS;
            return (const uint8_t *)string->of_another.bytes;
    }
}

/* ---- images in records ---- */

/* Fields of tf.train.Example (tensorflow/core/example/example.proto and feature.proto), by number and kind: in bytes,
 * whose length stands before them. */
enum { IN_BYTES = 2, FIRST = 1 << 3 | IN_BYTES, SECOND = 2 << 3 | IN_BYTES, THIRD = 3 << 3 | IN_BYTES };
enum { PAYLOAD_BITS = 7, MORE = 1 << PAYLOAD_BITS, MOST_SHIFT = 63 };

typedef struct {
    const uint8_t *at, *end;
} Bytes;

/* Takes a whole number from the begin of some bytes. Returns 0 where there is none. */
static int take_number(Bytes *from, uint64_t *number) {
    *number = 0;
    for (int shift = 0; from->at < from->end && shift <= MOST_SHIFT; shift += PAYLOAD_BITS) {
        uint64_t byte = *from->at++;
        *number |= (byte & (MORE - 1)) << shift;
        if (!(byte & MORE)) return 1;
    }
    return 0;
}

/* Takes a field in bytes; returns its number and kind, or 0 where there is none. These must be in one byte, as they are
 * for the fields above: TensorFlow's parser refuses longer ways to write them. */
static uint64_t take_field(Bytes *from, Bytes *field) {
    uint64_t tag = from->at < from->end ? *from->at++ : 0, size;
    if (tag >= MORE || (tag & 7) != IN_BYTES || !take_number(from, &size)) return 0;
    if (size > (uint64_t)(from->end - from->at)) return 0;
    *field = (Bytes){from->at, from->at + size};
    from->at = field->end;
    return tag;
}

/* Whether some bytes are a field with this number and kind and nothing else; they become its. */
static int is_only(uint64_t tag, Bytes *bytes) {
    Bytes field;
    if (take_field(bytes, &field) != tag || bytes->at < bytes->end) return 0;
    *bytes = field;
    return 1;
}

static int is_named(Bytes key, Bytes name) {
    return key.end - key.at == name.end - name.at && !memcmp(key.at, name.at, (size_t)(name.end - name.at));
}

enum { IMAGE_NAME, LABEL_NAME, NAMES };

/* Finds the image and the label of a serialized Example, by their names: one that is as writers make it, each field
 * once, one value in each. Returns 0 where it is not, or has no such features. Without a name no label is looked for. */
static int find_image(Bytes record, const Bytes *names, Bytes *image, uint64_t *label) {
    int images = 0, labels = 0, is_unnamed = names[LABEL_NAME].at == names[LABEL_NAME].end;
    if (!is_only(FIRST, &record)) return 0;
    for (Bytes entry; record.at < record.end;) {
        Bytes key, value;
        if (take_field(&record, &entry) != FIRST || take_field(&entry, &key) != FIRST) return 0;
        if (take_field(&entry, &value) != SECOND || entry.at < entry.end) return 0;
        if (is_named(key, names[IMAGE_NAME])) {
            if (images++ || !is_only(FIRST, &value) || !is_only(FIRST, &value)) return 0;
            *image = value;
        } else if (!is_unnamed && is_named(key, names[LABEL_NAME])) {
            if (labels++ || !is_only(THIRD, &value) || !is_only(FIRST, &value)) return 0;
            if (!take_number(&value, label) || value.at < value.end) return 0;
        }
    }
    return images && (labels || is_unnamed);
}

enum { EXAMPLES, FEATURES, FIND_INPUTS };
enum { BEGIN, END, LABEL, FOUND };

static Computation found_images;
static const char *found_images(void *const *inputs, void *context, void **output, void *status) {
    if (TF_NumDims(inputs[EXAMPLES]) != 1) return "records must have one dimension";
    if (TF_NumDims(inputs[FEATURES]) != 1 || TF_Dim(inputs[FEATURES], 0) != NAMES) return "names must be two";
    int64_t dimensions[2] = {TF_Dim(inputs[EXAMPLES], 0), FOUND}, count = dimensions[0];
    *output = TF_AllocateOutput(context, 0, INT64, dimensions, 2, sizeof(int64_t) * FOUND * (size_t)count, status);
    if (TF_GetCode(status) != OK || !count) return NULL;
    const String *strings = TF_TensorData(inputs[EXAMPLES]), *of_features = TF_TensorData(inputs[FEATURES]);
    int64_t *found = TF_TensorData(*output);
    Bytes names[NAMES];
    for (int i = 0; i < NAMES; i++) {
        size_t size;
        names[i].at = bytes_of(of_features + i, &size);
        names[i].end = names[i].at + size;
    }
    for (int64_t i = 0; i < count; i++, found += FOUND) {
        size_t size;
        const uint8_t *bytes = bytes_of(strings + i, &size);
        Bytes image = {bytes, bytes};
        uint64_t label = 0;
        int is_found = find_image((Bytes){bytes, bytes + size}, names, &image, &label);
        found[BEGIN] = is_found ? image.at - bytes : -1;
        found[END] = is_found ? image.end - bytes : -1;
        found[LABEL] = is_found ? (int64_t)label : 0;
    }
    return NULL;
}

enum { STRINGS, PLACES, ROW, PART_INPUTS };

/* Returns what is wrong with the bounds of a part of each string, or NULL. */
static const char *check_places(const void *strings, const void *places) {
    if (TF_NumDims(strings) != 1) return "strings must have one dimension";
    if (TF_NumDims(places) != 2 || TF_Dim(places, 1) != 2) return "bounds must have two columns";
    return TF_Dim(strings, 0) == TF_Dim(places, 0) ? NULL : "bounds must be as many as strings";
}

/* Finds a part of a string; returns 0 where it does not lie there. */
static int find_part(const String *string, const int64_t *bounds, Bytes *part) {
    size_t size;
    const uint8_t *bytes = bytes_of(string, &size);
    if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > (int64_t)size) return 0;
    *part = (Bytes){bytes + bounds[0], bytes + bounds[1]};
    return 1;
}

static Computation part;
static const char *part(void *const *inputs, void *context, void **output, void *status) {
    const char *problem = check_places(inputs[STRINGS], inputs[PLACES]);
    if (problem) return problem;
    if (TF_NumDims(inputs[ROW])) return "a row must be one number";
    int64_t row = *(const int64_t *)TF_TensorData(inputs[ROW]);
    if (row < 0 || row >= TF_Dim(inputs[STRINGS], 0)) return "a row must be that of a string";
    Bytes found;
    if (!find_part((const String *)TF_TensorData(inputs[STRINGS]) + row,
                   (const int64_t *)TF_TensorData(inputs[PLACES]) + 2 * row, &found))
        return "bounds must lie in a string";
    *output = TF_AllocateOutput(context, 0, STRING, &row, 0, sizeof(String), status); /* of no dimension */
    if (TF_GetCode(status) != OK) return NULL;
    if (!assign(TF_TensorData(*output), found.at, (size_t)(found.end - found.at)))
        TF_SetStatus(status, RESOURCE_EXHAUSTED, "no memory for an image");
    return NULL;
}

/* Markers of JPEG: ITU T.81, B.1. Those of frames are SOF0 to SOF15, but for three. */
enum { SOF0 = 0xC0, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, SOF15 = 0xCF, RST0 = 0xD0, SOI = 0xD8, SOS = 0xDA, TEM = 1 };
enum { MARKER = 0xFF, OF_FRAME = 7 };

static int32_t two_bytes(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* Finds the height and width in a JPEG file's header; leaves zeros where it is none. */
static void find_size(const uint8_t *at, size_t size, int32_t *found) {
    const uint8_t *end = at + size;
    if (size < 2 || at[0] != MARKER || at[1] != SOI) return;
    for (at += 2;;) {
        while (at < end && *at != MARKER) at++;
        while (at < end && *at == MARKER) at++;
        if (end - at < 1 + OF_FRAME) return;
        int marker = *at++, length = two_bytes(at);
        if (marker == SOS) return;
        if (marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC) {
            found[0] = two_bytes(at + 3); /* behind the length and the bits of a value */
            found[1] = two_bytes(at + 5);
            return;
        }
        if (marker == 0 || marker == TEM || (marker >= RST0 && marker <= SOI)) continue; /* nothing follows these */
        if (length > end - at) return;
        at += length;
    }
}

enum { FILES, FILE_BOUNDS, SIZES_INPUTS };

static Computation sizes;
static const char *sizes(void *const *inputs, void *context, void **output, void *status) {
    const char *problem = check_places(inputs[FILES], inputs[FILE_BOUNDS]);
    if (problem) return problem;
    int64_t dimensions[2] = {TF_Dim(inputs[FILES], 0), 2}, count = dimensions[0];
    *output = TF_AllocateOutput(context, 0, INT32, dimensions, 2, sizeof(int32_t) * 2 * (size_t)count, status);
    if (TF_GetCode(status) != OK || !count) return NULL;
    const String *strings = TF_TensorData(inputs[FILES]);
    const int64_t *bounds = TF_TensorData(inputs[FILE_BOUNDS]);
    int32_t *found = TF_TensorData(*output);
    memset(found, 0, sizeof *found * 2 * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        Bytes file;
        if (!find_part(strings + i, bounds + 2 * i, &file)) return "bounds must lie in a string";
        find_size(file.at, (size_t)(file.end - file.at), found + 2 * i);
    }
    return NULL;
}

/* ---- what TensorFlow calls ---- */

static void compute(Computation *computation, int count, void *context) {
    void *inputs[MOST_INPUTS] = {0}, *status = TF_NewStatus(), *output = NULL;
    for (int i = 0; i < count && TF_GetCode(status) == OK; i++) TF_GetInput(context, i, &inputs[i], status);
    if (TF_GetCode(status) == OK) {
        const char *problem = computation(inputs, context, &output, status);
        if (problem) TF_SetStatus(status, INVALID_ARGUMENT, problem);
    }
    if (output) TF_DeleteTensor(output);
    if (TF_GetCode(status) != OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < count; i++)
        if (inputs[i]) TF_DeleteTensor(inputs[i]);
    TF_DeleteStatus(status);
}

#define COMPUTES(computation, count)                                 \
    static void compute_##computation(void *kernel, void *context) { \
        (void)kernel;                                                \
        compute(computation, count, context);                        \
    }
COMPUTES(crops, CROPS_INPUTS)
COMPUTES(pixels, AUGMENT_INPUTS)
COMPUTES(floats, AUGMENT_INPUTS)
COMPUTES(resized, RESIZE_INPUTS)
COMPUTES(turned, TURN_INPUTS)
COMPUTES(records, RECORDS_INPUTS)
COMPUTES(sizes, SIZES_INPUTS)
COMPUTES(found_images, FIND_INPUTS)
COMPUTES(part, PART_INPUTS)

static void infer(void *context, void *status) { TF_ShapeInferenceContextSetUnknownShape(context, status); }

/* Returns the library that has TensorFlow's C interface and is loaded already; NULL: it is not. */
#ifdef __APPLE__
/* dlopen wants its path there. */
static void *library_of_tensorflow(void) {
    for (uint32_t i = 0; i < _dyld_image_count(); i++) {
        const char *path = _dyld_get_image_name(i), *name = path ? strrchr(path, '/') : NULL;
        if (name && !strcmp(name, "/libtensorflow_framework.2.dylib")) return dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    }
    return NULL;
}
#else
static void *library_of_tensorflow(void) { return dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD); }
#endif

static int found(void) {
    void *tensorflow = library_of_tensorflow();
    if (!tensorflow) return 0;
#define FOUND(result, name, arguments) \
    if (!(*(void **)&name = dlsym(tensorflow, #name))) return 0;
    FUNCTIONS(FOUND)
    return 1;
}

static void register_operation(const char *name, const char *const *inputs, int count, const char *output,
                               void (*function)(void *, void *)) {
    void *status = TF_NewStatus(), *definition = TF_NewOpDefinitionBuilder(name);
    for (int i = 0; i < count; i++) TF_OpDefinitionBuilderAddInput(definition, inputs[i]);
    TF_OpDefinitionBuilderAddOutput(definition, output);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, infer);
    TF_RegisterOpDefinition(definition, status);
    if (TF_GetCode(status) == OK)
        TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", NULL, function, NULL), status);
    TF_DeleteStatus(status);
}

__attribute__((constructor)) static void register_operations(void) {
    static const char *const of_crops[CROPS_INPUTS] = {"images: uint8", "rows: int64", "top: int32", "left: int32",
                                                       "size: int32"};
    static const char *const of_records[RECORDS_INPUTS] = {"memory: uint8", "bounds: int64"};
    static const char *const of_pixels[AUGMENT_INPUTS] = {"images: uint8", "program: int32", "parameters: int32"};
    static const char *const of_resized[RESIZE_INPUTS] = {"image: uint8", "part: int32", "size: int32", "mirrored: bool"};
    static const char *const of_turned[TURN_INPUTS] = {"image: uint8", "part: int32", "orientation: int32"};
    static const char *const of_sizes[SIZES_INPUTS] = {"images: string", "bounds: int64"};
    static const char *const of_examples[FIND_INPUTS] = {"records: string", "names: string"};
    static const char *const of_part[PART_INPUTS] = {"strings: string", "bounds: int64", "row: int64"};
    if (!found()) return;
    register_operation("StepfeedGatherCrops", of_crops, CROPS_INPUTS, "crops: uint8", compute_crops);
    register_operation("StepfeedDistort", of_pixels, AUGMENT_INPUTS, "augmented: uint8", compute_pixels);
    register_operation("StepfeedDistortToFloats", of_pixels, AUGMENT_INPUTS, "augmented: float", compute_floats);
    register_operation("StepfeedResize", of_resized, RESIZE_INPUTS, "resized: uint8", compute_resized);
    register_operation("StepfeedTurn", of_turned, TURN_INPUTS, "turned: uint8", compute_turned);
    register_operation("StepfeedCopyRecords", of_records, RECORDS_INPUTS, "records: string", compute_records);
    register_operation("StepfeedJpegSizes", of_sizes, SIZES_INPUTS, "sizes: int32", compute_sizes);
    register_operation("StepfeedFindFeatures", of_examples, FIND_INPUTS, "found: int64", compute_found_images);
    register_operation("StepfeedPart", of_part, PART_INPUTS, "part: string", compute_part);
}
