/* Background work that an operation of an index leaves to a task of its own, through far_index_spawn. */
#include "index/index.h"

#include <assert.h>
#include <string.h>


typedef struct index_work { /* The work that the task runs. In memory, the argument of `run` follows this structure. */
    far_index *index;
    void (*run)(far_task *t, far_index *index, void *arg);
} index_work;


static void run_index_work(far_task *t, void *arg) {
    index_work *work = arg;
    /* the index cannot be closed while it is in use */
    assert(atomic_load_explicit(&work->index->uses, memory_order_relaxed) > 0);
    work->run(t, work->index, work + 1);
    far_index_unuse(work->index);
}


bool far_index_spawn(far_task *t, far_index *index, void (*run)(far_task *t, far_index *index, void *arg),
                     const void *arg, size_t bytes) {
    far_scratch_mark mark = far_scratch_here(t);
    index_work *work = far_scratch(t, sizeof(*work) + bytes);
    if (!work)
        return false;
    *work = (index_work){index, run};
    if (bytes)
        memcpy(work + 1, arg, bytes);
    far_index_use(index);
    bool spawned = far_spawn(t, run_index_work, work, sizeof(*work) + bytes);
    if (!spawned)
        far_index_unuse(index);
    far_scratch_back(t, mark);
    return spawned;
}
