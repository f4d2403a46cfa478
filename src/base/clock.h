/* Time as seconds. Nothing that carries bits reads it. */
#ifndef LS_BASE_CLOCK_H
#define LS_BASE_CLOCK_H

/* Since some moment of this boot, never set back. */
double ls_clock_seconds(void);

/* A duration for people, rounded: "45 s", "12 min", "3 h 20 min", "2 d 4 h". */
#define LS_DURATION_TEXT_MAX 32
void ls_duration_text(char text[LS_DURATION_TEXT_MAX], double seconds);

#endif
