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

/* Writes an image of another size, of which each line and pixel sums some with whole weights, as kernels.py in
 * pipeline/augmentation has them. Sums of lines are rounded to four bits of fraction. For each line of the result `down`
 * has the first line that it sums, which is not before that of the line above, and `taps_down` weights of 1 / WHOLE,
 * which add up to no more than 1; `across` likewise for pixels. `room` is as for `resize_image`. */
enum { WHOLE = 1 << 12 };
int64_t room_to_resize_whole(Extent before, Extent after, int64_t channels, int64_t taps_down, int64_t taps_across);
void resize_whole(const uint8_t *image, Extent before, uint8_t *to, Extent after, int64_t channels, const int32_t *down,
                  int64_t taps_down, const int32_t *across, int64_t taps_across, void *room);
#endif
