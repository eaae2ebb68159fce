/* Options of an index: text of the form "name=value,name=value", checked against the options that every kind has and
 * those that the kind declares. */
#ifndef FAR_POOL_CATALOG_OPTIONS_H
#define FAR_POOL_CATALOG_OPTIONS_H

#include "pool/kind.h"

/* Sets the values of all options: first the common ones, then those of the kind, by position. Returns FAR_ERR_INVALID
 * with a text that names the option. */
int far_index_options_parse(const far_index_kind *kind, const char *text, int64_t values[FAR_OPTIONS_MAX]);

/* Returns FAR_ERR_INVALID if these options fix sizes of keys and values that do not fit into a block of the pool. */
int far_index_options_check_sizes(const far_pool *pool, const int64_t values[FAR_OPTIONS_MAX]);

/* Returns FAR_ERR_INVALID, with a text that names the option, if the text sets a private option (private_options.h) in
 * a process that may not do so. Called before an index is created; opening an index accepts private options. */
int far_index_options_check_public(const far_index_kind *kind, const char *text);

/* Writes a description of the kind's public options into `text`, one line per option: "name=initial value", its meaning
 * and its range. The result is cut to `size`. Returns `text`. */
const char *far_index_options_describe(const far_index_kind *kind, char *text, size_t size);
#define FAR_OPTIONS_DESCRIPTION (FAR_OPTIONS_MAX * 256)

unsigned far_index_option_count(const far_index_kind *kind);
/* Returns the definition of the option at a position, with the bounds of this kind. Its name is NULL after the last
 * option. */
far_option_def far_index_option_at(const far_index_kind *kind, unsigned position);

#endif
