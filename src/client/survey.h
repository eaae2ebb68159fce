/* A look at the whole pool at once, from tables and counters, without a walk: its indexes, and who uses them. For the
 * command; not part of the public API. */
#ifndef FAR_CLIENT_SURVEY_H
#define FAR_CLIENT_SURVEY_H

#include "pool/handle.h"

typedef struct far_surveyed_index {
    uint32_t uid;
    char name[FAR_NAME_MAX + 1], kind[16], options[FAR_OPTIONS_TEXT_MAX + 1];
    uint64_t keys;  /* as handles have told: those that died since they last did are not counted */
    uint64_t bytes; /* far memory that is in use by it, or held for it by a handle */
} far_surveyed_index;

typedef struct far_surveyed_handle { /* a compute node: a process, as a rule */
    unsigned id, generation;         /* of its own session */
    unsigned sessions;               /* the user's */
    bool own;                        /* the one that asks */
    int64_t process;                 /* 0: not known */
    uint32_t *uids;                  /* indexes that its user has open */
    size_t uid_count;
    far_bulletin bulletin; /* process 0: it has told nothing */
} far_surveyed_handle;

typedef struct far_survey {
    far_pool_usage usage;
    far_surveyed_index *indexes; /* by name */
    size_t index_count;
    far_surveyed_handle *handles; /* by id; those found dead are left out */
    size_t handle_count;
} far_survey;

/* Freed in either case with far_survey_free. */
int far_pool_survey(far_session *s, far_survey *survey);
void far_survey_free(far_survey *survey);

const far_surveyed_index *far_survey_index(const far_survey *survey, uint32_t uid);     /* NULL: dropped meanwhile */
const far_surveyed_index *far_survey_named(const far_survey *survey, const char *name); /* NULL: there is none */
bool far_survey_has_open(const far_surveyed_handle *handle, uint32_t uid);

#endif
