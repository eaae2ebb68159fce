/* Access to the linker section that contains the named points of all object files (far_point in task.h). */
#include "task/points.h"

/* The linker defines these two symbols for a section with this name. They are weak, because the linker of a user's
 * program may discard the section if the program does not need it. */
extern far_point_site *const __start_far_points[] __attribute__((weak, visibility("hidden")));
extern far_point_site *const __stop_far_points[] __attribute__((weak, visibility("hidden")));


size_t far_point_count(void) {
    return (size_t)(__stop_far_points - __start_far_points);
}


far_point_site *far_point_at(size_t i) {
    return __start_far_points[i];
}
