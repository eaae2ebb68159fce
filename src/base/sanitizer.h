/* Determines for which sanitizer the code is compiled: FAR_ASAN and FAR_TSAN are 0 or 1, with gcc and with clang. */
#ifndef FAR_BASE_SANITIZER_H
#define FAR_BASE_SANITIZER_H

#if defined(__has_feature)
#define FAR_HAS_FEATURE(name) __has_feature(name)
#else
#define FAR_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || FAR_HAS_FEATURE(address_sanitizer)
#define FAR_ASAN 1
#else
#define FAR_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__) || FAR_HAS_FEATURE(thread_sanitizer)
#define FAR_TSAN 1
#else
#define FAR_TSAN 0
#endif

#endif
