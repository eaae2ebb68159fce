/* Coverage of named points. The first part of a point's name, before the colon, names the kind to which it belongs. */
#include "verify/coverage.h"

#include "index/index.h"
#include "task/points.h"

#include <inttypes.h>
#include <string.h>


size_t far_coverage_points(void) {
    return far_point_count();
}


void far_coverage_collect(_Atomic uint64_t *met) {
    for (size_t i = 0; i < far_point_count(); i++)
        atomic_fetch_add_explicit(&met[i], atomic_exchange_explicit(&far_point_at(i)->met, 0, memory_order_relaxed),
                                  memory_order_relaxed);
}


static bool point_belongs_to_kind(const far_point_site *site, const char *kind) {
    size_t length = strlen(kind);
    return strncmp(site->name, kind, length) == 0 && site->name[length] == ':';
}


static bool point_belongs_to_any_kind(const far_point_site *site) {
    char kind[32];
    snprintf(kind, sizeof(kind), "%.*s", (int)strcspn(site->name, ":"), site->name);
    return far_index_kind_named(kind) != NULL;
}


static uint64_t count_at(const _Atomic uint64_t *met, size_t i) {
    return atomic_load_explicit(&met[i], memory_order_relaxed);
}


size_t far_coverage_print_missed(const _Atomic uint64_t *met, const char *kind, FILE *out) {
    size_t all = 0, missed = 0;
    for (size_t i = 0; i < far_point_count(); i++)
        if (point_belongs_to_kind(far_point_at(i), kind)) {
            all++;
            missed += count_at(met, i) == 0;
        }
    fprintf(out, "torture: %s: %zu of %zu points of its code were met", kind, all - missed, all);
    const char *before = "; not met: ";
    for (size_t i = 0; i < far_point_count(); i++)
        if (point_belongs_to_kind(far_point_at(i), kind) && count_at(met, i) == 0) {
            fprintf(out, "%s%s (%s)", before, far_point_at(i)->name, far_point_at(i)->function);
            before = ", ";
        }
    fputc('\n', out);
    return missed;
}


void far_coverage_print_points(const _Atomic uint64_t *met, const char *kind, FILE *out) {
    for (int of_kind = 1; of_kind >= 0; of_kind--)
        for (size_t i = 0; i < far_point_count(); i++) {
            const far_point_site *site = far_point_at(i);
            if (of_kind ? point_belongs_to_kind(site, kind) : !point_belongs_to_any_kind(site))
                fprintf(out, "%12" PRIu64 "  %-28s %s\n", count_at(met, i), site->name, site->function);
        }
}
