/* Asking other handles for memory that they do not need: by an announcement in a word of the superblock
 * (far_short_pack), of which there is one at a time. Each has a number. The others read it with the epoch, or, asleep,
 * from time to time. While it stands and is not old, their sessions take no memory and give up all that they hold free;
 * then each tells in the registry the number that it has answered.
 *
 * A round has three: one when it begins; after that the epochs pass until what was retired by then can be given up; one
 * more, whose answers are waited for; and another, because some have given back objects in blocks of others, which only
 * these can find. When the attempt that follows fails and the word has stood all the time, there was not enough in the
 * whole pool when the round began.
 *
 * Who sleeps and has told that it holds nothing is not waited for. Who does not answer was stopped, perhaps: it counts
 * as deaf, and is not waited for again before it answers. */
#include "pool/hunger.h"

#define RECENT_EPOCHS 16    /* so old an announcement still counts: it is renewed before, or the announcer is gone */
#define ANSWER_TICKS  10000 /* how long answers are waited for: a process may not get to run for long */
#define ROUNDS_MAX    8     /* beside busy handles there is always something that may come back */
#define HEED_TICKS    2000  /* how long announcements of others hold up an operation, however many come */

static const far_addr short_word = FAR_SUPER_SHORT;


/* Hearing. */

bool far_is_announced(far_pool *pool) {
    far_quarantine *q = pool->quarantine;
    uint64_t word = atomic_load_explicit(&q->announced, memory_order_relaxed);
    uint64_t known = atomic_load_explicit(&pool->epochs.known, memory_order_relaxed);
    return far_short_handle(word) != 0 && far_short_handle(word) != pool->own->id &&
           far_short_is_near(word, known, RECENT_EPOCHS) &&
           word != atomic_load_explicit(&q->overheard, memory_order_relaxed);
}


/* Those who read it do not come here in order. */
bool far_memory_hear(far_pool *pool, uint64_t word) {
    far_quarantine *q = pool->quarantine;
    if (q == NULL)
        return false;
    uint64_t before = atomic_load_explicit(&q->announced, memory_order_relaxed);
    int32_t newer;
    do {
        newer = (int32_t)(far_short_number(word) - far_short_number(before));
        if (newer < 0 || (newer == 0 && far_short_handle(word) != 0))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&q->announced, &before, word, memory_order_relaxed,
                                                    memory_order_relaxed));
    return newer > 0;
}


static uint32_t last_number(far_pool *pool) {
    return far_short_number(atomic_load_explicit(&pool->quarantine->announced, memory_order_relaxed));
}


bool far_memory_is_asked(far_memory *m) {
    far_quarantine *q = m->session->pool->quarantine;
    return m->shortage != atomic_load_explicit(&q->shortage, memory_order_relaxed) ||
           m->answered != last_number(m->session->pool);
}


bool far_must_heed(far_task *t, far_hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    if (!far_is_announced(pool))
        return false;
    if (h->heeds_until == 0)
        h->heeds_until = far_now(t) + HEED_TICKS * far_housekeeping_tick(pool);
    if (far_now(t) < h->heeds_until)
        return true;
    atomic_store_explicit(&q->heedless, true, memory_order_relaxed);
    atomic_store_explicit(&q->overheard, atomic_load_explicit(&q->announced, memory_order_relaxed),
                          memory_order_relaxed);
    return false;
}


/* Looking. */

#define HANDLE_WORDS (FAR_CLIENT_ID_MAX / 64 + 1)

typedef struct abroad {
    uint32_t asked;                /* the number whose answers are looked for */
    uint64_t held;                 /* what sessions of other handles hold beside live data, as they told last */
    unsigned count;                /* of them */
    bool awake;                    /* some of the handles are */
    bool dead;                     /* some sessions are, and nobody has swept what they left */
    uint64_t due[HANDLE_WORDS];    /* bit per handle that is awake, or has told that it holds something */
    uint64_t silent[HANDLE_WORDS]; /* bit per handle of which not all sessions have answered */
} abroad;


static void add_client(abroad *a, const far_quarantine *q, unsigned id, const far_client *client) {
    unsigned handle = far_client_handle_of(client->word), at = handle / 64;
    uint64_t bit = 1ull << handle % 64;
    uint64_t held = client->free_bytes + client->retired_bytes + far_client_pages(client->answer);
    bool awake = id == handle && client->pin != 0;
    a->count++;
    if (awake || held > 0)
        a->due[at] |= bit;
    bool silent = (int32_t)(far_client_answered(client->answer) - a->asked) < 0;
    if (silent)
        a->silent[at] |= bit;
    if (silent && q->deaf[at] & bit)
        return;
    a->awake |= awake;
    a->held += held;
}


static int look_at_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    abroad *a = ctx;
    far_conn *conn = t->session->conn;
    far_client_state state = far_client_state_of(client->word);
    if (state == FAR_CLIENT_FREE || far_client_handle_of(client->word) == far_task_pool(t)->own->id)
        return 0;
    /* Of processes that live too short to look after each other nobody may have noticed. */
    if (state == FAR_CLIENT_DEAD || conn->fabric->ops->is_dead(conn, id, far_client_generation_of(client->word)) > 0)
        a->dead = true;
    else
        add_client(a, far_task_pool(t)->quarantine, id, client);
    return 0;
}


/* 1: an answer is to be waited for. Who has answered is not deaf. */
static int look_abroad(far_task *t, abroad *a, uint32_t asked) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    *a = (abroad){.asked = asked};
    int result = far_clients_each(t, look_at_client, a);
    for (unsigned i = 0; result >= 0 && i < HANDLE_WORDS; i++) {
        q->deaf[i] &= a->silent[i];
        if (a->due[i] & a->silent[i] & ~q->deaf[i])
            result = 1;
    }
    return result;
}


static void note_deaf(far_quarantine *q, const abroad *a) {
    for (unsigned i = 0; i < HANDLE_WORDS; i++)
        q->deaf[i] |= a->due[i] & a->silent[i];
}


/* Asking. */

int far_announce(far_task *t, far_hunger *h) {
    far_pool *pool = far_task_pool(t);
    uint64_t epoch, before, word = atomic_load_explicit(&pool->quarantine->announced, memory_order_relaxed);
    for (;;) {
        int err = far_epoch_read(t, &epoch);
        if (err < 0)
            return err;
        if (far_must_heed(t, h))
            return 1;
        uint64_t mine = far_short_pack(far_short_number(word) + 1, epoch, pool->own->id);
        if ((err = far_cas_word(t, short_word, word, mine, &before)) < 0)
            return err;
        far_memory_hear(pool, before == word ? mine : before);
        if (before == word) {
            h->announced = mine;
            h->all_given = false;
            return 0;
        }
        word = before;
    }
}


/* 1: our announcement has stood since it was made: who answered it has taken nothing since. */
static int still_stands(far_task *t, const far_hunger *h) {
    uint64_t word, epoch;
    int err = far_read_word(t, short_word, &word);
    if (err == 0)
        err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    far_memory_hear(far_task_pool(t), word);
    return h->announced != 0 && word == h->announced && far_short_is_near(word, epoch, RECENT_EPOCHS);
}


/* Before it grows old. Those who took it for old have answered without giving: then it has not stood. */
static int renew(far_task *t, far_hunger *h, int *stands) {
    if (far_short_is_near(h->announced, far_epoch_known(t), RECENT_EPOCHS / 2))
        return 0;
    int still = still_stands(t, h);
    *stands = *stands && still;
    return still < 0 ? still : far_announce(t, h);
}


int far_wait_for_answers(far_task *t, far_hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    uint64_t until = far_now(t) + ANSWER_TICKS * far_housekeeping_tick(pool);
    far_scratch_mark mark = far_scratch_here(t);
    abroad *a = far_scratch(t, sizeof(*a));
    int stands = a == NULL ? FAR_ERR_NO_MEMORY : still_stands(t, h), err = stands < 0 ? stands : far_announce(t, h);
    uint32_t asked = far_short_number(h->announced);
    while (err == 0 && (err = look_abroad(t, a, asked)) == 1) {
        if (far_now(t) >= until)
            note_deaf(q, a);
        if ((err = far_hunger_tick(t)) == 0)
            err = renew(t, h, &stands);
    }
    if (err == 0) {
        int still = still_stands(t, h);
        err = still < 0 ? still : 0;
        h->all_given = stands && still > 0 && a->held == 0;
        q->in_vain = a->held;
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


int far_is_worth_asking(far_task *t, const far_hunger *h, bool *dead) {
    far_scratch_mark mark = far_scratch_here(t);
    abroad *a = far_scratch(t, sizeof(*a));
    int err = a == NULL ? FAR_ERR_NO_MEMORY : look_abroad(t, a, last_number(far_task_pool(t))), given = 0;
    bool worth = false;
    if (err >= 0 && h->all_given)
        err = given = still_stands(t, h);
    if (err >= 0) {
        bool may_have = a->awake || a->held != far_task_pool(t)->quarantine->in_vain;
        worth = !given && a->count > 0 && may_have && h->rounds < ROUNDS_MAX;
        *dead = a->dead;
        if (a->count > 0 && h->rounds == 0) /* by them, in blocks of this handle, at any time */
            atomic_fetch_add_explicit(&far_task_pool(t)->quarantine->given, 1, memory_order_relaxed);
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : worth;
}


int far_take_back(far_task *t, const far_hunger *h) {
    far_pool *pool = far_task_pool(t);
    if (h->announced == 0 || t->session->lost ||
        atomic_load_explicit(&pool->quarantine->announced, memory_order_relaxed) != h->announced)
        return 0;
    far_point(t, "hunger:take_back");
    uint64_t nobody = far_short_pack(far_short_number(h->announced), 0, 0), before;
    far_aside aside = far_aside_begin(t);
    int err = far_cas_word(t, short_word, h->announced, nobody, &before);
    far_aside_end(t, aside);
    if (err >= 0)
        far_memory_hear(pool, before == h->announced ? nobody : before);
    return err;
}
