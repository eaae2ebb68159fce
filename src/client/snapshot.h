/* Statistics snapshot of a pool: its indexes, and the handles that use them. It is read from tables and counters in far
 * memory, without traversing the indexes. Used by the command-line tool; not part of the public API. */
#ifndef FAR_CLIENT_SNAPSHOT_H
#define FAR_CLIENT_SNAPSHOT_H

#include "pool/handle.h"

typedef struct far_snapshot_index_info {
    uint32_t uid;
    char name[FAR_NAME_MAX + 1], kind[16], options[FAR_OPTIONS_TEXT_MAX + 1];
    uint64_t keys;  /* number of keys that handles have published; the latest changes of failed handles are missing */
    uint64_t bytes; /* far memory in use by the index, or reserved for it by a handle */
} far_snapshot_index_info;

typedef struct far_snapshot_handle_info { /* one handle, usually one process */
    unsigned id, generation;         /* id and generation of the handle's system session */
    unsigned sessions;               /* number of user sessions of this handle */
    bool own;                        /* true if this is the handle that takes the snapshot */
    int64_t process;                 /* process id; 0: not known */
    far_status_record bulletin;      /* status record; its `process` is 0 if the handle has published none */
} far_snapshot_handle_info;

typedef struct far_snapshot {
    far_pool_usage usage;
    far_snapshot_index_info *indexes; /* array of the indexes of the pool, sorted by name */
    size_t index_count;
    far_snapshot_handle_info *handles; /* sorted by id; handles that are found to have failed are left out */
    size_t handle_count;
} far_snapshot;

/* Takes a snapshot. The caller frees it with far_snapshot_free, also after an error. */
int far_snapshot_take(far_session *s, far_snapshot *survey);
void far_snapshot_free(far_snapshot *survey);

/* returns NULL if the index was dropped meanwhile */
const far_snapshot_index_info *far_snapshot_index_by_uid(const far_snapshot *survey, uint32_t uid);
/* returns NULL if there is no index of that name */
const far_snapshot_index_info *far_snapshot_index_by_name(const far_snapshot *survey, const char *name);

#endif
