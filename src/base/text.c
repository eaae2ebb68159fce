/* Text from other processes, which must not control the terminal or break the format of an output (text.h). */
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>


/* Returns the number of bytes of the UTF-8 character at `c`, as its first byte announces it, or 0 if that byte begins no
 * character. Sets *value to the bits of the first byte, and *least to the smallest character that needs as many bytes.
 */
static size_t announced_bytes(uint8_t c, uint32_t *value, uint32_t *least) {
    if (c < 0x80) {
        *value = c;
        *least = 0;
        return 1;
    }
    size_t bytes = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc0 && c < 0xe0 ? 2 : 0;
    *value = bytes ? c & (0xffu >> (bytes + 1)) : 0;
    *least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
    return bytes;
}


size_t far_printable_bytes(const void *text, size_t count) {
    const uint8_t *at = text;
    uint32_t value, least;
    size_t bytes = count ? announced_bytes(at[0], &value, &least) : 0;
    if (bytes == 0 || bytes > count)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    bool is_control = value < 0x20 || (value >= 0x7f && value < 0xa0);
    bool is_character = value >= least && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    return is_character && !is_control ? bytes : 0;
}


void far_make_printable(char *text) {
    for (size_t left = strlen(text); left > 0;) {
        size_t bytes = far_printable_bytes(text, left);
        if (bytes == 0) {
            *text = '?';
            bytes = 1;
        }
        text += bytes;
        left -= bytes;
    }
}


void far_shorten_text(char *text, size_t bytes) {
    size_t length = strlen(text);
    if (length <= bytes)
        return;
    while (bytes > 0 && ((uint8_t)text[bytes] & 0xc0) == 0x80) /* inside a character */
        bytes--;
    text[bytes] = 0;
}
