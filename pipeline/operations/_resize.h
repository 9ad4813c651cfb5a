/* Resizes an image: pipeline/operations/__init__.py describes it. */
#ifndef STEPFEED_RESIZE_H
#define STEPFEED_RESIZE_H
#include <stdint.h>

typedef struct {
    int64_t height, width;
} Extent;

/* Returns how many bytes of memory `resize_image` needs. */
int64_t room_to_resize(Extent before, Extent after, int64_t channels);

/* Writes an image of another size, mirrored from left to right or not. `stride` is the bytes from line to line of the
 * image, which may be a part of a larger one; `room` is aligned to 64 bytes. */
void resize_image(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after, int64_t channels,
                  int mirrored, void *room);

/* The same of a build with vectors twice as wide, for processors of x86-64 that have them. */
int can_resize_wide(void);
int64_t room_to_resize_wide(Extent before, Extent after, int64_t channels);
void resize_wide(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after, int64_t channels,
                 int mirrored, void *room);
#endif
