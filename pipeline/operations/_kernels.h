/* Marks functions that work on all pixels. They use the compiler's vectors, no processor's instructions; where the
 * loader can choose, each has a second build for AVX2. */
#ifndef STEPFEED_KERNELS_H
#define STEPFEED_KERNELS_H
#if defined(__x86_64__) && defined(__ELF__) && defined(__has_attribute) && !defined(__SANITIZE_ADDRESS__)
#if __has_attribute(target_clones)
#define KERNEL __attribute__((target_clones("avx2", "default")))
/* Of functions that round a product and a sum once, for which AVX2 alone has no instruction. */
#define KERNEL_FUSED __attribute__((target_clones("fma", "default")))
#endif
#endif
#ifndef KERNEL
#define KERNEL
#define KERNEL_FUSED
#endif
/* Marks what these functions call: a function that is not inlined has no second build. */
#define INLINED static inline __attribute__((always_inline))
/* Picks values of two vectors, where the compiler can; older ones need another way. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLED __builtin_shufflevector
#endif
#endif
#endif
