/* Time as seconds. Nothing that carries bits reads it. */
#ifndef LS_BASE_CLOCK_H
#define LS_BASE_CLOCK_H

/* Since some moment of this boot, never set back. */
double ls_clock_seconds(void);

#endif
