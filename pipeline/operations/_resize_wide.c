/* _resize.c with vectors of 64 bytes, for processors with AVX-512. Its VBMI2 is asked for, too: processors that lack it
 * are slower for a while after any use of such vectors. */
#include "_resize.h"

#include "_kernels.h"

#if defined(__x86_64__) && defined(__ELF__) && defined(__has_attribute) && defined(__has_builtin) && !defined(NARROW)
#if __has_attribute(target) && __has_builtin(__builtin_shufflevector)
#define WIDE
#endif
#endif

#ifdef WIDE
#undef KERNEL
#define KERNEL __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))
enum { ABREAST = 16 };
#include "_resize.c"

int can_resize_wide(void) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
}

int64_t room_to_resize_wide(Extent before, Extent after, int64_t channels) { return room_of(before, after, channels); }

void resize_wide(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after, int64_t channels,
                 int mirrored, void *room) {
    resize_in(room, image, stride, before, to, after, channels, mirrored);
}
#else
int can_resize_wide(void) { return 0; }

int64_t room_to_resize_wide(Extent before, Extent after, int64_t channels) {
    (void)before, (void)after, (void)channels;
    return 0;
}

void resize_wide(const uint8_t *image, int64_t stride, Extent before, uint8_t *to, Extent after, int64_t channels,
                 int mirrored, void *room) {
    (void)image, (void)stride, (void)before, (void)to, (void)after, (void)channels, (void)mirrored, (void)room;
}
#endif
