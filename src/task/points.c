/* The section in which the linker gathers the points of all objects. */
#include "task/points.h"

/* The linker makes these two for a section with such a name. Weak: a user's linker that discards the section, as nothing of
 * his program needs it, does not miss them. */
extern far_point_site *const __start_far_points[] __attribute__((weak, visibility("hidden")));
extern far_point_site *const __stop_far_points[] __attribute__((weak, visibility("hidden")));


size_t far_point_count(void) {
    return (size_t)(__stop_far_points - __start_far_points);
}


far_point_site *far_point_at(size_t i) {
    return __start_far_points[i];
}
