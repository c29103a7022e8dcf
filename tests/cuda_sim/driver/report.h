/* One line of JSON per process, appended to STAND_IN_REPORT when the process ends. */
#ifndef STAND_IN_REPORT_H
#define STAND_IN_REPORT_H
void note_unhandled_launch(void);
unsigned long unhandled_launches(void);
void write_report(void);
#endif
