/* Computes TensorFlow operations over the tensors of cases, and gives back their output: tests/kernels/calls.py makes the
 * cases and reads the results. The functions of TensorFlow's C interface are fakes; those that an operation looks up are
 * to be listed in FUNCTIONS. */
#include "protocol.h"

enum { OK, RESOURCE_EXHAUSTED = 8 };                                        /* TF_Code */
enum { FLOAT = 1, INT32 = 3, UINT8 = 4, STRING = 7, INT64 = 9, BOOL = 10 }; /* TF_DataType */
enum { MOST_RANK = 16, MOST_INPUTS = 16, MOST_OPERATIONS = 64, LARGEST = 1 << 24 };

typedef struct {
    int code;
    char message[256];
} Status;

typedef struct {
    int type, rank;
    int64_t shape[MOST_RANK];
    void *data, *whole;
} Tensor;

typedef struct {
    const char *name, *inputs[MOST_INPUTS], *output;
    int count;
    void (*infer)(void *, void *);
    void (*compute)(void *, void *);
} Operation;

typedef struct {
    Tensor inputs[MOST_INPUTS], output;
    int count;
    Status status;
} Context;

static Operation operations[MOST_OPERATIONS];
static int registered, held, shaped; /* operations; tensors that an operation has; calls of the inference of shapes */

/* A string of TensorFlow, as in pipeline's operations. */
typedef union {
    struct {
        uint8_t size;
        char bytes[23];
    } in_place;
    struct {
        size_t size, capacity;
        char *bytes;
    } elsewhere;
    struct {
        size_t size;
        const char *bytes;
    } of_another;
} String;
enum { SHORT, LONG, OF_ANOTHER = 3, MOST_SHORT = 22 };

static size_t size_of(int type) {
    switch (type) {
        case UINT8:
        case BOOL: return 1;
        case FLOAT:
        case INT32: return 4;
        case INT64: return 8;
        case STRING: return sizeof(String);
    }
    stop("a type that the driver does not know");
    return 0;
}

/* ---- fakes ---- */

static void *TF_NewStatus(void) { return calloc(1, sizeof(Status)); }
static void TF_DeleteStatus(void *status) { free(status); }
static void TF_SetStatus(void *status, int code, const char *message) {
    ((Status *)status)->code = code;
    snprintf(((Status *)status)->message, sizeof ((Status *)status)->message, "%s", message);
}
static int TF_GetCode(const void *status) { return ((const Status *)status)->code; }
static int TF_NumDims(const void *tensor) { return ((const Tensor *)tensor)->rank; }
static int64_t TF_Dim(const void *tensor, int dimension) {
    if (dimension < 0 || dimension >= ((const Tensor *)tensor)->rank) stop("TF_Dim of a dimension that there is not");
    return ((const Tensor *)tensor)->shape[dimension];
}
static void *TF_TensorData(const void *tensor) { return ((const Tensor *)tensor)->data; }

static void *handle_of(const Tensor *tensor) {
    Tensor *handle = malloc(sizeof *handle);
    *handle = *tensor;
    held++;
    return handle;
}
static void TF_DeleteTensor(void *tensor) {
    held--;
    free(tensor);
}

static void *TF_NewOpDefinitionBuilder(const char *name) {
    if (registered == MOST_OPERATIONS) stop("too many operations");
    operations[registered].name = name;
    return &operations[registered];
}
static void TF_OpDefinitionBuilderAddInput(void *builder, const char *spec) {
    Operation *operation = builder;
    operation->inputs[operation->count++] = spec;
}
static void TF_OpDefinitionBuilderAddOutput(void *builder, const char *spec) { ((Operation *)builder)->output = spec; }
static void TF_OpDefinitionBuilderSetShapeInferenceFunction(void *builder, void (*infer)(void *, void *)) {
    ((Operation *)builder)->infer = infer;
}
static void TF_ShapeInferenceContextSetUnknownShape(void *context, void *status) {
    (void)context;
    (void)status;
    shaped++;
}
static void TF_RegisterOpDefinition(void *builder, void *status) {
    (void)builder;
    (void)status;
    registered++;
}
static void *TF_NewKernelBuilder(const char *operation, const char *device, void *(*create)(void *),
                                 void (*compute)(void *, void *), void (*release)(void *)) {
    if (strcmp(device, "CPU") || create || release) stop("a kernel that the driver does not know how to run");
    for (int i = 0; i < registered; i++)
        if (!strcmp(operations[i].name, operation)) operations[i].compute = compute;
    return operations;
}
static void TF_RegisterKernelBuilder(const char *name, void *builder, void *status) {
    (void)name;
    (void)builder;
    (void)status;
}
static void TF_GetInput(void *context, int number, void **tensor, void *status) {
    (void)status;
    if (number >= ((Context *)context)->count) stop("TF_GetInput of an input that there is not");
    *tensor = handle_of(&((Context *)context)->inputs[number]);
}
static void *TF_AllocateOutput(void *context, int number, int type, const int64_t *shape, int rank, size_t bytes,
                               void *status) {
    Tensor *output = &((Context *)context)->output;
    int64_t values = 1;
    if (number || rank > MOST_RANK) stop("TF_AllocateOutput of an output that there is not");
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(values, shape[i], &values))
            stop("a shape that is negative or overflows, for which TensorFlow ends the process");
    if (values > LARGEST) {
        TF_SetStatus(status, RESOURCE_EXHAUSTED, "too large for the driver");
        return NULL;
    }
    size_t product = (size_t)values * size_of(type);
    if (product != bytes) stop("TF_AllocateOutput of another number of bytes than the shape has");
    output->type = type;
    output->rank = rank;
    memcpy(output->shape, shape, sizeof *shape * (size_t)rank);
    output->data = product ? exact(product, 0, &output->whole) : NULL;
    if (product) memset(output->data, type == STRING ? 0 : 0xA5, product); /* 0xA5: what is not written is seen */
    return handle_of(output);
}
static void TF_OpKernelContext_Failure(void *context, void *status) { ((Context *)context)->status = *(Status *)status; }

#define FUNCTIONS(F)                                                                                                    \
    F(TF_NewStatus) F(TF_DeleteStatus) F(TF_SetStatus) F(TF_GetCode) F(TF_NumDims) F(TF_Dim) F(TF_TensorData)           \
    F(TF_DeleteTensor) F(TF_NewOpDefinitionBuilder) F(TF_OpDefinitionBuilderAddInput) F(TF_OpDefinitionBuilderAddOutput) \
    F(TF_OpDefinitionBuilderSetShapeInferenceFunction) F(TF_ShapeInferenceContextSetUnknownShape)                       \
    F(TF_RegisterOpDefinition) F(TF_NewKernelBuilder) F(TF_RegisterKernelBuilder) F(TF_GetInput) F(TF_AllocateOutput)   \
    F(TF_OpKernelContext_Failure)

/* The kernels are compiled with these in place of dlopen and dlsym. */
void *fake_dlopen(const char *file, int mode) {
    (void)file;
    (void)mode;
    return operations;
}
void *fake_dlsym(void *library, const char *name) {
    (void)library;
#define FOUND(function) \
    if (!strcmp(name, #function)) return (void *)function;
    FUNCTIONS(FOUND)
    fprintf(stderr, "driver: has no fake of %s\n", name);
    return NULL;
}

/* ---- cases ---- */

/* Takes strings of each kind, whose bytes end where their memory does. */
static void take_strings(Tensor *tensor, size_t count) {
    String *string = tensor->data = count ? exact(count * sizeof *string, 0, &tensor->whole) : NULL;
    for (size_t i = 0; i < count; i++, string++) {
        size_t size = (size_t)take_number();
        memset(string, 0, sizeof *string);
        if (size <= MOST_SHORT) {
            string->in_place.size = (uint8_t)(size << 2 | SHORT);
            take(string->in_place.bytes, size);
            continue;
        }
        void *bytes;
        take(exact(size, 0, &bytes), size);
        if (size % 2)
            string->of_another.bytes = bytes;
        else
            string->elsewhere.bytes = bytes;
        string->elsewhere.size = size << 2 | (size % 2 ? OF_ANOTHER : LONG);
    }
}

static void take_tensor(Tensor *tensor) {
    tensor->type = (int)take_number();
    tensor->rank = (int)take_number();
    take(tensor->shape, sizeof *tensor->shape * (size_t)tensor->rank);
    size_t size = (size_t)take_number();
    if (tensor->type == STRING) {
        take_strings(tensor, size);
        return;
    }
    tensor->data = size ? exact(size, 0, &tensor->whole) : NULL;
    take(tensor->data, size);
}

static void free_tensor(Tensor *tensor) {
    int64_t values = tensor->type == STRING;
    for (int i = 0; i < tensor->rank; i++) values *= tensor->shape[i];
    for (String *string = tensor->data; values; values--, string++)
        if (string->in_place.size & 3)
            free((string->in_place.size & 3) == LONG ? string->elsewhere.bytes : (char *)string->of_another.bytes);
    free(tensor->whole);
}

static void give_output(const Tensor *output) {
    int64_t values = 1;
    give_number(output->rank);
    for (int i = 0; i < output->rank; i++) {
        give_number(output->shape[i]);
        values *= output->shape[i];
    }
    if (output->type != STRING) {
        give(output->data, (size_t)values * size_of(output->type));
        return;
    }
    for (String *string = output->data; values; values--, string++) {
        int is_long = string->in_place.size & 3;
        size_t size = is_long ? string->elsewhere.size >> 2 : string->in_place.size >> 2;
        char *bytes = is_long ? string->elsewhere.bytes : string->in_place.bytes;
        if (bytes[size]) stop("a string without a zero behind it");
        if (is_long && string->elsewhere.capacity < size) stop("a string over its capacity");
        give_number((int64_t)size);
        give(bytes, size);
        if (is_long) free(bytes);
    }
}

int can_resize_wide(void);

int main(int argument_count, char **arguments) {
    for (int i = 0; i < registered && argument_count == 1; i++) {
        printf("%s", operations[i].name);
        for (int j = 0; j < operations[i].count; j++) printf("; %s", operations[i].inputs[j]);
        puts("");
    }
    if (argument_count == 1) return 0;
    if (argument_count == 2) return puts(can_resize_wide() ? "wide" : "narrow") < 0;
    begin(argument_count, arguments);
    for (int64_t left = take_number(); left; left--) {
        static Context context;
        memset(&context, 0, sizeof context);
        char name[64] = {0};
        take(name, (size_t)take_number());
        context.count = (int)take_number();
        for (int i = 0; i < context.count; i++) take_tensor(&context.inputs[i]);
        int found = 0;
        while (found < registered && strcmp(operations[found].name, name)) found++;
        if (found == registered || operations[found].count != context.count) stop("no such operation");
        shaped = 0;
        operations[found].infer(&context, &context.status);
        if (!shaped) stop("an operation without an inference of shapes");
        operations[found].compute(NULL, &context);
        if (held) stop("a tensor is not deleted, or twice");
        give_text(context.status.message);
        give_number(context.status.code);
        if (context.status.code == OK) give_output(&context.output);
        for (int i = 0; i < context.count; i++) free_tensor(&context.inputs[i]);
        free(context.output.whole);
    }
    return fclose(results) != 0;
}
