/* Text from other processes, which must not control a terminal or break the format of an output. */
#ifndef FAR_BASE_TEXT_H
#define FAR_BASE_TEXT_H

#include <stddef.h>

/* Returns the number of bytes of the character at the beginning of the text, or 0 if its first byte must not be printed:
 * it belongs to no valid UTF-8 character, or to a control character (C0, DEL or C1). */
size_t far_printable_bytes(const void *text, size_t count);
/* Replaces every byte that must not be printed by '?'. The result is valid UTF-8. */
void far_make_printable(char *text);
/* Shortens a printable text to at most so many bytes, without cutting a character. */
void far_shorten_text(char *text, size_t bytes);

#endif
