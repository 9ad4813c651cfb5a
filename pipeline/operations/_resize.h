/* Resizes an image: pipeline/operations/__init__.py describes it. */
#ifndef STEPFEED_RESIZE_H
#define STEPFEED_RESIZE_H
#include <stdint.h>

typedef struct {
    int64_t height, width;
} Extent;

/* Returns how many bytes of memory `resize_image` needs. */
int64_t room_to_resize(Extent before, Extent after, int64_t channels);

/* Writes an image of another size; `room` is aligned to 64 bytes. */
void resize_image(const uint8_t *image, Extent before, uint8_t *to, Extent after, int64_t channels, void *room);
#endif
