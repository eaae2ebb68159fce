/* Which points were met, by kind: the first part of a point's name says whose it is. */
#include "verify/coverage.h"

#include "index/index.h"
#include "task/points.h"

#include <inttypes.h>
#include <string.h>


size_t far_coverage_points(void) {
    return far_point_count();
}


void far_coverage_take(_Atomic uint64_t *met) {
    for (size_t i = 0; i < far_point_count(); i++)
        atomic_fetch_add_explicit(&met[i], atomic_exchange_explicit(&far_point_at(i)->met, 0, memory_order_relaxed),
                                  memory_order_relaxed);
}


static bool is_of(const far_point_site *site, const char *kind) {
    size_t length = strlen(kind);
    return strncmp(site->name, kind, length) == 0 && site->name[length] == ':';
}


static bool is_of_a_kind(const far_point_site *site) {
    char kind[32];
    snprintf(kind, sizeof(kind), "%.*s", (int)strcspn(site->name, ":"), site->name);
    return far_index_kind_named(kind) != NULL;
}


static uint64_t count(const _Atomic uint64_t *met, size_t i) {
    return atomic_load_explicit(&met[i], memory_order_relaxed);
}


size_t far_coverage_tell(const _Atomic uint64_t *met, const char *kind, FILE *out) {
    size_t all = 0, missed = 0;
    for (size_t i = 0; i < far_point_count(); i++)
        if (is_of(far_point_at(i), kind)) {
            all++;
            missed += count(met, i) == 0;
        }
    fprintf(out, "torture: %s: %zu of %zu points of its code were met", kind, all - missed, all);
    const char *before = "; not met: ";
    for (size_t i = 0; i < far_point_count(); i++)
        if (is_of(far_point_at(i), kind) && count(met, i) == 0) {
            fprintf(out, "%s%s (%s)", before, far_point_at(i)->name, far_point_at(i)->function);
            before = ", ";
        }
    fputc('\n', out);
    return missed;
}


void far_coverage_show(const _Atomic uint64_t *met, const char *kind, FILE *out) {
    for (int of_kind = 1; of_kind >= 0; of_kind--)
        for (size_t i = 0; i < far_point_count(); i++) {
            const far_point_site *site = far_point_at(i);
            if (of_kind ? is_of(site, kind) : !is_of_a_kind(site))
                fprintf(out, "%12" PRIu64 "  %-28s %s\n", count(met, i), site->name, site->function);
        }
}
