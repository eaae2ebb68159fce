/* Options of an index: "name=value,name=value", checked against what every kind has and what the kind declares. */
#ifndef FAR_POOL_OPTIONS_H
#define FAR_POOL_OPTIONS_H

#include "pool/kind.h"

/* Fills in all values, the common ones first, then the kind's, by position. FAR_ERR_INVALID with words that name the
 * option. */
int far_index_options_parse(const far_index_kind *kind, const char *text, int64_t values[FAR_OPTIONS_MAX]);

/* What the kind knows, a line per option: "name=initial value", spaces, what it does, its range. Cut to fit; returns
 * text. */
const char *far_index_options_describe(const far_index_kind *kind, char *text, size_t size);
#define FAR_OPTIONS_DESCRIPTION (FAR_OPTIONS_MAX * 256)

unsigned far_index_option_count(const far_index_kind *kind);
/* The definition at a position, with the kind's own bounds; its name is NULL beyond the last. */
far_option_def far_index_option_at(const far_index_kind *kind, unsigned position);

#endif
