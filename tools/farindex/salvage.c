/* Salvage for `dump --salvage` and `copy --salvage`: passes on the pairs of a damaged index that can be read, and
 * reports the keys that cannot be read. Adjacent skipped keys are reported as one range. */
#include "client/op.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <string.h>

/* number of lines about skipped keys; the rest is only counted */
#define LINES_MAX 50


static void report_skipped_run(cli_salvage *s) {
    if (s->run && s->lines++ < LINES_MAX) {
        cli_progress_end();
        fputs("farindex: skipped key ", stderr);
        cli_print_escaped(stderr, s->first.bytes, s->first.length);
        if (s->run > 1) {
            fputs(" to ", stderr);
            cli_print_escaped(stderr, s->last.bytes, s->last.length);
            fprintf(stderr, " (%" PRIu64 " keys)", s->run);
        }
        fprintf(stderr, ": %s\n", s->reason);
        if (s->lines == LINES_MAX)
            fputs("farindex: further skipped keys are only counted\n", stderr);
    }
    s->run = 0;
}


static void note_skipped_key(void *ctx, const void *key, size_t key_len, bool adjacent, const char *message) {
    cli_salvage *s = ctx;
    if (!adjacent)
        report_skipped_run(s);
    cli_bytes *to = s->run ? &s->last : &s->first;
    to->length = 0;
    cli_bytes_add(to, key, key_len);
    if (s->run == 0)
        snprintf(s->reason, sizeof(s->reason), "%s", message);
    s->run++;
    s->skipped++;
}


static int pass_on_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    cli_salvage *s = ctx;
    return s->each(s->ctx, key, key_len, value, value_len);
}


bool cli_salvage_pairs(const cli_pool *p, cli_salvage *s) {
    int err = far_index_salvage(p->session, p->index, &(far_salvage){pass_on_pair, note_skipped_key, s});
    report_skipped_run(s);
    cli_bytes_free(&s->first);
    cli_bytes_free(&s->last);
    cli_progress_end();
    if (err < 0)
        cli_failed("index '%s': the salvage ended early: %s", p->index->name, far_last_error());
    else if (err > 0 || s->skipped)
        cli_note("index '%s' is damaged: %" PRIu64 " keys are known that cannot be read; there may be others in broken "
                 "objects",
                 p->index->name, s->skipped);
    return err == 0 && s->skipped == 0 && !*p->missing;
}


int cli_pairs_failed(int64_t err, const char *command) {
    if (err != FAR_ERR_CORRUPT)
        return cli_pool_failed();
    return cli_failed("%s; 'farindex %s --salvage' saves the pairs that can still be read", far_last_error(), command);
}
