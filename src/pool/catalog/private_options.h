/* Private options of index kinds: settings that make a rare path of the code likely, or that turn off an optimisation,
 * so that a test can reach or measure it. They reproduce no figure of a paper and serve no user, so an index with such
 * an option can be created only by a process that has called far_private_options_allow: the tests and `farindex
 * torture`. Every process can open an index that has them. */
#ifndef FAR_POOL_CATALOG_PRIVATE_OPTIONS_H
#define FAR_POOL_CATALOG_PRIVATE_OPTIONS_H

#include "pool/kind.h"

/* allows or forbids private options in this process from now on; they are forbidden initially */
void far_private_options_allow(bool allow);

/* Returns true if `name` is a private option of the kind. */
bool far_option_is_private(const far_index_kind *kind, const char *name);

#endif
