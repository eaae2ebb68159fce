/* The list of kinds in this build. A new kind is two lines here: its declaration and its entry in the list. */
#include "index/index.h"

extern const far_index_kind far_toy_kind;
extern const far_index_kind far_chime_kind;
extern const far_index_kind far_dart_kind;
extern const far_index_kind far_dolphin_kind;
extern const far_index_kind far_shard_kind;
extern const far_index_kind far_smart_kind;

const far_index_kind *const far_index_kinds[] = {
    &far_toy_kind, &far_chime_kind, &far_dart_kind, &far_dolphin_kind, &far_shard_kind, &far_smart_kind, NULL,
};


const far_index_kind *far_index_kind_named(const char *name) {
    return far_kind_in(far_index_kinds, name);
}


/* Hidden kinds, such as the toy map, are listed only if there are no others. */
bool far_index_kind_shown(const far_index_kind *kind) {
    bool any = false;
    for (unsigned i = 0; far_index_kinds[i]; i++)
        any |= !far_index_kinds[i]->hidden;
    return !kind->hidden || !any;
}
